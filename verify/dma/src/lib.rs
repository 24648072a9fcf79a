//! The source of `shootdown-dma` with its mutants woven in, for the tests beside it, which turn
//! mutants on: the models for `loom`, and those that must fail without a step.

#![no_std]
#![allow(warnings, clippy::all)] // of copies that have changes in them

include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

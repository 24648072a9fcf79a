//! The source of `shootdown-dma` with its mutants woven in, for the tests beside it, which turn
//! mutants on: the models for `loom`, and those that must fail without a step.

#![no_std]
// Of copies that have changes in them, and no comments.
#![allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

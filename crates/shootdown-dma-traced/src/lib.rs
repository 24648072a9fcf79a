//! The source of `shootdown-dma`, with its mutants woven in and compiled with traced atomics.

#![no_std]
#![allow(warnings, clippy::all)] // of copies that have changes in them

include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

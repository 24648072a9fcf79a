//! The source of `shootdown-dma`, and of `shootdown-vfio`, which builds on it, with their mutants
//! woven in, for the tests beside it, which turn mutants on: the models for `loom`, and those that
//! must fail without a step.

// Of copies that have changes in them, and no comments.
#![allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

/// By this name `shootdown-vfio` knows the library.
#[cfg(not(loom))]
extern crate self as shootdown_dma;
#[cfg(not(loom))]
include!(concat!(env!("OUT_DIR"), "/woven/vfio.rs"));

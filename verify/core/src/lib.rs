//! The source of `shootdown` with its mutants woven in, for the model checker `loom`, whose models
//! are in `tests/`. Empty without `cfg(loom)`.

#![no_std]
// Of copies that have changes in them, and no comments.
#![allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]

#[cfg(loom)]
include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

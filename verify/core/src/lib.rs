//! The source of `shootdown` with its mutants woven in, for the model checker `loom`, whose models
//! are in `tests/`. Empty without `cfg(loom)`.

#![no_std]
#![allow(warnings, clippy::all)] // of copies that have changes in them

#[cfg(loom)]
include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

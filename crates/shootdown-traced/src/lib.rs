//! The source of `shootdown`, with its mutants woven in and compiled with traced atomics.

#![no_std]
// Of copies that have changes in them, and no comments.
#![allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));

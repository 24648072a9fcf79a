//! The instructions that load and invalidate translations.
//!
//! A translation cache is changed by a handful of privileged instructions, each with an operand
//! format of its own: a bit too many and the CPU faults inside a flush, a bit too few and an entry
//! survives. This crate is the only place of the project with inline assembly, and it keeps the two
//! questions apart:
//!
//! - *Which operands?* Pure values and functions, built and tested on any host: [`x86_64::Pcid`],
//!   [`x86_64::Cr3`], [`x86_64::Invpcid`], [`x86_64::InvlpgbOperands`]. A value that exists is one
//!   the instruction accepts; everything else is a typed error.
//! - *Run it.* `unsafe` functions of a single instruction, compiled only for the architecture they
//!   belong to.
//!
//! Between them sits [`x86_64::Port`]: given what the CPU can do, it turns a request of the core
//! ([`shootdown::regime::Invalidate`]) into a sequence of [`x86_64::Step`]s, again as values, so
//! that "does this sequence remove everything it must?" is a question a host test answers. Together
//! with `x86_64::X86Regime` that is a complete [`shootdown::regime::Regime`] for a kernel.
//!
//! # Invariants
//! - I1: an operand type never holds a value that makes its instruction fault on a CPU whose limits
//!   it was built with.
//! - I2: a plan removes at least what was asked. Removing more is allowed (it costs time, never
//!   correctness), and happens only where the CPU lacks the exact instruction.
//! - I3: an address no translation can exist for (non-canonical) is skipped, never handed to an
//!   instruction that would fault on it: a flush that faults is a flush not done.
//!
//! Sections are cited from the Intel Software Developer's Manual ("SDM", volume 3A section 4.10
//! unless another is given), the AMD64 Architecture Programmer's Manual ("APM"), the Arm
//! Architecture Reference Manual ("Arm ARM") and the RISC-V Privileged Architecture ("Privileged").
#![no_std]

#[cfg(test)]
extern crate std;

pub mod aarch64;
mod asid;
mod entry;
pub mod riscv64;
mod root;
pub mod x86_64;

#[cfg(all(doctest, target_arch = "x86_64"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

//! VMX and SVM instructions whose every failure is handled, and the host's control bits in force in the guest.
#![no_std]
#![cfg_attr(feature = "nightly", feature(asm_goto_with_outputs))]

#[cfg(test)]
extern crate std;

pub mod extable;
mod failure;
pub mod host_bits;
#[cfg(target_arch = "x86_64")]
mod msr;
#[cfg(target_arch = "x86_64")]
mod slow;
pub mod svm;
pub mod teardown;
pub mod vmx;

pub use failure::{Failure, Fault, Hook, Instruction, Report, reset_hook, set_hook};

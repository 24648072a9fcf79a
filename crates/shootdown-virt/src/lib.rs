//! VMX and SVM instructions whose every failure is handled, and the host's control bits in force in
//! the guest.
//!
//! | question | module |
//! |---|---|
//! | What can an instruction do besides succeeding, and how is a failure reported? | [`Failure`], [`set_hook`] |
//! | How does a fault become a value? | [`extable`] |
//! | What happens if a panic or a reboot turns virtualization off while a hypervisor runs? | [`teardown`], `vmx::emergency_off`, `svm::emergency_off` |
//! | How is a guest made and entered? | [`vmx`], [`svm`] |
//! | Which of CR0, CR4 and EFER is the host's while the guest runs? | [`host_bits`] |
//!
//! # Contract of the instructions
//! They are `unsafe`, because the kernel must ensure three things: the CPU is at privilege level 0;
//! the handlers of #UD, #GP, #SS and #PF call [`extable::fixup`]; the caller stays on its CPU
//! between instructions that belong together. Then no instruction ends in an exception that the
//! kernel does not handle.
//!
//! The exception table relies on ELF: targets with other object formats don't assemble it.
//!
//! Sections are cited from the Intel Software Developer's Manual ("SDM") and the AMD64 Architecture
//! Programmer's Manual ("APM"). The shape of the instructions follows the published patch "KVM:
//! VMX: Optimize VMX instructions error/fault handling" (Sean Christopherson, 2019), that of the
//! host's bits "Preserve host CR4.MCE value while in guest mode" (Ben Serebrin, 2015).
#![no_std]
// Code that decides is compiled everywhere, for the documentation; code that executes instructions
// is not.
#![cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code))]
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

#[cfg(all(doctest, target_arch = "x86_64"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

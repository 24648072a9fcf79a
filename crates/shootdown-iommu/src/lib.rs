//! Drivers for IOMMUs: Intel VT-d, AMD-Vi, Arm SMMUv3.
//!
//! [`shootdown_dma`] encodes an IOMMU's commands and tracks when they are complete. It does not
//! know where a unit is, how it is turned on, or the format of its tables of devices. This crate
//! does:
//!
//! | question | module |
//! |---|---|
//! | Where are units, and which memory do devices always need? | [`acpi`], [`devicetree`] |
//! | How are registers accessed? | [`bus`] |
//! | What is the format of registers and tables of devices? | `registers` and the formats of [`vtd`], [`amd`], [`smmu`] |
//! | How is a unit turned on and off, and reset? | [`vtd::Vtd`], [`amd::Amd`], [`smmu::Smmu`] |
//! | Which accesses has it refused? | `fault` of each, and [`fault`] for what they have in common |
//!
//! # Invariants
//! - I1: from the first write to a register on, a device never reaches more than it did before;
//!   from the end of `set_up` on it reaches nothing to which it was not admitted. Each unit's
//!   module says why.
//! - I2: of an entry that changes, the word with the valid bit is written last and cleared first.
//! - I3: memory whose address a unit has got is freed only by `turn_off`, when the unit has
//!   acknowledged that it is off.
//! - I4: every wait has an end, and an end without success is an error.
//! - I5: parsers of firmware tables check bounds: no table makes a parser panic or read outside of
//!   it.
//!
//! The crate is `no_std` with `alloc`. Sections are cited from the "Intel Virtualization Technology
//! for Directed I/O Architecture Specification" ("VT-d"), the "AMD I/O Virtualization Technology
//! Specification" ("AMD-Vi", document 48882) and the "Arm System Memory Management Unit Architecture
//! Specification, SMMU architecture version 3" ("IHI 0070").
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod acpi;
pub mod amd;
pub mod bus;
pub mod devicetree;
pub mod error;
pub mod fault;
pub mod memory;
pub mod renewable;
pub mod ring;
pub mod smmu;
pub mod unit;
pub mod vtd;

pub use bus::Bus;
pub use error::{AdmitError, Error};
pub use fault::Fault;
pub use memory::Memory;
pub use unit::RemappingUnit;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

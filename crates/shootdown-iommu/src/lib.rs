//! Drivers for IOMMUs: Intel VT-d, AMD-Vi, Arm SMMUv3.
//!
//! [`shootdown_dma`] knows what an IOMMU has to be told, and when it has forgotten. It does not
//! know where a unit is, how it is turned on, or what its tables of devices look like. This crate
//! does:
//!
//! | question | module |
//! |---|---|
//! | Where are units, and which memory do devices need whatever happens? | [`acpi`], [`devicetree`] |
//! | How are registers reached? | [`bus`] |
//! | What do registers and tables of devices look like? | `registers` and the formats of [`vtd`], [`amd`], [`smmu`] |
//! | How is a unit turned on and off, and reset? | [`vtd::Vtd`], [`amd::Amd`], [`smmu::Smmu`] |
//! | What has it refused? | `fault` of each, and [`fault`] for what they have in common |
//!
//! # Invariants
//! - I1: from the first register that is written on, there is no moment in which a device reaches
//!   more than it did before; from the end of `set_up` on it reaches nothing that it was not
//!   admitted to. Each unit's module says why.
//! - I2: of an entry that changes, the word with the valid bit is written last and cleared first.
//! - I3: memory that a unit was told of is freed only by `turn_off`, when the unit has acknowledged
//!   that it is off.
//! - I4: every wait has an end, and an end without success is an error.
//! - I5: what firmware says is read by bounds: no table makes a parser panic or read outside of it.
//!
//! `no_std` with `alloc`. Sections are cited from the "Intel Virtualization Technology for Directed
//! I/O Architecture Specification" ("VT-d"), the "AMD I/O Virtualization Technology Specification"
//! ("AMD-Vi", document 48882) and the "Arm System Memory Management Unit Architecture
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

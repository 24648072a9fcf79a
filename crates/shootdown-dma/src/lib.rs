//! Memory for devices: mapped and unmapped at line rate, with real protection.
//!
//! A device reaches memory through an IOMMU, by addresses of its own (IOVA). For every transfer a
//! kernel takes an address, writes an entry, and afterwards takes both away again; and before the
//! page is used for something else, the IOMMU must have forgotten the translation. This crate is
//! that layer, in three parts that know nothing of each other, and one that joins them.
//!
//! | part | question | module |
//! |---|---|---|
//! | allocation | Which address? | [`iova`] |
//! | page tables | What does the hardware find there? | [`table`] |
//! | invalidation | When has everyone forgotten it? | [`invalidate`] |
//! | domain | What does a driver call? | [`domain`] |
//!
//! For devices that are not trusted, [`bounce`] puts pages of its own where a buffer shares a page
//! with something else.
//!
//! # The promise
//! 1. **Rights.** A device reaches no more than the union of what is mapped for it, and what is
//!    still deferred to it.
//! 2. **Reuse.** Address range, page-table page and domain id are handed to nobody else before the
//!    invalidation that covers them is complete.
//! 3. **No lock is held across an invalidation wait.**
//! 4. **Errors are total.** Bad input gets a typed error; nothing has changed, nothing is lost.
//!
//! `no_std` with `alloc`; no global state but the count of domains and pools that were made; no
//! feature that changes a type. `cfg(loom)` compiles it for the `loom` model checker; the package
//! `shootdown-dma-traced` compiles this source for the software machine. Drivers in user space and
//! hypervisors find their half in the crate `shootdown-vfio`.

#![no_std]

extern crate alloc;
#[cfg(any(test, loom, shootdown_traced))]
extern crate std;

pub mod addr;
pub mod bounce;
pub mod domain;
pub mod fixed;
mod held;
pub mod invalidate;
pub mod iova;
pub mod local;
pub mod pinned;
mod serial;
pub mod sync;
pub mod table;

pub use addr::{DeviceId, DomainId, IovaRange, PhysAddr, Rights};
pub use domain::{Config, DmaAddr, Domain, Host, MapError, Policy, UnmapError};

//! Memory for devices: mapped and unmapped at line rate, with real protection.
//!
//! A device reaches memory through an IOMMU, by addresses of its own (IOVA). For every transfer a
//! kernel takes an address and writes an entry, and afterwards clears the entry and frees the
//! address. Before the page is used for something else, the IOMMU's invalidation of the translation
//! must be complete. This crate is that layer, in three parts that do not depend on each other, and
//! a fourth that joins them.
//!
//! | part | question | module |
//! |---|---|---|
//! | allocation | Which address? | [`iova`] |
//! | page tables | What does the hardware find at that address? | [`table`] |
//! | invalidation | When does no cache hold the old entry any more? | [`invalidate`] |
//! | domain | What does a driver call? | [`domain`] |
//!
//! For devices that are not trusted, [`bounce`] maps pages of its own where a buffer shares a page
//! with other data.
//!
//! # The guarantees
//! 1. **Rights.** A device reaches no more than the union of what is mapped for it, and what was
//!    unmapped and is still deferred.
//! 2. **Reuse.** No address range, page-table page or domain id is handed out again before the
//!    invalidation that covers it is complete.
//! 3. **No lock is held across an invalidation wait.**
//! 4. **Errors are total.** Bad input gets a typed error; nothing has changed, nothing is lost.
//!
//! The crate is `no_std` with `alloc`. Its only global state is the count of domains and pools that
//! were made, and no feature changes a type. `cfg(loom)` compiles it for the `loom` model checker; the package
//! `shootdown-dma-traced` compiles this source for the software machine. The crate
//! `shootdown-vfio` serves drivers in user space and hypervisors.

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

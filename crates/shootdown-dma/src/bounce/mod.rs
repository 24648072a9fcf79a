//! Bounce pages: devices see the bytes of a buffer, and nothing beside it.
//!
//! # The problem
//! An IOMMU maps pages, and drivers map bytes. A buffer that begins or ends within a page takes its
//! neighbours along: another packet, a list's pointers, a callback that the device then rewrites
//! (sub-page exposure; 72 % of Linux' drivers showed callbacks in this way: Markuze and others,
//! EuroSys 2021). Linux has bounced the first and the last piece of such buffers for devices
//! that it does not trust since 5.4.
//!
//! # The protocol
//! A [`Guarded`] domain has a [`Pool`] of pages of its own. Of a buffer, whole pages are mapped as
//! they are. The piece before them, the piece behind them, or all of it if it lies in one page, is
//! a page of the pool, at the same place within the page, and zero around it. So the device's
//! addresses follow each other as if nothing had happened.
//!
//! ```text
//! buffer          |.....HHHH|MMMMMMMM|MMMMMMMM|TT.......|
//! device sees     |00000hhhh|MMMMMMMM|MMMMMMMM|tt0000000|     h, t: pages of the pool
//! ```
//!
//! | | the pieces are copied |
//! |---|---|
//! | [`map`](Guarded::map) | to the pool, whatever the rights are: a device that writes only some of the bytes must not make the others, when they are copied back, what happened to be in the pool |
//! | [`sync_for_device`](Guarded::sync_for_device) | to the pool |
//! | [`sync_for_cpu`](Guarded::sync_for_cpu) | to the buffer, if the device may write |
//! | [`unmap`](Guarded::unmap) | to the buffer, if the device may write, when the policy says that it is unmapped |
//!
//! Under [`Policy::Strict`] what is copied back at the end can't be changed by the device any more
//! while it is looked at: it is the only policy under which that is so, for bounced bytes and for
//! others.
//!
//! # Why pages come and go
//! Pages that stay mapped for ever need no invalidation (shadow buffers: Markuze and others, ASPLOS
//! 2016). But the pieces here must lie beside the pages of the buffer, at addresses that come with
//! each mapping. And a page that stays within reach lets the device write into what is mapped with
//! it next, also where that is only to be read by another device of the domain. So they are mapped
//! and unmapped with their buffer, by the same entries, one invalidation for all; and zeroed before
//! each use.
//!
//! # Invariants
//! - **B1** A byte that a device can read is in a buffer that is mapped for it (or was, and is
//!   still deferred), or zero.
//! - **B2** A byte that a device can write and that anybody reads is in such a buffer.
//! - **B3** A page of the pool is used again only when the invalidation that covers its last
//!   unmapping is complete, whatever the policy is. The domain holds it, as it holds the pages of
//!   buffers: it is free when it is neither in use nor held.
//! - **B4** What fails has changed nothing.
//!
//! | file | does |
//! |---|---|
//! | `pool.rs` | pages, and who uses them |
//! | `host.rs` | the kernel's half, and how the domain holds pages of the pool |
//! | `guarded.rs` | what a driver calls |

mod guarded;
mod host;
mod pool;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub use guarded::{Guarded, MapError, Mapped, OutOfRange};
pub use host::{Access, Bouncing};
pub use pool::{Pool, PoolError};

#[cfg(doc)]
use crate::Policy;

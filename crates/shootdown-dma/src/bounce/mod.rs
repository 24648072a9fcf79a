//! Bounce pages: devices see the bytes of a buffer, and nothing beside it.
//!
//! # The problem
//! An IOMMU maps pages, and drivers map bytes. If a buffer begins or ends within a page, the device
//! reaches its neighbours too: another packet, a list's pointers, a callback that the device can
//! then overwrite (sub-page exposure; 72 % of Linux' drivers exposed callbacks in this way: Markuze
//! and others, EuroSys 2021). Linux has bounced the first and the last piece of such buffers for
//! devices that it does not trust since 5.4.
//!
//! # The protocol
//! A [`Guarded`] domain has a [`Pool`] of pages of its own. It maps the whole pages of a buffer as
//! they are. For the piece before them and the piece behind them (or for all of the buffer, if it
//! lies in one page) it maps a page of the pool, with the piece at the same offset and zeroes
//! around it. So the device's addresses are contiguous, as without bounce pages.
//!
//! ```text
//! buffer          |.....HHHH|MMMMMMMM|MMMMMMMM|TT.......|
//! device sees     |00000hhhh|MMMMMMMM|MMMMMMMM|tt0000000|     h, t: pages of the pool
//! ```
//!
//! | | the pieces are copied |
//! |---|---|
//! | [`map`](Guarded::map) | to the pool, whatever the rights are: if a device writes only some of the bytes, copying back must not fill the others with old contents of the pool |
//! | [`sync_for_device`](Guarded::sync_for_device) | to the pool |
//! | [`sync_for_cpu`](Guarded::sync_for_cpu) | to the buffer, if the device may write |
//! | [`unmap`](Guarded::unmap) | to the buffer, if the device may write, at the time when the policy takes it as unmapped |
//!
//! Only under [`Policy::Strict`] the device can't change any more what was copied back at the end,
//! while the driver reads it. This holds for bounced bytes and for others.
//!
//! # Why pages are mapped and unmapped
//! Pages that stay mapped for ever need no invalidation (shadow buffers: Markuze and others, ASPLOS
//! 2016). But the pieces here must lie beside the pages of the buffer, at addresses that each
//! mapping chooses. And a page that stays mapped lets the device write into the next buffer that
//! uses it, also where another device of the domain should only read that. So the pages are mapped
//! and unmapped with their buffer, by the same entries and one invalidation for all, and are zeroed
//! before each use.
//!
//! # Invariants
//! - **B1** A byte that a device can read is in a buffer that is mapped for it (or was, and is
//!   still deferred), or zero.
//! - **B2** A byte that a device can write and that a driver reads is in such a buffer.
//! - **B3** A page of the pool is used again only when the invalidation that covers its last
//!   unmapping is complete, whatever the policy is. The domain holds it, as it holds the pages of
//!   buffers: it is free when it is neither in use nor held.
//! - **B4** A call that fails has changed nothing.
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

//! Translation coherence as a library.
#![no_std]

#[cfg(any(test, shootdown_traced, loom))]
extern crate std;

pub mod call;
pub mod cpu;
pub mod cpu_set;
pub mod facts;
pub mod flush;
pub mod gather;
pub mod ids;
pub mod mutant;
pub mod platform;
pub mod policy;
mod range_log;
pub mod regime;
mod respond;
mod serve;
pub mod space;
pub mod stats;
pub mod switch;
pub mod sync;
pub mod system;
pub mod tags;
mod tree;

pub use call::{CallError, call_on};
pub use cpu::{PerCpu, offline, online};
pub use facts::Facts;
pub use flush::{FlushError, Flushed, Request, Ticket, What, flush_everything, flush_kernel};
pub use gather::{Gather, Keep};
pub use ids::{CpuId, Generation, RangeError, SpaceId, Stride, Tag, VaRange};
pub use platform::{KickError, Pinned, Platform, Stalled};
pub use policy::Policy;
pub use regime::{Invalidate, Reach, Regime};
pub use serve::{Served, on_kick, poll};
pub use space::{AddressSpace, RetireError};
pub use switch::{Switched, UserEntry, enter_lazy, leave, return_to_user, switch_to};
pub use system::System;
pub use tags::slots::Slots;

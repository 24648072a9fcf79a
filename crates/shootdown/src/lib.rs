//! Translation coherence as a library.
//!
//! When a page table changes, every TLB that may hold the old translation must drop it before the
//! page is used for something else. This crate is the layer of a kernel or hypervisor that ensures
//! it: tags that keep TLB entries over context switches, lazy mode, shootdowns that interrupt only
//! the CPUs that must act and overlap local with remote work, and gathers that return memory only
//! when it is safe to reuse.
//!
//! It is `no_std`, allocates nothing, and keeps no global state. It takes no lock, with one
//! exception: allocators of machine-wide tags ([`tags::generations`], [`tags::broadcast`]) have a
//! test-and-set lock each, which a switch to a space without a current tag takes with interrupts
//! off, for one search of the tags. A port implements two traits: one for the kernel's functions
//! ([`Platform`]: stay on a CPU, find a CPU's state, raise an interrupt) and one for the hardware's
//! ([`Regime`]: load a root under a tag, invalidate).
//!
//! # The promise
//! 1. **Revocation.** When a flush for a revoking change returns, no CPU starts an access through
//!    the old translation any more, and no walker can reach a freed table page.
//! 2. **Reuse.** A frame, table page, address range or hardware tag is given to no other use before
//!    the invalidation that covers it is complete.
//! 3. **Master invariant.** A CPU's slot for a space at generation *g* never holds entries older
//!    than *g*.
//! 4. **Deferral is explicit.** A weaker guarantee is a named choice, never a default.
//! 5. **Errors are total.** Bad input gets a typed error; what was pending comes back inside it.
//!
//! # Where to read on
//! | question | module |
//! |---|---|
//! | What do I implement? | [`platform`], [`regime`], [`facts`] |
//! | What may I call where? | [`context`] |
//! | What does a context switch do, and which fences pair? | [`switch`] |
//! | Which CPUs does a flush interrupt, and when is it over? | [`flush`] |
//! | How do I free pages safely? | [`gather`] |
//! | Which changes need no flush, and what if one faults? | [`elide`], [`spurious`] |
//! | What is pending when accessed bits are cleared? | [`accessed`] |
//! | How is a CPU left alone that runs user code for long? | [`isolated`] |
//! | How do I take pages away from many spaces at once? | [`reclaim`] |
//! | How long may an unmapping go unnotified? | [`lazy_unmap`] |
//! | How do CPUs call each other? | [`call`] |
//! | What can a hypervisor do for its guest? | [`paravirt`] |
//! | What was done, and what was saved? | [`stats`] |
//!
//! # The smallest complete port
//! One CPU whose "TLB" is a counter; it runs. A real port replaces the bodies, not the shape.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use shootdown::cpu_set::{AtomicCpuSet, CpuSet};
//! use shootdown::gather::Array;
//! use shootdown::*;
//!
//! static SYSTEM: System<Port> = System::new();
//! static CPUS: [PerCpu<Port>; 1] = [PerCpu::new()];
//! static INVALIDATIONS: AtomicU32 = AtomicU32::new(0);
//!
//! struct Port;
//! struct NoPreemption(core::marker::PhantomData<*const ()>);
//!
//! // SAFETY: there is one CPU, so whoever runs stays on it.
//! unsafe impl Pinned for NoPreemption {
//!     fn cpu(&self) -> CpuId { CpuId(0) }                    // this CPU's number
//! }
//!
//! // SAFETY: one CPU, one slot, nobody to kick.
//! unsafe impl Platform for Port {
//!     type Pin = NoPreemption;                               // your preemption guard
//!     type Regime = Hardware;
//!     type Mask = AtomicCpuSet<1>;                           // up to 64 CPUs
//!     type Slots = Slots<6>;                                 // tag slots per CPU
//!     type Tags = NoTags;                                    // no tag is the same everywhere
//!     fn pin() -> NoPreemption { NoPreemption(core::marker::PhantomData) }
//!     fn system() -> &'static System<Self> { &SYSTEM }
//!     fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> { CPUS.get(cpu.index()) }
//!     fn kick(_: &CpuSet<1>) -> Result<(), KickError> { Ok(()) } // your IPI; it calls on_kick
//!     fn relax(_: &NoPreemption) -> Result<(), Stalled> { core::hint::spin_loop(); Ok(()) }
//!     fn may_wait() -> bool { true }                         // are interrupts on?
//! }
//!
//! struct Hardware;
//!
//! // SAFETY: there is no TLB, so nothing stale is ever used.
//! unsafe impl Regime for Hardware {
//!     type Root = u64;                                       // CR3, TTBR0, satp
//!     fn facts() -> &'static Facts { &Facts::X86_64_MINIMUM }
//!     unsafe fn load(_root: u64, _tag: Tag, _keep: bool) {}  // mov cr3
//!     fn load_kernel() {}
//!     fn publish() {}                                        // dsb ishst, where needed
//!     fn invalidate(_: Invalidate, _: Reach) { INVALIDATIONS.fetch_add(1, Ordering::Relaxed); }
//!     fn sync(_: Reach) {}                                   // dsb ish, where needed
//! }
//!
//! let pin = Port::pin();
//! // SAFETY: nothing interrupts here.
//! online::<Port>(unsafe { IrqsOff::assume(&pin) })?;
//! let space = AddressSpace::<Port>::new(0x1000);
//! // SAFETY: nothing interrupts here, and `space` is retired before it is dropped.
//! unsafe { switch_to(&pin, &space) };
//!
//! // Unmap a page: clear its entry in your tables, then
//! let mut gather = Gather::<Port, Array<u64, 16>>::new(&space);
//! gather.unmapped(VaRange::new(0x40_0000, 1, Stride::Page4K)?, 0x7000).expect("room for 16");
//! let frames = gather.finish(&pin).map_err(|(error, _frames)| error)?;
//! assert_eq!(frames.as_slice(), [0x7000]);                   // free them: no CPU can reach them
//!
//! // SAFETY: nothing interrupts here.
//! unsafe { leave::<Port>(&pin) };
//! space.retire(&pin)?;
//! assert_eq!(INVALIDATIONS.load(Ordering::Relaxed), 2);      // coming online, and the page
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Builds
//! `cfg(loom)` compiles the crate for the `loom` model checker. The package `shootdown-traced`
//! compiles this source with atomics that notify a software machine of every access. No feature
//! changes a type.

#![no_std]

#[cfg(any(test, shootdown_traced, loom))]
extern crate std;

mod base;
mod memory;
mod ops;
mod port;
mod state;
pub mod tags;

pub use base::{cpu_set, ids, sync};
pub use memory::{accessed, elide, epoch, gather, lazy_unmap, reclaim, spurious};
pub use ops::{call, flush, isolated, pinned, switch};
pub use port::{context, facts, paravirt, platform, policy, regime};
#[cfg(shootdown_traced)]
pub use state::layout;
pub use state::{residency, stats, system};

/// The state of one CPU, and how CPUs come online and go offline.
pub mod cpu {
    pub use crate::ops::online::{OnlineError, offline, online};
    pub use crate::state::cpu::PerCpu;
}

/// Address spaces, and their end.
pub mod space {
    pub use crate::ops::retire::RetireError;
    pub use crate::state::space::AddressSpace;
}

pub use call::{CallError, call_on};
pub use context::IrqsOff;
pub use cpu::{OnlineError, PerCpu, offline, online};
pub use elide::{BreakFirst, Change};
pub use facts::Facts;
pub use flush::{FlushError, Flushed, Request, Ticket, What, flush_everything, flush_kernel};
pub use gather::{Gather, Keep};
pub use ids::{CpuId, Generation, RangeError, SpaceId, Stride, Tag, VaRange};
pub use lazy_unmap::LazyUnmapping;
pub use ops::respond::{Served, on_kick, poll, user_access_ok};
pub use pinned::PinTagError;
pub use platform::{KickError, Pinned, Platform, Stalled};
pub use policy::{Policy, PolicyError};
pub use reclaim::Batch;
pub use regime::{Invalidate, Reach, Regime};
pub use residency::Strategy;
pub use space::{AddressSpace, RetireError};
pub use spurious::{Spurious, fault_resolved, spurious_fault};
pub use switch::{Switched, UserEntry, enter_lazy, leave, return_to_user, switch_to};
pub use system::System;
pub use tags::slots::Slots;
pub use tags::versioned::NoTags;

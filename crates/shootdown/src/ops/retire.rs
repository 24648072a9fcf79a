//! CPUs leave a space: a stale member leaves by itself, or all leave because the space ends.

use core::fmt;

use crate::base::cpu_set::{Bits, Mask};
use crate::base::ids::CpuId;
use crate::base::sync::Ordering;
use crate::ops::{call, respond, switch};
use crate::port::family;
use crate::port::platform::{CpuSetOf, KickError, Pinned, Platform, Stalled};
use crate::state::cpu::{PerCpu, View};
use crate::state::space::AddressSpace;

/// Why a space could not be retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RetireError {
    /// This CPU still runs in the space; switch it away first.
    Loaded(CpuId),
    /// Lazy CPUs must be made to leave, or a CPU is in the middle of a switch, and the caller can't
    /// wait.
    WouldWait,
    /// A lazy CPU did not leave in time.
    Stalled,
    /// A lazy CPU could not be interrupted.
    Kick(KickError),
    /// A call from this CPU is already in flight (a handler interrupted it).
    Reentered,
    /// Its tag is pinned for a device, which may walk its tables; unpin it first.
    Pinned,
}

impl fmt::Display for RetireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loaded(cpu) => write!(f, "{cpu} still runs in the space; switch it away first"),
            Self::WouldWait => f.write_str(
                "CPUs must leave, or finish a switch, and this context can't wait; retire from task context",
            ),
            Self::Kick(e) => e.fmt(f),
            Self::Stalled => {
                f.write_str("a lazy CPU did not leave in time; keep the space and retry")
            }
            Self::Reentered => {
                f.write_str("a call from this CPU is in flight; retire from task context")
            }
            Self::Pinned => f.write_str(
                "the space's tag is pinned for a device, which may walk its tables; unpin it first",
            ),
        }
    }
}

impl core::error::Error for RetireError {}

impl<P: Platform> AddressSpace<P> {
    /// Takes the executing CPU out of the set if it does not have the space loaded. Only the CPU
    /// itself may do this (I3), with interrupts off.
    #[inline(never)]
    pub(crate) fn leave_stale(&self, cpu: CpuId, me: &PerCpu<P>) {
        if me.loaded().id() != self.id().get() {
            if family::strategy::<P>().is_some() {
                self.trim_here(cpu);
                return;
            }
            switch::forget_membership(me, self);
            self.residency.cpus.remove(cpu); // the last access, as in `switch::unload`
        }
    }

    /// Makes every lazy CPU leave the space, so that it may be dropped and its root table freed.
    /// Entries under remembered tags may stay on CPUs: the id is never reused, so no switch finds
    /// them.
    ///
    /// No CPU may switch to the space from now on, and every CPU that ran in it has turned lazy or
    /// left it before (the kernel's own reference count, dropped after
    /// [`enter_lazy`](crate::enter_lazy), says so). Never in a non-maskable handler
    /// ([`context`](crate::context)).
    ///
    /// # Errors
    /// See [`RetireError`]. The space is still intact; remove the cause and retire it again.
    pub fn retire(&self, pin: &P::Pin) -> Result<(), RetireError> {
        if self.residency.is_pinned() {
            return Err(RetireError::Pinned);
        }
        let me = pin.cpu();
        let mut lazy = CpuSetOf::<P>::EMPTY;
        let mut turn = 0;
        for cpu in self.cpus().iter() {
            let Some(state) = P::slot(cpu) else { continue };
            loop {
                match state.remote_view(self.id().get()) {
                    View::Elsewhere => break,
                    View::Active => return Err(RetireError::Loaded(cpu)),
                    View::Lazy => {
                        lazy.insert(cpu);
                        break;
                    }
                    // The CPU is switching from or to some space, which takes a few instructions.
                    View::Switching if !respond::may_wait(PerCpu::<P>::here(pin)) => {
                        return Err(RetireError::WouldWait);
                    }
                    View::Switching => {
                        respond::wait_turn::<P>(pin, &mut turn)
                            .map_err(|Stalled| RetireError::Stalled)?;
                    }
                }
            }
        }
        if lazy.contains(me) {
            let here = PerCpu::<P>::here(pin);
            // A handler that comes in between leaves its work until the root is loaded.
            let unload = || switch::unload::<P>(here, me);
            if !respond::exclusively(me, here, unload) {
                return Err(RetireError::WouldWait);
            }
            lazy.remove(me);
        }
        if !lazy.is_empty() {
            let id = self.id().get();
            call::call_on::<P, _>(pin, &lazy, &|cpu| {
                if let Some(state) = P::slot(cpu).filter(|s| s.loaded().id() == id) {
                    switch::unload::<P>(state, cpu);
                }
            })
            .map_err(|e| match e {
                call::CallError::Reentered => RetireError::Reentered,
                call::CallError::WouldWait => RetireError::WouldWait,
                call::CallError::Kick(e) => RetireError::Kick(e),
                _ => RetireError::Stalled,
            })?;
        }
        self.release_shared_tag();
        self.cold.retired.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the global tag back: no CPU has the space loaded, and none will.
    fn release_shared_tag(&self) {
        if let (Some(tags), Some(tag)) = (family::shared::<P>(), self.shared_tag().take()) {
            // SAFETY: the tag was this space's alone, no CPU has the space loaded, and none will
            // (contract 3 of `switch_to`).
            unsafe { tags.release(tag) };
        }
    }
}

//! Contexts: where each function may be called, and what enforces it.
//!
//! # The problem
//! A flush decides from the published state of CPUs which of them it must notify, and returns when
//! that state says that they use no older entry. If a function publishes in the wrong context (in a
//! handler that interrupted a switch, or on a CPU that then still uses older entries), a later
//! flush returns too early, and no fault reports it. The required context is therefore part of a
//! function's type: an argument that proves it, or `unsafe` with a contract where no argument can.
//!
//! # Contexts
//! | context | is | interrupts |
//! |---|---|---|
//! | task | code that has interrupted nothing of this library on its CPU, and is not called by it ([`call_on`]) | on or off |
//! | handler | the handler of a maskable interrupt. It may have interrupted any function here that may run with interrupts on | off |
//! | fault | the handler of a fault on an access of a task | as they were |
//! | NMI | a non-maskable handler (NMI, machine check). It may have interrupted anything, a switch too | off |
//!
//! # What is allowed where, and what enforces it
//! *Type*: the argument proves it. *Contract*: the function is `unsafe`, and its caller is
//! responsible. *Run time*: the function checks it, and refuses or does what is right there. **An
//! NMI calls no function of this library except those whose row allows it**: that is contract 9 of
//! [`Platform`].
//!
//! | function | task | handler | NMI | enforced by |
//! |---|---|---|---|---|
//! | [`online`] | interrupts off | no | no | type ([`IrqsOff`]); run time: an error where a space is loaded |
//! | [`offline`] | interrupts off | no | no | contract |
//! | [`switch_to`], [`enter_lazy`], [`leave`] | interrupts off | no | no | contract |
//! | [`return_to_user`] | interrupts off | its way out | no | contract |
//! | [`to_user`] | interrupts off | its way out | its way out | contract |
//! | [`from_user`] | interrupts off | yes | yes | type |
//! | [`on_kick`] | interrupts off | yes | yes, and again if it returns so | type; run time ([`Served`]) |
//! | [`tick`] | interrupts off | yes | no | type; run time: inside a switch it does nothing |
//! | [`poll`] | yes | yes | yes | run time: a nested call leaves its work to the outer one |
//! | [`user_access_ok`] | yes | yes | yes | nothing to enforce: it only reads what is published |
//! | [`flush`], [`begin_flush`], [`complete_pending`], [`accessed_cleared`] | yes | yes; others are notified and not waited for | no | run time: [`FlushError::WouldWait`], [`FlushError::Reentered`]; inside a switch the CPU invalidates everything |
//! | [`flush_kernel`], [`flush_everything`] | yes | yes, where no other CPU is concerned | no | the same |
//! | [`Gather`], [`Deferred`], [`Batch`], [`LazyUnmapping`], [`Held`] | yes | as the flush that they end in | no | the same; types: what may be freed comes out of them |
//! | [`Ticket::poll`], [`Deferred::poll`], [`is_pending`] | yes, on any CPU | yes | no | nothing to enforce: they only read what is published |
//! | [`Ticket::wait`], [`Deferred::wait`] | yes | no | no | run time: [`FlushError::WouldWait`] |
//! | [`call_on`] | yes | where no other CPU is concerned | no | run time: [`CallError::WouldWait`], [`CallError::Reentered`] |
//! | [`retire`] | yes | where no other CPU must leave the space | no | run time: [`RetireError`] |
//! | [`pin_tag`] | interrupts off | no | no | nothing: it takes a lock, and misuse waits for ever but breaks no invariant |
//! | [`unpin_tag`] | interrupts off | no | no | contract |
//! | [`spurious_fault`], [`fault_resolved`] | fault | yes | no | nothing to enforce: they invalidate more than they must, on this CPU |
//! | [`AddressSpace::new`], reading functions, counters | yes | yes | yes | nothing to enforce |
//! | [`Generations::activate`], [`activate_fresh`], [`Generations::pin`], [`Generations::unpin`], [`CpuTag::loaded`], [`CpuTag::deactivate`] | interrupts off | no | no | contract: a wrong set of CPUs gives a tag to two spaces |
//! | [`BroadcastTags::assign`], [`BroadcastTags::release`] | yes | no; `release` yes | no | contract |
//! | [`PreemptedWord::stopped`], [`PreemptedWord::resumes`] | in the hypervisor | | | contract |
//! | [`Residency`], [`SharedTag`] | yes | yes | no | nothing: they are parts to build with; those of a space can't be reached from outside |
//!
//! Only the caller can know three things, and they do not depend on the context: that entries are
//! changed before their flush is requested, that a request names everything that was changed, and
//! that the lock of the tables is held where a function says so.
//!
//! # Traits on which the library relies
//! | trait | implemented by | a wrong implementation is |
//! |---|---|---|
//! | [`Platform`], [`Regime`], [`Pinned`], [`Epoch`], [`CpuTags`] | ports | a broken contract: they are `unsafe` to implement |
//! | [`Mask`], [`Bits`], [`TagSlots`], [`Versioned`] | this crate | impossible: they are sealed |
//! | [`Keep`] | any crate | a bug of its own: nothing `unsafe` here relies on it |
//!
//! [`accessed_cleared`]: crate::AddressSpace::accessed_cleared
//! [`activate_fresh`]: crate::tags::generations::Generations::activate_fresh
//! [`AddressSpace::new`]: crate::AddressSpace::new
//! [`Batch`]: crate::Batch
//! [`begin_flush`]: crate::AddressSpace::begin_flush
//! [`Bits`]: crate::cpu_set::Bits
//! [`BroadcastTags::assign`]: crate::tags::broadcast::BroadcastTags::assign
//! [`BroadcastTags::release`]: crate::tags::broadcast::BroadcastTags::release
//! [`call_on`]: crate::call_on
//! [`CallError::Reentered`]: crate::CallError::Reentered
//! [`CallError::WouldWait`]: crate::CallError::WouldWait
//! [`CpuTag::deactivate`]: crate::tags::generations::CpuTag::deactivate
//! [`CpuTag::loaded`]: crate::tags::generations::CpuTag::loaded
//! [`CpuTags`]: crate::tags::generations::CpuTags
//! [`Deferred`]: crate::gather::Deferred
//! [`Deferred::poll`]: crate::gather::Deferred::poll
//! [`Deferred::wait`]: crate::gather::Deferred::wait
//! [`enter_lazy`]: crate::enter_lazy
//! [`Epoch`]: crate::epoch::Epoch
//! [`fault_resolved`]: crate::fault_resolved
//! [`flush`]: crate::AddressSpace::flush
//! [`flush_everything`]: crate::flush_everything
//! [`flush_kernel`]: crate::flush_kernel
//! [`FlushError::Reentered`]: crate::FlushError::Reentered
//! [`FlushError::WouldWait`]: crate::FlushError::WouldWait
//! [`from_user`]: crate::isolated::from_user
//! [`Gather`]: crate::Gather
//! [`Generations::activate`]: crate::tags::generations::Generations::activate
//! [`Generations::pin`]: crate::tags::generations::Generations::pin
//! [`Generations::unpin`]: crate::tags::generations::Generations::unpin
//! [`Held`]: crate::epoch::Held
//! [`is_pending`]: crate::AddressSpace::is_pending
//! [`Keep`]: crate::Keep
//! [`LazyUnmapping`]: crate::LazyUnmapping
//! [`leave`]: crate::leave
//! [`Mask`]: crate::cpu_set::Mask
//! [`offline`]: crate::offline
//! [`on_kick`]: crate::on_kick
//! [`online`]: crate::online
//! [`complete_pending`]: crate::AddressSpace::complete_pending
//! [`pin_tag`]: crate::AddressSpace::pin_tag
//! [`Pinned`]: crate::Pinned
//! [`poll`]: crate::poll
//! [`PreemptedWord::resumes`]: crate::paravirt::PreemptedWord::resumes
//! [`PreemptedWord::stopped`]: crate::paravirt::PreemptedWord::stopped
//! [`Residency`]: crate::residency::Residency
//! [`Regime`]: crate::Regime
//! [`retire`]: crate::AddressSpace::retire
//! [`RetireError`]: crate::RetireError
//! [`return_to_user`]: crate::return_to_user
//! [`Served`]: crate::Served
//! [`SharedTag`]: crate::tags::shared::SharedTag
//! [`spurious_fault`]: crate::spurious_fault
//! [`switch_to`]: crate::switch_to
//! [`TagSlots`]: crate::tags::slots::TagSlots
//! [`tick`]: crate::accessed::tick
//! [`Ticket::poll`]: crate::Ticket::poll
//! [`Ticket::wait`]: crate::Ticket::wait
//! [`to_user`]: crate::isolated::to_user
//! [`unpin_tag`]: crate::AddressSpace::unpin_tag
//! [`user_access_ok`]: crate::user_access_ok
//! [`Versioned`]: crate::tags::versioned::Versioned

use core::fmt;
use core::marker::PhantomData;

use crate::base::ids::CpuId;
use crate::port::platform::{Pinned, Platform};

/// Proof that the CPU named by a pin takes no maskable interrupt. It costs as much as a reference
/// to the pin.
///
/// A port makes it where interrupts are certainly off: in the guard that turns them off, and once
/// in each entry stub. No other value will do:
///
/// ```compile_fail
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// # use shootdown::{Platform, on_kick};
/// let pin = Mock::pin();
/// let _ = on_kick(&pin); // a pin says nothing of interrupts
/// ```
///
/// ```
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// use shootdown::{IrqsOff, Platform, Served, on_kick};
/// let pin = Mock::pin();
/// # boot_once(&pin);
/// // SAFETY: hardware has turned interrupts off on the way to this handler.
/// let irqs = unsafe { IrqsOff::<Mock>::assume(&pin) };
/// assert_eq!(on_kick(irqs), Served::Done);
/// ```
pub struct IrqsOff<'a, P: Platform> {
    pin: &'a P::Pin,
    /// The value does not leave its CPU, whatever the pin is.
    here: PhantomData<*mut ()>,
}

impl<'a, P: Platform> IrqsOff<'a, P> {
    /// Makes the proof; interrupts are off.
    ///
    /// # Safety
    /// The executing CPU takes no maskable interrupt until the value and its copies have been used
    /// for the last time. (Interrupts that are turned on and off again in between count as on.)
    #[must_use]
    pub const unsafe fn assume(pin: &'a P::Pin) -> Self {
        Self { pin, here: PhantomData }
    }

    /// The pin.
    #[must_use]
    pub const fn pin(self) -> &'a P::Pin {
        self.pin
    }

    /// The executing CPU.
    #[must_use]
    pub fn cpu(self) -> CpuId {
        self.pin.cpu()
    }
}

impl<P: Platform> Clone for IrqsOff<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for IrqsOff<'_, P> {}

impl<P: Platform> fmt::Debug for IrqsOff<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IrqsOff({})", self.pin.cpu())
    }
}

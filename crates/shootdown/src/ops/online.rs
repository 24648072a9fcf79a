//! CPUs come online and go offline.

use core::fmt;

use crate::base::cpu_set::Bits;
use crate::base::sync::{Ordering, fence};
use crate::ops::{respond, switch};
use crate::port::context::IrqsOff;
use crate::port::facts::{FactsError, SplitTables, TagScope};
use crate::port::family;
use crate::port::platform::{CpuSetOf, Pinned, Platform};
use crate::port::policy::PolicyError;
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::Loaded;
use crate::tags::slots::{self, Slot};
use crate::tags::versioned::Versioned;

/// Why a CPU could not come online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OnlineError {
    /// The CPU's number does not fit the platform's set type.
    TooMany,
    /// [`Platform::slot`] has no state for this CPU.
    NoSlot,
    /// The CPU has a space loaded: it is online already, or must call [`crate::leave`] first.
    Loaded,
    /// The port's facts contradict each other.
    Facts(FactsError),
    /// The policy can't serve this hardware.
    Policy(PolicyError),
    /// Tags are machine-wide, and [`Platform::tags`] has no allocator for their width and this CPU.
    NoTags,
    /// The tags of [`Platform::shared_tags`] overlap with those of slots, or are wider than a tag.
    SharedTags,
}

impl fmt::Display for OnlineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => {
                f.write_str("the CPU's number does not fit Platform::Mask; use a wider set")
            }
            Self::Loaded => f.write_str("the CPU has a space loaded; take it offline first"),
            Self::NoSlot => {
                f.write_str("Platform::slot returned None for the CPU that comes online")
            }
            Self::Facts(e) => e.fmt(f),
            Self::Policy(e) => e.fmt(f),
            Self::SharedTags => f.write_str(
                "Platform::shared_tags and the tag slots overlap, or the width is too small; begin above the last slot",
            ),
            Self::NoTags => f.write_str(
                "tags are machine-wide: make an allocator (tags::generations) for the declared width and all CPUs, and return it from Platform::tags",
            ),
        }
    }
}

impl core::error::Error for OnlineError {}

/// Brings this CPU online: empties its TLB and its tag slots; from now on the CPU takes part in
/// kernel-wide flushes. Call it once the CPU's interrupts work, before it loads any space. Never in
/// a handler ([`context`](crate::context)).
///
/// Every earlier change of kernel mappings is covered: the CPU joins the set first and empties its
/// TLB after that.
///
/// # Errors
/// See [`OnlineError`]; nothing has changed then.
pub fn online<P: Platform>(irqs: IrqsOff<'_, P>) -> Result<(), OnlineError> {
    let cpu = irqs.cpu();
    if cpu.index() >= CpuSetOf::<P>::capacity() {
        return Err(OnlineError::TooMany);
    }
    let me = P::slot(cpu).ok_or(OnlineError::NoSlot)?;
    let facts = P::Regime::facts();
    facts.check().map_err(OnlineError::Facts)?;
    P::policy().check(facts).map_err(OnlineError::Policy)?;
    if facts.tag_scope == TagScope::System {
        let pairs = matches!(facts.split_tables, SplitTables::Yes { .. });
        let fit = P::tags().is_some_and(|tags| tags.serves(facts.tag_bits, pairs, cpu));
        if !fit {
            return Err(OnlineError::NoTags);
        }
    }
    if let Some(tags) = family::shared::<P>() {
        #[allow(clippy::cast_possible_truncation)] // at most MAX_SLOTS
        let last = Slot(me.private.ids.as_ref().len() as u8 - 1).tag(true);
        if !tags.fit(last, facts.tag_bits) {
            return Err(OnlineError::SharedTags);
        }
    }
    if me.loaded() != Loaded::KERNEL {
        return Err(OnlineError::Loaded);
    }
    slots::forget_others(me.private.ids.as_ref(), None);
    P::system().set_online(cpu, true);
    // ORDERING: D4: join before the flush; partner: the fence of an initiator between its change
    // and its read of the online set (`flush::everywhere::reach_all`).
    fence(Ordering::SeqCst);
    P::Regime::load_kernel();
    regime::invalidate::<P::Regime>(Invalidate::Everything, Reach::Local);
    P::Regime::sync(Reach::Local);
    Ok(())
}

/// Takes this CPU offline: it leaves its space, serves the requests that have arrived, and gets no
/// more.
///
/// # Safety
/// 1. As [`leave`](crate::leave).
/// 2. Until [`online`] has been called again no user code runs here, and nothing depends on a
///    translation that may change, of the kernel's ranges or any other: no flush reaches this CPU,
///    and flushes return without it.
pub unsafe fn offline<P: Platform>(pin: &P::Pin) {
    // SAFETY: this function's contract.
    unsafe { switch::leave::<P>(pin) };
    P::system().set_online(pin.cpu(), false);
    // ORDERING: D4: off the set before the last look; partner: the fence in `call::post` and
    // `tree::begin`. Either we find the request, or its initiator finds us offline and takes it
    // back.
    fence(Ordering::SeqCst);
    let _ = respond::poll::<P>(pin);
}

//! The state of one CPU, and its coming and going.
//!
//! The kernel owns one [`PerCpu`] per CPU (a `static` array, a per-CPU variable) and hands out
//! references through [`Platform::slot`]. It needs no initialization call and has no destructor.
//!
//! # Who touches which line
//! | part | lines (6 slots) | written by | read by |
//! |---|---|---|---|
//! | private | 1 | this CPU, on every switch | this CPU |
//! | shared | 1 | this CPU: switch, lazy, acknowledgement | initiators |
//! | rare | 1 | this CPU, in handlers | this CPU |
//! | tag | 1 | this CPU, on a switch under machine-wide tags; whoever begins a new generation of them | both |
//! | ages | 1 | this CPU, on switches to spaces whose accessed bits are cleared; with flags, whoever clears them | both |
//! | isolated | 1 | this CPU, on its way in and out of the kernel, if it opts in | initiators of kernel flushes |
//! | mailbox | 1 and the set | initiators of calls | this CPU |
//! | call | 1 and the set | this CPU as initiator; targets acknowledge in the set | targets |
//! | counters | 10 | this CPU | whoever asks |
//!
//! The shared line holds, in one word, *which space is loaded, is the CPU lazy, is it between two
//! spaces*: a remote reader never sees the lazy flag of one space with the name of another, which
//! is one ordering (D3 in `switch.rs`) less to get right. It also holds the generation acknowledged
//! for the loaded space, and the generations of the slots.

use core::fmt;

use crate::accessed::Ages;
use crate::call::{Descriptor, Mailbox};
use crate::context::IrqsOff;
use crate::cpu_set::Bits;
use crate::facts::{SplitTables, TagScope};
use crate::ids::Generation;
use crate::isolated::Isolated;
use crate::platform::{CpuSetOf, Pinned, Platform};
use crate::policy::Lazy;
use crate::regime::{Invalidate, Reach, Regime};
use crate::sequence;
use crate::serve;
use crate::space::AddressSpace;
use crate::spurious::LastFault;
use crate::stats::{Snapshot, Stats};
use crate::switch;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::tags::current;
use crate::tags::generations::CpuTag;
use crate::tags::shared::Uses;
use crate::tags::slots::{self, Order, Slot, TagSlots};
use crate::tags::versioned::Versioned;

/// The state of one CPU.
#[repr(C, align(128))]
pub struct PerCpu<P: Platform> {
    pub(crate) private: Private<P>,
    // Beside the private line, as some hardware fetches lines in pairs: reading the shared line
    // from afar must not bring the private one along.
    pub(crate) rare: Rare,
    pub(crate) shared: Shared<P>,
    pub(crate) tag: CpuTag,
    pub(crate) ages: Ages<P>,
    pub(crate) isolated: Isolated,
    pub(crate) mailbox: Mailbox<P>,
    pub(crate) call: Descriptor<P>,
    pub(crate) stats: Stats,
}

/// What only this CPU touches, on every switch.
#[repr(C, align(64))]
pub(crate) struct Private<P: Platform> {
    /// Which spaces the tag slots remember.
    pub ids: P::Slots,
    /// The loaded space; null when the kernel's own tables are loaded.
    pub space: AtomicPtr<AddressSpace<P>>,
    /// See [`Order`].
    pub order: AtomicU64,
}

/// What others read to decide whether this CPU must be notified, and whether it has done it.
#[repr(C, align(64))]
pub(crate) struct Shared<P: Platform> {
    /// See [`Loaded`].
    pub loaded: AtomicU64,
    /// The generation of the loaded space up to which this CPU makes no access through older
    /// entries; [`Shared::EVERY`] under a tag for all CPUs, as others see to its entries.
    pub acked: AtomicU64,
    /// The generations of the tag slots.
    pub generations: P::Slots,
}

impl<P: Platform> Shared<P> {
    /// Above every generation.
    pub const EVERY: u64 = u64::MAX;
}

/// What only this CPU touches, in handlers.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Rare {
    /// Requests are being served: a nested handler leaves its work to the outer one.
    pub serving: AtomicBool,
    /// A nested handler left work.
    pub again: AtomicBool,
    /// Split tables: slots whose user half must be invalidated before the next return to user
    /// mode.
    pub user_half_pending: AtomicU32,
    /// The last spurious fault.
    pub last_fault: LastFault,
}

/// The published state of a CPU in one word: 0 is "the kernel's own tables", otherwise a space's
/// id, with two flags above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loaded(pub u64);

impl Loaded {
    pub const KERNEL: Self = Self(0);
    /// Between two spaces: assume the worst.
    pub const SWITCHING: Self = Self(1 << 63);
    const LAZY: u64 = 1 << 62;

    pub const fn id(self) -> u64 {
        self.0 & (Self::LAZY - 1)
    }

    pub const fn is_lazy(self) -> bool {
        self.0 & Self::LAZY != 0
    }

    #[must_use]
    pub const fn with_lazy(self, lazy: bool) -> Self {
        Self(if lazy { self.0 | Self::LAZY } else { self.0 & !Self::LAZY })
    }
}

/// Why a CPU could not come online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OnlineError {
    /// The CPU's number does not fit the platform's set type.
    TooMany,
    /// [`Platform::slot`] has no state for this CPU.
    NoSlot,
    /// The CPU has a space loaded: it is online, or must [`crate::leave`] first.
    Loaded,
    /// The port's facts contradict each other.
    Facts(crate::facts::FactsError),
    /// The policy can't serve this hardware.
    Policy(crate::policy::PolicyError),
    /// Tags mean the same on every CPU, and [`Platform::tags`] has no allocator for their width and
    /// this CPU.
    NoTags,
    /// The tags of [`Platform::shared_tags`] are also slots', or wider than a tag.
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

impl<P: Platform> PerCpu<P> {
    /// The state of a CPU that was never online.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            private: Private {
                ids: P::Slots::EMPTY,
                space: AtomicPtr::new(core::ptr::null_mut()),
                order: AtomicU64::new(Order::INITIAL.0),
            },
            shared: Shared {
                loaded: AtomicU64::new(Loaded::KERNEL.0),
                acked: AtomicU64::new(0),
                generations: P::Slots::EMPTY,
            },
            rare: Rare {
                serving: AtomicBool::new(false),
                again: AtomicBool::new(false),
                user_half_pending: AtomicU32::new(0),
                last_fault: LastFault::new(),
            },
            tag: CpuTag::new(),
            ages: Ages::new(),
            isolated: Isolated::new(),
            mailbox: Mailbox::new(),
            call: Descriptor::new(),
            stats: Stats::new(),
        }
    }

    /// The state of a CPU that was never online.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            private: Private {
                ids: P::Slots::empty(),
                space: AtomicPtr::new(core::ptr::null_mut()),
                order: AtomicU64::new(Order::INITIAL.0),
            },
            shared: Shared {
                loaded: AtomicU64::new(Loaded::KERNEL.0),
                acked: AtomicU64::new(0),
                generations: P::Slots::empty(),
            },
            rare: Rare {
                serving: AtomicBool::new(false),
                again: AtomicBool::new(false),
                user_half_pending: AtomicU32::new(0),
                last_fault: LastFault::new(),
            },
            tag: CpuTag::new(),
            ages: Ages::new(),
            isolated: Isolated::new(),
            mailbox: Mailbox::new(),
            call: Descriptor::new(),
            stats: Stats::new(),
        }
    }

    /// The counters now.
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        let mut snapshot = self.stats.read();
        // Another CPU's look may fall between the two halves of a spill: never below zero.
        snapshot.switches_kept = (snapshot.switches_kept + self.order().kept())
            .saturating_sub(self.stats.kept_at_reset.get());
        snapshot
    }

    /// Sets the counters to zero. Counts made at the same moment may survive or vanish.
    pub fn reset_stats(&self) {
        self.stats.reset(self.order().kept());
    }

    /// The state of the CPU this code is pinned to.
    ///
    /// # Panics
    /// When [`Platform::slot`] breaks its contract and has no state for the executing CPU.
    pub(crate) fn here(pin: &P::Pin) -> &'static Self {
        P::slot(pin.cpu()).expect("Platform::slot has no state for the executing CPU")
    }

    /// This CPU's own view of what it has loaded.
    pub(crate) fn loaded(&self) -> Loaded {
        Loaded(self.shared.loaded.load(Ordering::Relaxed))
    }

    pub(crate) fn order(&self) -> Order {
        Order(self.private.order.load(Ordering::Relaxed))
    }

    pub(crate) fn set_order(&self, order: Order) {
        self.private.order.store(order.0, Ordering::Relaxed);
    }

    /// This CPU's own view of whether it is lazy.
    pub(crate) fn is_lazy(&self, loaded: Loaded, order: Order) -> bool {
        if P::policy().split_lazy_line { loaded.is_lazy() } else { order.is_lazy() }
    }

    /// Becomes lazy, or stops being so. `loaded` is what is loaded now.
    pub(crate) fn set_lazy(&self, loaded: Loaded, lazy: bool) {
        // ORDERING: Release, so that what this CPU did through the space before it became lazy is
        // over when an initiator (Acquire load in `remote_view`) reads the flag and leaves it
        // alone.
        let release = Ordering::Release;
        if P::policy().split_lazy_line {
            self.shared.loaded.store(loaded.with_lazy(lazy).0, release);
        } else {
            self.private.order.store(self.order().with_lazy(lazy).0, release);
        }
    }

    /// The loaded space.
    pub(crate) fn space(&self) -> Option<&AddressSpace<P>> {
        let space = self.private.space.load(Ordering::Relaxed);
        // SAFETY: non-null only while the space is loaded here (`switch::switch_to` to
        // `switch::unload`), and its owner keeps a loaded space alive (contract of `switch_to`). On
        // its way out of a space the CPU asks before it leaves the set, and a handler does not ask
        // then (`respond::is_switching`).
        unsafe { space.as_ref() }
    }

    pub(crate) fn generation_of(&self, slot: Slot) -> Generation {
        Generation(self.shared.generations.as_ref()[slot.index()].load(Ordering::Relaxed))
    }

    pub(crate) fn set_generation_of(&self, slot: Slot, generation: Generation) {
        self.shared.generations.as_ref()[slot.index()].store(generation.0, Ordering::Relaxed);
        if !P::policy().split_lazy_line {
            // In that layout the generations sit beside the lazy flag: to catch up is to dirty its
            // line, and every initiator that reads the flag next fetches it.
            self.set_order(self.order());
        }
    }

    /// The user half of a slot's tag must be invalidated before it is used again.
    pub(crate) fn mark_user_half_pending(&self, slot: Slot) {
        let pending = self.rare.user_half_pending.load(Ordering::Relaxed);
        self.rare.user_half_pending.store(pending | 1 << slot.0, Ordering::Relaxed);
    }
}

impl<P: Platform> Default for PerCpu<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Brings this CPU online: its TLB is emptied, its tag slots forgotten, and from now on it is asked
/// to take part in kernel-wide flushes. Call it once the CPU's interrupts work, before it loads any
/// space. Never in a handler ([`context`](crate::context)).
///
/// Whatever kernel mappings changed before is covered: the CPU joins the set first and empties its
/// TLB after.
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
    if let Some(tags) = current::shared::<P>() {
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
    // ORDERING: join before the flush; partner: the fence of an initiator between its change and
    // its read of the online set (`flush::flush_kernel`).
    fence(Ordering::SeqCst);
    P::Regime::load_kernel();
    sequence::invalidate::<P>(Invalidate::Everything, Reach::Local);
    P::Regime::sync(Reach::Local);
    Ok(())
}

/// Takes this CPU offline: it leaves its space, acknowledges what was asked of it, and is asked no
/// more.
///
/// # Safety
/// 1. As [`leave`](crate::leave).
/// 2. Until [`online`] has been called again no user code runs here, and nothing depends on a
///    translation that may change, of the kernel's ranges or any other: no flush reaches this CPU,
///    and each returns without it.
pub unsafe fn offline<P: Platform>(pin: &P::Pin) {
    // SAFETY: this function's contract.
    unsafe { switch::leave::<P>(pin) };
    P::system().set_online(pin.cpu(), false);
    // ORDERING: D4: off the set before the last look; partner: the fence in `call::post` and
    // `tree::begin`. Either we find the request, or its initiator finds us gone and takes it back.
    fence(Ordering::SeqCst);
    let _ = serve::poll::<P>(pin);
}

/// What an initiator sees of another CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    /// The kernel's own tables, or another space.
    Elsewhere,
    /// Between two spaces.
    Switching,
    /// The space in question, in use.
    Active,
    /// The space in question, lazily.
    Lazy,
}

impl<P: Platform> PerCpu<P> {
    /// The words that an acknowledgement to a flush changes.
    pub(crate) fn published(&self) -> (u64, u64) {
        let Shared { loaded, acked, .. } = &self.shared;
        (loaded.load(Ordering::Relaxed), acked.load(Ordering::Relaxed))
    }

    /// This CPU's own view of whether its space is loaded under a tag for all CPUs.
    pub(crate) fn runs_shared(&self) -> bool {
        self.shared.acked.load(Ordering::Relaxed) == Shared::<P>::EVERY
    }

    /// What this (other) CPU has to do with space `id`, as far as the move to a tag for all CPUs is
    /// concerned.
    pub(crate) fn uses(&self, id: u64) -> Uses {
        // ORDERING: S3 and S4 in `tags/shared.rs`: Acquire, with the Release of whoever published
        // this state
        let loaded = Loaded(self.shared.loaded.load(Ordering::Acquire));
        if loaded == Loaded::SWITCHING {
            return Uses::Unknown;
        }
        if loaded.id() != id {
            return Uses::Nothing;
        }
        // After the space: if it is of another stay, the CPU has left, and sees the tag when it
        // comes back.
        match self.shared.acked.load(Ordering::Acquire) {
            Shared::<P>::EVERY => Uses::Shared,
            _ => Uses::Slot,
        }
    }

    /// What this (other) CPU has to do with space `id`. [O-D1, O-D2, O-D3 in `switch.rs`]
    pub(crate) fn remote_view(&self, id: u64) -> View {
        let policy = P::policy();
        // ORDERING: Acquire, with the Release of whoever published this state: what came before is
        // over
        let loaded = Loaded(self.shared.loaded.load(Ordering::Acquire));
        if loaded == Loaded::SWITCHING {
            return View::Switching;
        }
        if loaded.id() != id {
            return View::Elsewhere;
        }
        let lazy = if policy.split_lazy_line {
            loaded.is_lazy()
        } else {
            // ORDERING: D3: read after `loaded` (Acquire above), written before it (`switch_to`)
            Order(self.private.order.load(Ordering::Acquire)).is_lazy()
        };
        if lazy && policy.lazy != Lazy::Off { View::Lazy } else { View::Active }
    }
}

//! The state of one CPU.
//!
//! The kernel owns one [`PerCpu`] per CPU (a `static` array, a per-CPU variable) and hands out
//! references through [`Platform::slot`]. It needs no initialization call and has no destructor.
//!
//! # Which CPU writes and reads which line
//! | part | lines (6 slots) | written by | read by |
//! |---|---|---|---|
//! | private | 1 | this CPU, on every switch | this CPU |
//! | shared | 1 | this CPU: switch, lazy, acknowledgement | initiators |
//! | rare | 1 | this CPU, in handlers | this CPU |
//! | tag | 1 | this CPU, on a switch under machine-wide tags; the CPU that begins a new generation of them | both |
//! | ages | 1 | this CPU, on switches to spaces whose accessed bits are cleared; with flags, the CPU that clears them | both |
//! | isolated | 1 | this CPU, on its way in and out of the kernel, if it opts in | initiators of kernel flushes |
//! | mailbox | 1 and the set | initiators of calls | this CPU |
//! | call | 1 and the set | this CPU as initiator; targets acknowledge in the set | targets |
//! | counters | 10 | this CPU | any CPU |
//!
//! The shared line holds, in one word, *which space is loaded, is the CPU lazy, is it between two
//! spaces*. So a remote reader never sees the lazy flag of one space with the id of another. (A
//! policy without `split_lazy_line` keeps the flag on the private line; then the ordering D3 in
//! `ops/switch/mod.rs` guarantees this.) The line also holds the generation that is acknowledged
//! for the loaded space, and the generations of the slots.

use crate::base::ids::{Generation, Tag};
use crate::base::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, CountCell, Ordering};
use crate::port::family;
use crate::port::platform::{Pinned, Platform};
use crate::port::policy::Lazy;
use crate::state::calls::{Descriptor, Mailbox};
use crate::state::space::AddressSpace;
use crate::state::stats::{Snapshot, Stats};
use crate::tags::generations::CpuTag;
use crate::tags::shared::Uses;
use crate::tags::slots::{Order, Slot, TagSlots};

/// The state of one CPU.
#[repr(C, align(128))]
pub struct PerCpu<P: Platform> {
    pub(crate) private: Private<P>,
    // Placed beside the private line because some hardware fetches lines in pairs: a remote read of
    // the shared line must not fetch the private one too.
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
    /// See [`Order::from_word`].
    pub order: AtomicU64,
}

/// What others read to decide whether this CPU must be notified, and whether it has acknowledged.
#[repr(C, align(64))]
pub(crate) struct Shared<P: Platform> {
    /// See [`Loaded`].
    pub loaded: AtomicU64,
    /// The generation of the loaded space up to which this CPU makes no access through older
    /// entries; [`Shared::EVERY`] under a global tag, whose entries are invalidated by broadcasts.
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
    /// This CPU is serving requests: a nested handler leaves its work to the outer one.
    pub serving: AtomicBool,
    /// A nested handler has left work.
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
    /// Between two spaces: readers assume the worst.
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

/// What a CPU keeps for accessed bits: one line.
#[repr(C, align(64))]
pub(crate) struct Ages<P: Platform> {
    /// [`Accessed::AtSwitch`]: accessed bits were cleared of which this CPU may have entries.
    pub due: AtomicBool,
    /// [`Accessed::AtSwitch`]: the slots that must be flushed before they are used again. Only this
    /// CPU uses it.
    pub due_slots: AtomicU32,
    /// [`Accessed::Generation`]: the number for which each slot was last flushed. Only this CPU
    /// uses it.
    pub seen: P::Slots,
}

impl<P: Platform> Ages<P> {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { due: AtomicBool::new(false), due_slots: AtomicU32::new(0), seen: P::Slots::EMPTY }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { due: AtomicBool::new(false), due_slots: AtomicU32::new(0), seen: P::Slots::empty() }
    }
}

/// Whether a CPU is in user mode, and up to which kernel change it is current.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Isolated {
    pub in_user: AtomicBool,
    /// It has been isolated before, and may be again. Only this CPU uses it.
    pub opted_in: AtomicBool,
    /// The count that it is current to, while it is in the kernel. Only this CPU uses it.
    pub current: AtomicU64,
}

impl Isolated {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            in_user: AtomicBool::new(false),
            opted_in: AtomicBool::new(false),
            current: AtomicU64::new(0),
        }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            in_user: AtomicBool::new(false),
            opted_in: AtomicBool::new(false),
            current: AtomicU64::new(0),
        }
    }
}

/// What this CPU knows of its last spurious fault.
#[derive(Debug)]
pub(crate) struct LastFault {
    pub space: CountCell,
    pub page: CountCell,
    pub entry: CountCell,
    pub generation: CountCell,
    pub times: CountCell,
}

impl LastFault {
    pub const fn new() -> Self {
        Self {
            space: CountCell::new(0),
            page: CountCell::new(0),
            entry: CountCell::new(0),
            generation: CountCell::new(0),
            times: CountCell::new(0),
        }
    }
}

impl<P: Platform> PerCpu<P> {
    /// The state of a CPU that was never online.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            private: Private {
                ids: P::Slots::EMPTY,
                space: AtomicPtr::new(core::ptr::null_mut()),
                order: AtomicU64::new(Order::INITIAL.word()),
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
                order: AtomicU64::new(Order::INITIAL.word()),
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

    /// The present values of the counters.
    #[must_use]
    pub fn stats(&self) -> Snapshot {
        let mut snapshot = self.stats.read();
        // Another CPU may read between the two halves of a spill: the result is never below zero.
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

    /// What this CPU has loaded, read by this CPU.
    pub(crate) fn loaded(&self) -> Loaded {
        Loaded(self.shared.loaded.load(Ordering::Relaxed))
    }

    pub(crate) fn order(&self) -> Order {
        Order::from_word(self.private.order.load(Ordering::Relaxed))
    }

    pub(crate) fn set_order(&self, order: Order) {
        self.private.order.store(order.word(), Ordering::Relaxed);
    }

    /// Whether this CPU is lazy, read by this CPU.
    pub(crate) fn is_lazy(&self, loaded: Loaded, order: Order) -> bool {
        if P::policy().split_lazy_line { loaded.is_lazy() } else { order.is_lazy() }
    }

    /// Enters or leaves lazy mode. `loaded` is what is loaded now.
    pub(crate) fn set_lazy(&self, loaded: Loaded, lazy: bool) {
        // ORDERING: Release, so that what this CPU did through the space before it became lazy is
        // over when an initiator (Acquire load in `remote_view`) reads the flag and does not notify
        // it.
        let release = Ordering::Release;
        if P::policy().split_lazy_line {
            self.shared.loaded.store(loaded.with_lazy(lazy).0, release);
        } else {
            self.private.order.store(self.order().with_lazy(lazy).word(), release);
        }
    }

    /// The loaded space.
    pub(crate) fn space(&self) -> Option<&AddressSpace<P>> {
        let space = self.private.space.load(Ordering::Relaxed);
        // SAFETY: non-null only while the space is loaded here (`switch::switch_to` to
        // `switch::unload`), and its owner keeps a loaded space alive (contract of `switch_to`). On
        // its way out of a space the CPU calls this before it leaves the set, and a handler does
        // not call it then (`respond::is_switching`).
        unsafe { space.as_ref() }
    }

    pub(crate) fn generation_of(&self, slot: Slot) -> Generation {
        Generation(self.shared.generations.as_ref()[slot.index()].load(Ordering::Relaxed))
    }

    pub(crate) fn set_generation_of(&self, slot: Slot, generation: Generation) {
        self.shared.generations.as_ref()[slot.index()].store(generation.0, Ordering::Relaxed);
        if !P::policy().split_lazy_line {
            // In that layout the generations share a line with the lazy flag: catching up dirties
            // that line, and every initiator that reads the flag next fetches it.
            self.set_order(self.order());
        }
    }

    /// The tag under which this CPU's loaded space is loaded; `slot` is its slot, if it has one.
    pub(crate) fn loaded_tag(&self, slot: Slot) -> Tag {
        if family::machine_wide::<P>() {
            return self.tag.tag();
        }
        let runs_shared = || self.runs_shared();
        let shared = family::shared::<P>().filter(|_| runs_shared()).and_then(|_| self.space());
        let tag = shared.and_then(|space| space.shared_tag().tag());
        tag.unwrap_or_else(|| slot.tag(family::tags_on::<P>()))
    }

    /// Records that the user half of a slot's tag must be invalidated before it is used again.
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

/// The state of another CPU as an initiator sees it, with respect to one space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    /// The kernel's own tables, or another space.
    Elsewhere,
    /// Between two spaces.
    Switching,
    /// In the space in question, and using it.
    Active,
    /// Lazy in the space in question.
    Lazy,
}

impl<P: Platform> PerCpu<P> {
    /// The words that an acknowledgement changes.
    pub(crate) fn published(&self) -> (u64, u64) {
        let Shared { loaded, acked, .. } = &self.shared;
        (loaded.load(Ordering::Relaxed), acked.load(Ordering::Relaxed))
    }

    /// Whether the space is loaded under a global tag, read by this CPU.
    pub(crate) fn runs_shared(&self) -> bool {
        self.shared.acked.load(Ordering::Relaxed) == Shared::<P>::EVERY
    }

    /// How this (other) CPU uses space `id`, as far as the move to a global tag is concerned.
    pub(crate) fn uses(&self, id: u64) -> Uses {
        // ORDERING: S3 and S4 in `tags/shared.rs`: Acquire, with the Release of the CPU that
        // published this state
        let loaded = Loaded(self.shared.loaded.load(Ordering::Acquire));
        if loaded == Loaded::SWITCHING {
            return Uses::Unknown;
        }
        if loaded.id() != id {
            return Uses::Nothing;
        }
        // Read after the space: if it belongs to another stay, the CPU has left the space, and sees
        // the tag when it comes back.
        match self.shared.acked.load(Ordering::Acquire) {
            Shared::<P>::EVERY => Uses::Shared,
            _ => Uses::Slot,
        }
    }

    /// How this (other) CPU uses space `id`: D1, D2 and D3 in `ops/switch/mod.rs`.
    pub(crate) fn remote_view(&self, id: u64) -> View {
        let policy = P::policy();
        // ORDERING: Acquire, with the Release of the CPU that published this state: what that CPU
        // did before is over
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
            Order::from_word(self.private.order.load(Ordering::Acquire)).is_lazy()
        };
        if lazy && policy.lazy != Lazy::Off { View::Lazy } else { View::Active }
    }
}

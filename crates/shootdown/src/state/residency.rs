//! Residency: where entries of a space can be, so that hardware need not broadcast when one CPU is
//! enough.
//!
//! # The problem
//! Where hardware can invalidate on all CPUs with one instruction, all CPUs contend for that
//! instruction. Most spaces run on one CPU, and their changes concern no other. But a CPU that
//! leaves a space keeps its entries (tags outlive switches), and its walker may still be at work,
//! so it is not enough to know where a space *runs*.
//!
//! # Strategies
//! | strategy | a space is | local when | none when | what a switch costs |
//! |---|---|---|---|---|
//! | [`Strategy::Always`] | everywhere | never | never | a fence |
//! | [`Strategy::Sticky`] | unowned, owned by the only CPU that ever ran it, or shared for good | the caller owns it | it never ran | a store and a fence when the owner changes |
//! | [`Strategy::Active`] | active on some CPUs now; its tag is stale on others | it is active on the caller only | it is active on no CPU | a count up and down, a fence, a look at the stale set; a flush of the tag if it is stale here |
//! | [`Strategy::Trim`] | on the CPUs of a set, which a CPU leaves after flushing the tag | the caller alone is in the set | no CPU is | joining the set, and a fence, the first time |
//!
//! A *fresh* tag (see [`tags::generations`](crate::tags::generations)) resets all of them: no CPU
//! has an entry under it that it would not flush first, and none has the tables loaded.
//!
//! Each strategy also records that a CPU has run the space, in the set that
//! [`retire`](crate::AddressSpace::retire) reads.
//!
//! # Why each is sound
//! **Always.** A caller invalidates by the tag that it reads after its stores to the tables are
//! visible. A CPU reads the tag that it runs under before its walker can use the tables. Either the
//! caller names that tag, or the CPU's walker sees the stores (P1).
//!
//! **Sticky** ("arm64: mm: Don't broadcast TLBI if mm was only active on local CPU", Ryan Roberts
//! and James Morse, 2025). A CPU makes itself known in the owner word before its walker can use the
//! tables; a caller reads that word after its stores to the tables are visible. Either the caller
//! sees the CPU, or the CPU's walker sees the stores (P1). No CPU is ever taken out, so none can be
//! missed.
//!
//! **Active** (after "arm64: tlb: skip tlbi broadcast", Andrea Arcangeli, 2020). CPUs that are not
//! active may still hold entries; the caller puts them into the stale set *before* it reads the
//! count of active CPUs (P2): a CPU that loads the space is either counted, or finds itself stale
//! and flushes the tag. The count goes down only after the next tables are in force and the walks
//! through the old ones are over. That needs a barrier of its own ([`Residency::left`]), without
//! which a walk may go on after the count says that there is none. An invalidation for freed tables
//! is always broadcast, because nothing looks for cached non-leaf entries by tag on a CPU that has
//! left the space.
//!
//! **Trim** (as on powerpc radix machines). Only the CPU itself leaves the set, and only after it
//! has loaded other tables and flushed the tag: a CPU that is not in the set has no entries, of any
//! kind.
//!
//! # Orderings
//! | pair | the switching CPU | the caller | what it guarantees |
//! |---|---|---|---|
//! | P1 | tag; owner word, or set; **fence**; load the root | table stores, published; **fence**; read owner word, or set; tag | the caller sees the CPU and its tag, or its walker sees the stores |
//! | P2 | count up; **fence**; look for itself in the stale set | stale set; **fence**; read the count of active CPUs | the CPU is counted, or flushes |
//! | P3 | walks complete; count down (Release) | count (Acquire) | a CPU that is not counted does not walk |
//! | P4 | take itself out of the stale set (`AcqRel`); flush the tag | table stores; stale set (`AcqRel`) | the flush comes after the stores that it is for |
//! | P5 | flush the tag; leave the set (Release) | read the set (Acquire) | a CPU that is not in the set has no entries |
//! | P6 | (the CPU that pins the tag) tag; count the pin; **fence**; the device walks | table stores, published; **fence**; read the pins; tag | the caller sees the pin and the tag, or the device sees the stores |

use crate::base::cpu_set::{Bits, Mask};
use crate::base::ids::CpuId;
use crate::base::sync::{AtomicU32, Ordering, fence};

pub use crate::port::policy::Strategy;

/// How far an invalidation must reach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extent {
    /// Nowhere: no CPU can use an entry before it flushes.
    None,
    /// The calling CPU.
    Local,
    /// Every CPU.
    Broadcast,
}

/// No CPU has run the space under this tag.
const UNOWNED: u32 = 0;
/// Two CPUs have run it, and one of them has executed its fence since the word said so.
const SHARED: u32 = u32::MAX;
/// Two CPUs have run it, and perhaps neither has executed its fence yet.
const SHARING: u32 = u32::MAX - 1;

/// Where the entries of one space can be.
#[derive(Debug)]
#[repr(C)]
pub struct Residency<M: Mask> {
    /// CPUs that may hold entries, or have the tables loaded.
    pub(crate) cpus: M,
    /// [`UNOWNED`], [`SHARING`], [`SHARED`], or the owner's number plus 1.
    owner: AtomicU32,
    /// CPUs whose walkers use the space's tables.
    active: AtomicU32,
    /// Devices whose walkers may use the tables at any time: see [`crate::pinned`].
    pins: AtomicU32,
    /// CPUs that must flush the tag before they use it.
    stale: M,
}

impl<M: Mask> Residency<M> {
    /// A space that runs nowhere.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cpus: M::EMPTY,
            owner: AtomicU32::new(UNOWNED),
            active: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            stale: M::EMPTY,
        }
    }

    /// A space that runs nowhere.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            cpus: M::empty(),
            owner: AtomicU32::new(UNOWNED),
            active: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            stale: M::empty(),
        }
    }

    /// Records that `cpu`, which is the calling one, is about to load the space's tables. If it
    /// returns `true`, the CPU must flush the tag before.
    ///
    /// Call it with interrupts off, and not for a space whose tables are loaded already.
    #[must_use = "a stale tag must be flushed before it is used"]
    pub fn enter(&self, strategy: Strategy, cpu: CpuId) -> bool {
        match strategy {
            Strategy::Always => {
                self.cpus.insert(cpu);
                fence(Ordering::SeqCst); // ORDERING: P1, with the fence in `extent`
                false
            }
            Strategy::Sticky => {
                self.cpus.insert(cpu);
                self.own(cpu);
                false
            }
            Strategy::Active => {
                self.active.fetch_add(1, Ordering::Relaxed);
                self.cpus.insert(cpu);
                fence(Ordering::SeqCst); // ORDERING: P2, with the fence in `extent_active`
                self.stale.remove(cpu) // [P4]
            }
            Strategy::Trim => {
                if self.cpus.insert(cpu) {
                    fence(Ordering::SeqCst); // ORDERING: P1, with the fence in `extent`
                }
                false
            }
        }
    }

    fn own(&self, cpu: CpuId) {
        let me = cpu.0 + 1;
        // ORDERING: P1: a CPU that reads `SHARED` comes after the fence of the CPU that wrote it,
        // and needs none itself
        let owner = self.owner.load(Ordering::Acquire);
        if owner == me || owner == SHARED {
            return;
        }
        let first = owner == UNOWNED
            && self
                .owner
                .compare_exchange(UNOWNED, me, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !first {
            self.owner.store(SHARING, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst); // ORDERING: P1, with the fence in `extent`
        if !first {
            self.owner.store(SHARED, Ordering::Release); // ORDERING: P1
        }
    }

    /// Records that `cpu` has loaded other tables, and its walks through the space's are over.
    ///
    /// Call it after the barrier that completes walks (Arm: `dsb` after the root was replaced and
    /// `isb`; [`Regime::load`](crate::Regime::load) has it).
    pub fn left(&self, strategy: Strategy) {
        if strategy == Strategy::Active {
            // ORDERING: P3, with the Acquire in `extent_active`
            self.active.fetch_sub(1, Ordering::Release);
        }
    }

    /// Takes `cpu` out of the set; it has loaded other tables and flushed the tag.
    pub fn trimmed(&self, cpu: CpuId) {
        self.cpus.remove(cpu); // ORDERING: P5: a Release in `remove`
    }

    /// Records that a device is about to walk the space's tables, under the tag that the space has
    /// and keeps: from now on every invalidation is broadcast.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // ORDERING: P6, with the fence in `extent`
    }

    /// Records that a device has stopped, and that nothing is cached for it. Returns `false` if
    /// none was pinned.
    #[must_use]
    pub fn unpin(&self) -> bool {
        let mut pins = self.pins.load(Ordering::Relaxed);
        while let Some(less) = pins.checked_sub(1) {
            let order = Ordering::Relaxed;
            match self.pins.compare_exchange(pins, less, order, order) {
                Ok(_) => return true,
                Err(now) => pins = now,
            }
        }
        false
    }

    /// May a device walk the tables?
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Relaxed) != 0
    }

    /// How far the invalidation of a change must reach. The stores to the tables are published.
    ///
    /// `here`: the calling CPU has the space's tables loaded. It stays on its CPU, and the tables
    /// stay loaded, until the invalidation is complete. Read the tag after this.
    #[must_use]
    pub fn extent(&self, strategy: Strategy, cpu: CpuId, here: bool, freed_tables: bool) -> Extent {
        fence(Ordering::SeqCst); // ORDERING: P1, P6, with the fences in `enter` and `pin`
        if self.is_pinned() {
            return Extent::Broadcast;
        }
        match strategy {
            Strategy::Always => Extent::Broadcast,
            Strategy::Sticky => match self.owner.load(Ordering::Relaxed) {
                UNOWNED => Extent::None,
                owner if owner == cpu.0 + 1 => Extent::Local,
                _ => Extent::Broadcast,
            },
            Strategy::Active => self.extent_active(cpu, here, freed_tables),
            Strategy::Trim => {
                let mut others = self.cpus.snapshot(); // [P5]
                let mine = others.contains(cpu);
                others.remove(cpu);
                match (others.is_empty(), mine) {
                    (true, false) => Extent::None,
                    (true, true) => Extent::Local,
                    (false, _) => Extent::Broadcast,
                }
            }
        }
    }

    fn extent_active(&self, cpu: CpuId, here: bool, freed_tables: bool) -> Extent {
        let mine = u32::from(here);
        // First a look that writes nothing: if others are active, the broadcast reaches every CPU.
        if freed_tables || self.active.load(Ordering::Relaxed) > mine {
            return Extent::Broadcast;
        }
        let held = self.cpus.snapshot();
        for other in held.iter().filter(|c| !here || *c != cpu) {
            self.stale.insert(other); // [P4]
        }
        fence(Ordering::SeqCst); // ORDERING: P2, with the fence in `enter`
        // [P3]
        match self.active.load(Ordering::Acquire) {
            n if n > mine => Extent::Broadcast,
            0 => Extent::None,
            _ => Extent::Local,
        }
    }

    /// Resets the state: the space has a fresh tag, under which no CPU has entries, and no CPU has
    /// it loaded.
    pub fn renew(&self) {
        self.owner.store(UNOWNED, Ordering::Relaxed);
        for set in [&self.cpus, &self.stale] {
            clear(set);
        }
    }
}

impl<M: Mask> Default for Residency<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Empties a set, which no CPU enters or leaves meanwhile. It skips words that no CPU was ever in,
/// so the set of a new space costs the same whatever its width.
fn clear<M: Mask>(set: &M) {
    let words = set.words();
    let mut marks = if words.len() == 1 { 1 } else { set.summary().load(Ordering::Relaxed) };
    if marks == 0 {
        return;
    }
    while marks != 0 {
        let first = marks.trailing_zeros() as usize;
        marks &= marks - 1;
        words.iter().skip(first).step_by(64).for_each(|word| word.store(0, Ordering::Relaxed));
    }
    set.summary().store(0, Ordering::Relaxed);
}

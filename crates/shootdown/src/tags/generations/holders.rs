//! The holders of tags: a space keeps the tag that it was last given, a CPU the tag that it runs
//! under. (Orderings V1 to V8: the table of [`generations`](super).)

use crate::base::ids::{CpuId, Tag};
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bits of an id below its generation.
pub(super) const NUMBER_BITS: u32 = 16;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// A CPU that runs under no tag publishes this. It is no id, because generations start at 1.
pub(super) const INACTIVE: u64 = 0;
/// A rollover stores this when it takes a CPU's id away. It is no id either.
pub(super) const TAKEN: u64 = NUMBER;
pub(super) fn number_of(id: u64) -> usize {
    (id & NUMBER) as usize
}

pub(super) const fn generation_of(id: u64) -> u64 {
    id >> NUMBER_BITS
}

/// The versioned tag of a space (or of a guest). It is part of the space, which starts without a
/// tag.
#[derive(Debug)]
pub struct SpaceTag {
    /// Generation and number; 0 if the space has never had a tag.
    pub(super) id: AtomicU64,
    pub(super) pins: AtomicU32,
}

/// The state of a CPU: the kernel keeps one per CPU, on a line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuTag {
    /// The id that this CPU runs under; [`TAKEN`] after a rollover; or [`INACTIVE`].
    pub(super) active: AtomicU64,
    /// The id that it ran under when a rollover took `active` away. Written under the lock.
    pub(super) reserved: AtomicU64,
    /// The generation for which it has flushed everything. Written by the CPU itself.
    pub(super) flushed: AtomicU64,
    /// `active` is the id that the CPU switches to; the previous space's tables may still be
    /// loaded.
    pub(super) loading: AtomicBool,
    /// The tag of the loaded tables; only the CPU itself uses it.
    tag: AtomicU32,
}

/// How a [`Generations`](super::Generations) finds the CPUs.
///
/// # Safety
/// `of` always returns the same state for a CPU, a different one for each CPU, and one for every
/// CPU that runs under a tag of the allocator: a rollover takes tags back from the CPUs that it
/// finds.
pub unsafe trait CpuTags {
    /// The state of a CPU; `None` when there is no such CPU.
    fn of(&self, cpu: CpuId) -> Option<&CpuTag>;
}

// SAFETY: each CPU has one element, always the same, and the slice's owner gives it all CPUs.
unsafe impl CpuTags for [CpuTag] {
    fn of(&self, cpu: CpuId) -> Option<&CpuTag> {
        self.get(cpu.index())
    }
}

impl SpaceTag {
    /// Makes the state of a space that has no tag yet.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { id: AtomicU64::new(0), pins: AtomicU32::new(0) }
    }

    /// Makes the state of a space that has no tag yet.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { id: AtomicU64::new(0), pins: AtomicU32::new(0) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id.load(Ordering::Acquire) // [V5, V6]
    }

    /// Has the space a tag? A tag of an old generation counts: CPUs may have entries under it.
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        self.id() != 0
    }
}

impl Default for SpaceTag {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuTag {
    /// Makes the state of a CPU that runs under no tag and has flushed for no generation.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            active: AtomicU64::new(INACTIVE),
            reserved: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            loading: AtomicBool::new(false),
            tag: AtomicU32::new(0),
        }
    }

    /// Makes the state of a CPU that runs under no tag and has flushed for no generation.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            active: AtomicU64::new(INACTIVE),
            reserved: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            loading: AtomicBool::new(false),
            tag: AtomicU32::new(0),
        }
    }

    /// Publishes the id that this CPU switches to, unless a rollover has taken the old one away.
    /// [V2, V7]
    pub(super) fn replace_active(&self, from: u64, to: u64) -> bool {
        self.loading.store(true, Ordering::Relaxed);
        let done =
            self.active.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok();
        if !done {
            // This CPU is about to wait for the end of a rollover, which must not wait for this
            // CPU.
            self.loading.store(false, Ordering::Relaxed);
        }
        done
    }

    /// The tag of the loaded tables; 0 for the kernel's own.
    pub(crate) fn tag(&self) -> Tag {
        #[allow(clippy::cast_possible_truncation)] // a `Tag` was stored
        Tag(self.tag.load(Ordering::Relaxed) as u16)
    }

    /// Records that tables were loaded under this tag.
    pub(crate) fn set_tag(&self, tag: Tag) {
        self.tag.store(u32::from(tag.0), Ordering::Relaxed);
    }

    /// Records that the tables of the activated space are in force, and that walks through the
    /// previous ones are over. Call it after each
    /// [`Generations::activate`](super::Generations::activate), with interrupts still off: a
    /// rollover waits for it.
    ///
    /// # Safety
    /// The executing CPU is the one that this state belongs to, and its walks are over as said
    /// above: the tags of the spaces that it left may be given to others from now on.
    pub unsafe fn loaded(&self) {
        self.loading.store(false, Ordering::Release); // [V8]
    }

    /// Records that the CPU runs under no tag from now on (a descheduled guest, an idle CPU that
    /// has loaded the kernel's tables): the next rollover need not reserve a tag for it. The tag
    /// must not be loaded any more.
    ///
    /// # Safety
    /// The executing CPU is the one that this state belongs to, interrupts are off, and neither CPU
    /// nor walker uses a translation under the tag until the next
    /// [`Generations::activate`](super::Generations::activate): another space may get it.
    ///
    /// A hypervisor calls it when it deschedules a guest, whose VMID others may then have:
    ///
    /// ```
    /// # use shootdown::CpuId;
    /// # use shootdown::tags::generations::{CpuTag, Generations, SpaceTag, TagsError};
    /// let vmids = Generations::<1, 2>::new(2, false, 2)?; // two CPUs, and the VMIDs 1 to 3
    /// let cpus = [CpuTag::new(), CpuTag::new()];
    /// let guests = [const { SpaceTag::new() }; 4];
    /// let run = |cpu: usize, guest: &SpaceTag| {
    ///     // SAFETY: nothing interrupts here, and these are all the CPUs there are.
    ///     let done = unsafe { vmids.activate(CpuId(cpu as u32), guest, &cpus[..], || ()) };
    ///     // (here: flush if `done.flush` says so, and load the guest's tables under `done.tag`)
    ///     // SAFETY: they are loaded.
    ///     unsafe { cpus[cpu].loaded() };
    ///     done
    /// };
    /// let first = run(0, &guests[0]);
    /// // SAFETY: descheduled, and the host's own tables are loaded.
    /// unsafe { cpus[0].deactivate() };
    /// run(1, &guests[1]);
    /// run(1, &guests[2]);
    /// let last = run(1, &guests[3]); // one more guest than there are VMIDs
    /// assert!(last.rolled_over && last.flush);
    /// assert_eq!(last.tag, first.tag);
    /// assert!(run(0, &guests[0]).flush); // another VMID, and nothing cached
    /// # Ok::<(), TagsError>(())
    /// ```
    pub unsafe fn deactivate(&self) {
        // The swap finds it if a rollover has taken the id away. That rollover does not come again,
        // and this CPU may read the generation before it sees the rollover. [V2]
        let before = self.active.swap(INACTIVE, Ordering::Release);
        if before == TAKEN {
            self.flushed.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for CpuTag {
    fn default() -> Self {
        Self::new()
    }
}

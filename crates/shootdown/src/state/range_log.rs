//! A log of the last few steps (generation and range) of a space.
//!
//! A request describes one step, so without a log a CPU that is several generations behind could
//! only flush everything. With the log it replays exactly the steps that it missed. It is a ring of
//! [`STEPS`] entries; the entry of generation *g* is at *g* mod [`STEPS`].
//!
//! # Protocol
//! After taking generation *g*, the initiator claims the entry (compare-and-swap of its stamp from
//! an older generation to *g, writing*), stores the step in one word, and stamps it *g, written*.
//! If the claim finds another writer, or a newer step, the initiator gives up: a reader that misses
//! an entry flushes everything, which is always correct. Readers check the stamp before and after
//! (a seqlock).
//!
//! # Invariants
//! I1: an entry that is read with stamp *g* is the step of generation *g* and no other. I2: a step
//! covers everything that its initiator changed between *g*-1 and *g*.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | R1 claim, then fence, then word | Release fence | R3 | a reader that sees the new word sees the claim |
//! | R2 stamp *written* | Release | first stamp load, Acquire | the word is there when the stamp is |
//! | R3 word, then fence, then stamp | Acquire fence | R1 | a torn entry shows another stamp |

use crate::base::ids::{Generation, Stride, VaRange};
use crate::base::sync::{AtomicU64, Ordering, fence, prefetch, prefetch_write};

/// Number of steps that the log holds. Eight entries are two cache lines; more than eight missed
/// steps are rarely below the ceiling when they are replayed.
pub const STEPS: usize = 8;

/// What one generation changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// The addresses; `None` is the whole space.
    pub range: Option<VaRange>,
    /// Table pages were freed.
    pub freed_tables: bool,
}

const PAGE_BITS: u32 = 45;
const COUNT_BITS: u32 = 9;
const WRITING: u64 = 1;

impl Step {
    /// The whole space, tables included.
    pub const ALL: Self = Self { range: None, freed_tables: true };

    /// One word: page number (45 bits, sign-extended: 57-bit addresses), count (9 bits, 0 = whole
    /// space), stride (2 bits), freed tables (1 bit). What does not fit is rounded up to the whole
    /// space.
    fn pack(self) -> u64 {
        let freed = u64::from(self.freed_tables) << (PAGE_BITS + COUNT_BITS + 2);
        let Some(range) = self.range else {
            return freed;
        };
        let page = range.start() >> 12 & ((1 << PAGE_BITS) - 1);
        if range.count() >= 1 << COUNT_BITS || Self::unpack_start(page) != range.start() {
            return freed;
        }
        page | range.count() << PAGE_BITS
            | (range.stride() as u64) << (PAGE_BITS + COUNT_BITS)
            | freed
    }

    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // the sign is what is wanted
    fn unpack_start(page: u64) -> u64 {
        let shift = 64 - PAGE_BITS;
        ((((page << shift) as i64) >> shift) << 12) as u64
    }

    fn unpack(word: u64) -> Self {
        let count = word >> PAGE_BITS & ((1 << COUNT_BITS) - 1);
        let stride = match word >> (PAGE_BITS + COUNT_BITS) & 3 {
            0 => Stride::Page4K,
            1 => Stride::Page2M,
            _ => Stride::Page1G,
        };
        let start = Self::unpack_start(word & ((1 << PAGE_BITS) - 1));
        Self {
            // `count == 0` stands for the whole space, and `new` refuses it: the same `None`.
            range: VaRange::new(start, count, stride).ok(),
            freed_tables: word >> (PAGE_BITS + COUNT_BITS + 2) & 1 != 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// generation << 1 | WRITING
    stamp: AtomicU64,
    step: AtomicU64,
}

/// The ring.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RangeLog([Entry; STEPS]);

/// Steps read out of the log, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    steps: [Step; STEPS],
    len: usize,
}

impl Steps {
    /// A single step.
    pub fn one(step: Step) -> Self {
        let mut steps = Self { steps: [Step::ALL; STEPS], len: 1 };
        steps.steps[0] = step;
        steps
    }

    /// The steps.
    pub fn as_slice(&self) -> &[Step] {
        &self.steps[..self.len]
    }

    /// Did any of them free tables?
    pub fn freed_tables(&self) -> bool {
        self.as_slice().iter().any(|s| s.freed_tables)
    }

    /// Strides in all of them; `None` when one of them is the whole space.
    pub fn strides(&self) -> Option<u64> {
        self.as_slice().iter().map(|s| s.range.map(|r| r.count())).sum()
    }
}

impl RangeLog {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self([const { Entry { stamp: AtomicU64::new(0), step: AtomicU64::new(0) } }; STEPS])
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self(core::array::from_fn(|_| Entry { stamp: AtomicU64::new(0), step: AtomicU64::new(0) }))
    }

    #[allow(clippy::cast_possible_truncation)] // taken modulo STEPS
    fn entry(&self, generation: u64) -> &Entry {
        &self.0[generation as usize % STEPS]
    }

    /// Records what `generation` changed, or gives up (see the module's protocol).
    pub fn record(&self, generation: Generation, step: Step) {
        let entry = self.entry(generation.0);
        let seen = entry.stamp.load(Ordering::Relaxed);
        let stamp = generation.0 << 1;
        if seen & WRITING != 0 || seen >= stamp {
            return;
        }
        let claimed = entry
            .stamp
            .compare_exchange(seen, stamp | WRITING, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if !claimed {
            return;
        }
        fence(Ordering::Release); // ORDERING: R1, with the fence R3 in `read_one`
        entry.step.store(step.pack(), Ordering::Relaxed);
        // ORDERING: R2, with the first load in `read_one`
        entry.stamp.store(stamp, Ordering::Release);
    }

    fn read_one(&self, generation: u64) -> Option<Step> {
        let entry = self.entry(generation);
        let stamp = generation << 1;
        // ORDERING: R2, with the last store in `record`
        if entry.stamp.load(Ordering::Acquire) != stamp {
            return None;
        }
        let word = entry.step.load(Ordering::Relaxed);
        fence(Ordering::Acquire); // ORDERING: R3, with the fence R1 in `record`
        let same = entry.stamp.load(Ordering::Relaxed) == stamp;
        same.then(|| Step::unpack(word))
    }

    /// Prefetches the lines, one of which will be written next.
    pub fn expect_to_record(&self) {
        prefetch_write(&self.0[0]);
        prefetch_write(&self.0[STEPS / 2]);
    }

    /// Prefetches the line that holds the step after `have`.
    pub fn prefetch_after(&self, have: Generation) {
        prefetch(self.entry(have.0.wrapping_add(1)));
    }

    /// The steps after `have` up to `want`; `None` unless the log has every one of them.
    #[inline(never)]
    pub fn read(&self, have: Generation, want: Generation) -> Option<Steps> {
        let len = usize::try_from(want.0.checked_sub(have.0)?).ok().filter(|n| *n <= STEPS)?;
        let mut steps = Steps { steps: [Step::ALL; STEPS], len };
        for (i, step) in steps.steps[..len].iter_mut().enumerate() {
            *step = self.read_one(have.0 + 1 + i as u64)?;
        }
        Some(steps)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pages(start: u64, count: u64) -> Step {
        Step { range: VaRange::new(start, count, Stride::Page4K).ok(), freed_tables: false }
    }

    #[test]
    fn steps_survive_packing_or_become_everything() {
        for step in [
            pages(0, 1),
            pages(0x7fff_ffff_f000, 511),
            pages(0xffff_ffff_ffff_f000, 1),
            pages(0x00ff_ffff_ffff_f000, 3),
            Step { range: VaRange::new(1 << 30, 5, Stride::Page1G).ok(), freed_tables: true },
            Step { range: VaRange::new(1 << 21, 7, Stride::Page2M).ok(), freed_tables: false },
            Step::ALL,
        ] {
            assert_eq!(Step::unpack(step.pack()), step);
        }
        assert_eq!(Step::unpack(pages(0x1000, 512).pack()).range, None);
        // an address of more than 57 significant bits can't be named, so it becomes everything
        assert_eq!(Step::unpack(pages(0x4000_0000_0000_0000, 1).pack()).range, None);
    }

    #[test]
    fn replay_is_exact_or_refused() {
        let log = RangeLog::new();
        for g in 1..=20 {
            log.record(Generation(g), pages(g << 12, g));
        }
        let got = log.read(Generation(17), Generation(20)).unwrap();
        let starts: std::vec::Vec<_> =
            got.as_slice().iter().map(|s| s.range.unwrap().start() >> 12).collect();
        assert_eq!(starts, [18, 19, 20]);
        assert_eq!(got.strides(), Some(18 + 19 + 20));
        assert!(log.read(Generation(11), Generation(20)).is_none(), "nine steps do not fit");
        assert!(log.read(Generation(20), Generation(21)).is_none(), "not written yet");
        assert!(log.read(Generation(21), Generation(20)).is_none());
        assert_eq!(log.read(Generation(20), Generation(20)).unwrap().as_slice(), []);
    }

    #[test]
    fn a_late_writer_never_overwrites_a_newer_step() {
        let log = RangeLog::new();
        log.record(Generation(9), pages(0x9000, 1));
        log.record(Generation(1), pages(0x1000, 1));
        assert!(log.read(Generation(0), Generation(1)).is_none());
        assert!(log.read(Generation(8), Generation(9)).is_some());
    }
}

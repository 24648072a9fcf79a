//! All CPUs at once: they change, flush, look, switch and turn lazy at random, and an oracle knows
//! what nobody may see.
//!
//! # The oracle
//! Every word of a page's frame holds the page's own stamp, and every word of a free frame the
//! poison. A frame is freed when the flush that covers it is over, and is handed out again first of
//! all. So whoever reads a page may read its stamp, or fault; a poison or another page's stamp came
//! through a translation that must be gone. A store through such a translation leaves something
//! else than poison in a free frame, which is found when it is handed out.
//!
//! No lock orders the CPUs: entries change by atomic exchange, and whoever took a leaf out owns its
//! frame.
//!
//! The same runs with the flushes left out, where the oracle must find something.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shootdown::gather::Array;
use shootdown::regime::Regime;
use shootdown::{FlushError, Gather, Platform, Request, Stride, VaRange};

use crate::arch::{self, Rights, paging, probe};
use crate::cmdline::Options;
use crate::memory::{self, FRAME};
use crate::paging::Space;
use crate::port::{self, Deadline, Kernel, quietly};
use crate::verdict::Verdict;
use crate::{say, work};

/// Pages of each space.
const PAGES: u64 = 24;

/// Spaces.
const SPACES: usize = 3;

/// Milliseconds for a whole run.
const LIMIT: u64 = 60_000;

/// A mixture of operations.
pub struct Stress {
    pub name: &'static str,
    /// How often each operation is chosen, of the sum of all.
    weights: &'static [(Operation, u64)],
}

#[derive(Clone, Copy)]
enum Operation {
    Map,
    Read,
    Write,
    Unmap,
    UnmapMany,
    Protect,
    Replace,
    Switch,
    Lazy,
    Leave,
}

pub const ALL: &[Stress] = &[
    Stress {
        name: "concurrent-flushers",
        weights: &[(Operation::Map, 4), (Operation::Read, 4), (Operation::Unmap, 3)],
    },
    Stress {
        name: "stress",
        weights: &[
            (Operation::Map, 10),
            (Operation::Read, 12),
            (Operation::Write, 6),
            (Operation::Unmap, 4),
            (Operation::UnmapMany, 1),
            (Operation::Protect, 2),
            (Operation::Replace, 3),
            (Operation::Switch, 3),
            (Operation::Lazy, 2),
            (Operation::Leave, 1),
        ],
    },
];

/// What all CPUs share.
struct Field {
    spaces: [Space; SPACES],
    flushes: bool,
    /// Reads and free frames that the oracle does not allow.
    violations: AtomicU64,
    reads: AtomicU64,
    flushed: AtomicU64,
    failed: AtomicBool,
}

/// The stamp of a page of a space.
const fn stamp(space: usize, page: u64) -> u64 {
    0x57a3_0000_0000_0000 | (space as u64) << 32 | page
}

/// Where it is.
const fn address(page: u64) -> u64 {
    paging::SPACE + (37 + page * 3) * FRAME
}

fn range(page: u64, count: u64) -> VaRange {
    VaRange::new(address(page), (count - 1) * 3 + 1, Stride::Page4K).expect("pages of the field")
}

/// Numbers by chance (splitmix64, Steele and others 2014).
struct Chance(Cell<u64>);

impl Chance {
    fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }
}

impl Field {
    fn leaf(&self, space: usize, page: u64) -> &AtomicU64 {
        self.spaces[space].tree.entry(address(page), 0)
    }

    fn violation(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    fn map(&self, space: usize, page: u64) {
        let Some(frame) = memory::allocate() else { return };
        if !memory::is_poison(frame) {
            self.violation();
        }
        memory::fill(frame, stamp(space, page));
        let entry = paging::leaf(frame, 0, Rights::WRITE);
        let leaf = self.leaf(space, page);
        if leaf.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            memory::free(frame);
        }
        arch::Regime::publish();
    }

    fn read(&self, space: usize, page: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let at = address(page) + 8 * (page % 512);
        if probe::read(at).is_ok_and(|value| value != stamp(space, page)) {
            self.violation();
        }
    }

    fn write(&self, space: usize, page: u64) {
        // A fault is as good: the page may be gone, or read-only.
        let _ = probe::write(address(page) + 8, stamp(space, page));
    }

    /// Takes out up to `count` pages, and frees them when all have forgotten them.
    fn unmap(&self, space: usize, page: u64, count: u64) -> Result<(), FlushError> {
        let pin = Kernel::pin();
        let mut gather =
            Gather::<Kernel, Array<u64, { PAGES as usize }>>::new(&self.spaces[space].shot);
        for page in page..(page + count).min(PAGES) {
            let entry = self.leaf(space, page).swap(0, Ordering::AcqRel);
            if !paging::is_present(entry) {
                continue;
            }
            let frame = paging::frame_of(entry, 0);
            if self.flushes {
                gather.unmapped(range(page, 1), frame).expect("room for all pages");
            } else {
                memory::free(frame);
            }
        }
        self.flushed.fetch_add(u64::from(!gather.is_empty()), Ordering::Relaxed);
        let frames = gather.finish(&pin).map_err(|(error, _still_pending)| error)?;
        frames.for_each(memory::free);
        Ok(())
    }

    fn protect(&self, space: usize, page: u64) -> Result<(), FlushError> {
        let leaf = self.leaf(space, page);
        let entry = leaf.load(Ordering::Acquire);
        let narrower = paging::read_only(entry);
        let changed = paging::is_present(entry)
            && leaf.compare_exchange(entry, narrower, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if changed && self.flushes {
            self.flushed.fetch_add(1, Ordering::Relaxed);
            self.spaces[space].shot.flush(&Kernel::pin(), Request::pages(range(page, 1)))?;
        }
        Ok(())
    }

    fn switch(&self, space: usize) {
        // SAFETY: interrupts are off, this CPU is online, and the spaces live until all have left
        // them (`run`).
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &self.spaces[space].shot) });
    }

    /// The life of one CPU.
    fn live(&self, weights: &[(Operation, u64)], seed: u64, steps: u64) {
        let cpu = u64::from(arch::cpu().0);
        let chance = Chance(Cell::new(seed.wrapping_mul(0x1_0001).wrapping_add(cpu << 48)));
        let sum = weights.iter().map(|(_, weight)| weight).sum();
        let mut space = 0;
        self.switch(space);
        for _ in 0..steps {
            let mut pick = chance.below(sum);
            let chosen = weights.iter().find(|(_, weight)| {
                let found = pick < *weight;
                pick = pick.wrapping_sub(*weight);
                found
            });
            let page = chance.below(PAGES);
            let done = match chosen.map_or(Operation::Read, |(operation, _)| *operation) {
                Operation::Map => {
                    self.map(space, page);
                    Ok(())
                }
                Operation::Read => {
                    (0..4).for_each(|more| self.read(space, (page + more) % PAGES));
                    Ok(())
                }
                Operation::Write => {
                    self.write(space, page);
                    Ok(())
                }
                Operation::Unmap => self.unmap(space, page, 1),
                Operation::UnmapMany => self.unmap(space, page, 1 + chance.below(PAGES)),
                Operation::Protect => self.protect(space, page),
                Operation::Replace => {
                    let done = self.unmap(space, page, 1);
                    self.map(space, page);
                    done
                }
                Operation::Switch => {
                    space = chance.below(SPACES as u64) as usize;
                    self.switch(space);
                    Ok(())
                }
                Operation::Lazy => {
                    port::turn_lazy();
                    // Others change the space meanwhile.
                    (0..chance.below(200)).for_each(|_| arch::relax());
                    self.switch(space);
                    Ok(())
                }
                Operation::Leave => {
                    port::leave();
                    (0..chance.below(100)).for_each(|_| arch::relax());
                    self.switch(space);
                    Ok(())
                }
            };
            if let Err(error) = done {
                self.failed.store(true, Ordering::Relaxed);
                say!("stress: on CPU {cpu}: {error}");
                break;
            }
        }
        port::leave();
    }

    /// Frees what is left.
    fn clear(&self) -> (u64, u64, u64, bool) {
        for space in 0..SPACES {
            for page in 0..PAGES {
                let entry = self.leaf(space, page).swap(0, Ordering::AcqRel);
                if paging::is_present(entry) {
                    memory::free(paging::frame_of(entry, 0));
                }
            }
        }
        self.spaces.iter().for_each(|space| space.end(&Kernel::pin()));
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        (count(&self.violations), count(&self.reads), count(&self.flushed), failed)
    }
}

impl Stress {
    fn run(&self, options: &Options, cpus: u32, flushes: bool) -> (u64, u64, u64, bool) {
        let _deadline = Deadline::in_ms(LIMIT);
        let field = Field {
            spaces: core::array::from_fn(|_| Space::new()),
            flushes,
            violations: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        work::on(&work::first(cpus), &|| field.live(self.weights, options.seed, options.steps));
        field.clear()
    }

    /// Runs it without the flushes and with them.
    pub fn judge(&self, options: &Options, cpus: u32) -> Verdict {
        let control = self.run(options, cpus, false);
        // What the control left behind in free frames is none of the next run's.
        memory::poison_all();
        let (violations, reads, flushed, failed) = self.run(options, cpus, true);
        let verdict = if violations > 0 || failed {
            Verdict::Fail
        } else if control.0 == 0 {
            Verdict::NotObservable
        } else {
            Verdict::Pass
        };
        say!(
            "case {} {verdict} violations without flushes {}, with {flushed} flushes {violations}, of {reads} reads; seed {}",
            self.name,
            control.0,
            options.seed
        );
        verdict
    }
}

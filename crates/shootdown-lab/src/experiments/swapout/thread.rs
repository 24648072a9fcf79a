//! A thread of the program: it writes page after page, and reclaims when it must.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown_machine::{Cpu, Kernel, Space, Stride, Time};

use super::memory::{Busy, Memory};
use super::{PAGE, Ran, Way};
use crate::experiments::accessed::TICK;
use crate::experiments::run::{Note, chance};

/// Whoever needs a frame when fewer are left reclaims first, *assumed*.
const LOW: u64 = 512;
/// Pages taken off a list at a time (SWAP_CLUSTER_MAX); more, where batches are larger.
const CLUSTER: usize = 32;
/// Active pages for each inactive one, *assumed*: those of a machine with 1 GiB.
const ACTIVE_PER_INACTIVE: usize = 3;
/// Threads write up from here.
const VA: u64 = 1 << 32;
/// Pages that a thread keeps using and reclaim does not look at, and how often it comes back to
/// them while it writes a page: as in `overlap`, with which the costs of interrupts were fitted.
const HOT_PAGES: u64 = 64;
const SLICES: u64 = 4;
const HOT: u64 = 1 << 30;
/// So many of them are on the lists.
const LISTED: u64 = 8;
/// The memory has been filled by then.
const START: Time = Time::from_us(1_000_000);

/// What the threads share.
#[derive(Clone)]
pub struct Shared {
    pub memory: Rc<RefCell<Memory>>,
    /// Pages in use that were written out.
    pub out: Rc<RefCell<BTreeSet<u64>>>,
    /// Counted until now.
    pub counts: Note<Ran>,
    /// What had been counted when measuring began, and what at its end.
    pub began: Note<Option<Ran>>,
    pub ended: Note<Option<Ran>>,
    /// The next page that nobody has written.
    pub next: Note<u64>,
}

/// One of the threads.
pub struct Thread {
    pub shared: Shared,
    pub space: Space,
    pub way: Way,
    /// Frames that there are.
    pub frames: u64,
    /// Pages swapped out before measuring, and while it lasts.
    pub warm: u64,
    pub pages: u64,
    /// Names the thread's stream of chance.
    pub jitter: u64,
    pub turn: u64,
}

impl Thread {
    /// The program.
    pub fn run(mut self, c: &mut Cpu) {
        let (cpu, threads) = (u64::from(c.id().0), u64::from(self.way.threads));
        c.kernel(|k| k.switch_to(Some(self.space)));
        if cpu == 0 {
            let pages = 2 * (self.frames + self.warm + self.pages);
            c.syscall(|k| k.map_at(VA, pages, Stride::Page4K));
            c.syscall(|k| k.map_at(HOT, threads * HOT_PAGES, Stride::Page4K));
        }
        c.idle_until(Time::from_us(100));
        self.fill(c, threads);
        c.idle_until(START);
        // Ticks of different CPUs come at different times.
        let mut tick = START + Time::from_ps(TICK.ps() / threads * cpu);
        while self.shared.ended.get().is_none() {
            if c.now() >= tick {
                c.kernel(|k| k.tick());
                tick += TICK;
            }
            self.page(c);
        }
    }

    /// What the thread keeps using, and its part of the memory, until few frames are left.
    fn fill(&mut self, c: &mut Cpu, threads: u64) {
        for page in 0..HOT_PAGES {
            let va = self.hot(c) + page * PAGE;
            c.read(va);
            let mut memory = self.shared.memory.borrow_mut();
            if page < LISTED && memory.take().is_ok() {
                memory.active.push_back(va);
            }
        }
        for _ in 0..(self.frames - LOW) / threads - LISTED {
            if self.shared.memory.borrow_mut().take().is_ok() {
                self.write_new(c);
            }
        }
    }

    /// Where the pages are that the thread keeps using.
    fn hot(&self, c: &Cpu) -> u64 {
        HOT + u64::from(c.id().0) * HOT_PAGES * PAGE
    }

    fn write_new(&self, c: &mut Cpu) {
        let page = self.shared.next.get();
        self.shared.next.set(page + 1);
        c.write(VA + page * PAGE);
        self.shared.memory.borrow_mut().active.push_back(VA + page * PAGE);
    }

    /// Writes one more page.
    fn page(&mut self, c: &mut Cpu) {
        self.frame(c);
        let half = self.half();
        for _ in 0..SLICES {
            c.compute(Time::from_ps(half.ps() / SLICES));
            for page in 0..HOT_PAGES {
                let va = self.hot(c) + page * PAGE;
                if page < LISTED && self.shared.out.borrow().contains(&va) {
                    self.read_back(c, va);
                }
                c.read(va);
            }
        }
        self.write_new(c);
    }

    /// A page in use was written out; waits for it.
    fn read_back(&mut self, c: &mut Cpu, va: u64) {
        self.frame(c);
        let there = self.shared.memory.borrow_mut().read_in(c.now());
        c.kernel(|k| self.wait(k, there));
        self.shared.out.borrow_mut().remove(&va);
        self.shared.memory.borrow_mut().active.push_back(va);
    }

    /// Half of what a page costs besides, up to a half more or less, so that threads do not fall
    /// into step.
    fn half(&mut self) -> Time {
        const STEPS: u64 = 1024;
        self.turn += 1;
        let (step, rest) = (chance(self.jitter, self.turn) % STEPS, self.way.rest.ps());
        Time::from_ps(rest / 4 + rest / 2 * step / STEPS)
    }

    /// Takes a frame, and reclaims first if few are left.
    fn frame(&mut self, c: &mut Cpu) {
        let low = {
            let mut memory = self.shared.memory.borrow_mut();
            memory.settle(c.now());
            memory.free() < LOW
        };
        if low {
            c.kernel(|k| self.reclaim(k));
        }
        loop {
            let taken = {
                let mut memory = self.shared.memory.borrow_mut();
                memory.settle(c.now());
                memory.take()
            };
            match taken {
                Ok(()) => return,
                Err(Some(until)) => c.kernel(|k| self.wait(k, until)),
                Err(None) => c.kernel(|k| self.reclaim(k)),
            }
        }
    }

    /// Blocks: the CPU has nothing else to do, and keeps the space loaded lazily.
    fn wait(&self, k: &mut Kernel, until: Time) {
        k.switch_to(None);
        k.idle_until(until);
        k.switch_to(Some(self.space));
    }

    /// Pages become inactive, and inactive ones are written out.
    fn reclaim(&mut self, k: &mut Kernel) {
        let cluster = CLUSTER.max(self.way.batch);
        loop {
            let aging = {
                let mut memory = self.shared.memory.borrow_mut();
                let low = memory.inactive.len() * ACTIVE_PER_INACTIVE < memory.active.len();
                Memory::isolate(&mut memory.active, if low { CLUSTER } else { 0 })
            };
            if aging.is_empty() {
                break;
            }
            for page in aging {
                self.is_young(k, page);
                self.shared.memory.borrow_mut().inactive.push_back(page);
            }
        }
        let candidates = Memory::isolate(&mut self.shared.memory.borrow_mut().inactive, cluster);
        let mut going = Vec::with_capacity(candidates.len());
        for page in candidates {
            let young = self.is_young(k, page);
            if page < VA {
                self.add(k, |so_far| {
                    so_far.looked += 1;
                    so_far.lost += u64::from(!young);
                });
            }
            if young {
                self.shared.memory.borrow_mut().active.push_back(page);
            } else {
                going.push(page);
            }
        }
        for pages in going.chunks(self.way.batch) {
            let mappings: Vec<_> = pages.iter().map(|page| (self.space, *page)).collect();
            k.reclaim(&mappings, Time::ZERO);
            self.shared.out.borrow_mut().extend(pages.iter().filter(|page| **page < VA));
            for _ in pages {
                let half = self.half();
                k.compute(half);
                self.write_out(k);
            }
        }
    }

    /// Clears the accessed bit of a page, and says whether it was set.
    fn is_young(&self, k: &mut Kernel, page: u64) -> bool {
        let young = k.clear_accessed(self.space, page, 1);
        self.add(k, |so_far| so_far.young += young);
        young != 0
    }

    /// Gives a page to a device, which may have to be waited for.
    fn write_out(&self, k: &mut Kernel) {
        loop {
            let given = self.shared.memory.borrow_mut().write_out(k.now());
            let Err(Busy(until)) = given else { break };
            self.wait(k, until);
        }
        self.add(k, |so_far| so_far.pages += 1);
        self.mark(k);
    }

    fn add(&self, k: &Kernel, count: impl FnOnce(&mut Ran)) {
        let mut so_far = self.shared.counts.get();
        count(&mut so_far);
        so_far.took = k.now();
        self.shared.counts.set(so_far);
    }

    /// Keeps what has been counted when measuring begins, and when it ends.
    fn mark(&self, k: &Kernel) {
        let now = || {
            let sent = k.outcome_so_far().total().interrupts.sent;
            Some(Ran { sent, ..self.shared.counts.get() })
        };
        let pages = self.shared.counts.get().pages;
        if pages == self.warm {
            self.shared.began.set(now());
        } else if pages == self.warm + self.pages {
            self.shared.ended.set(now());
        }
    }
}

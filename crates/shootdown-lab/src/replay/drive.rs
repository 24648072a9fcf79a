//! One CPU of a replay.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::flush::{Request, What};
use shootdown_machine::{Cpu, Space, Stride, Time};

use super::world::{Page, USER_PAGES, World, pages_of};
use crate::recording::model::{Call, CallArgs, Extent, Tid};
use crate::recording::timeline::{Act, Cause, Range, Runs, SpaceId, Step, Timeline};

/// Pages a thread is taken to work on (P3).
pub const WORKING_SET: usize = 32;
/// Reads at each opportunity (P3).
pub const READS: usize = 8;
/// Time of a thread between two opportunities (P3).
pub const SLICE: Time = Time::from_us(20);

/// Of `madvise`.
const MADV_DONTNEED: u64 = 4;
/// Of `mprotect`.
const PROT_WRITE: u64 = 2;

/// The steps of each CPU, in order.
pub fn by_cpu(timeline: &Timeline, cpus: u32) -> Vec<Vec<Step>> {
    let mut all = vec![Vec::new(); cpus as usize];
    for step in &timeline.steps {
        if let Some(own) = all.get_mut(usize::from(step.cpu.0)) {
            own.push(*step);
        }
    }
    all
}

/// Carries out the steps of one CPU.
pub struct Driver<'a> {
    c: &'a mut Cpu,
    world: Rc<RefCell<World>>,
    cpu: usize,
    runs: Runs,
}

impl<'a> Driver<'a> {
    /// For this CPU.
    pub fn new(c: &'a mut Cpu, world: Rc<RefCell<World>>, cpu: u32) -> Self {
        Self { c, world, cpu: cpu as usize, runs: Runs::Idle }
    }

    /// Does the steps, and stays to the end of the recording.
    pub fn run(mut self, steps: &[Step], end: u64) {
        for step in steps {
            self.advance(step.time);
            self.act(step.act);
        }
        self.advance(end);
        self.c.kernel(shootdown_machine::Kernel::leave);
    }

    /// Goes on with what the CPU does until this time (P1).
    fn advance(&mut self, nanoseconds: u64) {
        let until = Time::from_ns(nanoseconds);
        while self.c.now() < until {
            let left = until - self.c.now();
            match self.runs {
                Runs::Idle => {
                    self.c.idle_until(until);
                }
                Runs::Kernel => {
                    self.c.kernel(|k| k.compute(left));
                    self.world.borrow_mut().computing += left;
                }
                Runs::Program { .. } => {
                    let slice = left.min(SLICE);
                    self.c.compute(slice);
                    self.world.borrow_mut().computing += slice;
                    if slice == SLICE {
                        self.work();
                    }
                }
            }
        }
    }

    /// P3.
    fn work(&mut self) {
        let Runs::Program { thread, space } = self.runs else { return };
        for _ in 0..READS {
            let page = {
                let mut world = self.world.borrow_mut();
                let turn = world.working_sets.get_mut(&thread).and_then(|set| set.turn());
                turn.filter(|page| world.space(space).present.contains_key(page))
            };
            if let Some(page) = page {
                self.c.read(page << 12);
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Run(runs) => self.switch(runs),
            Act::Touch { page, write, .. } => self.touch(page, write),
            Act::Flush { space, extent, cause } => {
                self.flush(space, extent, cause);
                self.work();
            }
            // What the recorded kernel did is not repeated, it is compared with.
            Act::Asked { .. } => {}
            Act::Map(range) => self.map(range),
            Act::Unmap(range) => self.unmap(range),
            Act::Permit(range) => self.permit(range),
            Act::End(space) => {
                self.world.borrow_mut().ending.push(space);
                self.end_spaces();
            }
        }
    }

    /// The machine's space for a recorded one.
    fn handle(&mut self, space: SpaceId) -> Space {
        let known = self.world.borrow_mut().space(space).handle;
        known.unwrap_or_else(|| {
            let new = self.c.kernel(|k| k.new_space());
            // Another CPU may have made it while this one was at it; the first one counts.
            *self.world.borrow_mut().space(space).handle.get_or_insert(new)
        })
    }

    fn switch(&mut self, runs: Runs) {
        match runs {
            Runs::Program { space, .. } => {
                let handle = self.handle(space);
                self.world.borrow_mut().loaded[self.cpu] = Some(space);
                self.c.kernel(|k| k.switch_to(Some(handle)));
                self.runs = runs;
                self.end_spaces();
                self.work();
            }
            Runs::Kernel | Runs::Idle => {
                if self.runs.space().is_some() {
                    self.c.kernel(|k| k.switch_to(None));
                }
                self.runs = runs;
            }
        }
    }

    /// P5.
    fn end_spaces(&mut self) {
        let ends = self.world.borrow_mut().endable();
        for space in ends {
            self.c.kernel(|k| k.end_space(space));
        }
    }

    fn touch(&mut self, page: u64, write: bool) {
        let Runs::Program { thread, space } = self.runs else { return };
        if page == 0 || page >= USER_PAGES {
            return;
        }
        let known = self.world.borrow_mut().space(space).mapped.contains(page);
        if !known {
            self.world.borrow_mut().space(space).mapped.insert(page, page + 1);
            self.c.kernel(|k| k.map_at(page << 12, 1, Stride::Page4K));
        }
        self.access(thread, space, page, write);
    }

    fn access(&mut self, thread: Tid, space: SpaceId, page: u64, write: bool) {
        let allowed = if write { self.c.write(page << 12) } else { self.c.read(page << 12) };
        let mut world = self.world.borrow_mut();
        // Another CPU may have unmapped it meanwhile.
        if allowed && world.space(space).mapped.contains(page) {
            let state = world.space(space);
            let writable = write || !state.readonly.contains(page);
            let there = state.present.entry(page).or_insert(Page { dirty: write, writable });
            there.dirty |= write;
            there.writable |= write;
            world.working_sets.entry(thread).or_default().touched(page);
        }
    }

    fn map(&mut self, range: Range) {
        let (Some(space), Some((first, count))) = (self.runs.space(), pages_of(range)) else {
            return;
        };
        {
            let mut world = self.world.borrow_mut();
            world.space(space).unmap(first, count);
            world.space(space).mapped.insert(first, first + count);
        }
        self.c.syscall(|k| k.map_at(first << 12, count, Stride::Page4K));
    }

    fn unmap(&mut self, range: Range) {
        let (Some(space), Some((first, count))) = (self.runs.space(), pages_of(range)) else {
            return;
        };
        let known = self.world.borrow_mut().space(space).mapped.overlaps(first, first + count);
        if known {
            self.world.borrow_mut().space(space).unmap(first, count);
            self.c.kernel(|k| k.unmap(first << 12, count));
        }
    }

    fn permit(&mut self, range: Range) {
        let (Some(space), Some((first, count))) = (self.runs.space(), pages_of(range)) else {
            return;
        };
        let denied = self.world.borrow_mut().space(space).readonly.overlaps(first, first + count);
        if denied {
            self.world.borrow_mut().space(space).readonly.remove(first, first + count);
            self.c.syscall(|k| k.protect(first << 12, count, true));
        }
    }

    /// P2.
    fn flush(&mut self, space: SpaceId, extent: Extent, cause: Cause) {
        let Runs::Program { thread, space: own } = self.runs else { return };
        match cause {
            Cause::Teardown => self.teardown(space, space == own),
            Cause::Call(args) => {
                let changed = pages_of(Range { addr: args.addr, len: args.len })
                    .is_some_and(|(first, count)| self.change(own, args, first, count));
                if !changed {
                    self.plainly(own, extent, args.addr >> 12, cause.frees_tables(extent));
                }
            }
            Cause::WriteFault(page) => {
                let there = self.world.borrow_mut().space(own).present.remove(&page).is_some();
                if there {
                    // Another frame takes the page's place.
                    self.c.kernel(|k| k.discard(page << 12, 1));
                    self.access(thread, own, page, true);
                } else {
                    self.plainly(own, extent, page, false);
                }
            }
            Cause::Unknown => {
                let page = self.world.borrow_mut().space(own).first_in(1, USER_PAGES - 1);
                self.plainly(own, extent, page.unwrap_or(1), cause.frees_tables(extent));
            }
        }
    }

    fn teardown(&mut self, space: SpaceId, own: bool) {
        let there = {
            let mut world = self.world.borrow_mut();
            let state = world.space(space);
            let there = own && !state.present.is_empty();
            state.present.clear();
            state.mapped.clear();
            state.readonly.clear();
            there
        };
        if there {
            self.c.kernel(|k| k.unmap(4096, USER_PAGES - 1));
            return;
        }
        let handle = self.world.borrow_mut().space(space).handle;
        if let Some(handle) = handle {
            let request = Request { what: What::Space, freed_tables: true };
            self.c.kernel(|k| k.flush_space(handle, request));
        }
    }

    /// Makes the change that a call made; `false` when there is nothing to change.
    fn change(&mut self, own: SpaceId, args: CallArgs, first: u64, count: u64) -> bool {
        let mut world = self.world.borrow_mut();
        let state = world.space(own);
        let Some(there) = state.first_in(first, count) else { return false };
        let va = first << 12;
        match args.call {
            Call::Munmap | Call::Mremap => {
                state.unmap(first, count);
                drop(world);
                self.c.syscall(|k| k.unmap(va, count));
            }
            Call::Mmap => {
                state.drop_pages(first, count);
                drop(world);
                self.c.syscall(|k| k.discard(va, count));
            }
            Call::Madvise if args.mode == MADV_DONTNEED => {
                state.drop_pages(first, count);
                drop(world);
                self.c.syscall(|k| k.discard(va, count));
            }
            Call::Mprotect
                if args.mode & PROT_WRITE == 0
                    && state.present.range(first..first + count).any(|(_, page)| page.writable) =>
            {
                for (_, page) in state.present.range_mut(first..first + count) {
                    *page = Page::default();
                }
                state.readonly.insert(first, first + count);
                drop(world);
                self.c.syscall(|k| k.protect(va, count, false));
            }
            Call::Msync => {
                let mut pages = state.present.range_mut(there..first + count);
                let Some((page, found)) = pages.find(|(_, page)| page.dirty) else { return false };
                let page = *page;
                *found = Page::default();
                drop(world);
                self.c.syscall(|k| k.clean(page << 12, 1));
            }
            Call::Mprotect | Call::Madvise | Call::Brk => return false,
        }
        true
    }

    /// Flushes without knowing what for.
    fn plainly(&mut self, own: SpaceId, extent: Extent, page: u64, freed_tables: bool) {
        let handle = self.handle(own);
        let page = page.clamp(1, USER_PAGES - 1);
        match extent {
            Extent::Pages(count) => {
                let count = count.clamp(1, USER_PAGES - page);
                self.c.kernel(|k| k.flush(page << 12, count, freed_tables));
            }
            Extent::Everything => {
                let request = Request { what: What::Space, freed_tables };
                self.c.kernel(|k| k.flush_space(handle, request));
            }
        }
    }
}

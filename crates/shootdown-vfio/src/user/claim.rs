//! Claims: ranges of addresses that callers bring, while a thread changes them.
//!
//! A domain maps and unmaps at callers' addresses if they guarantee that one thread at a time
//! changes a range. Threads of a hypervisor need not know of each other, so a space ensures it for
//! them: a thread that maps or unmaps *claims* the range for that time, and no other thread can
//! claim it meanwhile. If the domain can't complete an unmapping the claim becomes *stale*, and
//! stays until a flush that began later has succeeded (K5).

use std::collections::BTreeMap;

use shootdown_dma::addr::IovaRange;

use super::backend::Backend;
use super::kernel::{Kernel, Mappings, lock};

/// By their first pages.
#[derive(Debug, Default)]
pub struct Claims {
    ranges: BTreeMap<u64, Claimed>,
    /// Claims that became stale so far.
    stale: u64,
}

#[derive(Clone, Copy, Debug)]
struct Claimed {
    pages: u64,
    /// The number that it got when it became stale.
    stale: Option<u64>,
}

/// Why a range can't be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InTheWay {
    /// Something is mapped there, or another thread maps or unmaps there at the moment.
    Live,
    /// The kernel, or the domain, has not completed an unmapping there.
    Stale,
}

/// A range that no other thread changes until this is dropped.
pub struct Claim<'a, B: Backend> {
    kernel: &'a Kernel<B>,
    range: IovaRange,
}

impl<B: Backend> Claim<'_, B> {
    /// Its pages.
    pub fn range(&self) -> IovaRange {
        self.range
    }

    /// The domain has not completed the unmapping: the range stays out of use.
    pub fn into_stale(self) {
        let mut mappings = lock(&self.kernel.mappings);
        let Claims { ranges, stale } = &mut mappings.claims;
        *stale += 1;
        if let Some(claimed) = ranges.get_mut(&self.range.first()) {
            claimed.stale = Some(*stale);
        }
        drop(mappings);
        core::mem::forget(self);
    }
}

impl<B: Backend> Drop for Claim<'_, B> {
    fn drop(&mut self) {
        lock(&self.kernel.mappings).claims.ranges.remove(&self.range.first());
    }
}

/// Whether `pages` pages from `first` on have a page of the range.
const fn touches(range: IovaRange, first: u64, pages: u64) -> bool {
    first <= range.last() && (range.first() <= first || range.first() - first < pages)
}

/// The last of these that begins before the range ends, if it reaches into it. Since they are
/// disjoint, one is in the way only if this one is.
fn last_in<T: Copy>(
    all: &BTreeMap<u64, T>,
    range: IovaRange,
    pages: impl Fn(T) -> u64,
) -> Option<(u64, T)> {
    let (first, value) = all.range(..=range.last()).next_back()?;
    touches(range, *first, pages(*value)).then_some((*first, *value))
}

impl Mappings {
    /// What keeps a thread from claiming this range.
    fn in_the_way(&self, range: IovaRange) -> Option<InTheWay> {
        if last_in(&self.live, range, |live| live.pages).is_some() {
            return Some(InTheWay::Live);
        }
        // The thread that gave up a dead mapping has claimed its range, and the claim remains.
        let claimed = last_in(&self.claims.ranges, range, |claimed| claimed.pages);
        claimed.map(|(_, claimed)| match claimed.stale {
            None => InTheWay::Live,
            Some(_) => InTheWay::Stale,
        })
    }

    fn claim(&mut self, range: IovaRange) {
        let claimed = Claimed { pages: range.pages(), stale: None };
        self.claims.ranges.insert(range.first(), claimed);
    }
}

impl<B: Backend> Kernel<B> {
    /// Claims a range where nothing is mapped, to map there.
    pub fn claim(&self, range: IovaRange) -> Result<Claim<'_, B>, InTheWay> {
        let mut mappings = lock(&self.mappings);
        if let Some(what) = mappings.in_the_way(range) {
            return Err(what);
        }
        mappings.claim(range);
        Ok(Claim { kernel: self, range })
    }

    /// Gives up the first mappings of a range that abut, and claims their pages, to unmap them;
    /// returns how many these are. `None`: there are none. If a mapping reaches beyond the range
    /// nothing has changed.
    pub fn give_up_run(&self, range: IovaRange) -> Result<Option<(Claim<'_, B>, usize)>, ()> {
        let mut mappings = lock(&self.mappings);
        if cut(&mappings, range) {
            return Err(());
        }
        let mut run: Option<IovaRange> = None;
        let mut count = 0;
        loop {
            let next = run.map_or(range.first(), |run| run.last() + 1);
            let found = mappings.live.range(next..=range.last().max(next)).next();
            let Some((first, live)) = found.map(|(first, live)| (*first, *live)) else { break };
            let joins = first <= range.last() && run.is_none_or(|run| run.last() + 1 == first);
            let start = run.map_or(first, IovaRange::first);
            let pages = run.map_or(0, IovaRange::pages) + live.pages;
            let Some(joined) = IovaRange::new(start, pages).filter(|_| joins) else { break };
            mappings.live.remove(&first);
            mappings.dead.insert(first, live.pages);
            run = Some(joined);
            count += 1;
        }
        let Some(run) = run else { return Ok(None) };
        mappings.claim(run);
        Ok(Some((Claim { kernel: self, range: run }, count)))
    }

    /// Whether any of these pages is stale.
    pub fn is_stale(&self, range: IovaRange) -> bool {
        let mappings = lock(&self.mappings);
        mappings.claims.ranges.iter().any(|(first, claimed)| {
            claimed.stale.is_some() && touches(range, *first, claimed.pages)
        })
    }

    /// The number of the claim that became stale last.
    pub fn stale(&self) -> u64 {
        lock(&self.mappings).claims.stale
    }

    /// Ends the stale claims up to number `before`: a flush has succeeded that began when that was
    /// the last.
    pub fn forget_stale(&self, before: u64) {
        let mut mappings = lock(&self.mappings);
        mappings.claims.ranges.retain(|_, claimed| claimed.stale.is_none_or(|n| n > before));
    }
}

/// Whether a mapping reaches beyond the range at its first or its last page.
fn cut(mappings: &Mappings, range: IovaRange) -> bool {
    let reaches = |page: u64, beyond: &dyn Fn(u64, u64) -> bool| {
        let found = mappings.live.range(..=page).next_back();
        found.is_some_and(|(first, live)| page - first < live.pages && beyond(*first, live.pages))
    };
    reaches(range.first(), &|first, _| first < range.first())
        || reaches(range.last(), &|first, pages| first + (pages - 1) > range.last())
}

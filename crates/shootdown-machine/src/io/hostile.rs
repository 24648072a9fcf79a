//! A device that goes on using what it has seen.
//!
//! The network card turned against its owner: every so often it tries an address that it was given
//! once, to read or to write, whether it is still mapped or not. The oracle tells what it gets to:
//! - under [`Promise::Now`] nothing that was unmapped;
//! - under [`Promise::Held`] only pages that have not been recycled since;
//! - under [`Promise::Later`] pages that may be anybody's, for some time.

use shootdown_dma::PhysAddr;

use super::agent::Event;
use super::{DEVICE, State, draw};
use crate::oracle::Invariant;
use crate::oracle::devices::Finding;
use crate::time::Time;

/// What an unmapping that has returned promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// No device reaches the memory by these addresses.
    Now,
    /// The memory is not recycled as long as one does.
    Held,
    /// After this time none does.
    LazyUnmapping {
        /// The bound.
        within: Time,
    },
}

impl Promise {
    /// May a page be recycled that a device reaches?
    pub(super) const fn is_late(self) -> bool {
        matches!(self, Self::LazyUnmapping { .. })
    }
}

/// A page that was mapped at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub to: PhysAddr,
    pub since: Time,
    pub promise: Promise,
    /// How often the page had been recycled then.
    pub recycled: u32,
}

/// What a hostile device has got to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HostileCounts {
    /// What it tried.
    pub tries: u64,
    /// Of that refused by the IOMMU.
    pub refused: u64,
    /// To memory that was mapped at the time.
    pub mapped: u64,
    /// To memory that was unmapped, and had not been recycled.
    pub unmapped: u64,
    /// To memory that had been recycled.
    pub recycled: u64,
    /// The longest after an unmapping that it got to the memory.
    pub longest: Option<Time>,
}

/// Addresses that it remembers, the newest: so few that the IOTLB has them all, as long as nobody
/// has it forget them.
const SEEN: usize = 32;

pub(super) struct Hostile {
    period: u64,
    seen: Vec<u64>,
    next: usize,
    pub counts: HostileCounts,
}

/// The card tries something every `period` from now on.
pub fn turn_hostile(period: Time) {
    crate::engine::step();
    let now = crate::engine::now().ps();
    let at = Time::from_ps(now + period.ps());
    let agent = super::with(|s| {
        let (seen, counts) = (Vec::new(), HostileCounts::default());
        s.hostile = Some(Hostile { period: period.ps(), seen, next: 0, counts });
        s.events.push(at.ps(), Event::Try);
        s.setup.cpus
    });
    crate::engine::agent::rouse(agent, at);
}

impl State {
    /// It has been given this page to use.
    pub(super) fn hostile_sees(&mut self, page: u64) {
        let Some(hostile) = &mut self.hostile else { return };
        if hostile.seen.contains(&page) {
            return;
        }
        if hostile.seen.len() < SEEN {
            hostile.seen.push(page);
        } else {
            hostile.seen[hostile.next] = page;
            hostile.next = (hostile.next + 1) % SEEN;
        }
    }

    pub(super) fn hostile_tries(&mut self, now: u64) -> Result<(), Finding> {
        let Some(hostile) = &mut self.hostile else { return Ok(()) };
        self.events.push(now + hostile.period, Event::Try);
        if hostile.seen.is_empty() {
            return Ok(());
        }
        hostile.counts.tries += 1;
        let chance = draw(!self.setup.seed, hostile.counts.tries);
        let page = hostile.seen[usize::try_from(chance >> 33).unwrap_or(0) % hostile.seen.len()];
        let write = chance & 1 != 0;
        let found = self.iommu.translate(now, (DEVICE, page, write), &self.tables);
        let gone = self.gone.get(&page).copied();
        // What is being mapped just now, or unmapped, is so in the tables and not yet, or no more,
        // in the notes.
        let tables = self.iommu.look_up(DEVICE, page, &self.tables);
        let live: [_; 2] = [self.live.get(&page).copied(), tables];
        let recycled = |to| self.frames.number(to).map(|page| self.frames.times_recycled(page));
        let again = gone.is_some_and(|gone| recycled(gone.to) != Some(gone.recycled));
        let Some(hostile) = &mut self.hostile else { return Ok(()) };
        let counts = &mut hostile.counts;
        let (Some(to), since) = (found.page, gone.map(|gone| gone.since)) else {
            counts.refused += 1;
            return Ok(());
        };
        self.landing = self.landing.max(found.ready + self.setup.costs.nic.write.ps());
        let broken = |promise, what: &str| {
            let details = format!("a device still reaches {to:?} by page {page:#x}, {what}");
            Err((promise, details))
        };
        if live.contains(&Some(to)) {
            counts.mapped += 1;
            return Ok(());
        }
        let Some(gone) = gone.filter(|gone| gone.to == to) else {
            return broken(Invariant::RangeReuse, "which leads elsewhere");
        };
        let age = Time::from_ps(now).since(since.unwrap_or_default());
        counts.longest = counts.longest.max(Some(age));
        *(if again { &mut counts.recycled } else { &mut counts.unmapped }) += 1;
        match gone.promise {
            Promise::Now => broken(Invariant::Revocation, "which was unmapped"),
            Promise::Held if again => broken(Invariant::FrameReuse, "which was recycled"),
            Promise::LazyUnmapping { within } if age > within => {
                broken(Invariant::LazyBound, "which was unmapped long ago")
            }
            _ => Ok(()),
        }
    }
}

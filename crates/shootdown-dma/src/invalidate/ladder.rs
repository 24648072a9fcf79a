//! What to tell: pages, covering blocks, or the whole domain.
//!
//! A command costs the unit time, and each unit does them one after the other. An entry that is forgotten for nothing
//! costs a walk when the device comes back to it. So there are rungs, and a batch takes the cheapest that covers it (I7):
//! 1. spans that touch are one (always);
//! 2. neighbours become one if what lies between them costs less than a command, and the whole is at most twice as
//!    large as what was asked for;
//! 3. when the commands together cost more than forgetting the domain, the domain is forgotten;
//! 4. what was mapped once and for all is forgotten as a whole ([`Engine::note_everything`](super::Engine::note_everything)),
//!    in the IOMMU and in devices.
//!
//! A device is told less precisely than the IOMMU: each range costs it a message and an answer over the link.

use super::pending::{Span, merge};

/// The costs that decide. They change speed, never safety.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ladder {
    /// A command for one range, in nanoseconds of the unit. *Assumed*: 150.
    pub command_ns: u32,
    /// A command for a domain. *Assumed*: 300.
    pub domain_ns: u32,
    /// Coming back to an entry that was forgotten for nothing. A miss takes about 330 ns (pcie-bench, SIGCOMM'18, Broadwell),
    /// most of which overlaps with others. *Assumed*: 40.
    pub refill_ns: u32,
    /// Entries of the domain that are in use at a time. The IOTLB seen by pcie-bench has 64.
    pub live: u32,
    /// Ranges that a device is told one by one; beyond, it is told all. *Assumed*: 4.
    pub device_ranges: u32,
}

impl Ladder {
    /// See the fields.
    pub const DEFAULT: Self =
        Self { command_ns: 150, domain_ns: 300, refill_ns: 40, live: 64, device_ranges: 4 };

    /// The same, with another cost of a command.
    #[must_use]
    pub const fn with_command_ns(self, command_ns: u32) -> Self {
        Self { command_ns, ..self }
    }

    /// The same, for a domain with so many entries in use.
    #[must_use]
    pub const fn with_live(self, live: u32) -> Self {
        Self { live, ..self }
    }

    /// Merges `spans`, and says how many are left, in front; `None`: the whole domain is cheaper. `crowded`: the
    /// unit's queue is more than half full, and a command costs everybody else's time as well.
    pub(super) fn plan(&self, spans: &mut [Span], crowded: bool) -> Option<usize> {
        let command = u64::from(self.command_ns) * if crowded { 4 } else { 1 };
        let kept = merge(spans);
        let count = self.join_neighbours(&mut spans[..kept], command);
        let forgotten = u64::from(self.live) * u64::from(self.refill_ns);
        let domain = u64::from(self.domain_ns) + forgotten;
        // One range is told as one, whatever the costs are: a domain forgotten for a page is a cliff.
        (count <= 1 || count as u64 * command <= domain).then_some(count)
    }

    fn join_neighbours(&self, spans: &mut [Span], command: u64) -> usize {
        let mut count = 0;
        let mut asked = 0u64; // pages of the last span that somebody asked for
        for i in 0..spans.len() {
            let span = spans[i];
            let pages = (span.last - span.first).saturating_add(1);
            if count > 0 && self.joins(spans[count - 1], span, asked.saturating_add(pages), command)
            {
                if !without!(NeighbourForgotten) {
                    spans[count - 1] = spans[count - 1].hull(span);
                }
                asked = asked.saturating_add(pages);
            } else {
                spans[count] = span;
                asked = pages;
                count += 1;
            }
        }
        count
    }

    /// Is one command for both cheaper, and not too coarse? `asked`: the pages of both that somebody asked for.
    fn joins(&self, before: Span, span: Span, asked: u64, command: u64) -> bool {
        let hull = before.hull(span);
        let between = span.first - before.last - 1;
        let coarse = hull.last - hull.first >= asked.saturating_mul(2);
        before.leaf_only == span.leaf_only
            && !coarse
            && between.saturating_mul(self.refill_ns.into()) <= command
    }
}

impl Default for Ladder {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn span(first: u64, last: u64) -> Span {
        Span { first, last, leaf_only: true }
    }

    proptest! {
           /// I7 for the upper rungs.
           #[test]
           fn a_plan_covers_what_was_asked(
               spans in prop::collection::vec((1..400u64, 1..6u64, any::<bool>()), 1..16),
               command_ns in 0..1000u32, crowded: bool,
           ) {
               let asked: Vec<Span> =
                   spans.into_iter().map(|(f, n, leaf_only)| Span { first: f, last: f + n - 1, leaf_only }).collect();
               let mut planned = asked.clone();
               let ladder = Ladder::DEFAULT.with_command_ns(command_ns);
               if let Some(count) = ladder.plan(&mut planned, crowded) {
                   let planned = &planned[..count];
                   for a in &asked {
                       let told = planned.iter().any(|p| {
                           p.first <= a.first && a.last <= p.last && (a.leaf_only || !p.leaf_only)
                       });
    prop_assert!(told, "{:?} in {:?}", a, planned);
                   }
                   let mut pages: Vec<u64> = asked.iter().flat_map(|s| s.first..=s.last).collect();
                   pages.sort_unstable();
                   pages.dedup();
                   let told: u64 = planned.iter().map(|s| s.last - s.first + 1).sum();
                   prop_assert!(told <= 2 * pages.len() as u64, "no more than twice as much");
               }
           }
       }

    #[test]
    pub(crate) fn rungs() {
        let ladder = Ladder::DEFAULT;
        let mut near = [span(1, 4), span(6, 9)];
        assert_eq!(ladder.plan(&mut near, false), Some(1));
        assert_eq!(near[0], span(1, 9), "one page between costs less than a command");
        let mut far = [span(1, 4), span(60, 64)];
        assert_eq!(ladder.plan(&mut far, false), Some(2));
        let mut many: Vec<Span> = (0..16).map(|n| span(1 + n * 100, 1 + n * 100)).collect();
        assert_eq!(ladder.plan(&mut many.clone(), false), Some(16));
        assert_eq!(ladder.plan(&mut many, true), None, "a crowded queue prefers one command");
        let free = ladder.with_live(0);
        assert_eq!(free.plan(&mut many, false), None, "nothing in use: nothing to lose");
        assert_eq!(free.plan(&mut many[..1], false), Some(1));
    }
}

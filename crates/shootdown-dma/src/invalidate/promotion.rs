//! The choice of commands: pages, covering blocks, the whole domain, or everything.
//!
//! A command costs the unit time, and each unit executes them one after the other. An entry that is
//! invalidated without need costs a walk when the device uses it again. So there are levels, and a
//! batch takes the cheapest that covers it (I7):
//! 1. spans that touch are merged (always);
//! 2. neighbours are merged if the pages between them cost less than a command, and the result is
//!    at most twice as large as the pages that were noted;
//! 3. when the commands together cost more than invalidating the domain, the domain is invalidated;
//! 4. when the domain is to be invalidated, and invalidating *everything* is cheaper still (some
//!    units do that without comparing tags, and a unit with one domain has nothing else to lose),
//!    everything is invalidated.
//!
//! Levels 3 and 4 are for buffers that were mapped once, and that are not unmapped one by one. Many
//! that are unmapped together reach level 3 by their number. A caller that unmaps all at once asks
//! for it ([`Engine::note_everything`](super::Engine::note_everything),
//! [`Engine::flush_all`](super::Engine::flush_all)). The same batch then invalidates the devices'
//! own caches as a whole, behind the IOMMU's (I6).
//!
//! Otherwise the commands for a device are coarser than those for the IOMMU: each range costs the
//! device a message and a reply over the link.

use super::pending::{Span, merge};

/// The commands for a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// One command for each span; the number of spans that are left after merging.
    Spans(usize),
    /// The whole domain.
    Domain,
    /// Everything.
    Everything,
}

/// The costs that decide. They change speed, never safety.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Promotion {
    /// A command for one range, in nanoseconds of the unit. *Assumed*: 150.
    pub command_ns: u32,
    /// A command for a domain. *Assumed*: 300.
    pub domain_ns: u32,
    /// Using an entry again that was invalidated without need. A miss takes about 330 ns
    /// (pcie-bench, SIGCOMM'18, Broadwell), most of which overlaps with other work. *Assumed*: 40.
    pub refill_ns: u32,
    /// Entries of the domain that are in use at a time. The IOTLB seen by pcie-bench has 64.
    pub live: u32,
    /// A command for everything. *Assumed*: 300, as for a domain.
    pub everything_ns: u32,
    /// Entries that the unit's other domains have in use, which are lost if everything is
    /// invalidated. *Assumed*: 256.
    pub others: u32,
    /// Ranges for which a device gets one command each; beyond, it gets one for all. *Assumed*: 4.
    pub device_ranges: u32,
}

impl Promotion {
    /// The default values; the fields say why.
    pub const DEFAULT: Self = Self {
        command_ns: 150,
        domain_ns: 300,
        refill_ns: 40,
        live: 64,
        everything_ns: 300,
        others: 256,
        device_ranges: 4,
    };

    /// The same, with another cost of a command.
    #[must_use]
    pub const fn with_command_ns(self, command_ns: u32) -> Self {
        Self { command_ns, ..self }
    }

    /// The same, for a domain with this many entries in use.
    #[must_use]
    pub const fn with_live(self, live: u32) -> Self {
        Self { live, ..self }
    }

    /// The same for a unit that invalidates everything in `everything_ns` nanoseconds, and whose
    /// other domains have `others` entries in use. With `others` = 0 (a unit with one domain)
    /// everything is invalidated wherever that is cheaper than the domain alone.
    #[must_use]
    pub const fn with_everything(self, everything_ns: u32, others: u32) -> Self {
        Self { everything_ns, others, ..self }
    }

    /// Merges `spans`, and returns how many are left, in front, or that a coarser command is
    /// cheaper. `crowded`: the unit's queue is more than half full, and a command delays all other
    /// CPUs' commands as well. `all`: the unit has a command for everything.
    pub(super) fn plan(&self, spans: &mut [Span], crowded: bool, all: bool) -> Plan {
        let command = u64::from(self.command_ns) * if crowded { 4 } else { 1 };
        let kept = merge(spans);
        let count = self.join_neighbours(&mut spans[..kept], command);
        let (coarse, cost) = self.coarse(all);
        // One range gets its own command, whatever the costs are: invalidating a domain for one
        // page makes the next accesses of all its devices miss.
        if count <= 1 || count as u64 * command <= cost { Plan::Spans(count) } else { coarse }
    }

    /// The cheapest command that covers the domain, and its cost.
    fn coarse(&self, all: bool) -> (Plan, u64) {
        let forgotten = |entries: u32| u64::from(entries) * u64::from(self.refill_ns);
        let domain = u64::from(self.domain_ns) + forgotten(self.live);
        let everything =
            u64::from(self.everything_ns) + forgotten(self.live) + forgotten(self.others);
        let all = all && everything < domain;
        if all { (Plan::Everything, everything) } else { (Plan::Domain, domain) }
    }

    /// Whether this many commands take longer than invalidating the domain, and refilling all of
    /// it.
    pub(super) fn is_long(&self, commands: u64) -> bool {
        commands.saturating_mul(self.command_ns.into()) > self.coarse(false).1
    }

    /// The command for invalidating the domain.
    pub(super) fn whole(&self, all: bool) -> Plan {
        self.coarse(all).0
    }

    fn join_neighbours(&self, spans: &mut [Span], command: u64) -> usize {
        let mut count = 0;
        let mut asked = 0u64; // pages of the last span that were noted
        for i in 0..spans.len() {
            let span = spans[i];
            let pages = (span.last - span.first).saturating_add(1);
            if count > 0 && self.joins(spans[count - 1], span, asked.saturating_add(pages), command)
            {
                spans[count - 1] = spans[count - 1].hull(span);
                asked = asked.saturating_add(pages);
            } else {
                spans[count] = span;
                asked = pages;
                count += 1;
            }
        }
        count
    }

    /// Whether one command for both is cheaper, and not too coarse. `asked`: the noted pages of
    /// both.
    fn joins(&self, before: Span, span: Span, asked: u64, command: u64) -> bool {
        let hull = before.hull(span);
        let between = span.first - before.last - 1;
        let coarse = hull.last - hull.first >= asked.saturating_mul(2);
        before.leaf_only == span.leaf_only
            && !coarse
            && between.saturating_mul(self.refill_ns.into()) <= command
    }
}

impl Default for Promotion {
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
        /// I7 for the upper levels.
        #[test]
        fn a_plan_covers_what_was_asked(
            spans in prop::collection::vec((1..400u64, 1..6u64, any::<bool>()), 1..16),
            command_ns in 0..1000u32, crowded: bool, all: bool,
        ) {
            let asked: Vec<Span> = spans
                .into_iter()
                .map(|(f, n, leaf_only)| Span { first: f, last: f + n - 1, leaf_only })
                .collect();
            let mut planned = asked.clone();
            let promotion = Promotion::DEFAULT.with_command_ns(command_ns);
            if let Plan::Spans(count) = promotion.plan(&mut planned, crowded, all) {
                let planned = &planned[..count];
                for a in &asked {
                    prop_assert!(planned.iter().any(|p| covers(*p, *a)), "{:?} in {:?}", a, planned);
                }
                let mut pages: Vec<u64> = asked.iter().flat_map(|s| s.first..=s.last).collect();
                pages.sort_unstable();
                pages.dedup();
                let told: u64 = planned.iter().map(|s| s.last - s.first + 1).sum();
                prop_assert!(told <= 2 * pages.len() as u64, "no more than twice as much");
            }
        }
    }

    fn covers(told: Span, asked: Span) -> bool {
        let leaf_only = asked.leaf_only || !told.leaf_only;
        told.first <= asked.first && asked.last <= told.last && leaf_only
    }

    /// Every set of up to three spans within eight pages, under costs that lead to each level: the
    /// plan covers what was noted, and is the cheapest that does.
    #[test]
    pub(crate) fn promotion_exhaustively() {
        let spans = || {
            (1..=8u64)
                .flat_map(|f| (f..=8).flat_map(move |l| [true, false].map(|leaf| (f, l, leaf))))
                .map(|(first, last, leaf_only)| Span { first, last, leaf_only })
        };
        let mut levels = [0; 3];
        let base = Promotion { live: 2, refill_ns: 10, ..Promotion::DEFAULT };
        let costs = [1u32, 15, 60].into_iter().flat_map(|command_ns| {
            [(5u32, 0u32), (40, 0), (5, 1), (5, 9)].map(|(everything_ns, others)| Promotion {
                command_ns,
                domain_ns: 20,
                ..base.with_everything(everything_ns, others)
            })
        });
        for promotion in costs {
            let [domain, everything] = [
                (promotion.domain_ns, promotion.live),
                (promotion.everything_ns, promotion.live + promotion.others),
            ]
            .map(|(own, lost)| u64::from(own + lost * promotion.refill_ns));
            for all in [true, false] {
                let floor = if all { domain.min(everything) } else { domain };
                let whole = promotion.whole(all);
                assert_eq!(whole == Plan::Everything, all && everything < domain);
                assert!(!matches!(whole, Plan::Spans(_)));
                let pairs = spans().flat_map(|a| spans().map(move |b| (a, b)));
                for (n, (a, b)) in pairs.enumerate() {
                    // A third with every seventh pair: enough to be many, few enough to be fast.
                    let third = spans().nth(n / 7 % 72).filter(|_| n % 7 == 0);
                    let asked: Vec<Span> = [a, b].into_iter().chain(third).collect();
                    let mut planned = asked.clone();
                    match promotion.plan(&mut planned, false, all) {
                        Plan::Spans(count) => {
                            levels[0] += 1;
                            let planned = &planned[..count];
                            assert!(asked.iter().all(|a| planned.iter().any(|p| covers(*p, *a))));
                            let cost = count as u64 * u64::from(promotion.command_ns);
                            assert!(count == 1 || cost <= floor, "{asked:?}: dearer than coarser");
                        }
                        coarse => {
                            levels[if coarse == Plan::Domain { 1 } else { 2 }] += 1;
                            assert_eq!(coarse, whole);
                            let mut merged = asked.clone();
                            let count = merge(&mut merged);
                            assert!(count > 1, "one range is told as one");
                            let cost = count as u64 * u64::from(promotion.command_ns);
                            assert!(cost > floor, "{asked:?}: spans would have been cheaper");
                        }
                    }
                }
            }
        }
        assert!(levels.iter().all(|seen| *seen > 1000), "{levels:?}");
    }

    #[test]
    pub(crate) fn levels() {
        let promotion = Promotion::DEFAULT;
        let mut near = [span(1, 4), span(6, 9)];
        assert_eq!(promotion.plan(&mut near, false, true), Plan::Spans(1));
        assert_eq!(near[0], span(1, 9), "one page between costs less than a command");
        let mut far = [span(1, 4), span(60, 64)];
        assert_eq!(promotion.plan(&mut far, false, true), Plan::Spans(2));
        let mut many: Vec<Span> = (0..16).map(|n| span(1 + n * 100, 1 + n * 100)).collect();
        assert_eq!(promotion.plan(&mut many.clone(), false, true), Plan::Spans(16));
        let crowded = promotion.plan(&mut many, true, true);
        assert_eq!(crowded, Plan::Domain, "a crowded queue prefers one command");
        let free = promotion.with_live(0);
        let nothing = free.plan(&mut many, false, true);
        assert_eq!(nothing, Plan::Domain, "nothing in use: nothing to lose");
        assert_eq!(free.plan(&mut many[..1], false, true), Plan::Spans(1));
        // A unit with this domain alone, which invalidates everything faster than what has a tag.
        let alone = free.with_everything(100, 0);
        assert_eq!(alone.plan(&mut many, false, true), Plan::Everything);
        assert_eq!((alone.whole(true), alone.whole(false)), (Plan::Everything, Plan::Domain));
        assert_eq!(alone.plan(&mut many, false, false), Plan::Domain, "the unit can't");
        let others = alone.with_everything(100, 6);
        assert_eq!(others.whole(true), Plan::Domain, "others would have to come back");
    }
}

//! From a request to instructions.
//!
//! | request | instructions |
//! |---|---|
//! | range, leaf only | one fence with address and ASID per stride |
//! | range, tables freed | one fence with the ASID alone: a fence with an address spares all but leaves |
//! | tag | one fence with the ASID |
//! | kernel range | one fence with the address alone per stride |
//! | everything | one fence without operands |
//!
//! With Svinval, several become SFENCE.W.INVAL; SINVAL.VMA…; SFENCE.INVAL.IR, which pays for the
//! order once. One alone stays an SFENCE.VMA, as two instructions more would buy nothing.
//!
//! # Invariants
//! I1: every SINVAL.VMA of a plan comes after its SFENCE.W.INVAL and before its SFENCE.INVAL.IR.
//! I2: a plan removes at least what was asked.

use shootdown::VaRange;
use shootdown::regime::Invalidate;

use super::fence::{Fence, Instruction};
use super::port::Port;
use crate::asid::Asid;

/// The instructions of a plan, in order.
#[derive(Clone, Debug)]
pub struct Steps(Kind);

#[derive(Clone, Debug)]
enum Kind {
    One(Option<Fence>),
    Pages { pages: Pages, batch: Option<Batch> },
}

/// Where a batch is.
#[derive(Clone, Copy, Debug)]
enum Batch {
    Opening,
    Open,
    Closed,
}

#[derive(Clone, Debug)]
struct Pages {
    asid: Option<Asid>,
    address: u64,
    left: u64,
    shift: u32,
}

impl Pages {
    #[inline]
    fn next(&mut self) -> Option<Fence> {
        self.left = self.left.checked_sub(1)?;
        let fence = Fence::page(self.address, self.asid);
        self.address = self.address.wrapping_add(1 << self.shift);
        Some(fence)
    }
}

impl Steps {
    const fn one(fence: Fence) -> Self {
        Self(Kind::One(Some(fence)))
    }

    const fn pages(range: VaRange, asid: Option<Asid>, svinval: bool) -> Self {
        let shift = range.stride().shift();
        let pages = Pages { asid, address: range.start(), left: range.count(), shift };
        let batch = if svinval && range.count() > 1 { Some(Batch::Opening) } else { None };
        Self(Kind::Pages { pages, batch })
    }

    /// How many instructions of the plan wait until something is in order; the others may overlap.
    /// (What a plan costs is this count times one price and the rest times another.)
    #[must_use]
    pub const fn fences(&self) -> u64 {
        match &self.0 {
            Kind::One(left) => left.is_some() as u64,
            Kind::Pages { pages, batch: None } => pages.left,
            Kind::Pages { batch: Some(Batch::Opening), .. } => 2,
            Kind::Pages { batch: Some(Batch::Open), .. } => 1,
            Kind::Pages { batch: Some(Batch::Closed), .. } => 0,
        }
    }
}

impl Iterator for Steps {
    type Item = Instruction;

    #[inline]
    fn next(&mut self) -> Option<Instruction> {
        match &mut self.0 {
            Kind::One(fence) => fence.take().map(Instruction::Sfence),
            Kind::Pages { pages, batch: None } => pages.next().map(Instruction::Sfence),
            Kind::Pages { pages, batch: Some(batch) } => match batch {
                Batch::Opening => {
                    *batch = Batch::Open;
                    Some(Instruction::WInval)
                }
                Batch::Open => Some(match pages.next() {
                    Some(fence) => Instruction::Sinval(fence),
                    None => {
                        *batch = Batch::Closed;
                        Instruction::InvalIr
                    }
                }),
                Batch::Closed => None,
            },
        }
    }
}

impl Port {
    /// How this hart removes `what` from its own caches.
    #[must_use]
    pub const fn local(&self, what: Invalidate) -> Steps {
        match what {
            Invalidate::Range { tag, range, leaf_only } => match self.asid_of(tag) {
                Some(asid) if leaf_only => Steps::pages(range, Some(asid), self.svinval),
                Some(asid) => Steps::one(Fence::asid(asid)),
                // No such tag: more than asked.
                None => Steps::one(Fence::ALL),
            },
            Invalidate::Tag(tag) => Steps::one(match self.asid_of(tag) {
                Some(asid) => Fence::asid(asid),
                None => Fence::ALL,
            }),
            Invalidate::Kernel(range) => Steps::pages(range, None, self.svinval),
            Invalidate::Everything => Steps::one(Fence::ALL),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use shootdown::{Stride, Tag};

    use super::super::port::Options;
    use super::*;
    use crate::asid::AsidWidth;

    fn port(bits: u8, svinval: bool) -> Port {
        let asids = AsidWidth::new(bits).unwrap();
        Port::new(Options { asids, svinval, ..Options::MINIMUM })
    }

    /// What a hart may hold, as [`Fence::removes`] takes it.
    #[derive(Clone, Copy, Debug)]
    struct Entry {
        page: u64,
        shift: u32,
        leaf: bool,
        asid: Option<Asid>,
    }

    /// Executes a plan on a hart. A SINVAL.VMA outside of a batch (I1) fails.
    fn execute(steps: Steps, mut entries: Vec<Entry>) -> Vec<Entry> {
        let mut open = false;
        for step in steps {
            let fence = match step {
                Instruction::Sfence(fence) => {
                    assert!(!open, "a full fence inside of a batch");
                    fence
                }
                Instruction::Sinval(fence) => {
                    assert!(open, "I1");
                    fence
                }
                Instruction::WInval => {
                    assert!(!open);
                    open = true;
                    continue;
                }
                Instruction::InvalIr => {
                    assert!(open);
                    open = false;
                    continue;
                }
            };
            entries.retain(|e| !fence.removes(e.page, e.shift, e.leaf, e.asid));
        }
        assert!(!open, "I1: nothing orders what follows");
        entries
    }

    fn entries(asids: &[Option<Asid>]) -> Vec<Entry> {
        let mut all = Vec::new();
        for &asid in asids {
            for page in 0..24 {
                all.push(Entry { page: page << 12, shift: 12, leaf: true, asid });
            }
            for large in 0..4 {
                all.push(Entry { page: large << 21, shift: 21, leaf: true, asid });
                all.push(Entry { page: large << 21, shift: 21, leaf: false, asid });
            }
        }
        all
    }

    /// Must the request remove the entry? From the words of [`Invalidate`], and of [`Stride`]: no
    /// leaf of the range is smaller.
    fn covered(what: Invalidate, entry: &Entry, width: AsidWidth) -> bool {
        let end = entry.page + (1 << entry.shift);
        let touches = |range: VaRange| {
            entry.page <= range.last()
                && range.start() < end
                && entry.shift >= range.stride().shift()
        };
        let of = |tag: Tag| entry.asid.is_some() && entry.asid == Asid::of_tag(tag, width).ok();
        match what {
            Invalidate::Range { tag, range, leaf_only } => {
                of(tag) && touches(range) && (entry.leaf || !leaf_only)
            }
            Invalidate::Tag(tag) => of(tag),
            Invalidate::Kernel(range) => entry.leaf && touches(range),
            Invalidate::Everything => true,
        }
    }

    #[test]
    fn a_plan_removes_at_least_what_was_asked() {
        for svinval in [false, true] {
            let port = port(9, svinval);
            let asids = [3, 4].map(|raw| Asid::new(raw, port.asids()).unwrap());
            let all = entries(&[Some(asids[0]), Some(asids[1]), None]);
            let mut requests = std::vec![
                Invalidate::Everything,
                Invalidate::Tag(Tag(3)),
                Invalidate::Tag(Tag(999))
            ];
            for (stride, most) in [(Stride::Page4K, 23u64), (Stride::Page2M, 3)] {
                for first in 0..most {
                    for count in 1..=most - first {
                        let range = VaRange::new(first << stride.shift(), count, stride).unwrap();
                        requests.push(Invalidate::Kernel(range));
                        for leaf_only in [false, true] {
                            let tag = Tag(3);
                            requests.push(Invalidate::Range { tag, range, leaf_only });
                        }
                    }
                }
            }
            for what in requests {
                let left = execute(port.local(what), all.clone());
                for entry in &left {
                    assert!(!covered(what, entry, port.asids()), "{what:?} leaves {entry:?}");
                }
                // And not everything, where less will do.
                if let Invalidate::Range { leaf_only: true, range, .. } = what {
                    let gone = all.len() - left.len();
                    assert!(gone as u64 <= range.count() * 26, "{what:?} removes {gone}");
                    assert!(left.iter().filter(|e| e.asid != Some(asids[0])).count() == 64);
                }
            }
        }
    }

    #[test]
    fn fences_are_counted() {
        for svinval in [false, true] {
            let port = port(9, svinval);
            for count in 1..40 {
                let range = VaRange::new(0x40_0000, count, Stride::Page4K).unwrap();
                for leaf_only in [false, true] {
                    let mut steps = port.local(Invalidate::Range { tag: Tag(3), range, leaf_only });
                    let expected = match (leaf_only, svinval && count > 1) {
                        (false, _) => 1,
                        (true, false) => count,
                        (true, true) => 2,
                    };
                    assert_eq!(steps.fences(), expected);
                    // What is left goes down to nothing.
                    let is_fence = |s: &Instruction| !matches!(s, Instruction::Sinval(_));
                    let mut left = expected;
                    while let Some(step) = steps.next() {
                        left -= u64::from(is_fence(&step));
                        assert_eq!(steps.fences(), left);
                    }
                    assert_eq!(left, 0);
                }
            }
        }
    }

    /// Without ASIDs every space is ASID 0.
    #[test]
    fn without_asids_tag_zero_is_everybody() {
        let port = port(0, true);
        let tag = |raw| port.local(Invalidate::Tag(Tag(raw))).collect::<Vec<_>>();
        assert_eq!(tag(0), [Instruction::Sfence(Fence::asid(Asid::ZERO))]);
        assert_eq!(tag(1), [Instruction::Sfence(Fence::ALL)]);
    }
}

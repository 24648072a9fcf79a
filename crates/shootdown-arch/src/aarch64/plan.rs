//! From a request to TLBIs.
//!
//! | request | operations |
//! |---|---|
//! | range, leaf only | VALE1 or RVALE1 |
//! | range, tables freed | VAE1 or RVAE1, without a hint |
//! | tag | ASIDE1 |
//! | kernel range | VAALE1 or RVAALE1 |
//! | everything | VMALLE1 |
//!
//! A range that takes more operations than the port allows becomes ASIDE1 (VMALLE1 for the
//! kernel's). So does a range of a tag that is no ASID.
//!
//! # Hints
//! The core names a stride that is *not larger* than any leaf of the range. Only at the largest
//! stride is that the leaves' level; a range of 4 KiB strides may hold larger leaves. So a plan
//! never hints; who knows better builds a [`super::Page`] or a [`super::Cover`] with
//! [`Depth::LeavesAt`].
//!
//! # Invariants
//! I1: a plan removes at least what was asked. I2: it has at most as many operations as the port
//! allows, at least one.

use shootdown::regime::Invalidate;
use shootdown::{Tag, VaRange};

use super::cover::{Cover, Piece};
use super::granule::Depth;
use super::port::Port;
use super::tlbi::{Domain, Operation, Tlbi};
use crate::asid::Asid;

/// The TLBIs of a plan, in any order.
#[derive(Clone, Debug)]
pub struct Steps {
    domain: Domain,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    One(Option<Operation>),
    Cover { asid: Option<Asid>, cover: Cover },
}

impl Iterator for Steps {
    type Item = Tlbi;

    #[inline]
    fn next(&mut self) -> Option<Tlbi> {
        let operation = match &mut self.kind {
            Kind::One(operation) => operation.take()?,
            Kind::Cover { asid, cover } => match cover.next()? {
                Piece::Page(page) => Operation::Page { asid: *asid, page },
                Piece::Span(span) => Operation::Range { asid: *asid, span },
            },
        };
        Some(Tlbi { operation, domain: self.domain })
    }
}

impl Port {
    /// How the CPUs of a domain are made to forget `what`.
    #[must_use]
    pub fn plan(&self, what: Invalidate, domain: Domain) -> Steps {
        let kind = match what {
            Invalidate::Range { tag, range, leaf_only } => match self.asid_of(tag) {
                Some(asid) => {
                    let depth = if leaf_only { Depth::Leaves } else { Depth::Tables };
                    self.range(range, Some(asid), depth)
                }
                None => Kind::One(Some(Operation::All)),
            },
            Invalidate::Tag(tag) => Kind::One(Some(match self.asid_of(tag) {
                Some(asid) => Operation::Asid(asid),
                None => Operation::All,
            })),
            Invalidate::Kernel(range) => self.range(range, None, Depth::Leaves),
            Invalidate::Everything => Kind::One(Some(Operation::All)),
        };
        Steps { domain, kind }
    }

    fn asid_of(&self, tag: Tag) -> Option<Asid> {
        Asid::of_tag(tag, self.asids).ok()
    }

    fn range(&self, range: VaRange, asid: Option<Asid>, depth: Depth) -> Kind {
        // Steps of the granule's own leaves: larger than a page only where the stride allows.
        let step = self.shape.granule.step(range.stride());
        let shift = self.shape.granule.leaf_shift(step);
        let first = range.start() >> shift << shift;
        let count = ((range.last() - first) >> shift) + 1;
        let cover = self.shape.cover(first, count, step, depth);
        if cover.operations() > self.max_operations {
            return Kind::One(Some(match asid {
                Some(asid) => Operation::Asid(asid),
                None => Operation::All,
            }));
        }
        Kind::Cover { asid, cover }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

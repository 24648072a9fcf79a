//! From a request to instructions.
//!
//! The core says *what* must be gone; which instruction does it best depends on what the CPU has
//! and on whether the tag in question is the one loaded. The answer is a sequence of [`Step`]s, a
//! pure value, so that a host test can hold it against the manual's wording of what each step
//! removes.
//!
//! | request | loaded tag | another tag | no tags |
//! |---|---|---|---|
//! | range | INVLPG each stride | INVPCID 0 each stride | INVLPG each stride |
//! | tag | CR3 without keep | INVPCID 1 | CR3 |
//! | kernel range | INVLPG each stride; split tables: and INVPCID 0 for the paired tag | | INVLPG each stride |
//! | everything | INVPCID 2, or toggle `CR4.PGE`, or CR3 (no global pages) | | the same |
//!
//! Where INVPCID is needed and missing, "everything" takes its place: more than asked, never less.
//! Writing CR3 beats INVPCID type 1 for the loaded tag, and INVPCID type 2 beats two writes of CR4
//! (376 against 539 ns on a Skylake, by the Linux change that made the choice).
//!
//! With split tables the paired tag is the one with the highest PCID bit flipped, as in the core.
//!
//! # What a kernel range does not cover
//! INVLPG drops cached non-leaf entries of the *loaded* tag only, and INVLPGB of the tags it
//! matches. A page of the kernel's own tables may be freed after [`Invalidate::Everything`], not
//! after [`Invalidate::Kernel`].

use shootdown::regime::Invalidate;
use shootdown::{Tag, VaRange};

use super::invlpgb::{Cover, InvlpgbMatch, InvlpgbOperands};
use super::invpcid::Invpcid;
use super::linear::{LinearAddress, LinearWidth};
use super::pcid::Pcid;
use super::port::Port;

/// One instruction of a plan (two for [`Step::TogglePge`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// INVLPG.
    Invlpg(LinearAddress),
    /// INVPCID.
    Invpcid(Invpcid),
    /// Write CR3 with the value it holds, without keep.
    ReloadCr3,
    /// Change `CR4.PGE` and change it back.
    TogglePge,
    /// INVLPGB, to be completed by TLBSYNC.
    Invlpgb(InvlpgbOperands),
}

/// The instructions of a plan, in order.
#[derive(Clone, Debug)]
pub struct Steps(Kind);

#[derive(Clone, Debug)]
enum Kind {
    One(Option<Step>),
    Pages(PageSteps),
    Cover(Cover),
}

/// A page operation for each stride of up to two ranges.
#[derive(Clone, Debug)]
struct PageSteps {
    width: LinearWidth,
    /// `None`: INVLPG.
    pcid: Option<Pcid>,
    /// Each page under this tag as well.
    pair: Option<Pcid>,
    queued: Option<Step>,
    /// Next address, strides left, shift.
    at: (u64, u64, u32),
    high: Option<VaRange>,
}

impl Steps {
    fn one(step: Step) -> Self {
        Self(Kind::One(Some(step)))
    }

    fn pages(width: LinearWidth, range: VaRange, pcid: Option<Pcid>, pair: Option<Pcid>) -> Self {
        let parts = width.clip(range);
        let at = parts.low.map_or((0, 0, 0), |r| (r.start(), r.count(), r.stride().shift()));
        Self(Kind::Pages(PageSteps { width, pcid, pair, queued: None, at, high: parts.high }))
    }
}

impl PageSteps {
    #[inline]
    fn next(&mut self) -> Option<Step> {
        if let Some(step) = self.queued.take() {
            return Some(step);
        }
        if self.at.1 == 0 {
            let range = self.high.take()?;
            self.at = (range.start(), range.count(), range.stride().shift());
        }
        let (address, left, shift) = self.at;
        self.at = (address.wrapping_add(1 << shift), left - 1, shift);
        // Clipped ranges hold canonical addresses only.
        let address = LinearAddress::new(address, self.width).ok()?;
        self.queued = self.pair.map(|pcid| Step::Invpcid(Invpcid::Address { pcid, address }));
        Some(match self.pcid {
            Some(pcid) => Step::Invpcid(Invpcid::Address { pcid, address }),
            None => Step::Invlpg(address),
        })
    }
}

impl Iterator for Steps {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        match &mut self.0 {
            Kind::One(step) => step.take(),
            Kind::Pages(pages) => pages.next(),
            Kind::Cover(cover) => cover.next().map(Step::Invlpgb),
        }
    }
}

impl Port {
    /// How this CPU removes `what` from its own caches while `loaded` is the PCID in CR3.
    #[must_use]
    pub fn local(&self, what: Invalidate, loaded: Pcid) -> Steps {
        match what {
            Invalidate::Range { tag, range, leaf_only: _ } => {
                self.range(self.pcid_of(tag, loaded), range, loaded)
            }
            Invalidate::Tag(tag) => match self.pcid_of(tag, loaded) {
                Some(pcid) if pcid == loaded => Steps::one(Step::ReloadCr3),
                Some(pcid) if self.invpcid => Steps::one(Step::Invpcid(Invpcid::Context(pcid))),
                _ => self.everything(),
            },
            Invalidate::Kernel(range) => {
                let pair = (self.split && self.tags).then(|| pair_of(loaded));
                if pair.is_some() && !self.invpcid {
                    return self.everything();
                }
                Steps::pages(self.width, range, None, pair)
            }
            Invalidate::Everything => self.everything(),
        }
    }

    /// How hardware removes `what` from the caches of every CPU; `None` where it can't.
    #[must_use]
    pub fn broadcast(&self, what: Invalidate) -> Option<Steps> {
        let limits = self.broadcast.as_ref()?;
        let host = InvlpgbMatch {
            pages: None,
            pcid: None,
            asid: 0,
            globals: false,
            final_only: false,
            nested: false,
        };
        let everything = InvlpgbMatch { globals: true, ..host };
        // A tag that is no PCID: more than asked.
        let pcid = |tag: Tag| match Pcid::try_from(tag) {
            Ok(pcid) if self.tags => Some(InvlpgbMatch { pcid: Some(pcid), ..host }),
            Ok(_) => Some(host),
            Err(_) => None,
        };
        let (template, range) = match what {
            Invalidate::Range { tag, range, leaf_only } => match pcid(tag) {
                Some(only) => (InvlpgbMatch { final_only: leaf_only, ..only }, Some(range)),
                None => (everything, None),
            },
            Invalidate::Tag(tag) => (pcid(tag).unwrap_or(everything), None),
            Invalidate::Kernel(range) => (everything, Some(range)),
            Invalidate::Everything => (everything, None),
        };
        match range {
            Some(range) => {
                limits.cover(range, template).ok().map(|cover| Steps(Kind::Cover(cover)))
            }
            None => limits.encode(&template).ok().map(|one| Steps::one(Step::Invlpgb(one))),
        }
    }

    /// The PCID that `tag` stands for; `None` when there is no such PCID.
    fn pcid_of(&self, tag: Tag, loaded: Pcid) -> Option<Pcid> {
        // Without tags every space is cached under the one PCID there is.
        if self.tags { Pcid::try_from(tag).ok() } else { Some(loaded) }
    }

    fn range(&self, pcid: Option<Pcid>, range: VaRange, loaded: Pcid) -> Steps {
        match pcid {
            Some(pcid) if pcid == loaded => Steps::pages(self.width, range, None, None),
            Some(pcid) if self.invpcid => Steps::pages(self.width, range, Some(pcid), None),
            _ => self.everything(),
        }
    }

    fn everything(&self) -> Steps {
        Steps::one(if self.invpcid {
            Step::Invpcid(Invpcid::AllWithGlobals)
        } else if self.pge {
            Step::TogglePge
        } else {
            Step::ReloadCr3
        })
    }
}

/// The tag of the other half (split tables).
fn pair_of(pcid: Pcid) -> Pcid {
    Pcid::of_cr3(u64::from(pcid.get() ^ 1 << (Pcid::BITS - 1)))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

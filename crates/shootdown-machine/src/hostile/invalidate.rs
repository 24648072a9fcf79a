//! Removing entries: what an invalidation covers, and when it takes effect.
//!
//! # Protocol
//! A removal is *issued*; it *takes effect* at once, or ([`Late`](super::Late)) when the issuing CPU
//! syncs. Until then what it covers is doomed but usable. An entry that is walked anew after the issue is
//! not doomed: the removal does not reach copies made later. On a machine that translates ahead a
//! removed entry remains usable to the CPU that removed it until that CPU synchronizes its context.
//!
//! # Invariants
//! - I1: a removal drops exactly what it covers: dropping more would hide bugs that real hardware shows.
//! - I2: after issue and sync no doomed entry of the issuer is left, the erratum `early_sync` aside.

use shootdown::Tag;

use super::cpu::Cpu;
use super::held::{Held, Marks};
use super::rules::Rules;
use super::{Owner, Pages, Partial, Translation};

/// Whose entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owners {
    /// Those under the tag.
    Tag(Tag),
    /// Those under any tag.
    Any,
}

/// Which walk-cache entries go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Walks {
    /// None: leaves only.
    None,
    /// Those above the pages.
    Covering,
    /// All of the same owners.
    All,
}

/// What an invalidation removes: the exact set, see the constructors for what instructions do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Invalidation {
    /// Leaves that translate any of these pages.
    pub pages: Pages,
    /// Whose.
    pub owners: Owners,
    /// Global leaves too.
    pub globals: bool,
    /// Non-leaf entries.
    pub walks: Walks,
}

impl Invalidation {
    /// Does it remove this leaf?
    #[must_use]
    pub fn covers(&self, rules: &Rules, translation: &Translation) -> bool {
        if !self.pages.meets(translation.pages()) {
            return false;
        }
        let spared = rules.errata.page_spares_globals && self.pages != Pages::ALL;
        self.owns(translation.owner, !spared)
    }

    /// Does it remove this non-leaf entry?
    #[must_use]
    pub fn covers_partial(&self, partial: &Partial) -> bool {
        match self.walks {
            Walks::None => false,
            Walks::Covering => self.pages.meets(partial.pages()) && self.owns(partial.owner, true),
            Walks::All => self.owns(partial.owner, true),
        }
    }

    fn owns(&self, owner: Owner, globals: bool) -> bool {
        match (owner, self.owners) {
            (Owner::Everyone, _) => self.globals && globals,
            (Owner::Tag(theirs), Owners::Tag(ours)) => theirs == ours,
            (Owner::Root(_), Owners::Tag(_)) => false,
            (Owner::Tag(_) | Owner::Root(_), Owners::Any) => true,
        }
    }
}

/// A removal that has been issued and is not known to be complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Pending {
    pub issuer: u8,
    /// One bit per CPU within reach.
    pub targets: u16,
    pub what: Invalidation,
}

impl Pending {
    pub fn issuer_bit(&self) -> u16 {
        1 << self.issuer
    }

    pub fn covers(&self, rules: &Rules, translation: &Translation) -> bool {
        self.what.covers(rules, translation)
    }

    pub fn covers_partial(&self, partial: &Partial) -> bool {
        self.what.covers_partial(partial)
    }
}

impl Cpu {
    /// Removes at once; whether anything went. `own`: this CPU issued it.
    pub fn remove(&mut self, rules: &Rules, what: &Invalidation, own: bool) -> bool {
        let leaves = self.translations.retain(|translation, marks| {
            !what.covers(rules, translation) || lingers(rules, marks, own)
        });
        let steps = self
            .partials
            .retain(|partial, marks| !what.covers_partial(partial) || survives(rules, marks));
        leaves || steps
    }

    /// Marks what a late removal covers. What the issuer itself has translated ahead only a context
    /// synchronization drops; that of other CPUs is out of use when the removal is complete.
    pub fn doom(&mut self, rules: &Rules, pending: &Pending, own: bool) {
        let bit = pending.issuer_bit();
        let mark = |marks: &mut Marks| {
            marks.again |= marks.early & bit;
            marks.doomed |= bit;
        };
        self.translations.each(|t, marks| {
            if !(own && marks.ahead) && pending.covers(rules, t) {
                mark(marks);
            }
        });
        self.partials.each(|p, marks| {
            if pending.covers_partial(p) {
                mark(marks);
            }
        });
    }

    /// The sync of a late removal: removes what the issuer has doomed; whether anything went.
    pub fn complete(&mut self, rules: &Rules, issuer: u8, own: bool) -> bool {
        let bit = 1 << issuer;
        let due = |marks: &mut Marks| {
            if marks.doomed & bit == 0 {
                return false;
            }
            if rules.errata.early_sync && marks.again & bit == 0 {
                marks.early |= bit;
                return false;
            }
            marks.doomed &= !bit;
            marks.early &= !bit;
            marks.again &= !bit;
            true
        };
        let leaves = self.translations.retain(|_, marks| !due(marks) || lingers(rules, marks, own));
        let steps = self.partials.retain(|_, marks| !due(marks) || survives(rules, marks));
        leaves || steps
    }

    /// Is anything doomed by this CPU?
    pub fn awaits(&self, issuer: u8) -> bool {
        let bit = 1 << issuer;
        fn any<T: Copy + Ord>(held: &Held<T>, bit: u16) -> bool {
            held.iter().any(|slot| slot.marks.doomed & bit != 0)
        }
        any(&self.translations, bit) || any(&self.partials, bit)
    }

    /// Drops what only accesses translated ahead could still use; whether anything went.
    pub fn forget_ahead(&mut self) -> bool {
        self.translations.retain(|_, marks| !marks.ahead)
    }
}

/// Does a leaf that is being removed stay in some form?
fn lingers(rules: &Rules, marks: &mut Marks, own: bool) -> bool {
    if survives(rules, marks) {
        return true;
    }
    if own && rules.translates_ahead {
        marks.ahead = true;
        return true;
    }
    false
}

/// The erratum: the first removal marks, the second removes.
fn survives(rules: &Rules, marks: &mut Marks) -> bool {
    if rules.errata.survives_once && !marks.survived && !marks.ahead {
        marks.survived = true;
        return true;
    }
    false
}

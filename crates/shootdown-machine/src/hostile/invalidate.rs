//! Removing entries: what an invalidation covers.
//!
//! # Protocol
//! A removal takes effect at once, or when its CPU syncs ([`super::late`]). On a machine that
//! translates ahead a removed entry remains usable to the CPU that removed it until that CPU
//! synchronizes its context: an access may have been translated before the removal and be made
//! after it.
//!
//! # Invariants
//! - I1: a removal drops exactly what it covers: dropping more would hide bugs that real hardware
//!   shows.

use shootdown::Tag;

use super::cpu::Cpu;
use super::held::Marks;
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

impl Cpu {
    /// Removes at once; whether anything went. `own`: this CPU issued it.
    pub fn remove(&mut self, rules: &Rules, what: &Invalidation, own: bool) -> bool {
        let leaves = self.translations.retain(|translation, marks| {
            !what.covers(rules, translation) || lingers(rules, marks, own)
        });
        let steps = self.partials.retain(|partial, _| !what.covers_partial(partial));
        leaves || steps
    }

    /// Drops what only accesses translated ahead could still use; whether anything went.
    pub fn forget_ahead(&mut self) -> bool {
        self.translations.retain(|_, marks| !marks.ahead)
    }
}

/// Does a leaf that is being removed stay in some form?
pub(super) fn lingers(rules: &Rules, marks: &mut Marks, own: bool) -> bool {
    if survives(rules, marks) {
        return true;
    }
    if own && rules.translates_ahead {
        marks.ahead = true;
        return true;
    }
    false
}

/// The erratum: the first removal marks, the second removes. Leaves only: what is walked from a
/// non-leaf entry that had survived would be new, and survive the second removal.
fn survives(rules: &Rules, marks: &mut Marks) -> bool {
    if rules.errata.survives_once && !marks.survived && !marks.ahead {
        marks.survived = true;
        return true;
    }
    false
}

//! One CPU: what it has loaded, and what it may have cached.

use shootdown::Tag;

use super::held::{Held, Marks};
use super::rules::Rules;
use super::walk::Cursor;
use super::{Owner, Partial, TableId, Translation};

/// A CPU's translation state.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Cpu {
    /// The root of the lower half, or of everything if there is no upper one.
    pub low: Option<TableId>,
    /// The root of the upper half (TTBR1), if it has one of its own.
    pub high: Option<TableId>,
    /// The tag in force.
    pub tag: Tag,
    pub translations: Held<Translation>,
    pub partials: Held<Partial>,
}

/// A root and the entries of it that are walked.
#[derive(Clone, Copy)]
pub(super) struct Top {
    pub root: TableId,
    pub tag: Tag,
    pub first: u8,
    pub last: u8,
}

impl Top {
    /// A walker before the root.
    #[inline]
    pub fn cursor(&self, rules: &Rules) -> Cursor {
        Cursor::root(rules, self.root, self.tag)
    }
}

impl Cpu {
    /// The roots in force.
    pub fn roots(&self, rules: &Rules) -> impl Iterator<Item = Top> + use<> {
        let last = (rules.shape.entries() - 1) as u8;
        let middle = last / 2;
        let tag = self.tag;
        let top = move |root, first, last| Top { root, tag, first, last };
        let split = self.high.is_some();
        let low = self.low.map(|root| top(root, 0, if split { middle } else { last }));
        let high = self.high.map(|root| top(root, middle + 1, last));
        low.into_iter().chain(high)
    }

    /// May a walk that starts at a root or a cached step read this table first?
    #[inline]
    pub fn starts_at(&self, table: TableId) -> bool {
        self.low == Some(table)
            || self.high == Some(table)
            || self.partials.iter().any(|slot| slot.entry.table == table)
    }

    /// Is there anywhere to walk from?
    pub fn rooted(&self) -> bool {
        self.low.is_some() || self.high.is_some()
    }

    /// Is an entry with this owner used by what runs here now?
    pub fn serves(&self, owner: Owner) -> bool {
        match owner {
            Owner::Tag(tag) => tag == self.tag,
            Owner::Root(root) => self.low == Some(root) || self.high == Some(root),
            Owner::Everyone => true,
        }
    }

    /// A walk that goes on from a cached step, if a root is loaded and the step serves it.
    pub fn resume(&self, rules: &Rules, partial: &Partial, marks: Marks) -> Option<Cursor> {
        if !self.serves(partial.owner) {
            return None;
        }
        let middle = rules.shape.last_page() / 2;
        let root = if partial.base > middle && self.high.is_some() { self.high } else { self.low };
        Some(Cursor::resume(rules, partial, marks, root?, self.tag))
    }
}

//! What a cached entry can do, and what follows for a change.

use std::fmt::Debug;

use shootdown::Change;
use shootdown::elide::Cached;

/// What hardware that has cached an entry does with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    Absent,
    Leaf(Does),
    Table(Does),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Does {
    /// What must never be cached in two versions: the frame and how it is accessed, where a break
    /// is needed.
    pub name: u64,
    /// What else must agree.
    pub attributes: u64,
    /// Which accesses go through, one bit each, in each of the environments that a CPU may be in.
    pub allows: u64,
    /// A store through it is recorded nowhere any more.
    pub stores_silently: bool,
    /// It says that the page was written.
    pub dirty: bool,
    /// It says that the page was used.
    pub accessed: bool,
    /// Clearing its accessed bit is for the policy.
    pub small: bool,
}

pub trait Model: Debug {
    /// The code under test.
    fn change(&self, old: u64, new: u64) -> Change;
    fn view(&self, entry: u64) -> View;
    /// What a leaf that becomes a table, or a table that becomes a leaf, demands.
    fn resized(&self, old: u64, new: u64) -> Change;
    /// What setting the accessed bit of a leaf demands. (In tables, hardware sets it without a
    /// fault.)
    fn used(&self) -> Change;
    /// May more be demanded than is needed?
    fn is_careful(&self, old: u64, new: u64) -> bool;
    /// An entry to start from, and the bits of it that are set in every way.
    fn base(&self) -> u64;
    fn matter(&self) -> u64;
}

/// Does a cached `old` do anything that `new` would not?
pub fn leaks(old: &View, new: &View) -> bool {
    match (old, new) {
        (View::Absent, _) => false,
        (View::Leaf(old), View::Leaf(new)) | (View::Table(old), View::Table(new)) => {
            old.name != new.name
                || old.attributes != new.attributes
                || old.allows & !new.allows != 0
                || old.stores_silently && !new.dirty
        }
        _ => true,
    }
}

pub fn demand(model: &impl Model, old: u64, new: u64) -> Change {
    let (before, after) = (model.view(old), model.view(new));
    let (old_does, new_does, cached) = match (&before, &after) {
        (View::Absent, View::Absent) => return Change::Nothing,
        (View::Absent, _) => return Change::New,
        (View::Leaf(_), View::Absent) => return Change::Flush(Cached::Leaf),
        (View::Table(_), View::Absent) => return Change::Flush(Cached::Table),
        (View::Leaf(old), View::Leaf(new)) => (old, new, Cached::Leaf),
        (View::Table(old), View::Table(new)) => (old, new, Cached::Table),
        _ => return model.resized(old, new),
    };
    if old_does.name != new_does.name {
        return Change::Break(cached);
    }
    let unused = old_does.accessed && !new_does.accessed;
    if leaks(&before, &after) || unused && !old_does.small {
        return Change::Flush(cached);
    }
    if unused {
        return Change::Accessed;
    }
    let wider = new_does.allows & !old_does.allows != 0;
    let used = new_does.accessed && !old_does.accessed && cached == Cached::Leaf;
    let wider = if wider { Change::Upgrade } else { Change::Nothing };
    if used { wider.max(model.used()) } else { wider }
}

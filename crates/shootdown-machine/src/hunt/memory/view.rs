//! Views: what an observer may no longer read below.

use super::Location;

/// For each location the oldest message that may be read; missing means 0.
pub(super) type View = Vec<u32>;

pub(super) fn join(into: &mut View, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (to, from) in into.iter_mut().zip(from) {
        *to = (*to).max(*from);
    }
}

pub(super) fn at(view: &[u32], location: Location) -> u32 {
    view.get(location as usize).copied().unwrap_or(0)
}

pub(super) fn raise(view: &mut View, location: Location, to: u32) {
    let i = location as usize;
    if view.len() <= i {
        view.resize(i + 1, 0);
    }
    view[i] = view[i].max(to);
}

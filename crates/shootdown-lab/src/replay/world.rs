//! What the programs of a replay know together: which space is which, what is mapped and touched in
//! it.
//!
//! It is the laboratory's notebook: reading and writing it takes no virtual time. It is kept in the
//! order in which the CPUs act on the machine, not in the recorded one, so that it agrees with the
//! machine. It is never borrowed across a call into the machine, which may let another CPU run.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use shootdown_machine::{Space, Time};

use super::drive::WORKING_SET;
use super::ranges::Ranges;
use crate::recording::model::Tid;
use crate::recording::timeline::{Range, SpaceId, Timeline};

/// First page above user space.
pub const USER_PAGES: u64 = 1 << (47 - 12);

/// A range of addresses as whole pages of user space: first, and how many; `None` when there are
/// none.
pub fn pages_of(range: Range) -> Option<(u64, u64)> {
    let first = (range.addr >> 12).max(1);
    let end = range.addr.checked_add(range.len)?.div_ceil(4096).min(USER_PAGES);
    (first < end).then(|| (first, end - first))
}

/// What is known of a touched page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// Written since it was last cleaned.
    pub dirty: bool,
    /// Its entry permits writes.
    pub writable: bool,
}

/// What is known of a space.
#[derive(Debug, Default)]
pub struct SpaceState {
    /// The machine's, once a thread has run in it.
    pub handle: Option<Space>,
    /// Of the recorded command.
    pub command: bool,
    /// Pages that may be touched.
    pub mapped: Ranges,
    /// Of these, write-protected.
    pub readonly: Ranges,
    /// Pages that are there.
    pub present: BTreeMap<u64, Page>,
}

impl SpaceState {
    /// The lowest page of the range that is there.
    pub fn first_in(&self, first: u64, count: u64) -> Option<u64> {
        self.present.range(first..first + count).next().map(|(page, _)| *page)
    }

    /// Forgets the pages of a range.
    pub fn drop_pages(&mut self, first: u64, count: u64) {
        let gone: Vec<u64> =
            self.present.range(first..first + count).map(|(page, _)| *page).collect();
        for page in gone {
            self.present.remove(&page);
        }
    }

    /// Forgets a range altogether.
    pub fn unmap(&mut self, first: u64, count: u64) {
        self.mapped.remove(first, first + count);
        self.readonly.remove(first, first + count);
        self.drop_pages(first, count);
    }
}

/// A thread's last pages, read in turn.
#[derive(Debug, Default)]
pub struct WorkingSet {
    pages: VecDeque<u64>,
    next: usize,
}

impl WorkingSet {
    /// Adds the page touched last.
    pub fn touched(&mut self, page: u64) {
        if self.pages.back() == Some(&page) {
            return;
        }
        if self.pages.len() == WORKING_SET {
            self.pages.pop_front();
        }
        self.pages.push_back(page);
    }

    /// The next page in turn.
    pub fn turn(&mut self) -> Option<u64> {
        self.next = (self.next + 1) % self.pages.len().max(1);
        self.pages.get(self.next).copied()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct World {
    /// By number.
    pub spaces: Vec<SpaceState>,
    /// The space each CPU has loaded, running it or not.
    pub loaded: Vec<Option<SpaceId>>,
    /// Without threads, but loaded somewhere (P5).
    pub ending: Vec<SpaceId>,
    /// Of the command's threads.
    pub working_sets: BTreeMap<Tid, WorkingSet>,
    /// Sum of the programs' own computing.
    pub computing: Time,
}

impl World {
    /// One for this timeline.
    pub fn shared(timeline: &Timeline, cpus: u32) -> Rc<RefCell<Self>> {
        let space = |command: &bool| SpaceState { command: *command, ..SpaceState::default() };
        Rc::new(RefCell::new(Self {
            spaces: timeline.spaces.iter().map(space).collect(),
            loaded: vec![None; cpus as usize],
            ..Self::default()
        }))
    }

    /// The state of a space.
    pub fn space(&mut self, space: SpaceId) -> &mut SpaceState {
        &mut self.spaces[space.0 as usize]
    }

    /// Takes the machine's handles of spaces that can end now.
    pub fn endable(&mut self) -> Vec<Space> {
        let loaded = &self.loaded;
        let (wait, end): (Vec<_>, Vec<_>) =
            self.ending.iter().partition(|space| loaded.contains(&Some(**space)));
        self.ending = wait;
        end.into_iter().filter_map(|space| self.spaces[space.0 as usize].handle.take()).collect()
    }
}

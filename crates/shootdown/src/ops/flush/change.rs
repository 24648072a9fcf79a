//! A change that was counted: the value that stands for it until it is flushed.

use crate::base::ids::Generation;
use crate::ops::flush::{Request, What};
use crate::ops::respond::Hint;
use crate::port::platform::Platform;
use crate::port::regime::Regime;
use crate::state::space::AddressSpace;

/// A change of a space, or several of one space, that were counted and are pending.
/// [`complete`](Self::complete) says that every CPU has acknowledged. Dropped without that (an
/// error, a ticket that is given up, a panic), it is pending: the space stays
/// [pending](AddressSpace::is_pending) until somebody else has flushed it.
pub(crate) struct Change<'a, P: Platform> {
    pub space: &'a AddressSpace<P>,
    /// What hardware that reaches every CPU is asked for.
    pub request: Request,
    /// What CPUs are asked for.
    pub hint: Hint,
    /// What a CPU has acknowledged when it has acknowledged: the generation; or the number of a
    /// broadcast that is said to be complete too early ([`broadcast`](super::broadcast)).
    pub answer: u64,
    /// How many counted changes it stands for. None: it is somebody else's change, which is
    /// flushed for them.
    pub changes: u64,
    /// A tag for all CPUs may turn up while CPUs are asked: to be looked for when they have
    /// acknowledged.
    pub looks_again: bool,
    /// A hypervisor made CPUs forget this change alone.
    pub by_name: bool,
}

impl<P: Platform> Change<'_, P> {
    /// The newest generation that it was given.
    pub fn generation(&self) -> Generation {
        self.hint.generation
    }

    /// Becomes one change with a newer one of the same space.
    pub fn join(&mut self, mut newer: Self) {
        self.request = match (self.request.what, newer.request.what) {
            (What::Pages(before), What::Pages(range)) => Request::pages(before.merge(&range)),
            _ => newer.request,
        };
        self.hint.generation = newer.hint.generation;
        self.answer = newer.answer;
        self.hint.step = self.request.step(P::Regime::facts().ceiling);
        self.changes += core::mem::take(&mut newer.changes);
    }

    /// Every CPU has acknowledged for it. Says whether that covers something else that was pending.
    pub fn complete(mut self) -> bool {
        let changes = core::mem::take(&mut self.changes);
        let covers = !self.by_name && self.space.covers_all(self.request);
        self.space.pending.complete(self.generation(), changes, covers)
    }
}

impl<P: Platform> Drop for Change<'_, P> {
    fn drop(&mut self) {
        if self.changes == 0 {
            return;
        }
        let generation = self.generation();
        // No generation tells a CPU under a tag for all CPUs what it has missed: the next flush
        // does.
        if self.request.freed_tables || self.looks_again {
            self.space.mark_tables_pending(generation);
        }
        self.space.pending.mark_pending(generation, self.changes);
    }
}

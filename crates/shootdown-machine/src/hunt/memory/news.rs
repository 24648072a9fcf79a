//! What wait loops wait for: the locations that a CPU has loaded since the last turn of its loop.

use super::view::raise;
use super::{Location, Observer, SharedMemory};
use crate::hunt::powers::Memory;

impl SharedMemory {
    pub(super) fn watch(&mut self, cpu: u8, location: Location, number: u32) {
        let Observer { watched, seen, .. } = &mut self.observers[cpu as usize];
        let at = location as usize;
        if seen.len() <= at {
            seen.resize(at + 1, 0);
        }
        if seen[at] == 0 {
            watched.push(location);
        }
        seen[at] = number + 1;
    }

    /// A turn of a wait loop is over: stores that it waits for become visible in the end.
    pub fn catch_up(&mut self, cpu: u8) {
        let Self { observers, histories, model, .. } = self;
        let Observer { watched, seen, now, .. } = &mut observers[cpu as usize];
        for location in watched.drain(..) {
            seen[location as usize] = 0;
            if *model == Memory::Weak {
                raise(now, location, histories[location as usize - 1].writes);
            }
        }
    }

    /// Could the CPU read something newer than what it saw of the locations it loaded since the
    /// last turn of its wait loop?
    pub fn has_news(&self, cpu: u8) -> bool {
        let Observer { watched, seen, .. } = &self.observers[cpu as usize];
        watched.iter().any(|l| seen[*l as usize] <= self.history(*l).writes)
    }
}

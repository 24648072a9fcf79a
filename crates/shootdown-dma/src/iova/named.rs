//! For tests: in whose name an allocator is asked.

use std::sync::Mutex;
use std::vec::Vec;

use super::{AllocError, Allocate, FreeError, Ring, Space, Tree, Want};
use crate::addr::IovaRange;
use crate::iova::magazine::{Config, Magazines};
use crate::pinned::NOBODY;

/// A tree, and the CPU number of each free.
struct Named(Tree, Mutex<Vec<usize>>);

impl Named {
    fn new() -> Self {
        Self(Tree::new(&Space::below(1 << 20)).unwrap(), Mutex::default())
    }

    fn freed_by(&self) -> Vec<usize> {
        core::mem::take(&mut *self.1.lock().unwrap())
    }
}

// SAFETY: the tree's promises.
unsafe impl Allocate for Named {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        self.0.alloc(cpu, want)
    }

    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        self.1.lock().unwrap().push(cpu);
        self.0.free(cpu, range)
    }
}

/// Who drops a ring, on whichever CPU, does not say that it is CPU 0: where numbers are promises,
/// that would be a false one.
pub(crate) fn a_ring_is_dropped_in_nobodys_name() {
    let named = Named::new();
    drop(Ring::new(&named, 3, &Want::pages(16).unwrap()).unwrap());
    assert_eq!(named.freed_by(), [NOBODY]);
}

/// Nor does who empties the magazines of all CPUs say that it is each of them.
pub(crate) fn magazines_are_emptied_in_nobodys_name() {
    let magazines = Magazines::new(Named::new(), &Config::for_cpus(3)).unwrap();
    let want = Want::pages(4).unwrap();
    for cpu in 0..3 {
        let all: Vec<_> = (0..300).map(|_| magazines.alloc(cpu, &want).unwrap()).collect();
        all.into_iter().for_each(|range| magazines.free(cpu, range).unwrap());
    }
    magazines.inner().freed_by();
    magazines.drain(1);
    magazines.flush();
    let names = magazines.inner().freed_by();
    let tree = &magazines.inner().0;
    assert_eq!(tree.free_pages(), tree.pages(), "all has come back");
    assert!(names.len() >= 300 && names.iter().all(|cpu| *cpu == NOBODY), "{names:?}");
}

#[test]
fn names_are_the_callers_own() {
    a_ring_is_dropped_in_nobodys_name();
    magazines_are_emptied_in_nobodys_name();
}

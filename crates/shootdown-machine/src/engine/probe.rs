//! Which lines a piece of code touches: for tests of claims about false sharing.

use std::collections::BTreeSet;

use super::{Engine, with};

/// What the library's code between two points did to shared memory, on one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Distinct lines touched.
    pub lines: usize,
    /// Distinct lines written.
    pub written: usize,
    /// Lines that had to be fetched.
    pub fetched: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Read-modify-writes; each is a full fence on x86.
    pub rmws: u64,
    /// Full fences.
    pub fences: u64,
}

/// A footprint being taken.
pub(super) struct Probe {
    cpu: u32,
    touched: BTreeSet<usize>,
    written: BTreeSet<usize>,
    counts: Footprint,
}

impl Probe {
    pub fn load(&mut self, line: usize, fetched: bool) {
        self.counts.loads += 1;
        self.touch(line, fetched);
    }

    pub fn store(&mut self, line: usize, fetched: bool) {
        self.counts.stores += 1;
        self.written.insert(line);
        self.touch(line, fetched);
    }

    pub fn rmw(&mut self, line: usize, fetched: bool) {
        self.counts.rmws += 1;
        self.written.insert(line);
        self.touch(line, fetched);
    }

    pub fn fence(&mut self) {
        self.counts.fences += 1;
    }

    fn touch(&mut self, line: usize, fetched: bool) {
        self.counts.fetched += u64::from(fetched);
        self.touched.insert(line);
    }
}

impl Engine {
    #[inline]
    pub(super) fn probe_of_current(&mut self) -> Option<&mut Probe> {
        let cpu = self.current;
        self.probe.as_deref_mut().filter(|p| p.cpu == cpu)
    }
}

/// Runs `body` and says what it did to shared memory on this CPU, handlers it took included.
pub(crate) fn footprint<R>(body: impl FnOnce() -> R) -> (R, Footprint) {
    with(|e| {
        let probe = Probe {
            cpu: e.current,
            touched: BTreeSet::new(),
            written: BTreeSet::new(),
            counts: Footprint::default(),
        };
        e.probe = Some(Box::new(probe));
    });
    let result = body();
    let probe = with(|e| e.probe.take());
    let footprint = probe.map_or_else(Footprint::default, |p| Footprint {
        lines: p.touched.len(),
        written: p.written.len(),
        ..p.counts
    });
    (result, footprint)
}

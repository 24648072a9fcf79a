//! The hot paths on this host, at full speed: what the library itself costs, hardware apart.
//!
//! The library is compiled without traced atomics and driven through a port (`bare.rs`) whose
//! hardware does nothing. So the figures hold the library's own instructions, its fence and its
//! accesses to lines that stay in this core's cache; they do not hold a root load, an invalidation
//! or an interrupt, whose costs belong to a machine, not to this code.
//!
//! The benches of `cargo bench` and `shootdown bench hot` run the same [`Path`]s.

mod bare;

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bare::Bare;
use shootdown_core::gather::{Array, Gather};
use shootdown_core::{AddressSpace, Platform, Request, Stride, VaRange, switch_to};

/// Pages a gather holds in [`Path::Gather`].
pub const GATHERED: u64 = 32;

/// A hot path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// A switch to the space that is loaded.
    SameSpace,
    /// A switch to a space remembered under a tag and current.
    Remembered,
    /// A flush of one page of a space no other CPU runs.
    LocalFlush,
    /// A gather of [`GATHERED`] pages, from its beginning to the frames in hand.
    Gather,
}

impl Path {
    /// Every path.
    pub const ALL: [Self; 4] = [Self::SameSpace, Self::Remembered, Self::LocalFlush, Self::Gather];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameSpace => "switch, same space",
            Self::Remembered => "switch, remembered space",
            Self::LocalFlush => "flush of 1 page, no remote",
            Self::Gather => "gather of 32 pages",
        }
    }
}

/// The port has one CPU; who runs on it holds this.
static CPU: Mutex<()> = Mutex::new(());

/// A kernel with one CPU and two spaces, ready to run hot paths.
pub struct Hot {
    pin: bare::Pin,
    spaces: [&'static AddressSpace<Bare>; 2],
    page: VaRange,
    gathered: [VaRange; GATHERED as usize],
    _cpu: MutexGuard<'static, ()>,
}

impl Default for Hot {
    fn default() -> Self {
        Self::new()
    }
}

impl Hot {
    /// Boots, and visits both spaces once.
    ///
    /// # Panics
    /// When the library refuses the port, which would be a bug of the port.
    #[must_use]
    pub fn new() -> Self {
        let cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
        let pin = Bare::pin();
        // SAFETY: the port has no interrupts.
        let irqs = unsafe { shootdown_core::IrqsOff::<Bare>::assume(&pin) };
        shootdown_core::online(irqs).expect("the port's facts agree");
        // Spaces are never retired here, so they live for ever: two per `Hot`.
        let spaces = [0x1000, 0x2000].map(|root| &*Box::leak(Box::new(AddressSpace::new(root))));
        let page = |n| VaRange::new(0x10_0000 + n * 0x1000, 1, Stride::Page4K).expect("a page");
        let gathered = std::array::from_fn(|n| page(n as u64));
        let hot = Self { pin, spaces, page: page(0), gathered, _cpu: cpu };
        for path in Path::ALL {
            hot.once(path);
        }
        hot
    }

    fn switch(&self, to: usize) {
        // SAFETY: the port has no interrupts, the spaces live for ever and are not retired, and
        // their tables are never walked.
        black_box(unsafe { switch_to::<Bare>(&self.pin, self.spaces[to]) });
    }

    /// Runs a path once. [`Path::Remembered`] is *two* switches, there and back, so that every call
    /// starts alike; see [`Hot::operations`].
    ///
    /// # Panics
    /// When the library reports an error where there can be none.
    #[inline]
    pub fn once(&self, path: Path) {
        match path {
            Path::SameSpace => self.switch(0),
            Path::Remembered => {
                self.switch(1);
                self.switch(0);
            }
            Path::LocalFlush => {
                black_box(self.spaces[0].flush(&self.pin, Request::pages(self.page)))
                    .expect("nothing to wait for");
            }
            Path::Gather => {
                let mut gather =
                    Gather::<Bare, Array<u64, { GATHERED as usize }>>::new(self.spaces[0]);
                for (frame, page) in self.gathered.iter().enumerate() {
                    gather.unmapped(*page, frame as u64).expect("there is room");
                }
                let frames =
                    gather.finish(&self.pin).map_err(|(e, _)| e).expect("nothing to wait for");
                black_box(frames.as_slice());
            }
        }
    }

    /// How many operations a call of [`Hot::once`] is.
    #[must_use]
    pub const fn operations(path: Path) -> u32 {
        if matches!(path, Path::Remembered) { 2 } else { 1 }
    }

    /// Nanoseconds per operation: the smallest of `batches` means, so that what the host did
    /// meanwhile falls out, and the middle one.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // a batch is far shorter than 2^52 ns
    pub fn measure(&self, path: Path, batches: usize, calls: u32) -> Timing {
        let mut means: Vec<f64> = (0..batches.max(1))
            .map(|_| {
                let start = Instant::now();
                for _ in 0..calls {
                    self.once(path);
                }
                start.elapsed().as_nanos() as f64 / f64::from(calls * Self::operations(path))
            })
            .collect();
        means.sort_by(f64::total_cmp);
        Timing { min: means[0], median: means[means.len() / 2] }
    }
}

/// Nanoseconds of one operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// The smallest mean of a batch.
    pub min: f64,
    /// The median of the batches.
    pub median: f64,
}

#[cfg(test)]
mod tests {
    use shootdown_core::Switched;

    use super::*;

    #[test]
    fn paths_are_what_their_names_say() {
        let hot = Hot::new();
        // SAFETY: as in `Hot::switch`.
        let switch = |to: usize| unsafe { switch_to::<Bare>(&hot.pin, hot.spaces[to]) };
        assert_eq!(switch(0), Switched::Same);
        assert_eq!(switch(1), Switched::Kept);
        assert_eq!(switch(0), Switched::Kept);
        let flushed = hot.spaces[0].flush(&hot.pin, Request::pages(hot.page)).unwrap();
        assert_eq!(flushed.interrupted, 0);
        for path in Path::ALL {
            let timing = hot.measure(path, 3, 100);
            assert!(timing.min > 0.0 && timing.min <= timing.median, "{path:?}");
        }
    }
}

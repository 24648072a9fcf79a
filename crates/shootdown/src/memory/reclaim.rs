//! Batches across many spaces: clear first, remember what is pending, flush once.
//!
//! # The problem
//! Reclaim takes away pages that several processes map, a few from each, and a shootdown for every
//! page would interrupt the machine hundreds of thousands of times a second. No entry has to be
//! gone before the frame is used for something else. So the kernel clears all entries of many pages
//! first, and then interrupts every CPU concerned once.
//!
//! # The protocol
//! 1. For each mapping of a page, under the lock of its table: clear the entry, then call
//!    [`Batch::unmapped`]. The change is counted now, so that CPUs that come to the space, or catch
//!    up for another reason, need not be notified later. From now on it is
//!    [pending](AddressSpace::is_pending).
//! 2. Call [`Batch::before_write_back`] ahead of the I/O of a page that was dirty: until then a CPU
//!    may store to it through a stale writable entry, and the store would be lost.
//! 3. [`Batch::finish`] notifies, in one round of interrupts, every CPU that is behind in any of
//!    the spaces, waits for each, and returns the frames. Where hardware invalidates on all CPUs,
//!    it issues the invalidations space by space and waits for them once.
//!
//! In between, code that finds an entry cleared and relies on that (protect, move, discard, copy
//! for fork) calls [`AddressSpace::complete_pending`], which flushes what is pending in that space
//! alone; gathers do so by themselves.
//!
//! # Invariants
//! I1: no item leaves a batch before every CPU has acknowledged everything that was unmapped with
//! or before it. I2: what a batch has unmapped is pending in its space until the batch, another
//! flush, or `complete_pending` has flushed it; also after an error, and when the batch is dropped.
//! I3: no CPU is notified while entries are cleared; `finish` needs no lock.
//!
//! A space that is retired in the meantime needs no flush any more: no CPU has it loaded, and its
//! id is never reused. Finishing the batch then notifies no CPU for it.
//!
//! Source: the batched unmapping of Linux's reclaim (2015), which remembers one mask of CPUs for
//! all spaces.

use core::mem::ManuallyDrop;

use crate::base::ids::VaRange;
use crate::memory::gather::{Array, Keep};
use crate::ops::flush::{Change, FlushError, Spare, complete_together};
use crate::port::platform::Platform;
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

/// Unmappings of many spaces, with the items that they free; at most `N` spaces between two rounds
/// of notifications. Never used in a non-maskable handler ([`context`](crate::context)).
///
/// ```
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// use shootdown::{Platform, Stride, VaRange, gather::Array, reclaim::Batch};
/// let pin = Mock::pin();
/// boot_once(&pin);
/// let (a, b) = (new_space(), new_space());
/// let mut batch = Batch::<Mock, Array<u64, 32>>::new();
/// let page = VaRange::new(0x1000, 1, Stride::Page4K)?;
/// // A frame that both spaces map. Under the lock of each table: clear the entry, then
/// batch.changed(a, page, true).expect("room for sixteen spaces"); // it was dirty there
/// batch.unmapped(b, page, false, 0xf00d).expect("and for the frame"); // the last mapping
/// batch.before_write_back(&pin)?; // no CPU stores to it any more: write it out,
/// // and only then forget that it was mapped here (the reverse mapping of a dirty page)
/// let frames = batch.finish(&pin).map_err(|(e, _batch)| e)?;
/// assert_eq!(frames.as_slice(), [0xf00d]); // now, and not before, they may be freed
/// a.retire(&pin)?;
/// b.retire(&pin)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what is in a batch is freed only after `finish`"]
pub struct Batch<'a, P: Platform, K: Keep + Default, const N: usize = 16> {
    pending: Array<Change<'a, P>, N>,
    /// A dirty page is among what is pending.
    dirty: bool,
    /// Unmappings since the last round.
    unmapped: u64,
    keep: ManuallyDrop<K>,
}

/// The batch has no place for another space: call [`Batch::make_room`] before the entry is cleared.
/// What was unmapped is pending in the space; [`AddressSpace::complete_pending`] flushes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the batch has no place for another space; complete what the space has pending, and make room earlier")
    }
}

impl core::error::Error for Full {}

impl<'a, P: Platform, K: Keep + Default, const N: usize> Batch<'a, P, K, N> {
    /// An empty batch.
    pub fn new() -> Self {
        Self {
            pending: Array::default(),
            dirty: false,
            unmapped: 0,
            keep: ManuallyDrop::new(K::default()),
        }
    }

    /// Makes sure that the next unmapping of `space` has a place: flushes what is pending if other
    /// spaces take every place. Call it without locks, before the entry is cleared.
    ///
    /// # Errors
    /// See [`FlushError`]. There is no room then.
    pub fn make_room(&mut self, pin: &P::Pin, space: &AddressSpace<P>) -> Result<(), FlushError> {
        let has_place =
            self.pending.as_slice().iter().any(|pending| pending.space.id() == space.id());
        if has_place || self.pending.as_slice().len() < N {
            Ok(())
        } else {
            self.flush_pending(pin)
        }
    }

    /// Records that the entries of `range` were cleared in `space`, and that nothing is to be
    /// freed: there are other mappings of the frame. `dirty`: one of the entries said that the page
    /// was written to (on hardware that does not keep dirty bits: that it may be).
    ///
    /// Call it while you hold the lock of the table in which they were cleared. It notifies no CPU.
    ///
    /// # Errors
    /// [`Full`]; the change is pending in the space all the same.
    pub fn changed(
        &mut self,
        space: &'a AddressSpace<P>,
        range: VaRange,
        dirty: bool,
    ) -> Result<(), Full> {
        let change = space.put_off(range);
        self.unmapped += 1;
        let known = |pending: &&mut Change<'a, P>| pending.space.id() == space.id();
        let Some(pending) = self.pending.as_mut_slice().iter_mut().find(known) else {
            self.pending.push(change).map_err(|_| Full)?;
            self.dirty |= dirty;
            return Ok(());
        };
        pending.join(change);
        self.dirty |= dirty;
        Ok(())
    }

    /// Like [`changed`](Self::changed), and `item` will be freed.
    ///
    /// # Errors
    /// Returns the item when there is no room for it or for the space. The change is pending in the
    /// space all the same; after [`AddressSpace::complete_pending`], or when this batch is
    /// finished, the item may be freed.
    pub fn unmapped(
        &mut self,
        space: &'a AddressSpace<P>,
        range: VaRange,
        dirty: bool,
        item: K::Item,
    ) -> Result<(), K::Item> {
        match self.changed(space, range, dirty) {
            Ok(()) => self.keep.push(item),
            Err(Full) => Err(item),
        }
    }

    /// Is anything of the batch pending?
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.pending.as_slice().is_empty()
    }

    /// Flushes what is pending if a dirty page was unmapped since the last round. After that no CPU
    /// stores to such a page any more. Call it before the I/O that writes the page out.
    ///
    /// # Errors
    /// See [`FlushError`]. The page must not be written out yet.
    pub fn before_write_back(&mut self, pin: &P::Pin) -> Result<(), FlushError> {
        if self.dirty { self.flush_pending(pin) } else { Ok(()) }
    }

    /// Flushes everything that is pending, and returns what may now be freed.
    ///
    /// # Errors
    /// Returns the error and the batch: what was pending is still pending; finish it again.
    pub fn finish(mut self, pin: &P::Pin) -> Result<K, (FlushError, Self)> {
        match self.flush_pending(pin) {
            Err(e) => Err((e, self)),
            Ok(()) => {
                // SAFETY: `self` is forgotten, so `keep` is taken once and not looked at again.
                let keep = unsafe { ManuallyDrop::take(&mut self.keep) };
                core::mem::forget(self);
                Ok(keep)
            }
        }
    }

    fn flush_pending(&mut self, pin: &P::Pin) -> Result<(), FlushError> {
        let me = PerCpu::<P>::here(pin);
        let pending = self.pending.as_slice().len();
        if pending != 0 {
            complete_together(pin, me, self.pending.as_mut_slice(), Spare::Nobody)?;
        }
        me.stats.pending.add(self.unmapped);
        me.stats.completed.add(pending as u64);
        while let Some(pending) = self.pending.pop() {
            pending.complete();
        }
        (self.dirty, self.unmapped) = (false, 0);
        Ok(())
    }
}

impl<P: Platform, K: Keep + Default, const N: usize> Default for Batch<'_, P, K, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform, K: Keep + Default, const N: usize> Drop for Batch<'_, P, K, N> {
    fn drop(&mut self) {
        if self.is_pending() {
            debug_assert!(false, "a batch was dropped that has flushes pending; its items leak");
        } else {
            // SAFETY: dropped once, here; everything that was unmapped is flushed.
            unsafe { ManuallyDrop::drop(&mut self.keep) };
        }
    }
}

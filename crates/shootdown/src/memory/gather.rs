//! Gather: unhook, invalidate, free, in that order.
//!
//! A [`Gather`] collects what was unhooked from one space's tables (frames, table pages, address
//! ranges) and hands it back only when the flush that covers it is done. Flush-on-drop is not an
//! ordering primitive (a temporary can live longer than the frame it guards), so the things to free
//! come *out of* [`Gather::finish`], or of the ticket that [`Gather::defer`] gives, or back inside
//! the error.
//!
//! # Gathers at the same time
//! Two CPUs unmap pages of one space. The second finds an entry cleared that the first has not
//! flushed yet, and has nothing to do there; if it returned now, its caller would take the page for
//! unused. So open gathers are counted, and a gather that finishes while others are open flushes
//! the whole space, even if it is empty. It does the same for changes that are
//! [pending](AddressSpace::complete_pending), be it because of a [batch](crate::reclaim) or because
//! a flush failed.
//!
//! For this, begin a gather before you change the first entry, or while you hold the lock that
//! protects the entries.
//!
//! # Invariants
//! I1: no item leaves a gather before a flush that covers every range put in with or before it is
//! done. I2: a gather with nothing in it flushes nothing, unless changes of others may not be
//! flushed yet; when it is finished, they are. I3: a gather that is dropped leaks its items rather
//! than freeing them early (debug builds report it), and what it should have flushed is pending. A
//! gather that is forgotten (`mem::forget`) counts as open for good, since it can't be told from
//! one that may yet change entries: every later gather of the space flushes the whole space
//! (counted in [`escalated_gathers`](crate::stats::Snapshot::escalated_gathers)).

use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};

use crate::base::ids::VaRange;
use crate::memory::elide::{BreakFirst, Cached, Change};
use crate::ops::flush::{FlushError, Request, Ticket, What};
use crate::port::platform::Platform;
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

/// Where a gather keeps the items that it will return.
pub trait Keep {
    /// A frame, a table page, an address range; whatever must not be reused early.
    type Item;

    /// Takes an item.
    ///
    /// # Errors
    /// The item, when there is no room: finish the gather, then begin another.
    fn push(&mut self, item: Self::Item) -> Result<(), Self::Item>;
}

/// Keeps nothing: for permission changes, where nothing is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nothing;

impl Keep for Nothing {
    type Item = ();

    fn push(&mut self, (): ()) -> Result<(), ()> {
        Ok(())
    }
}

/// Room for `N` items, without allocation.
pub struct Array<T, const N: usize> {
    len: usize,
    items: [MaybeUninit<T>; N],
}

impl<T, const N: usize> Default for Array<T, N> {
    fn default() -> Self {
        Self { len: 0, items: [const { MaybeUninit::uninit() }; N] }
    }
}

impl<T, const N: usize> Array<T, N> {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`.
        unsafe { core::slice::from_raw_parts_mut(self.items.as_mut_ptr().cast(), self.len) }
    }

    /// The items, in the order in which they were added.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` items are initialized (`push` and `pop` keep it so), and
        // `MaybeUninit<T>` has the layout of `T`.
        unsafe { core::slice::from_raw_parts(self.items.as_ptr().cast(), self.len) }
    }

    /// Takes the last item out.
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: item `len` was initialized, and is behind the new length, so it is read once.
        Some(unsafe { self.items[self.len].assume_init_read() })
    }
}

impl<T, const N: usize> Drop for Array<T, N> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Array<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl<T, const N: usize> Iterator for Array<T, N> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.pop()
    }
}

impl<T, const N: usize> Keep for Array<T, N> {
    type Item = T;

    fn push(&mut self, item: T) -> Result<(), T> {
        match self.items.get_mut(self.len) {
            None => Err(item),
            Some(place) => {
                place.write(item);
                self.len += 1;
                Ok(())
            }
        }
    }
}

/// A set of unmappings of one space with the items that they free. Never made, finished or dropped
/// in a non-maskable handler ([`context`](crate::context)).
///
/// ```
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// use shootdown::{Platform, Stride, VaRange, gather::{Array, Gather}};
/// let pin = Mock::pin();
/// boot_once(&pin);
/// let space = new_space();
/// let mut gather = Gather::<Mock, Array<u64, 32>>::new(&space);
/// // … clear the page's entry in the tables, then:
/// gather.unmapped(VaRange::new(0x1000, 1, Stride::Page4K)?, 0xf00d).expect("there is room");
/// let frames = gather.finish(&pin).map_err(|(e, _frames)| e)?;
/// assert_eq!(frames.as_slice(), [0xf00d]); // now, and not before, they may be freed
/// space.retire(&pin)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what is in a gather is freed only after `finish` or `defer`"]
pub struct Gather<'a, P: Platform, K: Keep + Default> {
    space: &'a AddressSpace<P>,
    range: Option<VaRange>,
    freed_tables: bool,
    keep: ManuallyDrop<K>,
}

/// A gather whose flush is under way. It may be polled, waited for and dropped wherever a
/// [`Gather`] may be used.
#[must_use = "what is in a deferred gather is freed only when it is done"]
pub struct Deferred<'a, P: Platform, K> {
    space: &'a AddressSpace<P>,
    ticket: Option<Ticket<'a, P>>,
    keep: ManuallyDrop<K>,
}

impl<'a, P: Platform, K: Keep + Default> Gather<'a, P, K> {
    /// Begins an empty gather. Begin it before the first entry is changed, or under the same table
    /// lock.
    pub fn new(space: &'a AddressSpace<P>) -> Self {
        space.pending.open();
        Self { space, range: None, freed_tables: false, keep: ManuallyDrop::new(K::default()) }
    }

    /// Records that `range` was unhooked (or lost permissions), which will free `item`.
    ///
    /// # Errors
    /// Returns the item when there is no room. The range is recorded all the same.
    pub fn unmapped(&mut self, range: VaRange, item: K::Item) -> Result<(), K::Item> {
        self.changed(range);
        self.keep.push(item)
    }

    /// Records that a table page that covered `range` was unhooked, and will be freed as `item`.
    ///
    /// # Errors
    /// Returns the item when there is no room. The range is recorded all the same.
    pub fn table_freed(&mut self, range: VaRange, item: K::Item) -> Result<(), K::Item> {
        self.changed(range);
        self.freed_tables = true;
        self.keep.push(item)
    }

    /// Records that `range` changed and that nothing is to be freed.
    pub fn changed(&mut self, range: VaRange) {
        self.range = Some(self.range.map_or(range, |r| r.merge(&range)));
    }

    /// Records that an entry that translates `range` was changed (or, for [`Change::Break`], is
    /// about to be) and that nothing is to be freed. A change that needs no flush is only counted
    /// as elided. [`Change::Accessed`] is recorded too; if the policy defers it, do not put it into
    /// a gather. You may drop a gather that is empty after that: finishing it would also flush what
    /// others left pending.
    ///
    /// # Errors
    /// [`BreakFirst`] when the new entry must wait for the flush. The range is recorded all the
    /// same.
    pub fn updated(
        &mut self,
        pin: &P::Pin,
        range: VaRange,
        change: Change,
    ) -> Result<(), BreakFirst> {
        if change.is_elided() {
            change.count::<P>(pin);
            return Ok(());
        }
        self.changed(range);
        if let Change::Flush(Cached::Table) | Change::Break(Cached::Table) = change {
            self.freed_tables = true;
        }
        match change {
            Change::Break(_) => Err(BreakFirst),
            _ => Ok(()),
        }
    }

    /// Is there nothing to flush?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_none()
    }

    /// The flush for the changes in the gather, and for those of others.
    fn request(&self, pin: &P::Pin) -> Option<Request> {
        let own = self
            .range
            .map(|range| Request { what: What::Pages(range), freed_tables: self.freed_tables });
        if self.space.nests(PerCpu::<P>::here(pin), 1) {
            return Some(Request::space());
        }
        let own = own?;
        let completes = !self.space.has_outstanding(0) || self.space.covers_all(own);
        Some(if completes { own } else { Request { what: What::Space, ..own } })
    }

    fn into_keep(mut self) -> K {
        // SAFETY: `self` is forgotten, so `keep` is taken once and not looked at again.
        let keep = unsafe { ManuallyDrop::take(&mut self.keep) };
        let space = self.space;
        core::mem::forget(self);
        space.pending.close();
        keep
    }

    /// Flushes, then returns what may now be freed. When it returns `Ok`, what others had changed
    /// in the space is flushed too.
    ///
    /// # Errors
    /// Returns the error and the items: none of them may be freed before another flush of the space
    /// is done.
    pub fn finish(self, pin: &P::Pin) -> Result<K, (FlushError, K)> {
        let request = self.request(pin);
        let done = match request {
            Some(request) => self.space.flush(pin, request).map(drop),
            None => self.space.complete_besides(pin, 1),
        };
        match done {
            Ok(()) => Ok(self.into_keep()),
            Err(e) => Err((e, self.into_keep())),
        }
    }

    /// Begins the flush and returns at once, for callers that can't wait. Until the flush is done,
    /// the gather counts as open.
    ///
    /// # Errors
    /// The same as [`finish`](Self::finish).
    pub fn defer(self, pin: &P::Pin) -> Result<Deferred<'a, P, K>, (FlushError, K)> {
        let space = self.space;
        let completes = || {
            space.has_outstanding(0).then_some(Request { what: What::Space, freed_tables: false })
        };
        let ticket = match self.request(pin).or_else(completes) {
            None => None,
            Some(request) => match space.begin_flush(pin, request) {
                Ok(ticket) => Some(ticket),
                Err(e) => return Err((e, self.into_keep())),
            },
        };
        space.pending.open(); // for the deferred gather, since `into_keep` closes this one
        Ok(Deferred { space, ticket, keep: ManuallyDrop::new(self.into_keep()) })
    }
}

impl<P: Platform, K: Keep + Default> Drop for Gather<'_, P, K> {
    fn drop(&mut self) {
        match self.range {
            // SAFETY: dropped once, here; without a change nothing in it was mapped.
            None => unsafe { ManuallyDrop::drop(&mut self.keep) },
            Some(range) => {
                let freed_tables = self.freed_tables;
                self.space.mark_counted_pending(Request { what: What::Pages(range), freed_tables });
            }
        }
        self.space.pending.close();
        debug_assert!(
            self.is_empty(),
            "a gather was dropped with unflushed changes; its items leak"
        );
    }
}

impl<P: Platform, K> Deferred<'_, P, K> {
    /// Returns what may be freed, if all CPUs have acknowledged; otherwise the value itself.
    ///
    /// # Errors
    /// `self`, not done yet.
    pub fn poll(mut self) -> Result<K, Self> {
        let done = self.ticket.as_mut().is_none_or(Ticket::poll);
        if done { Ok(self.into_keep()) } else { Err(self) }
    }

    /// Waits, then returns what may be freed.
    ///
    /// # Errors
    /// Returns the error and the value itself.
    #[allow(clippy::result_large_err)] // no allocation, and the error is rare
    pub fn wait(mut self, pin: &P::Pin) -> Result<K, (FlushError, Self)> {
        match self.ticket.take().map_or(Ok(()), |ticket| ticket.wait(pin)) {
            Ok(()) => Ok(self.into_keep()),
            Err((e, ticket)) => {
                self.ticket = Some(ticket);
                Err((e, self))
            }
        }
    }

    fn into_keep(mut self) -> K {
        self.ticket = None;
        let space = self.space;
        // SAFETY: `self` is forgotten, so `keep` is taken once and not looked at again.
        let keep = unsafe { ManuallyDrop::take(&mut self.keep) };
        core::mem::forget(self);
        space.pending.close();
        keep
    }
}

impl<P: Platform, K> Drop for Deferred<'_, P, K> {
    fn drop(&mut self) {
        let done = self.ticket.take().is_none(); // dropping the ticket leaves its change pending
        self.space.pending.close();
        debug_assert!(done, "a deferred gather was dropped before it was done; its items leak");
    }
}

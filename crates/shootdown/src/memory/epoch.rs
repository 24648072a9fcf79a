//! Tables that software may still walk: they may be freed when the flush is done *and* every
//! software walk that might read them has ended.
//!
//! # The problem
//! A flush ends the walks of hardware. Kernels walk page tables in software too, without a lock: a
//! fast lookup of user pages turns interrupts off, or enters an RCU read side, and follows the
//! entries. It may have read the entry of a table just before that table was unhooked. Where a
//! flush interrupts every CPU that runs the space, a walk with interrupts off delays the flush. A
//! flush does not wait for such a walk where hardware broadcasts, where a hypervisor does the work,
//! where a CPU is left out because it is current, or where the lookup is in a space that is not
//! loaded.
//!
//! # The protocol
//! The kernel has an epoch (RCU, or a call on every CPU): [`Epoch::start`] names a moment, and
//! [`Epoch::has_passed`] says whether every walk that was under way then has ended.
//! [`Gather::finish_after`] starts an epoch after the tables were unhooked, flushes, and returns a
//! [`Held`] that yields the tables when the epoch has passed too. The flush and the epoch run side
//! by side; neither waits for the other.
//!
//! # Invariant
//! I1: no item leaves a [`Held`] before the flush is done and every walk has ended that began
//! before the flush.

use core::mem::ManuallyDrop;

use crate::memory::gather::{Gather, Keep};
use crate::ops::flush::FlushError;
use crate::port::platform::Platform;

/// How the kernel knows that software walks have ended.
///
/// # Safety
/// When [`has_passed`](Self::has_passed) returns `true` for a cookie, every walk that began before
/// the [`start`](Self::start) that returned the cookie has ended, and its reads came before
/// (Release when a walk ends, Acquire here). A walk that begins later sees everything that was
/// stored before (a full barrier on both sides, as with RCU).
pub unsafe trait Epoch {
    /// A moment.
    type Cookie: Copy;

    /// Names this moment.
    fn start(&self) -> Self::Cookie;

    /// Has every walk ended that was under way at that moment? Never waits.
    fn has_passed(&self, cookie: Self::Cookie) -> bool;
}

/// Items that were flushed, and are kept until software walks have ended.
#[must_use = "what is held is freed only when `poll` hands it back"]
pub struct Held<'e, E: Epoch, K> {
    epoch: &'e E,
    cookie: E::Cookie,
    keep: ManuallyDrop<K>,
    given: bool,
}

impl<P: Platform, K: Keep + Default> Gather<'_, P, K> {
    /// As [`finish`](Self::finish), for tables that software may be walking.
    ///
    /// ```
    /// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
    /// use core::cell::Cell;
    /// use shootdown::{Platform, Stride, VaRange, epoch::Epoch, gather::{Array, Gather}};
    /// /// Walkers are counted, here by one CPU: an epoch has passed when none is left.
    /// struct Walkers(Cell<u32>);
    /// // SAFETY: one CPU; a walk that has ended is no longer counted.
    /// unsafe impl Epoch for Walkers {
    ///     type Cookie = ();
    ///     fn start(&self) {}
    ///     fn has_passed(&self, (): ()) -> bool { self.0.get() == 0 }
    /// }
    /// let pin = Mock::pin();
    /// boot_once(&pin);
    /// let space = new_space();
    /// let walkers = Walkers(Cell::new(1)); // somebody looks at the tables
    /// let mut gather = Gather::<Mock, Array<u64, 1>>::new(&space);
    /// // … unhook a table, then:
    /// gather.table_freed(VaRange::new(0, 1, Stride::Page2M)?, 0x7ab1e).expect("there is room");
    /// let held = gather.finish_after(&pin, &walkers).map_err(|(e, _tables)| e)?;
    /// let Err(held) = held.poll() else { panic!("somebody may read the table") };
    /// walkers.0.set(0);
    /// let Ok(tables) = held.poll() else { panic!("nobody reads it any more") };
    /// assert_eq!(tables.as_slice(), [0x7ab1e]);
    /// space.retire(&pin)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_after<'e, E: Epoch>(
        self,
        pin: &P::Pin,
        epoch: &'e E,
    ) -> Result<Held<'e, E, K>, (FlushError, K)> {
        let cookie = epoch.start();
        let keep = self.finish(pin)?;
        Ok(Held { epoch, cookie, keep: ManuallyDrop::new(keep), given: false })
    }
}

impl<E: Epoch, K> Held<'_, E, K> {
    /// Returns what may now be freed, or the value itself while the epoch has not passed.
    ///
    /// # Errors
    /// `self`, to be polled again.
    pub fn poll(mut self) -> Result<K, Self> {
        if !self.epoch.has_passed(self.cookie) {
            return Err(self);
        }
        self.given = true;
        // SAFETY: `given` records that it was taken; `self` is dropped and does not use it again.
        Ok(unsafe { ManuallyDrop::take(&mut self.keep) })
    }
}

impl<E: Epoch, K> Drop for Held<'_, E, K> {
    fn drop(&mut self) {
        debug_assert!(self.given, "tables were dropped before everyone had looked away; they leak");
    }
}

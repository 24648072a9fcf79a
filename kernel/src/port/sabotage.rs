//! A hardware that does not do what it is told: the negative control of the suite as a whole.
//!
//! A suite that passes proves something only if it fails where it should. With `sabotage=invalidate` every invalidation
//! that the library asks for is left out at the last moment, and each case whose control shows a stale entry must fail.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};

use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::{Facts, Tag};

static SABOTAGED: AtomicBool = AtomicBool::new(false);

/// From now on nothing is invalidated but by loading a root.
pub fn sabotage() {
    SABOTAGED.store(true, Ordering::Relaxed);
}

/// A regime that can be sabotaged.
pub struct Sabotaged<R>(PhantomData<R>);

// SAFETY: `R` keeps the promises, and everything is handed on to it; unless it was sabotaged, and then the kernel
// uses no memory by what it maps in spaces except to look whether it is stale.
unsafe impl<R: Regime> Regime for Sabotaged<R> {
    type Root = R::Root;

    fn facts() -> &'static Facts {
        R::facts()
    }

    #[inline]
    unsafe fn load(root: R::Root, tag: Tag, keep: bool) {
        // SAFETY: the caller's promise.
        unsafe { R::load(root, tag, keep) }
    }

    #[inline]
    fn load_kernel() {
        R::load_kernel();
    }

    #[inline]
    fn publish() {
        R::publish();
    }

    #[inline]
    fn invalidate(what: Invalidate, reach: Reach) {
        if !SABOTAGED.load(Ordering::Relaxed) {
            R::invalidate(what, reach);
        }
    }

    #[inline]
    fn sync(reach: Reach) {
        R::sync(reach);
    }
}

//! A hardware that does not do what it is told: the negative control of the suite as a whole.
//!
//! A suite that passes proves something only if it fails where it should. With
//! `sabotage=invalidate` every invalidation that the library asks for is left out at the last
//! moment, and each case whose control shows a stale entry must fail.
//!
//! With `sabotage=last-cpu` only those are that the last CPU executes. Then each of these cases
//! must fail in which other CPUs look, or it would not notice that one of several was forgotten.
//! (Where hardware broadcasts, one CPU's invalidation is another's doing: that needs
//! `policy=interrupts` too.)

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::{Facts, Tag};

use crate::arch;
use crate::cmdline::Sabotage;

/// Nobody is sabotaged; everybody is. Everything else is the number of a CPU.
const NOBODY: u32 = u32::MAX;
const EVERYBODY: u32 = u32::MAX - 1;

static SABOTAGED: AtomicU32 = AtomicU32::new(NOBODY);

/// From now on nothing is invalidated there but by loading a root.
pub fn sabotage(place: Sabotage, cpus: u32) {
    let who = match place {
        Sabotage::Everywhere => EVERYBODY,
        Sabotage::LastCpu => cpus - 1,
        Sabotage::HostBits => NOBODY,
    };
    SABOTAGED.store(who, Ordering::Relaxed);
}

fn is_sabotaged() -> bool {
    match SABOTAGED.load(Ordering::Relaxed) {
        NOBODY => false,
        EVERYBODY => true,
        cpu => arch::cpu().0 == cpu,
    }
}

/// A regime that can be sabotaged.
pub struct Sabotaged<R>(PhantomData<R>);

// SAFETY: `R` keeps the promises, and everything is handed on to it; unless it was sabotaged, and
// then the kernel uses no memory by what it maps in spaces except to look whether it is stale.
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
        if !is_sabotaged() {
            R::invalidate(what, reach);
        }
    }

    #[inline]
    fn sync(reach: Reach) {
        R::sync(reach);
    }
}

//! How the code asks whether one of its steps is taken out: `without!(Step)`, and `order!(Step, Acquire)` for an ordering
//! that is weakened to `Relaxed`.
//!
//! In the builds that are tested for it both ask `mutant.rs`. In every other build the name of the step is thrown away
//! here, before the compiler sees it: nothing of the mutants is compiled, linked or paid for.

/// Is this step taken out?
#[cfg(any(test, loom, shootdown_traced, feature = "mutants"))]
macro_rules! without {
    ($step:ident) => {
        $crate::mutant::active($crate::mutant::Mutant::$step)
    };
}

/// The ordering, unless it is weakened.
#[cfg(any(test, loom, shootdown_traced, feature = "mutants"))]
#[allow(unused_macros)] // until a part has an ordering that is weakened
macro_rules! order {
    ($step:ident, $order:ident) => {
        if $crate::mutant::active($crate::mutant::Mutant::$step) {
            $crate::sync::Ordering::Relaxed
        } else {
            $crate::sync::Ordering::$order
        }
    };
}

/// Is this step taken out? Never, in this build.
#[cfg(not(any(test, loom, shootdown_traced, feature = "mutants")))]
macro_rules! without {
    ($step:ident) => {
        $crate::without::never()
    };
}

/// The ordering.
#[cfg(not(any(test, loom, shootdown_traced, feature = "mutants")))]
#[allow(unused_macros)] // as above
macro_rules! order {
    ($step:ident, $order:ident) => {
        $crate::sync::Ordering::$order
    };
}

/// False, in a form that does not look like a forgotten constant.
#[cfg(not(any(test, loom, shootdown_traced, feature = "mutants")))]
#[inline(always)]
pub(crate) const fn never() -> bool {
    false
}

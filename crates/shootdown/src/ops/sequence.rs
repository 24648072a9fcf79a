//! The middle and the end of *publish; invalidate…; sync*, on hardware as it is: with its errata.

use crate::port::platform::Platform;
use crate::port::regime::{Invalidate, Reach, Regime};

/// Removes entries; twice, where an entry may survive once. The second removal comes after the
/// first is over (as TF-A does it for Arm 813419): two at once can count as one.
pub(crate) fn invalidate<P: Platform>(what: Invalidate, reach: Reach) {
    P::Regime::invalidate(what, reach);
    if P::Regime::facts().errata.survives_once {
        match reach {
            Reach::Local => P::Regime::sync(reach),
            Reach::Broadcast => sync_everywhere::<P>(what),
        }
        P::Regime::invalidate(what, reach);
    }
}

/// Waits until `last`, and all removed before it, is gone on every CPU: again, where a broadcast
/// may be said to be complete with accesses still in flight.
pub(crate) fn sync_everywhere<P: Platform>(last: Invalidate) {
    P::Regime::sync(Reach::Broadcast);
    if P::Regime::facts().errata.repeat_sync {
        P::Regime::invalidate(last, Reach::Broadcast);
        P::Regime::sync(Reach::Broadcast);
    }
}

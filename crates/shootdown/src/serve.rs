//! What a kicked CPU does, and what a waiting one does meanwhile.
//!
//! Nothing here allocates, takes a lock, or waits, so it may run in any interrupt handler. A handler that
//! interrupts another run of itself on the same CPU leaves its work to that run.

use crate::call;
use crate::cpu::PerCpu;
use crate::platform::{Pinned, Platform};
use crate::policy::Delivery;
use crate::respond::{self, Response};
use crate::sync::Ordering;
use crate::tree;

/// Is a kick answered?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an unanswered kick must be repeated before user code runs"]
pub enum Served {
    /// Yes, or it will be before this CPU runs user code.
    Done,
    /// No: a non-maskable handler came in the middle of a switch. Raise a maskable interrupt on this CPU
    /// that calls [`on_kick`] again.
    Again,
}

/// The body of the interrupt handler that [`Platform::kick`] raises.
///
/// Call it with interrupts off (or from a non-maskable handler, see [`Served::Again`]).
pub fn on_kick<P: Platform>(pin: &P::Pin) -> Served {
    let me = PerCpu::<P>::here(pin);
    me.stats.kicks_received.inc();
    serve(pin, me, true)
}

/// Does what others wait for, if anything: for lock spins, wait loops, and kernels that poll. Without
/// interrupts off it is safe too: a handler that comes in between leaves its work to this call.
pub fn poll<P: Platform>(pin: &P::Pin) -> Served {
    serve(pin, PerCpu::<P>::here(pin), false)
}

fn serve<P: Platform>(pin: &P::Pin, me: &PerCpu<P>, kicked: bool) -> Served {
    if respond::is_switching(me) {
        return Served::Again;
    }
    let cpu = pin.cpu();
    exclusively(me, || {
        let ran = call::drain(cpu, me) + tree::drain(cpu, me);
        // With pull delivery the kick itself is the request. With push, a kick without a request is
        // for a deferred flush, which is always pulled.
        if P::policy().delivery == Delivery::Pull || ran == 0 {
            let response = respond::catch_up(cpu, me, None, || {});
            if kicked && ran == 0 && response == Response::Current {
                me.stats.coalesced.inc();
            }
        }
    });
    Served::Done
}

/// Runs `work` unless it is running on this CPU already; then the running one is made to run it again.
/// All of this is one CPU talking to its own handlers, so program order is enough.
pub(crate) fn exclusively<P: Platform>(me: &PerCpu<P>, mut work: impl FnMut()) {
    if me.rare.serving.load(Ordering::Relaxed) {
        me.rare.again.store(true, Ordering::Relaxed);
        return;
    }
    loop {
        me.rare.serving.store(true, Ordering::Relaxed);
        work();
        me.rare.serving.store(false, Ordering::Relaxed);
        // A handler that came before the store above has set `again`; one that comes after serves by
        // itself.
        if !me.rare.again.load(Ordering::Relaxed) {
            break;
        }
        me.rare.again.store(false, Ordering::Relaxed);
    }
}

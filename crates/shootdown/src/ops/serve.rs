//! What a kicked CPU does, and what a waiting one does meanwhile.
//!
//! Nothing here allocates, takes a lock, or waits, so it may run in any interrupt handler. A
//! handler that interrupts another run of itself on the same CPU leaves its work to that run.

use crate::base::ids::CpuId;
use crate::base::sync::{AtomicBool, Ordering, compiler_fence};
use crate::ops::call;
use crate::ops::respond::{self, Response};
use crate::ops::tree;
use crate::port::context::IrqsOff;
use crate::port::platform::{Pinned, Platform, Stalled};
use crate::port::policy::Delivery;
use crate::state::cpu::{PerCpu, Rare};
use crate::state::space::AddressSpace;

/// Is a kick acknowledged?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an unanswered kick must be repeated before user code runs"]
pub enum Served {
    /// Yes, or it will be before this CPU runs user code.
    Done,
    /// No: a non-maskable handler came in the middle of a switch. Raise a maskable interrupt on
    /// this CPU that calls [`on_kick`] again.
    Again,
}

/// The body of the interrupt handler that [`Platform::kick`] raises. Interrupts are off, so that no
/// handler makes an access between an early acknowledgement and the invalidation. From a
/// non-maskable handler, see [`Served::Again`].
pub fn on_kick<P: Platform>(irqs: IrqsOff<'_, P>) -> Served {
    let me = PerCpu::<P>::here(irqs.pin());
    me.stats.kicks_received.inc();
    respond::expect(me);
    serve(irqs.pin(), me, Occasion::Kick)
}

/// Does what others wait for, if anything: for lock spins, wait loops, and kernels that poll.
/// Without interrupts off it is safe too: a handler that comes in between leaves its work to this
/// call. Non-maskable handlers may call it, see [`Served::Again`].
pub fn poll<P: Platform>(pin: &P::Pin) -> Served {
    serve(pin, PerCpu::<P>::here(pin), Occasion::Poll)
}

/// May code in a non-maskable handler touch user memory of `space` on this CPU now?
///
/// Not while a switch or an invalidation that was already acknowledged is under way.
#[must_use]
pub fn user_access_ok<P: Platform>(pin: &P::Pin, space: &AddressSpace<P>) -> bool {
    let me = PerCpu::<P>::here(pin);
    let loaded = me.loaded();
    loaded.id() == space.id().get()
        && !me.is_lazy(loaded, me.order())
        && !me.rare.serving.load(Ordering::Relaxed)
}

/// One turn of a wait loop: what [`Platform::relax`] asks for, then what others wait for.
///
/// Functions and large calls are looked for on every turn. The own space's generation is not: its
/// line is the one that all initiators of the space write, and a CPU with interrupts on is kicked
/// anyway. A CPU that waits with interrupts off finds it on every eighth turn.
pub(crate) fn wait_turn<P: Platform>(pin: &P::Pin, turn: &mut u32) -> Result<(), Stalled> {
    let relaxed = P::relax(pin);
    serve_turn::<P>(pin, turn);
    relaxed
}

/// The serving half of a turn.
pub(crate) fn serve_turn<P: Platform>(pin: &P::Pin, turn: &mut u32) {
    *turn = turn.wrapping_add(1);
    let polls = *turn % 8 == 0;
    let occasion = if polls { Occasion::Poll } else { Occasion::Turn };
    let _ = serve(pin, PerCpu::<P>::here(pin), occasion);
}

/// May this CPU wait for others? Not while it serves some: they could be waiting for it.
pub(crate) fn may_wait<P: Platform>(me: &PerCpu<P>) -> bool {
    P::may_wait() && !me.rare.serving.load(Ordering::Relaxed)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// An interrupt, with interrupts off: nothing of this CPU comes between an acknowledgement and
    /// the invalidation.
    Kick,
    /// Task context, perhaps with interrupts on.
    Poll,
    /// A turn of a wait loop.
    Turn,
}

fn serve<P: Platform>(pin: &P::Pin, me: &PerCpu<P>, occasion: Occasion) -> Served {
    // On the way out of a space that this CPU leaves while it serves others, it serves again when
    // that is over: only a switch, which has interrupts off, asks a non-maskable handler to come
    // back.
    let leaves = me.rare.serving.load(Ordering::Relaxed);
    if respond::is_switching(me) && !leaves {
        return Served::Again;
    }
    let cpu = pin.cpu();
    exclusively(cpu, me, || {
        let ran = everything(cpu, me, occasion);
        if let (Occasion::Kick, Some(Response::Current), 0) = (occasion, ran.1, ran.0) {
            me.stats.coalesced.inc();
        }
    });
    Served::Done
}

/// Serves whatever there is.
fn everything<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    occasion: Occasion,
) -> (u64, Option<Response>) {
    let early = occasion == Occasion::Kick;
    let catch_up = || respond::catch_up(cpu, me, None, early, || {});
    // With pull delivery the kick itself is the request; with push only a deferred flush is pulled.
    let pulls = P::policy().delivery == Delivery::Pull;
    // Large calls first: most of them are flushes that catch up by themselves, once acknowledged.
    let ran = tree::drain(cpu, me, early);
    let mut caught_up = (pulls && occasion != Occasion::Turn).then(catch_up);
    let ran = ran + call::drain(cpu, me, early);
    if !pulls && me.mailbox.take_deferred() {
        caught_up = Some(catch_up());
    }
    (ran, caught_up)
}

/// Runs `work` unless this CPU is in the middle of such work already; then everything is served
/// again when that is over, and `false` says so.
///
/// When the work unwinds, this CPU is in the middle of it no more, and what was left is served next
/// time.
///
/// All of this is one CPU talking to its own handlers: program order is enough, and compiler fences
/// keep it.
pub(crate) fn exclusively<P: Platform>(cpu: CpuId, me: &PerCpu<P>, work: impl FnOnce()) -> bool {
    let Rare { serving, again, .. } = &me.rare;
    if serving.load(Ordering::Relaxed) {
        again.store(true, Ordering::Relaxed);
        return false;
    }
    let at_work = Serving::begin(serving);
    work();
    drop(at_work);
    // A handler that came while `serving` was set has set `again`; one that comes after serves by
    // itself.
    while again.load(Ordering::Relaxed) {
        again.store(false, Ordering::Relaxed);
        let _at_work = Serving::begin(serving);
        everything(cpu, me, Occasion::Poll);
    }
    true
}

/// This CPU is in the middle of serving, until the value is dropped.
struct Serving<'a>(&'a AtomicBool);

impl<'a> Serving<'a> {
    fn begin(serving: &'a AtomicBool) -> Self {
        serving.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(serving)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

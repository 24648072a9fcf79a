//! Cross-CPU calls: run a function on a set of CPUs, without allocation.
//!
//! Each CPU has one `Descriptor` (what it wants others to run) and one `Mailbox` (which CPUs have
//! requests for it): a request is one bit per (initiator, responder). A call has four steps: *post;
//! kick; work; wait*. The initiator works while the others do, and serves others while it waits, so
//! that two CPUs that call each other never deadlock.
//!
//! # Protocol
//! The initiator claims its own descriptor; writes function, argument, and the set of CPUs that
//! have not acknowledged; sets its own bit in each target's mailbox; and kicks. The responder takes
//! all bits of its mailbox; for each, it runs the function and takes itself out of that initiator's
//! set. The initiator waits until its set is empty.
//!
//! # Invariants
//! I1: a descriptor is rewritten only when its set is empty: a CPU with a request is always in the
//! set. I2: the acknowledgement has identity: CPU *c* takes out bit *c*, once, after the function
//! ran; CPUs that have no request can't empty a set (they could falsify a count). I3: a CPU that is
//! in no set touches no other CPU's descriptor.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | C1 set own mailbox bit | Release (AcqRel) | C2 | the descriptor is written when the bit is seen |
//! | C2 take mailbox bits | Acquire (AcqRel) | C1 | |
//! | C3 leave the set | Release (AcqRel) | C4 | the function's effects come before the acknowledgement |
//! | C4 set found empty | Acquire | C3 | |
//!
//! Calls for more CPUs than the policy's `tree_above` go through `ops/tree.rs`.
//!
//! # When something unwinds
//! A function that is called may panic: on the initiator between the kick and the end of the wait,
//! on a target, or on the initiator while it serves others during its wait. What targets read is on
//! the initiator's stack. So a call in flight is a value (`Posted`, `tree::Begun`) whose destructor
//! takes the call back from targets that have not begun it and waits for the others. The destructor
//! of an `Ack` acknowledges, when the function's frame is gone. Requests that a CPU has taken out
//! of its mailbox and not run go back (`Taken`).

use core::fmt;

use crate::base::cpu_set::{Bits, Mask, WORD};
use crate::base::ids::CpuId;
use crate::base::sync::{Ordering, compiler_fence, fence};
use crate::ops::respond;
use crate::ops::tree;
use crate::port::platform::{CpuSetOf, KickError, Pinned, Platform};
use crate::state::calls::{Descriptor, Mailbox, TreeCall};
use crate::state::cpu::PerCpu;

/// A function to run on a responder, with the caller's data. It may acknowledge before it is done
/// ([`Ack::fire`]), and must not touch the data after; otherwise it is acknowledged when it
/// returns.
pub(crate) type Func<P> = unsafe fn(CpuId, &PerCpu<P>, *const (), &mut Ack<'_, P>);

/// One CPU's acknowledgement of one call.
pub(crate) struct Ack<'a, P: Platform> {
    cpu: CpuId,
    /// Interrupts are off here: the function may acknowledge before its work is done.
    pub early: bool,
    to: Option<AckTo<'a, P>>,
}

enum AckTo<'a, P: Platform> {
    Descriptor(&'a Descriptor<P>),
    Tree(&'a TreeCall<P>, u64),
}

impl<'a, P: Platform> Ack<'a, P> {
    pub fn to_tree(cpu: CpuId, early: bool, call: &'a TreeCall<P>, ticket: u64) -> Self {
        Self { cpu, early, to: Some(AckTo::Tree(call, ticket)) }
    }

    /// Acknowledges, once.
    pub fn fire(&mut self) {
        match self.to.take() {
            None => {}
            // ORDERING: C3
            Some(AckTo::Descriptor(call)) => {
                call.pending.remove(self.cpu);
            }
            Some(AckTo::Tree(call, ticket)) => call.count(self.cpu, ticket),
        }
    }
}

/// A function that unwinds has ended, so its acknowledgement is due.
impl<P: Platform> Drop for Ack<'_, P> {
    fn drop(&mut self) {
        self.fire();
    }
}

/// Why a call did not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// Other CPUs are concerned and this context can't wait for them. No CPU was notified.
    WouldWait,
    /// This CPU's descriptor is in use: a handler interrupted a call and tried to make another. No
    /// CPU was notified.
    Reentered,
    /// A CPU of the set could not be interrupted. Others may have run the function.
    Kick(KickError),
    /// The platform gave up waiting for this CPU. The call was taken back from CPUs that had not
    /// begun it. Others may have run the function.
    Stalled(CpuId),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldWait => {
                f.write_str("other CPUs must be waited for, and this context can't wait")
            }
            Self::Reentered => {
                f.write_str("a call from this CPU is in flight; call from task context")
            }
            Self::Kick(e) => e.fmt(f),
            Self::Stalled(cpu) => write!(f, "{cpu} did not acknowledge in time"),
        }
    }
}

impl core::error::Error for CallError {}

impl<P: Platform> Mailbox<P> {
    /// Asks the CPU to catch up.
    pub fn defer(&self) {
        // ORDERING: Release, with the Acquire in `take_deferred`: a CPU that takes the request sees
        // that the change was counted
        self.deferred.store(true, Ordering::Release);
    }

    /// Was this CPU asked to catch up? Clears the request.
    pub fn take_deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed) && self.deferred.swap(false, Ordering::AcqRel)
    }

    #[inline(never)]
    fn post(&self, from: CpuId) {
        self.post_all(from.index() / WORD, 1 << (from.index() % WORD));
    }

    /// Posts for all CPUs of a word whose bits are set.
    fn post_all(&self, word: usize, bits: u64) {
        // ORDERING: C1
        self.from.words()[word].fetch_or(bits, Ordering::AcqRel);
        if P::Mask::words(&self.from).len() > 1 {
            // ORDERING: Release after the word, so that a set summary bit finds the word set
            self.summary.fetch_or(1 << (word % WORD), Ordering::AcqRel);
        }
    }

    /// Takes a request back; `false` when the CPU has taken it already.
    fn retract(&self, from: CpuId) -> bool {
        let bit = 1 << (from.index() % WORD);
        let word = &self.from.words()[from.index() / WORD];
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}

impl<P: Platform> Descriptor<P> {
    /// Is a call of this CPU in flight?
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }
}

/// A call in flight. It must be waited for: the targets read the caller's data.
#[must_use]
pub(crate) struct Posted<P: Platform> {
    targets: CpuSetOf<P>,
    from: CpuId,
}

/// Posts `func(data)` to every CPU of `targets` (which does not hold this CPU), without kicking.
///
/// # Safety
/// `func` may be run with `data` on each target until [`Posted::wait`] has returned.
#[inline(never)]
pub(crate) unsafe fn post<P: Platform>(
    me: &PerCpu<P>,
    from: CpuId,
    targets: CpuSetOf<P>,
    func: Func<P>,
    data: *const (),
) -> Result<Posted<P>, CallError> {
    let call = &me.call;
    // Only this CPU claims it. A handler that interrupts after the claim finds it and is refused;
    // one that interrupts before the claim has finished its own call when we go on.
    if call.busy.load(Ordering::Relaxed) {
        return Err(CallError::Reentered);
    }
    call.busy.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    call.func.store(func as *mut (), Ordering::Relaxed);
    call.data.store(data.cast_mut(), Ordering::Relaxed);
    for (word, bits) in call.pending.words().iter().zip(targets.words()) {
        if *bits != 0 {
            word.store(*bits, Ordering::Relaxed);
        }
    }
    for cpu in targets.iter() {
        if let Some(target) = P::slot(cpu) {
            target.mailbox.post(from); // ORDERING: C1
        }
    }
    // ORDERING: D4: posted before the look at the online set; partner: the fence in `cpu::offline`.
    // A CPU that went offline before it could see the post needs no call: take the post back.
    fence(Ordering::SeqCst);
    let posted = Posted { targets, from };
    let online = P::system().online_of(&targets);
    for (w, bits) in targets.words().iter().enumerate() {
        posted.take_back(me, w, bits & !online.words()[w]);
    }
    Ok(posted)
}

impl<P: Platform> Posted<P> {
    /// Takes the call back from targets that have not begun it; [`wait`](Self::wait) is then short.
    #[inline(never)]
    pub fn cancel(&self, me: &PerCpu<P>) {
        for (w, bits) in self.targets.words().iter().enumerate() {
            self.take_back(me, w, *bits);
        }
    }

    /// Waits until every target has run the function, serving others meanwhile.
    pub fn wait(self, pin: &P::Pin) -> Result<(), CallError> {
        let done = self.wait_for_all(pin);
        core::mem::forget(self);
        done
    }

    fn wait_for_all(&self, pin: &P::Pin) -> Result<(), CallError> {
        let me = PerCpu::<P>::here(pin);
        let mut stalled = None;
        let mut turn = 0;
        for (w, bits) in self.targets.words().iter().enumerate() {
            if *bits == 0 {
                continue;
            }
            loop {
                // ORDERING: C4
                let left = me.call.pending.words()[w].load(Ordering::Acquire);
                if left == 0 {
                    break;
                }
                // After a stall, the call was taken back where possible; the other targets run it
                // and end.
                if respond::wait_turn::<P>(pin, &mut turn).is_err() && stalled.is_none() {
                    stalled = self.take_back(me, w, left);
                    self.cancel(me);
                }
            }
        }
        compiler_fence(Ordering::SeqCst);
        me.call.busy.store(false, Ordering::Relaxed);
        match stalled {
            None => Ok(()),
            Some(cpu) => {
                me.stats.stalls.inc();
                Err(CallError::Stalled(cpu))
            }
        }
    }

    /// Takes requests back from those CPUs of `which` in word `w` that have not begun them (a CPU
    /// without state never will). Returns one of them.
    #[inline(never)]
    fn take_back(&self, me: &PerCpu<P>, w: usize, which: u64) -> Option<CpuId> {
        let mut one = None;
        let mut left = which;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32
            let cpu = CpuId((w * WORD) as u32 + bit);
            let retract = |target: &PerCpu<P>| target.mailbox.retract(self.from);
            if P::slot(cpu).is_none_or(retract) {
                me.call.pending.remove(cpu);
                one = Some(cpu);
            }
        }
        one
    }
}

/// Runs when something unwinds past a call in flight. (The model checker also unwinds the threads
/// that it leaves behind, which can't wait.)
#[cfg(not(loom))]
impl<P: Platform> Drop for Posted<P> {
    fn drop(&mut self) {
        let pin = P::pin();
        self.cancel(PerCpu::<P>::here(&pin));
        let _ = self.wait_for_all(&pin);
    }
}

/// Requests that a CPU has taken out of its mailbox. If a function unwinds, the requests that the
/// CPU has not run go back into the mailbox.
struct Taken<'a, P: Platform> {
    mailbox: &'a Mailbox<P>,
    word: usize,
    bits: u64,
}

impl<P: Platform> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        if self.bits != 0 {
            self.mailbox.post_all(self.word, self.bits);
        }
    }
}

/// Runs the functions that others have posted here; returns how many ran.
pub(crate) fn drain<P: Platform>(cpu: CpuId, me: &PerCpu<P>, early: bool) -> u64 {
    let words = me.mailbox.from.words();
    let mut served = 0;
    if words.len() == 1 {
        return take(cpu, me, early, 0);
    }
    if me.mailbox.summary.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // ORDERING: Acquire, with the Release in `post`
    let mut summary = me.mailbox.summary.swap(0, Ordering::AcqRel);
    while summary != 0 {
        let mut word = summary.trailing_zeros() as usize;
        summary &= summary - 1;
        while word < words.len() {
            served += take(cpu, me, early, word);
            word += WORD;
        }
    }
    served
}

fn take<P: Platform>(cpu: CpuId, me: &PerCpu<P>, early: bool, word: usize) -> u64 {
    let from = &me.mailbox.from.words()[word];
    if from.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // ORDERING: C2
    let bits = from.swap(0, Ordering::AcqRel);
    let mut taken = Taken { mailbox: &me.mailbox, word, bits };
    let mut served = 0;
    while taken.bits != 0 {
        let bit = taken.bits.trailing_zeros();
        taken.bits &= taken.bits - 1;
        #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32
        let initiator = CpuId((word * WORD) as u32 + bit);
        let Some(call) = P::slot(initiator).map(|s| &s.call) else {
            continue;
        };
        let func = call.func.load(Ordering::Relaxed);
        let data = call.data.load(Ordering::Relaxed);
        let mut ack = Ack { cpu, early, to: Some(AckTo::Descriptor(call)) };
        #[cfg(any(shootdown_traced, loom))]
        assert!(
            !func.is_null() && !data.is_null(),
            "calls: a descriptor is seen before it is written (C1, C2)"
        );
        // SAFETY: I1: our bit was in the mailbox, so the descriptor is ours to read until we leave
        // its set; `post` stored a `Func<P>` there and vouched for running it with `data`.
        unsafe { core::mem::transmute::<*mut (), Func<P>>(func)(cpu, me, data, &mut ack) };
        ack.fire();
        served += 1;
    }
    if served != 0 {
        me.stats.calls_served.add(served);
    }
    served
}

/// Runs `f` on every CPU of `targets` and waits until all have run it. If this CPU is in the set,
/// it runs `f` while the others do. The others run it where they are kicked or poll, usually in
/// interrupt context. So `f` must not wait, and should not unwind: it would unwind through the
/// handler that runs it. CPUs that are not online are skipped.
///
/// When `f` unwinds on this CPU, `call_on` takes the call back from CPUs that have not begun it and
/// waits for the others, before it unwinds itself.
///
/// Never in a non-maskable handler ([`context`](crate::context)).
///
/// # Errors
/// See [`CallError`].
///
/// ```
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// use core::sync::atomic::{AtomicU32, Ordering};
/// use shootdown::{Platform, call_on};
/// let pin = Mock::pin();
/// boot_once(&pin);
/// let ran = AtomicU32::new(0);
/// let all = Mock::system().online();
/// call_on::<Mock, _>(&pin, &all, &|_cpu| { ran.fetch_add(1, Ordering::Relaxed); })?;
/// assert_eq!(ran.into_inner(), 1);
/// # Ok::<(), shootdown::CallError>(())
/// ```
pub fn call_on<P: Platform, F: Fn(CpuId) + Sync>(
    pin: &P::Pin,
    targets: &CpuSetOf<P>,
    f: &F,
) -> Result<(), CallError> {
    unsafe fn run<P: Platform, F: Fn(CpuId) + Sync>(
        cpu: CpuId,
        _: &PerCpu<P>,
        data: *const (),
        _: &mut Ack<'_, P>,
    ) {
        // SAFETY: `call_on` passes a `&F` that lives until the call has been waited for.
        unsafe { (*data.cast::<F>())(cpu) };
    }
    let cpu = pin.cpu();
    let me = PerCpu::<P>::here(pin);
    let mut others = *targets;
    others.remove(cpu);
    let local = targets.contains(cpu);
    if others.is_empty() {
        if local {
            f(cpu);
        }
        return Ok(());
    }
    if !respond::may_wait(me) {
        return Err(CallError::WouldWait);
    }
    let data = core::ptr::from_ref(f).cast();
    let work = || {
        if local {
            f(cpu);
        }
    };
    if P::policy().is_large(others.len()) {
        // SAFETY: `f` outlives the call: it is waited for below.
        if let Some(call) = unsafe { tree::begin::<P>(me, &others, run::<P, F>, data) } {
            let kicked = call.kick();
            work();
            return call.wait(pin).and(kicked);
        }
    }
    // SAFETY: `f` outlives the call: `wait` below returns when no target runs or will run it.
    let posted = unsafe { post(me, cpu, others, run::<P, F>, data) }?;
    let kicked = kick::<P>(me, &others);
    if kicked.is_err() {
        posted.cancel(me);
    }
    work();
    posted.wait(pin)?;
    kicked
}

/// Kicks those targets that are online, and counts them. (A CPU that went offline in the meantime
/// needs no kick: D4.)
#[inline(never)]
pub(crate) fn kick<P: Platform>(me: &PerCpu<P>, targets: &CpuSetOf<P>) -> Result<(), CallError> {
    let targets = P::system().online_of(targets);
    if targets.is_empty() {
        return Ok(());
    }
    let kicked = P::kick(&targets).map_err(CallError::Kick);
    me.stats.kicks_sent.add(u64::from(targets.len()));
    kicked
}

//! Large calls as trees: to reach 4096 CPUs, no CPU sends to each in a loop, and the
//! acknowledgements do not all contend for one line.
//!
//! A large call is not posted to each target. The initiator writes it once into one of the system's
//! few [`TreeCall`]s; kicked CPUs find it there by one bit on a line that all of them share.
//! Acknowledgements are counted: per group of 16 CPUs, then per word of 64; the last CPU of a word
//! writes one line that the initiator reads. Where one kick can't reach all CPUs for the cost of
//! one, the initiator kicks only the first CPU of each word, and that CPU kicks the rest of its
//! word.
//!
//! # Invariants
//! I1: a tree call is rewritten only when every target of its last call has acknowledged. I2: each
//! target's acknowledgement of a ticket is counted once, by the CPU that raises the target's
//! `acked_trees` entry to that ticket. I3: counters are 0 when a call begins; the last CPU to count
//! in a group or word resets that counter before it counts one level up.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | T1 ticket stored | Release | T2 | a CPU that reads the ticket sees function and targets |
//! | T2 ticket loaded, and again after a fence | Acquire | T1, and the release fence after the claim | targets read between belong to the ticket |
//! | T3 counters | AcqRel | each other | the chain of counts carries every function's effects upward |
//! | T4 *done* stored / loaded | Release / Acquire | each other | the initiator sees those effects |

use crate::base::cpu_set::{Bits, GROUP, GROUPS, Mask, WORD};
use crate::base::ids::CpuId;
use crate::base::sync::{Ordering, fence, prefetch};
use crate::ops::call::{Ack, CallError, Func, kick};
use crate::ops::respond;
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::Regime;
use crate::state::calls::TreeCall;
use crate::state::cpu::PerCpu;

/// Number of words above which the first CPU of each word passes the kick on. Below it, the
/// initiator's own sends (one per cluster) end sooner than a second interrupt would arrive. (The
/// model checker has no room for so many CPUs.)
const FORWARD_ABOVE: usize = if cfg!(loom) { 0 } else { 8 };

const CLAIMED: u64 = u64::MAX;

impl<P: Platform> TreeCall<P> {
    /// Counts one CPU's acknowledgement, and passes it up where it completes a group or a word.
    #[inline(never)]
    pub(crate) fn count(&self, cpu: CpuId, ticket: u64) {
        let w = cpu.index() / WORD;
        let group = cpu.index() % WORD / GROUP;
        let bits = self.targets.words()[w].load(Ordering::Relaxed);
        let of_group = |g: usize| bits >> (g * GROUP) & ((1 << GROUP) - 1);
        let acks = &self.acks.as_ref()[w];
        // ORDERING: T3
        let counted = acks.groups[group].0.fetch_add(1, Ordering::AcqRel) + 1;
        let expected = u64::from(of_group(group).count_ones());
        if counted < expected {
            return;
        }
        acks.groups[group].0.store(0, Ordering::Relaxed); // I3
        let groups = (0..GROUPS).filter(|g| of_group(*g) != 0).count() as u64;
        // ORDERING: T3
        if acks.word.0.fetch_add(1, Ordering::AcqRel) + 1 < groups {
            return;
        }
        acks.word.0.store(0, Ordering::Relaxed); // I3
        acks.done.0.store(ticket, Ordering::Release); // ORDERING: T4
    }
}

/// A large call, begun but not yet kicked.
#[must_use]
pub(crate) struct Begun<'a, P: Platform> {
    me: &'a PerCpu<P>,
    index: usize,
    ticket: u64,
    targets: CpuSetOf<P>,
    /// Targets that were not online. The initiator acknowledged for them, and they pass no kick on.
    absent: CpuSetOf<P>,
}

/// Writes a large call into a free place; `None` when all places are taken.
///
/// # Safety
/// `func` may be run with `data` on each target until [`Begun::wait`] has returned.
#[inline(never)]
pub(crate) unsafe fn begin<'a, P: Platform>(
    me: &'a PerCpu<P>,
    targets: &CpuSetOf<P>,
    func: Func<P>,
    data: *const (),
) -> Option<Begun<'a, P>> {
    let system = P::system();
    let (index, call) = system.trees.iter().enumerate().find(|(_, call)| {
        call.ticket.load(Ordering::Relaxed) == 0
            && call
                .ticket
                // ORDERING: Acquire, with the Release of the last user in `wait`
                .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    })?;
    let ticket = system.tickets.0.fetch_add(1, Ordering::Relaxed) + 1;
    fence(Ordering::Release); // ORDERING: T2, with the fence in `drain`
    call.func.store(func as *mut (), Ordering::Relaxed);
    call.data.store(data.cast_mut(), Ordering::Relaxed);
    let words = targets.words().iter().filter(|w| **w != 0).count();
    let whole = P::Regime::facts().kick_all && targets.len() + 1 == system.online().len();
    call.forward.store(!whole && words > FORWARD_ABOVE, Ordering::Relaxed);
    for (to, from) in call.targets.words().iter().zip(targets.words()) {
        to.store(*from, Ordering::Relaxed);
    }
    call.ticket.store(ticket, Ordering::Release); // ORDERING: T1
    system.active_trees.0.fetch_or(1 << index, Ordering::AcqRel);
    fence(Ordering::SeqCst); // ORDERING: D4, with the fence in `cpu::offline`
    let mut begun = Begun { me, index, ticket, targets: *targets, absent: CpuSetOf::<P>::EMPTY };
    let online = system.online();
    for (w, bits) in targets.words().iter().enumerate() {
        let mut gone = bits & !online.words()[w];
        begun.absent.words_mut()[w] = gone;
        while gone != 0 {
            #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32
            let cpu = CpuId((w * WORD) as u32 + gone.trailing_zeros());
            gone &= gone - 1;
            if P::slot(cpu).is_none_or(|state| claim_ack(state, index, ticket)) {
                call.count(cpu, ticket);
            }
        }
    }
    me.stats.tree_calls.inc();
    Some(begun)
}

/// Claims the right to acknowledge a ticket for a CPU (I2).
#[inline(never)]
fn claim_ack<P: Platform>(state: &PerCpu<P>, index: usize, ticket: u64) -> bool {
    let acked = &state.mailbox.acked_trees[index];
    // Tickets grow, so a late claim for an old ticket fails.
    acked.load(Ordering::Relaxed) < ticket && acked.fetch_max(ticket, Ordering::AcqRel) < ticket
}

impl<P: Platform> Begun<'_, P> {
    /// Kicks the targets, or the first of each word. If that fails, the call is taken back.
    #[inline(never)]
    pub fn kick(&self) -> Result<(), CallError> {
        let call = &P::system().trees[self.index];
        let mut first = self.targets;
        if call.forward.load(Ordering::Relaxed) {
            for (word, absent) in first.words_mut().iter_mut().zip(self.absent.words()) {
                let lowest = *word & word.wrapping_neg();
                // If the initiator has acknowledged for the first CPU of a word, that CPU passes
                // nothing on, even if it has come online since: kick its whole word from here. A
                // CPU that goes offline now looks for requests afterwards (D4), and passes the kick
                // on.
                if lowest & !absent != 0 {
                    *word = lowest;
                }
            }
        }
        kick(self.me, &first).inspect_err(|_| {
            self.take_back();
        })
    }

    /// Acknowledges for every target that has not begun; returns one of them.
    #[inline(never)]
    fn take_back(&self) -> Option<CpuId> {
        let call = &P::system().trees[self.index];
        let mut one = None;
        for cpu in self.targets.iter() {
            if P::slot(cpu).is_some_and(|state| claim_ack(state, self.index, self.ticket)) {
                call.count(cpu, self.ticket);
                one = Some(cpu);
            }
        }
        one
    }

    /// Waits until every target has acknowledged or, when the platform gives up, until the targets
    /// that have begun the call have acknowledged.
    pub fn wait(self, pin: &P::Pin) -> Result<(), CallError> {
        let done = self.wait_for_all(pin);
        core::mem::forget(self);
        done
    }

    #[inline(never)]
    fn wait_for_all(&self, pin: &P::Pin) -> Result<(), CallError> {
        let system = P::system();
        let call = &system.trees[self.index];
        let acks = call.acks.as_ref();
        let mut acknowledged = false;
        let mut stalled = None;
        let mut turn = 0;
        for (w, bits) in self.targets.words().iter().enumerate().rev() {
            if *bits == 0 {
                continue;
            }
            // The last word to be notified is the last to acknowledge. Once it has, the others
            // probably have too, and their lines are prefetched so that the transfers overlap.
            if acknowledged {
                for ahead in acks[..w].iter().rev().take(READ_AHEAD) {
                    prefetch(&ahead.done);
                }
            }
            acknowledged = true;
            // ORDERING: T4
            while acks[w].done.0.load(Ordering::Acquire) != self.ticket {
                if respond::wait_turn::<P>(pin, &mut turn).is_err() && stalled.is_none() {
                    stalled = self.take_back();
                }
            }
        }
        let mark = 1 << self.index;
        system.active_trees.0.fetch_and(!mark, Ordering::AcqRel);
        // ORDERING: Release, with the claim in `begin`: the place is free when everything was read
        call.ticket.store(0, Ordering::Release);
        match stalled {
            None => Ok(()),
            Some(cpu) => {
                self.me.stats.stalls.inc();
                Err(CallError::Stalled(cpu))
            }
        }
    }
}

/// Runs when something unwinds past a large call in flight, as for a call that was
/// [posted](crate::call).
#[cfg(not(loom))]
impl<P: Platform> Drop for Begun<'_, P> {
    fn drop(&mut self) {
        self.take_back();
        let _ = self.wait_for_all(&P::pin());
    }
}

/// Number of lines that are prefetched while acknowledgements are collected: about as many as a
/// core keeps in flight.
pub(crate) const READ_AHEAD: usize = 8;

/// Runs those of the large calls `active` that concern this CPU; returns how many ran.
#[inline(never)]
pub(crate) fn drain<P: Platform>(cpu: CpuId, me: &PerCpu<P>, early: bool, mut active: u64) -> u64 {
    let system = P::system();
    let mut served = 0;
    while active != 0 {
        let index = active.trailing_zeros() as usize;
        active &= active - 1;
        let call = &system.trees[index];
        let w = cpu.index() / WORD;
        let (ticket, bits) = loop {
            let ticket = call.ticket.load(Ordering::Acquire); // ORDERING: T2
            let bits = call.targets.words()[w].load(Ordering::Relaxed);
            fence(Ordering::Acquire); // ORDERING: T2
            if call.ticket.load(Ordering::Relaxed) == ticket {
                break (ticket, bits);
            }
        };
        let mine = 1 << (cpu.index() % WORD);
        if ticket == 0 || ticket == CLAIMED || bits & mine == 0 {
            continue;
        }
        // The call can't end until we acknowledge (I1), unless the initiator has acknowledged for
        // us already; `claim_ack` below finds that out.
        let func = call.func.load(Ordering::Relaxed);
        let data = call.data.load(Ordering::Relaxed);
        let forward = call.forward.load(Ordering::Relaxed) && bits & bits.wrapping_neg() == mine;
        if !claim_ack(me, index, ticket) {
            continue;
        }
        if forward && bits != mine {
            let mut rest = CpuSetOf::<P>::EMPTY;
            rest.words_mut()[w] = bits & !mine;
            me.stats.forwarded.add(u64::from(rest.len()));
            pass_on::<P>(&rest);
        }
        let mut ack = Ack::to_tree(cpu, early, call, ticket);
        #[cfg(any(shootdown_traced, loom))]
        assert!(
            !func.is_null() && !data.is_null(),
            "calls: a large call is seen before it is written (T1, T2)"
        );
        // SAFETY: `begin` stored a `Func<P>` and its caller vouched for running it with `data` on
        // this target, which has not acknowledged yet.
        unsafe { core::mem::transmute::<*mut (), Func<P>>(func)(cpu, me, data, &mut ack) };
        ack.fire();
        served += 1;
    }
    if served != 0 {
        me.stats.calls_served.add(served);
    }
    served
}

/// Passes a kick on. If that fails, each CPU is tried by itself; if one can't be reached, the
/// initiator's wait stalls and reports it.
fn pass_on<P: Platform>(rest: &CpuSetOf<P>) {
    let rest = P::system().online_of(rest);
    if rest.is_empty() || P::kick(&rest).is_ok() {
        return;
    }
    for cpu in rest.iter() {
        let mut one = CpuSetOf::<P>::EMPTY;
        one.insert(cpu);
        let _ = P::kick(&one);
    }
}

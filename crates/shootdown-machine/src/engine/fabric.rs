//! The fabric that carries invalidations to every CPU.
//!
//! # The problem
//! On machines that can invalidate everywhere with one instruction, that instruction goes through
//! something that all CPUs share. How long it takes depends on who else uses it, and whoever does
//! not use it is disturbed by it.
//!
//! # The model
//! One server takes one operation at a time, in the order of issue. It begins with an operation
//! when the operation has been issued and the server is free; the operation is complete on every
//! CPU a *latency* later, and the server is free again a *service time* after it began. So `n` CPUs
//! that do nothing but broadcast get one operation per service time among them, and a lone one sees
//! the latency.
//!
//! Issuing does not wait. The sync does, without taking interrupts, until the last operation that
//! this CPU issued is complete.
//!
//! While the server serves, every CPU answers to it. A running CPU (one that neither idles nor
//! waits) loses a share of that time, the *tax*: what takes it a time `t` when the server is free
//! takes `t / (1 - tax)` when the server is always busy. Nobody is taxed for an operation of its
//! own, nor between issue and sync.
//!
//! # Invariants
//! I1: operations are issued in the order of time, so the order of service is that of issue. I2:
//! busy time up to a moment only grows, so that what a CPU owes is never negative and nothing is
//! paid twice.

use super::{Engine, Mode, irqs, mode, step, with};
use crate::profile::BroadcastCosts;

/// One server.
#[derive(Debug)]
pub(super) struct Fabric {
    costs: BroadcastCosts,
    /// Service times of all operations so far.
    served: u64,
    /// When the server is free.
    free: u64,
}

/// Parts of a whole in which the tax is given.
const WHOLE: u128 = 1_000_000;

impl Fabric {
    pub(super) fn new(costs: BroadcastCosts) -> Self {
        Self { costs, served: 0, free: 0 }
    }

    /// Takes an operation that is issued now: when it will be complete, and when the server is done
    /// with it.
    fn issue(&mut self, now: u64) -> (u64, u64) {
        let begin = self.free.max(now);
        self.free = begin + self.costs.service.ps();
        self.served += self.costs.service.ps();
        (begin + self.costs.latency.ps(), self.free)
    }

    /// How long the server has been busy up to this time, which is not before the last issue.
    fn busy(&self, now: u64) -> u64 {
        self.served - self.free.saturating_sub(now).min(self.served)
    }

    /// What being busy so long takes from a running CPU.
    #[allow(clippy::cast_possible_truncation)] // a part of `busy`
    fn tax(&self, busy: u64) -> u64 {
        (u128::from(busy) * u128::from(self.costs.tax) / WHOLE) as u64
    }
}

impl Engine {
    /// What the current CPU owes for the time that it has run since it was asked last.
    #[inline]
    pub(super) fn owed(&mut self) -> u64 {
        if self.fabric.is_none() { 0 } else { self.owed_slowly() }
    }

    #[inline(never)]
    fn owed_slowly(&mut self) -> u64 {
        let Some(fabric) = &self.fabric else { return 0 };
        let me = &mut self.cpus[self.current as usize];
        if me.broadcast_done > me.time {
            return 0;
        }
        let busy = fabric.busy(me.time);
        let owed = fabric.tax(busy.saturating_sub(me.fabric_seen));
        // What is too little to be a picosecond is asked for again.
        if owed > 0 {
            me.fabric_seen = me.fabric_seen.max(busy);
            me.taxed += owed;
        }
        owed
    }

    /// Pays what the current CPU owes.
    #[inline]
    pub(super) fn settle(&mut self) {
        let owed = self.owed();
        self.me().spend(owed);
    }

    /// The time since the last settlement was spent waiting or idle, which nobody taxes; and nobody
    /// is taxed for what the fabric still does about this CPU's own operation.
    #[inline]
    pub(super) fn forgive(&mut self) {
        if let Some(fabric) = &self.fabric {
            let me = &mut self.cpus[self.current as usize];
            let own = me.broadcast_served.saturating_sub(me.time);
            me.fabric_seen = me.fabric_seen.max(fabric.busy(me.time) + own);
        }
    }
}

/// Hands operations to the fabric, one after the other.
pub(crate) fn broadcast(operations: u64) {
    for _ in 0..operations {
        step();
        with(|e| {
            let issue = e.costs.broadcast.map_or(0, |costs| costs.issue.ps());
            e.me().spend(issue);
        });
        step();
        with(|e| {
            let now = e.me().time;
            let (done, served) = e.fabric.as_mut().map_or((now, now), |fabric| fabric.issue(now));
            let me = e.me();
            me.broadcasts += 1;
            me.broadcast_done = done;
            me.broadcast_served = served;
        });
    }
}

/// Waits until what this CPU handed to the fabric is complete. Nobody else has acted at a later
/// time when this returns.
pub(crate) fn await_broadcast() {
    let was_on = irqs(false);
    let before = mode(Mode::Waiting);
    with(|e| {
        e.settle();
        let me = e.me();
        let from = me.time;
        me.spend_until(me.broadcast_done);
        me.broadcast_waited += me.time - from;
        e.forgive();
    });
    step();
    mode(before);
    irqs(was_on);
}

/// Waits for this CPU's stores, as a barrier before an invalidation does.
pub(crate) fn drain() {
    step();
    with(|e| {
        let fence = e.costs.fence.ps();
        let me = e.me();
        let done = (me.time + fence).max(me.stores_done);
        me.spend_until(done);
    });
}

//! Interrupts between CPUs.
//!
//! A command to the interrupt controller costs its sender time, once per cluster of targets, and
//! waits for the sender's stores, so that what it wrote is visible to whom it interrupts. The
//! interrupt arrives a distance later. A pending one of the same kind absorbs it. A CPU with
//! interrupts on takes what has arrived at its next step, at once when it is computing, waiting or
//! idle; the handler runs on the CPU's own stack with interrupts off.

use super::arena::LINE_SHIFT;
use super::cpu::NEVER;
use super::{Engine, Mode, Vector, host, step, take_due, warm, with};
use crate::oracle::Event;
use shootdown::CpuId;

/// Turns interrupts on or off, and says whether they were on.
pub(crate) fn irqs(on: bool) -> bool {
    let was = with(|e| std::mem::replace(&mut e.me().irqs_on, on));
    if on && !was {
        take_due();
    }
    was
}

/// Are interrupts on?
pub(crate) fn irqs_are_on() -> bool {
    with(|e| e.me().irqs_on)
}

/// As if this CPU had been woken.
pub(crate) fn wake_self() {
    with(|e| e.me().woken = true);
}

/// Interrupts each of `targets` (in ascending order). `multicast` sends to all with one command.
pub(crate) fn send(targets: impl Iterator<Item = u32>, vector: Vector, multicast: bool) {
    step();
    with(|e| {
        let cost = e.costs.ipi_send.ps();
        let size = e.topology().ipi_cluster;
        let me = e.me();
        me.drain();
        let mut cluster = None;
        let (mut sent, mut first) = (0, 0);
        for target in targets {
            let of = if multicast { 0 } else { target / size };
            if cluster.replace(of) != Some(of) {
                let me = e.me();
                me.spend(cost);
                me.interrupts.commands += 1;
            }
            let arrival = e.me().time + e.flight(target);
            e.pend(target, vector, arrival);
            if sent == 0 {
                first = target;
            }
            sent += 1;
        }
        e.me().interrupts.sent += u64::from(sent);
        if sent > 0 {
            e.note(Event::Kick { targets: sent, first: CpuId(first) });
        }
    });
}

/// Does what the hypervisor wants, or takes the interrupt that has been due longest.
pub(super) fn take() {
    if with(|e| e.me().is_host_due()) {
        host::serve();
        return;
    }
    let (vector, handler, mode) = with(|e| {
        e.warm_up();
        let (entry, handler) = (e.costs.irq_entry.ps(), e.handler);
        let me = e.me();
        let vector = if me.irq[0] <= me.irq[1] { Vector::Kick } else { Vector::Wake };
        me.irq[vector as usize] = NEVER;
        me.irq_next = me.irq[0].min(me.irq[1]);
        me.irqs_on = false;
        let mode = std::mem::replace(&mut me.mode, Mode::Stolen);
        me.interrupts.received += 1;
        if vector == Vector::Wake {
            me.woken = true;
        }
        e.note(Event::InterruptBegins);
        e.me().spend(entry);
        (vector, handler, mode)
    });
    handler(vector, mode);
    with(|e| {
        let exit = e.costs.irq_exit.ps();
        let me = e.me();
        // Returning from an interrupt serializes: it waits for the CPU's stores.
        me.drain();
        me.spend(exit);
        me.mode = mode;
        me.irqs_on = true;
        e.note(Event::InterruptEnds);
    });
}

impl Engine {
    /// Fetches what the current CPU's handler will want, all at once instead of one after the
    /// other.
    fn warm_up(&self) {
        for (address, length) in self.hot[self.current as usize] {
            warm::bytes(address, length);
            if let Some(line) = self.arena.line(address) {
                let lines = &self.lines[line..line + length.div_ceil(1 << LINE_SHIFT)];
                warm::bytes(lines.as_ptr() as usize, size_of_val(lines));
            }
        }
    }

    /// How long an interrupt from the current CPU takes to arrive.
    pub(super) fn flight(&self, target: u32) -> u64 {
        let t = self.topology();
        let cost = if t.socket(self.current) == t.socket(target) {
            self.costs.ipi_same
        } else if t.group(self.current) == t.group(target) {
            self.costs.ipi_cross
        } else {
            self.costs.ipi_far
        };
        cost.ps()
    }

    pub(super) fn pend(&mut self, target: u32, vector: Vector, arrival: u64) {
        let state = &mut self.cpus[target as usize];
        let slot = &mut state.irq[vector as usize];
        if *slot != NEVER {
            state.interrupts.merged += 1;
        }
        *slot = (*slot).min(arrival);
        state.irq_next = state.irq[0].min(state.irq[1]);
        if state.interruptible && state.irqs_on {
            let next = state.irq_next;
            self.wake_by(target, next);
        }
    }
}

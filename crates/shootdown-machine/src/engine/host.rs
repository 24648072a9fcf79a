//! The hypervisor below the CPUs of a guest.
//!
//! # The model
//! Physical CPU *p* of *P* serves the virtual CPUs *p*, *p + P*, *p + 2P*… in turns of one *slice*
//! each, whether they have something to do or not: the host is busy, and who does not use a turn
//! loses it to someone else. The turns of different physical CPUs begin at different times. When
//! its turn ends, a CPU leaves the guest (*exit*), is *away*, and comes back (*entry*) at its next
//! turn. Interrupts for it wait meanwhile; so does everything else, whatever it was
//! doing and whether its interrupts were on.
//!
//! The hypervisor may also force a CPU that runs to leave the guest for a moment.
//!
//! What is done on these occasions is the kernel's matter ([`Demand`]); it runs on the CPU's own
//! stack, with the guest's interrupts off.
//!
//! # Invariants
//! I1: a CPU that is away has nothing to do for the hypervisor: what it was forced to do before, it
//! did on its way out. I2: turns depend on time alone, so that what a guest does changes nobody's
//! turn.

use super::cpu::NEVER;
use super::{Engine, Mode, step, suspend, with};
use crate::profile::HypervisorCosts;
use crate::time::Time;

/// What the hypervisor has to do with a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// It has stopped.
    Stopped,
    /// It will run again.
    Resumes,
    /// It was forced to leave the guest, and goes back at once.
    Forced,
}

/// Who runs when.
#[derive(Debug)]
pub(super) struct Turns {
    costs: HypervisorCosts,
    physical: u32,
    cpus: u32,
}

impl Turns {
    pub(super) fn new(costs: HypervisorCosts, physical: u32, cpus: u32) -> Self {
        Self { costs, physical, cpus }
    }

    /// Virtual CPUs of this one's physical CPU, and its number among them.
    fn sharers(&self, cpu: u32) -> (u64, u64) {
        let place = cpu % self.physical;
        let sharers = (self.cpus - place).div_ceil(self.physical);
        (u64::from(sharers), u64::from(cpu / self.physical))
    }

    /// How much earlier the turns of this CPU's physical one begin than those of the first.
    fn shift(&self, cpu: u32) -> u64 {
        self.costs.slice.ps() * u64::from(cpu % self.physical) / u64::from(self.physical)
    }

    /// Which turn it is, and when it ends.
    fn turn(&self, cpu: u32, now: u64) -> (u64, u64) {
        let slice = self.costs.slice.ps();
        let turn = (now + self.shift(cpu)) / slice;
        (turn, (turn + 1) * slice - self.shift(cpu))
    }

    /// When a CPU's first turn ends: at once, if the first turn is not its own.
    pub(super) fn first_ends(&self, cpu: u32) -> u64 {
        self.ends(cpu, 0)
    }

    /// When the CPU's turn ends that it has now: now, if it has none.
    fn ends(&self, cpu: u32, now: u64) -> u64 {
        let (sharers, number) = self.sharers(cpu);
        let (turn, ends) = self.turn(cpu, now);
        match sharers {
            1 => NEVER,
            _ if turn % sharers == number => ends,
            _ => now,
        }
    }

    /// When the CPU's next turn begins.
    fn next(&self, cpu: u32, now: u64) -> u64 {
        let (sharers, number) = self.sharers(cpu);
        let (turn, ends) = self.turn(cpu, now);
        let ahead = (number + sharers - (turn + 1) % sharers) % sharers;
        ends + ahead * self.costs.slice.ps()
    }
}

/// Does what the hypervisor wants of the current CPU.
pub(super) fn serve() {
    let (irqs, mode, costs, demand, ends) = with(|e| {
        let costs = e.costs.hypervisor.expect("demands come from a hypervisor");
        let demand = e.demand;
        let me = e.me();
        let irqs = std::mem::replace(&mut me.irqs_on, false);
        let mode = std::mem::replace(&mut me.mode, Mode::Stolen);
        me.drain();
        me.spend(costs.exit.ps());
        // Nothing of this is interrupted by the end of a turn.
        (irqs, mode, costs, demand, std::mem::replace(&mut me.turn_ends, NEVER))
    });
    if with(|e| std::mem::replace(&mut e.me().forced, NEVER)) != NEVER {
        demand(Demand::Forced);
    }
    if with(|e| ends <= e.me().time) {
        deschedule(demand);
    } else {
        with(|e| e.me().turn_ends = ends);
    }
    with(|e| {
        let me = e.me();
        me.spend(costs.entry.ps());
        me.mode = mode;
        me.irqs_on = irqs;
    });
}

fn deschedule(demand: fn(Demand)) {
    demand(Demand::Stopped);
    step();
    // I1
    while with(|e| std::mem::replace(&mut e.me().forced, NEVER)) != NEVER {
        demand(Demand::Forced);
        step();
    }
    with(|e| {
        let cpu = e.current;
        let me = e.me();
        me.drain();
        me.mode = Mode::Away;
        me.away = true;
        let now = me.time;
        let back = e.turns.as_ref().map_or(now, |turns| turns.next(cpu, now));
        e.enqueue(cpu, back);
    });
    suspend();
    with(|e| {
        e.forgive();
        let me = e.me();
        me.away = false;
        me.mode = Mode::Stolen;
    });
    demand(Demand::Resumes);
    with(|e| {
        let (cpu, now) = (e.current, e.me().time);
        e.me().turn_ends = e.turns.as_ref().map_or(NEVER, |turns| turns.ends(cpu, now));
    });
}

/// Is this CPU away? To be asked when all that came before has happened ([`step`]).
pub(crate) fn is_away(cpu: u32) -> bool {
    with(|e| e.cpus[cpu as usize].away)
}

/// Makes CPUs that are not away leave the guest for a moment.
pub(crate) fn force(targets: impl Iterator<Item = u32>, cost: Time) {
    with(|e| {
        for target in targets {
            e.me().spend(cost.ps());
            let at = e.me().time + e.flight(target);
            e.force(target, at);
        }
    });
}

impl Engine {
    fn force(&mut self, target: u32, at: u64) {
        let state = &mut self.cpus[target as usize];
        debug_assert!(!state.away, "I1");
        state.forced = state.forced.min(at);
        if state.interruptible {
            self.wake_by(target, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_that_share_a_cpu_runs_at_a_time_and_each_in_turn() {
        let us = Time::from_us;
        let costs = HypervisorCosts {
            slice: us(10),
            exit: us(1),
            entry: us(1),
            hypercall: us(1),
            target: us(1),
        };
        let turns = Turns::new(costs, 3, 7);
        for now in (0..200).map(|n| n * 1_000_003) {
            for place in 0..3 {
                let cpus: Vec<u32> = (0..7).filter(|cpu| cpu % 3 == place).collect();
                let runs = |cpu: &&u32| turns.ends(**cpu, now) > now;
                assert_eq!(cpus.iter().filter(runs).count(), 1, "physical CPU {place}");
                for cpu in &cpus {
                    let next = turns.next(*cpu, now);
                    assert!(next > now && next <= now + 10_000_000 * cpus.len() as u64);
                    assert_eq!(turns.ends(*cpu, next), next + 10_000_000);
                }
            }
        }
        let alone = Turns::new(costs, 7, 7);
        assert!((0..7).all(|cpu| alone.ends(cpu, 5) == NEVER));
    }
}

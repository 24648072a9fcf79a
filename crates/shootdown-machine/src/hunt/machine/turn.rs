//! Whose turn it is: what can happen next, the decision, and stores that become visible on the way.

use super::{CpuState, Go, Hunt, Status, pending_bit};
use crate::hunt::choice::{Actor, Candidate, Decision, Footprint, Point};
use crate::hunt::memory::{Buffered, mix};
use crate::hunt::powers::{Memory, Power};
use crate::hunt::{End, hooks};
use crate::oracle::Invariant;
use shootdown::CpuId;

impl Hunt {
    /// Asks the chooser; `None` when the run is over.
    pub fn choose(&mut self, point: &Point<'_>) -> Option<usize> {
        // SAFETY: the chooser outlives the run, and nothing else uses it meanwhile.
        match unsafe { &mut *self.chooser }.choose(point) {
            Decision::Abandon => {
                self.end.get_or_insert(End::Abandoned);
                None
            }
            Decision::Take(option) => {
                // A schedule made for other code may ask for what there is not.
                let option = option.min(point.options() - 1);
                #[allow(clippy::cast_possible_truncation)] // fewer than 2^16 options
                if point.options() > 1 {
                    self.choices.push(option as u16);
                }
                Some(option)
            }
        }
    }

    /// Decides who goes next, and drains buffers on the way. `Away`: not the current CPU;
    /// `self.current` says who, or the run is over.
    pub(super) fn schedule(&mut self) -> Go {
        loop {
            if self.end.is_some() {
                return Go::Away;
            }
            if self.steps >= self.bounds.steps {
                self.end = Some(End::Limit);
                return Go::Away;
            }
            if self.is_over() {
                return Go::Away;
            }
            self.list_candidates();
            let chosen = match self.candidates.len() {
                0 => {
                    self.stuck();
                    return Go::Away;
                }
                1 if !self.wants_state => 0,
                _ => {
                    let state = if self.wants_state { self.state() } else { 0 };
                    let candidates = std::mem::take(&mut self.candidates);
                    let chosen = self.choose(&Point::Next { candidates: &candidates, state });
                    self.candidates = candidates;
                    match chosen {
                        None => return Go::Away,
                        Some(chosen) => chosen,
                    }
                }
            };
            self.steps += 1;
            let Candidate { actor, .. } = self.candidates[chosen];
            if !matches!(actor, Actor::Drain(_)) {
                // How far the CPU's code has come is part of its state, even where a step shows it
                // nothing.
                let me = &mut self.cpus[actor.cpu() as usize];
                me.history = mix(me.history ^ 0x57e9);
            }
            let (cpu, go) = match actor {
                Actor::Drain(cpu) => {
                    self.drain_one(cpu);
                    continue;
                }
                Actor::Cpu(cpu) => (cpu, Go::On),
                Actor::Interrupt(cpu) => (cpu, Go::Interrupt),
            };
            if cpu == self.current && !self.cpus[cpu as usize].yielder.is_null() {
                return go;
            }
            self.cpus[cpu as usize].command = go;
            self.current = cpu;
            return Go::Away;
        }
    }

    /// All programs have ended, all interrupts were taken, and all stores are visible: what is left
    /// to happen when the last program ends is in no other order for it.
    pub(super) fn is_over(&self) -> bool {
        let quiet = |c: &CpuState| c.status == Status::Ended && !c.pending;
        self.cpus.iter().all(quiet)
            && (0..).zip(&self.cpus).all(|(cpu, _)| self.memory.buffered(cpu) == 0)
    }

    fn list_candidates(&mut self) {
        let Self { candidates, cpus, memory, mmu, powers, current, io_tables, .. } = self;
        candidates.clear();
        let now = !powers.has(Power::LateInterrupts);
        let interruptible = |c: &CpuState| c.pending && c.irqs_on;
        let take = |cpu: u8| {
            let location = pending_bit(cpu);
            let footprint = Footprint { cpu, location, write: true, everything: false };
            Candidate { actor: Actor::Interrupt(cpu), footprint }
        };
        if now && let Some((cpu, _)) = (0..).zip(cpus.iter()).find(|(_, c)| interruptible(c)) {
            candidates.push(take(cpu));
            return;
        }
        let ready = |cpu: u8, c: &CpuState| match c.status {
            Status::Ready => true,
            Status::Waiting => memory.has_news(cpu),
            Status::Ended => false,
        };
        let mut add = |cpu: u8, c: &CpuState| {
            if ready(cpu, c) {
                candidates.push(Candidate { actor: Actor::Cpu(cpu), footprint: c.next });
            }
        };
        add(*current, &cpus[*current as usize]);
        for (cpu, state) in (0..).zip(cpus.iter()) {
            if cpu != *current {
                add(cpu, state);
            }
        }
        for (cpu, state) in (0..).zip(cpus.iter()) {
            if interruptible(state) {
                candidates.push(take(cpu));
            }
        }
        if memory.model() == Memory::Tso {
            for (cpu, _) in (0..).zip(cpus.iter()) {
                if let Some(Buffered { location, native, .. }) = memory.oldest(cpu) {
                    // Walkers of every CPU read tables, and devices read theirs.
                    let walked =
                        native.zip(*io_tables).is_some_and(|((at, _), io)| io.has(at as usize));
                    let everything = mmu.is_entry(location) || walked;
                    let footprint = Footprint { cpu, location, write: true, everything };
                    candidates.push(Candidate { actor: Actor::Drain(cpu), footprint });
                }
            }
        }
    }

    /// Nobody can go on, and not all programs have ended.
    fn stuck(&mut self) {
        let waiting: Vec<String> = (0u32..)
            .zip(&self.cpus)
            .filter(|(_, c)| c.status != Status::Ended)
            .map(|(cpu, c)| {
                format!("{}{}", CpuId(cpu), if c.irqs_on { "" } else { " (interrupts off)" })
            })
            .collect();
        let first = self.cpus.iter().position(|c| c.status != Status::Ended).unwrap_or(0);
        let wait = if waiting.len() == 1 { "waits" } else { "wait" };
        let details = format!("{} {wait} for ever", waiting.join(" and "));
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
        self.broken(Invariant::Progress, first as u8, details);
    }

    /// The oldest buffered store of a CPU becomes visible.
    fn drain_one(&mut self, cpu: u8) {
        if let Some(Buffered { location, value, native }) = self.memory.drain_one(cpu) {
            if let Some((at, width)) = native {
                hooks::write_native(at, width, value);
                self.io_written(at as usize, value);
            }
            self.mmu.visible(&self.memory, location);
        }
    }

    /// All buffered stores of a CPU become visible.
    pub fn drain(&mut self, cpu: u8) {
        while self.memory.buffered(cpu) != 0 {
            self.drain_one(cpu);
        }
    }
}

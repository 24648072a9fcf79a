//! Toy systems for the tests of this module: small threads over shared words, run step by step.
//!
//! Written against the promises of [`crate::hunt::Chooser`] alone, apart from the executor, so that
//! choosers and searches are tested with systems whose schedules can be counted by hand.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use shootdown::CpuId;

use crate::hunt::{Actor, Candidate, Chooser, Decision, End, Footprint, Outcome, Point, Power};
use crate::oracle::{Invariant, Violation};

/// One step of a thread. Words and registers are named by number; every thread has two registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// Register := word.
    Load(usize, u8),
    /// Register := word, or the value that was there before the last store (the chooser decides).
    LoadOld(usize, u8),
    /// Word := register.
    Store(u8, usize),
    /// Word := constant.
    Set(u8, u8),
    /// Register += constant. Touches nothing shared.
    Add(usize, u8),
    /// All stores of this thread become visible first.
    Fence,
    /// Waits until the word is 0, then sets it to 1. Stores of this thread become visible first.
    Lock(u8),
    /// The stores of this thread become visible, then the word is 0.
    Unlock(u8),
    /// Goes back to the instruction with this number while the register has this value.
    While(usize, u8, usize),
    /// Interrupts a thread: some time later its register 1 is set to 9.
    Kick(u8),
    /// Register := 1 if a fault is injected here.
    Faulty(usize),
    /// Breaks a promise if the register has this value.
    Never(usize, u8),
}

/// Threads, and what must hold in the end.
#[derive(Clone, Debug)]
pub(super) struct Toy {
    pub(super) threads: Vec<Vec<Op>>,
    /// Stores go through a buffer.
    pub(super) buffers: bool,
    /// Ask also where one actor only can go.
    pub(super) asks_alone: bool,
    /// Ask at every point whether the state is needed, and so whether to ask where one actor only
    /// can go.
    pub(super) asks_often: bool,
    /// Interrupts are taken as soon as they are pending.
    pub(super) prompt: bool,
    /// Words and registers of all threads at the end: is this a violation?
    pub(super) wrong: fn(&[u8; 6], &[[u8; 2]]) -> bool,
    pub(super) most_steps: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    words: [u8; 6],
    before: [u8; 6],
    registers: Vec<[u8; 2]>,
    at: Vec<usize>,
    stores: Vec<VecDeque<(u8, u8)>>,
    pending: Vec<bool>,
}

/// Pending interrupts have locations of their own, beyond those of words.
const PENDING: u32 = 100;

fn touch(cpu: usize, location: u32, write: bool) -> Footprint {
    Footprint { cpu: cpu as u8, location, write, everything: false }
}

fn word(cpu: usize, word: u8, write: bool) -> Footprint {
    touch(cpu, u32::from(word) + 1, write)
}

impl Toy {
    pub(super) fn new(threads: &[&[Op]]) -> Self {
        Self {
            threads: threads.iter().map(|t| t.to_vec()).collect(),
            buffers: false,
            asks_alone: false,
            asks_often: false,
            prompt: false,
            wrong: |_, _| false,
            most_steps: 2000,
        }
    }

    pub(super) fn buffers(self) -> Self {
        Self { buffers: true, ..self }
    }

    pub(super) fn asks_alone(self, asks_alone: bool) -> Self {
        Self { asks_alone, ..self }
    }

    pub(super) fn wrong(self, wrong: fn(&[u8; 6], &[[u8; 2]]) -> bool) -> Self {
        Self { wrong, ..self }
    }

    fn candidate(&self, s: &State, cpu: usize) -> Option<Candidate> {
        let op = *self.threads[cpu].get(s.at[cpu])?;
        let drained = s.stores[cpu].is_empty();
        let footprint = match op {
            Op::Load(_, w) | Op::LoadOld(_, w) => word(cpu, w, false),
            Op::Store(w, _) | Op::Set(w, _) if !self.buffers => word(cpu, w, true),
            Op::Fence if !drained => return None,
            Op::Lock(w) if !drained || s.words[w as usize] != 0 => {
                let _ = w;
                return None;
            }
            Op::Unlock(_) if !drained => return None,
            Op::Lock(w) | Op::Unlock(w) => word(cpu, w, true),
            // The others can't go until the interrupt is taken.
            Op::Kick(_) if self.prompt => Footprint::everything(cpu as u8),
            Op::Kick(to) => touch(cpu, PENDING + u32::from(to), true),
            Op::Store(..)
            | Op::Set(..)
            | Op::Add(..)
            | Op::Fence
            | Op::While(..)
            | Op::Faulty(_)
            | Op::Never(..) => touch(cpu, 0, false),
        };
        Some(Candidate { actor: Actor::Cpu(cpu as u8), footprint })
    }

    fn candidates(&self, s: &State, last: usize, out: &mut Vec<Candidate>) {
        out.clear();
        let count = self.threads.len();
        let interrupt = |cpu: usize| {
            let footprint = touch(cpu, PENDING + cpu as u32, true);
            Candidate { actor: Actor::Interrupt(cpu as u8), footprint }
        };
        if let Some(cpu) = s.pending.iter().position(|pending| *pending && self.prompt) {
            out.push(interrupt(cpu));
            return;
        }
        out.extend(self.candidate(s, last));
        out.extend((0..count).filter(|c| *c != last).filter_map(|c| self.candidate(s, c)));
        for cpu in 0..count {
            if s.pending[cpu] {
                out.push(interrupt(cpu));
            }
            if let Some((w, _)) = s.stores[cpu].front() {
                let footprint = word(cpu, *w, true);
                out.push(Candidate { actor: Actor::Drain(cpu as u8), footprint });
            }
        }
    }

    /// Runs it under a chooser.
    pub(super) fn run(&self, chooser: &mut dyn Chooser) -> Outcome {
        let count = self.threads.len();
        let mut s = State {
            words: [0; 6],
            before: [0; 6],
            registers: vec![[0; 2]; count],
            at: vec![0; count],
            stores: vec![VecDeque::new(); count],
            pending: vec![false; count],
        };
        let wants = chooser.wants_state();
        let mut run = Run { chooser, choices: Vec::new() };
        let (mut candidates, mut last, mut steps) = (Vec::new(), 0, 0);
        let end = loop {
            self.candidates(&s, last, &mut candidates);
            if candidates.is_empty() {
                let stuck = (0..count).any(|c| s.at[c] < self.threads[c].len());
                let (invariant, wrong) = if stuck {
                    (Invariant::Progress, true)
                } else {
                    (Invariant::Revocation, (self.wrong)(&s.words, &s.registers))
                };
                break if wrong { violation(invariant, 0) } else { End::Finished };
            }
            if steps == self.most_steps {
                break End::Limit;
            }
            let wants = if self.asks_often { run.chooser.wants_state() } else { wants };
            let taken = if candidates.len() > 1 || self.asks_alone && wants {
                let state = if wants { hash(&s) } else { 0 };
                run.ask(&Point::Next { candidates: &candidates, state })
            } else {
                Some(0)
            };
            let Some(taken) = taken else { break End::Abandoned };
            steps += 1;
            last = usize::from(candidates[taken].actor.cpu());
            match self.step(&mut s, candidates[taken].actor, &mut run) {
                None => {}
                Some(end) => break end,
            }
        };
        Outcome {
            end,
            steps,
            choices: run.choices,
            witnesses: Vec::new(),
            state: hash(&s),
            work: crate::hunt::Work::default(),
            events: Vec::new(),
        }
    }

    fn step(&self, s: &mut State, actor: Actor, run: &mut Run<'_>) -> Option<End> {
        let cpu = usize::from(actor.cpu());
        match actor {
            Actor::Interrupt(_) => {
                s.pending[cpu] = false;
                s.registers[cpu][1] = 9;
            }
            Actor::Drain(_) => {
                if let Some((w, value)) = s.stores[cpu].pop_front() {
                    s.write(w, value);
                }
            }
            Actor::Cpu(_) => {
                let op = self.threads[cpu][s.at[cpu]];
                s.at[cpu] += 1;
                match op {
                    Op::Load(r, w) => s.registers[cpu][r] = s.read(cpu, w),
                    Op::LoadOld(r, w) => {
                        let old = run.ask(&Point::Value { cpu: cpu as u8, count: 2 });
                        let old = match old {
                            Some(old) => old == 1,
                            None => return Some(End::Abandoned),
                        };
                        let before = s.before[usize::from(w)];
                        s.registers[cpu][r] = if old { before } else { s.read(cpu, w) };
                    }
                    Op::Store(w, r) => self.store(s, cpu, w, s.registers[cpu][r]),
                    Op::Set(w, value) => self.store(s, cpu, w, value),
                    Op::Add(r, n) => s.registers[cpu][r] = s.registers[cpu][r].wrapping_add(n),
                    Op::Fence => {}
                    Op::Lock(w) => s.write(w, 1),
                    Op::Unlock(w) => s.write(w, 0),
                    Op::While(r, value, back) => {
                        if s.registers[cpu][r] == value {
                            s.at[cpu] = back;
                        }
                    }
                    Op::Kick(to) => s.pending[usize::from(to)] = true,
                    Op::Faulty(r) => match run.ask(&Point::Fault { power: Power::FailingKicks }) {
                        Some(fault) => s.registers[cpu][r] = fault as u8,
                        None => return Some(End::Abandoned),
                    },
                    Op::Never(r, value) => {
                        if s.registers[cpu][r] == value {
                            return Some(violation(Invariant::FrameReuse, cpu as u32));
                        }
                    }
                }
            }
        }
        None
    }

    fn store(&self, s: &mut State, cpu: usize, w: u8, value: u8) {
        if self.buffers {
            s.stores[cpu].push_back((w, value));
        } else {
            s.write(w, value);
        }
    }
}

impl State {
    fn read(&self, cpu: usize, w: u8) -> u8 {
        let own = self.stores[cpu].iter().rev().find(|(word, _)| *word == w);
        own.map_or(self.words[usize::from(w)], |(_, value)| *value)
    }

    fn write(&mut self, w: u8, value: u8) {
        let w = usize::from(w);
        (self.before[w], self.words[w]) = (self.words[w], value);
    }
}

fn violation(invariant: Invariant, cpu: u32) -> End {
    End::Violation(Box::new(Violation::new(invariant, CpuId(cpu), String::new())))
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Asks, and notes the answers.
struct Run<'a> {
    chooser: &'a mut dyn Chooser,
    choices: Vec<u16>,
}

impl Run<'_> {
    fn ask(&mut self, point: &Point<'_>) -> Option<usize> {
        match self.chooser.choose(point) {
            Decision::Take(taken) => {
                assert!(taken < point.options(), "{point:?} has no option {taken}");
                if point.options() > 1 {
                    self.choices.push(taken as u16);
                }
                Some(taken)
            }
            Decision::Abandon => None,
        }
    }
}

/// Two threads add 1 to a word without a lock: one addition can be lost.
pub(super) fn lost_update() -> Toy {
    let add = [Op::Load(0, 0), Op::Add(0, 1), Op::Store(0, 0)];
    Toy::new(&[&add, &add]).wrong(|words, _| words[0] != 2)
}

/// The same under a lock.
pub(super) fn locked_update() -> Toy {
    let add = [Op::Lock(1), Op::Load(0, 0), Op::Add(0, 1), Op::Store(0, 0), Op::Unlock(1)];
    Toy::new(&[&add, &add]).wrong(|words, _| words[0] != 2)
}

/// Each says that it wants, then looks whether the other does: both may go in only if stores are
/// buffered and there is no fence.
pub(super) fn dekker(fence: bool) -> Toy {
    let thread = |own, other| {
        let all = [Op::Set(own, 1), Op::Fence, Op::Load(0, other)];
        all.into_iter().filter(|op| fence || *op != Op::Fence).collect::<Vec<_>>()
    };
    let toy = Toy::new(&[&thread(0, 1), &thread(1, 0)]).buffers();
    toy.wrong(|_, registers| registers[0][0] == 0 && registers[1][0] == 0)
}

/// A violation that needs `depth` orders of steps of two threads: each sees what the other did just
/// before, in turn, with `pad` steps that do nothing before each look.
pub(super) fn handshake(depth: usize, pad: usize) -> Toy {
    let mut threads = [vec![Op::Set(0, 1)], Vec::new()];
    for turn in 0..depth {
        threads[turn % 2].extend(vec![Op::Add(1, 0); pad]);
        let (from, to) = (turn as u8, turn as u8 + 1);
        let thread = &mut threads[(turn + 1) % 2];
        thread.push(Op::Load(0, from));
        if turn + 1 == depth {
            thread.push(Op::Never(0, 1));
        } else {
            thread.push(Op::Store(to, 0));
        }
    }
    Toy::new(&[&threads[0], &threads[1]])
}

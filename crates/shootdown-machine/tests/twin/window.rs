//! AArch64 and RISC-V: instructions in any order that nothing forbids.
//!
//! Rules: the table in `src/litmus/window.rs` read as a specification (it cites none of the code),
//! Arm ARM D8.13 (TLBI, DSB, ISB), RISC-V Privileged 12.2.1 (SFENCE.VMA; absent entries may be
//! cached).

use std::collections::BTreeSet;
use std::sync::Mutex;

use stateright::{Model, Property};

use super::memory::{Caching, Memory, Tlb, Write};
use super::program::{Arch, Instr, Mapping, Program, Value, Word};

/// The rules that a test may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    pub caching: Caching,
    /// A DSB waits for accesses of other CPUs that were translated before a broadcast TLBI.
    pub sync_waits_for_others: bool,
    /// Loads of one word are satisfied in program order.
    pub coherent: bool,
    /// A load may take the value of an earlier store that is not performed.
    pub forwards: bool,
    /// Loads pass loads of the same name, which a coherent machine finds out if they differ.
    pub loads_pass: bool,
    /// A DSB after a broadcast TLBI waits until faults of others are taken (Arm: only until barriers
    /// before them are done).
    pub faults_taken: bool,
}

impl Rules {
    pub const fn of(arch: Arch) -> Self {
        Self {
            caching: Caching { absent: matches!(arch, Arch::Riscv), retains: true },
            sync_waits_for_others: true,
            coherent: true,
            forwards: true,
            loads_pass: matches!(arch, Arch::Arm),
            faults_taken: matches!(arch, Arch::Riscv),
        }
    }
}

/// Where a load found its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum From {
    Memory(Write),
    /// A store of its own CPU.
    Store(usize),
}

/// How far an instruction has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    Waiting,
    Through(usize),
    Faulting,
    Read(Value, Word, From),
    Written(Word),
    /// An invalidation, and the accesses of other CPUs that still go by what it removed.
    Invalidated(BTreeSet<(usize, usize)>),
    Over,
    Faulted,
}

impl Status {
    fn over(&self) -> bool {
        !matches!(self, Self::Waiting | Self::Through(_) | Self::Faulting)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    memory: Memory,
    tlbs: Vec<Tlb>,
    cpus: Vec<Vec<Status>>,
    interrupts: Vec<usize>,
}

/// What the instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Translate(Mapping),
    Perform,
}

pub struct Window {
    pub program: Program,
    pub rules: Rules,
    pub ends: Mutex<BTreeSet<String>>,
}

/// One CPU in a state: everything the rules ask.
struct Look<'a> {
    code: &'a [Instr],
    status: &'a [Status],
}

impl Look<'_> {
    /// The instructions before `k`.
    fn before(&self, k: usize) -> impl DoubleEndedIterator<Item = (usize, Instr, &Status)> {
        (0..k).map(|j| (j, self.code[j], &self.status[j]))
    }

    fn accesses_over(&self, k: usize) -> bool {
        self.before(k).all(|(_, instr, status)| !instr.accesses() || status.over())
    }

    /// Waits for interrupts before `k` are over.
    fn arrived(&self, k: usize) -> bool {
        self.before(k).all(|(_, instr, status)| instr != Instr::TakeInterrupt || status.over())
    }

    /// Nothing before `k` can still fault.
    fn certain(&self, k: usize) -> bool {
        let sure = |instr: Instr, status: &Status| {
            instr.page().is_none() || !matches!(status, Status::Waiting | Status::Faulting)
        };
        self.arrived(k) && self.before(k).all(|(_, instr, status)| sure(instr, status))
    }

    /// A DSB at `m` is complete.
    fn synced(&self, m: usize) -> bool {
        let complete = |instr: Instr, status: &Status| {
            let invalidates = matches!(instr, Instr::Invalidate { .. });
            !invalidates || matches!(status, Status::Invalidated(rest) if rest.is_empty())
        };
        self.accesses_over(m) && self.before(m).all(|(_, instr, status)| complete(instr, status))
    }

    /// May `k` begin? A walk waits for less, but for SFENCE.VMA.
    fn may_begin(&self, k: usize, walk: bool, arch: Arch) -> bool {
        self.before(k).all(|(m, instr, status)| match instr {
            Instr::Context => {
                let syncs = self.before(m).all(|(j, i, _)| i != Instr::Sync || self.synced(j));
                self.certain(m) && syncs
            }
            Instr::Sync => walk || self.synced(m),
            Instr::TakeInterrupt => status.over(),
            Instr::Invalidate { .. } => !walk || arch == Arch::Arm || status.over(),
            _ => true,
        })
    }

    /// Fences before `k` let an access pass.
    fn fenced(&self, k: usize) -> bool {
        self.before(k).all(|(m, instr, _)| instr != Instr::Fence || self.accesses_over(m))
    }

    /// Nobody waits for the fault at `k` any more. On Arm that is so behind the fences and DSBs
    /// before it, taken or not.
    fn fault_over(&self, k: usize, arch: Arch, rules: Rules) -> bool {
        match rules.faults_taken {
            true => self.status[k] == Status::Faulted,
            false => self.may_begin(k, false, arch) && self.fenced(k),
        }
    }

    /// The word an access goes to, as far as it is known.
    fn word(&self, k: usize) -> Option<Word> {
        match self.status[k] {
            Status::Through(frame) => Some(Word::Frame(frame)),
            Status::Read(_, word, _) | Status::Written(word) => Some(word),
            _ => self.code[k].word(),
        }
    }

    fn same_name(&self, j: usize, k: usize) -> bool {
        let (a, b) = (self.code[j], self.code[k]);
        (a.page(), a.word()) == (b.page(), b.word())
    }

    /// A later load of the word went by another write than this one, and not by a store in between.
    fn overtaken(&self, k: usize, word: Word, from: From) -> bool {
        (k + 1..self.code.len()).any(|j| match self.status[j] {
            Status::Read(_, w, f) => {
                let between = matches!(f, From::Store(s) if s > k);
                w == word && f != from && !between
            }
            _ => false,
        })
    }
}

impl Window {
    pub fn new(program: Program, rules: Rules) -> Self {
        Self { program, rules, ends: Mutex::default() }
    }

    fn look<'a>(&'a self, state: &'a State, cpu: usize) -> Look<'a> {
        // A fault ends the program: nothing after it is looked at.
        let status = &state.cpus[cpu];
        let end = status.iter().position(|s| *s == Status::Faulted).map_or(status.len(), |k| k + 1);
        Look { code: &self.program.cpus[cpu][..end], status: &status[..end] }
    }

    fn translations(&self, state: &State, cpu: usize, page: usize) -> BTreeSet<Mapping> {
        state.tlbs[cpu].of(page).chain([state.memory.walk(page)]).collect()
    }

    /// What a load of `word` at `k` would read now; `None` if it has to wait.
    fn reads(&self, state: &State, look: &Look<'_>, k: usize, word: Word) -> Option<(Value, From)> {
        let waits = |(j, instr, status): (usize, Instr, &Status)| {
            let passes = instr.writes() && look.word(j).is_some() && self.rules.forwards
                || instr.reads()
                    && self.rules.loads_pass
                    && (instr.page().is_none() || matches!(status, Status::Through(_)));
            instr.accesses() && !status.over() && look.same_name(j, k) && !passes
        };
        if look.before(k).any(waits) {
            return None;
        }
        let pending = |(j, instr, status): (usize, Instr, &Status)| {
            let meets = instr.writes() && !status.over() && look.word(j) == Some(word);
            meets.then(|| instr.data().map(|data| (data, From::Store(j))))?
        };
        let own = look.before(k).rev().find_map(pending).filter(|_| self.rules.forwards);
        let (value, write) = state.memory.read(word);
        let (value, from) = own.unwrap_or((value, From::Memory(write)));
        let wrong = self.rules.coherent && look.overtaken(k, word, from);
        (!wrong).then_some((value, from))
    }

    /// What the instruction becomes if it is performed now; `None` if it may not be.
    fn performed(&self, state: &State, cpu: usize, k: usize) -> Option<Status> {
        let look = self.look(state, cpu);
        let (instr, status, arch) = (look.code[k], &look.status[k], self.program.arch);
        if status.over() || !look.may_begin(k, false, arch) {
            return None;
        }
        let stores_over = || look.before(k).all(|(_, i, status)| !i.writes() || status.over());
        match instr {
            _ if instr.page().is_some() && *status == Status::Waiting => None,
            _ if *status == Status::Faulting => {
                let turn =
                    look.before(k).all(|(j, _, status)| !look.same_name(j, k) || status.over());
                // What came after it is undone; stores and invalidations can't be.
                let undone = (k + 1..look.code.len())
                    .all(|j| !look.status[j].over() || look.code[j].reads());
                let may =
                    look.certain(k) && undone && (arch == Arch::Arm || look.fenced(k) && turn);
                may.then_some(Status::Faulted)
            }
            _ if instr.reads() => {
                let word = look.word(k)?;
                let (value, from) = self.reads(state, &look, k, word)?;
                look.fenced(k).then_some(Status::Read(value, word, from))
            }
            _ if instr.writes() => {
                let word = look.word(k)?;
                let turn = look.before(k).all(|(j, i, status)| {
                    !i.accesses() || status.over() || look.word(j) != Some(word)
                });
                (look.fenced(k) && look.certain(k) && turn).then_some(Status::Written(word))
            }
            Instr::Invalidate { page, broadcast } => {
                let sfence = arch == Arch::Riscv;
                let may = look.arrived(k) && (!sfence || stores_over() && look.fenced(k));
                may.then(|| Status::Invalidated(self.concerned(state, cpu, page, broadcast)))
            }
            Instr::Interrupt(_) => {
                let may = look.arrived(k) && (arch == Arch::Arm || look.fenced(k));
                may.then_some(Status::Over)
            }
            Instr::TakeInterrupt => {
                (look.arrived(k) && state.interrupts[cpu] > 0).then_some(Status::Over)
            }
            _ => None,
        }
    }

    /// The accesses of other CPUs that were translated through the page.
    fn concerned(
        &self,
        state: &State,
        cpu: usize,
        page: usize,
        broadcast: bool,
    ) -> BTreeSet<(usize, usize)> {
        let mut found = BTreeSet::new();
        if !broadcast || !self.rules.sync_waits_for_others {
            return found;
        }
        for other in (0..state.cpus.len()).filter(|c| *c != cpu) {
            let look = self.look(state, other);
            for (k, status) in look.status.iter().enumerate() {
                let fault = matches!(status, Status::Faulting | Status::Faulted);
                let holds = matches!(status, Status::Through(_))
                    || fault && !look.fault_over(k, self.program.arch, self.rules);
                if holds && self.program.cpus[other][k].page() == Some(page) {
                    found.insert((other, k));
                }
            }
        }
        found
    }

    /// An access is over, or undone: nobody waits for it.
    fn release(state: &mut State, access: (usize, usize)) {
        for status in state.cpus.iter_mut().flatten() {
            if let Status::Invalidated(rest) = status {
                rest.remove(&access);
            }
        }
    }

    fn ended(&self, state: &State) -> bool {
        (0..state.cpus.len()).all(|cpu| {
            let look = self.look(state, cpu);
            look.before(look.code.len()).all(|(_, instr, status)| {
                matches!(instr, Instr::Fence | Instr::Sync | Instr::Context) || status.over()
            })
        })
    }

    fn describe(&self, state: &State) -> String {
        let mut text = String::new();
        for (number, status) in state.cpus.iter().enumerate() {
            for (at, instr) in self.program.cpus[number].iter().enumerate() {
                if instr.reads() {
                    let value = match status[at] {
                        Status::Read(Value::Number(n), ..) => n,
                        _ => 0,
                    };
                    text += &format!("{number}:r{at}={value} ");
                }
            }
            if let Some(at) = status.iter().position(|s| *s == Status::Faulted) {
                text += &format!("fault({number}:{at}) ");
            }
        }
        text + &state.memory.describe(&self.program)
    }
}

impl Model for Window {
    type State = State;
    type Action = (usize, usize, Action);

    fn init_states(&self) -> Vec<State> {
        let memory = Memory::new(&self.program);
        let mut tlb = Tlb::default();
        for page in 0..self.program.pages.len() {
            tlb.fill(self.rules.caching, page, memory.walk(page));
        }
        let programs = &self.program.cpus;
        let cpus = programs.iter().map(|code| vec![Status::Waiting; code.len()]).collect();
        vec![State {
            tlbs: vec![tlb; programs.len()],
            interrupts: vec![0; programs.len()],
            cpus,
            memory,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Self::Action>) {
        for cpu in 0..state.cpus.len() {
            let look = self.look(state, cpu);
            for (k, instr, status) in look.before(look.code.len()) {
                if let (Some(page), Status::Waiting) = (instr.page(), status) {
                    if look.may_begin(k, true, self.program.arch) {
                        let found = self.translations(state, cpu, page).into_iter();
                        // A store that meets a later load which is done was guessed wrong.
                        let fits = |m: &Mapping| match m {
                            Some(f) if instr.writes() => {
                                !look.overtaken(k, Word::Frame(*f), From::Store(k))
                            }
                            _ => true,
                        };
                        let fitting = found.filter(fits);
                        actions.extend(fitting.map(|m| (cpu, k, Action::Translate(m))));
                    }
                } else if self.performed(state, cpu, k).is_some() {
                    actions.push((cpu, k, Action::Perform));
                }
            }
        }
    }

    fn next_state(&self, state: &State, (cpu, k, action): Self::Action) -> Option<State> {
        let mut next = state.clone();
        let instr = self.program.cpus[cpu][k];
        let becomes = match action {
            Action::Translate(None) => Status::Faulting,
            Action::Translate(Some(frame)) => Status::Through(frame),
            Action::Perform => self.performed(state, cpu, k)?,
        };
        if becomes.over() && becomes != Status::Faulted {
            Self::release(&mut next, (cpu, k));
        }
        match becomes {
            Status::Written(word) => {
                next.memory.write(word, instr.data()?);
                if let Word::Entry(page) = word {
                    let now = next.memory.walk(page);
                    next.tlbs.iter_mut().for_each(|tlb| tlb.fill(self.rules.caching, page, now));
                }
            }
            Status::Invalidated(_) => {
                let Instr::Invalidate { page, broadcast } = instr else { return None };
                for (_, tlb) in
                    next.tlbs.iter_mut().enumerate().filter(|(c, _)| broadcast || *c == cpu)
                {
                    tlb.drop_page(page);
                    tlb.fill(self.rules.caching, page, next.memory.walk(page));
                }
            }
            Status::Faulted => {
                for later in k + 1..next.cpus[cpu].len() {
                    Self::release(&mut next, (cpu, later));
                    next.cpus[cpu][later] = Status::Waiting;
                }
            }
            _ => match instr {
                Instr::Interrupt(to) => next.interrupts[to] += 1,
                Instr::TakeInterrupt => next.interrupts[cpu] -= 1,
                _ => {}
            },
        }
        next.cpus[cpu][k] = becomes;
        for other in 0..next.cpus.len() {
            let look = self.look(&next, other);
            let fault = |k: &usize| matches!(look.status[*k], Status::Faulting | Status::Faulted);
            let over = |k: &usize| fault(k) && look.fault_over(*k, self.program.arch, self.rules);
            let over: Vec<usize> = (0..look.code.len()).filter(over).collect();
            for k in over {
                Self::release(&mut next, (other, k));
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Stateright visits everything only while a property has not failed; this one also notes
        // the ends.
        vec![Property::always("one fault ends a program", |model: &Self, state: &State| {
            if model.ended(state) {
                model.ends.lock().expect("one thread").insert(model.describe(state));
            }
            let faults = |cpu: &[Status]| cpu.iter().filter(|s| **s == Status::Faulted).count();
            state.cpus.iter().all(|cpu| faults(cpu) <= 1)
        })]
    }
}

//! The instruction window of one CPU: what may be done next.
//!
//! # The model
//! Memory is one: a store is seen by everyone at the moment it is performed. A CPU may do the steps
//! of its instructions in any order that the rules below permit. An access to a page has two steps:
//! it is *translated* (it then holds a frame, or a fault), later it is *performed* (or the fault is
//! taken). Holding is what makes AArch64 and RISC-V delicate: the translation of an access may be
//! older than everything that the program did before it.
//!
//! # The rules
//! | step | waits for |
//! |---|---|
//! | any | context synchronization (ISB, taken faults and interrupts) before it |
//! | any but translating | DSBs before it; with ETS2 translating too |
//! | translating | its address register; fences for walks (SFENCE.VMA, SFENCE.INVAL.IR) before it |
//! | a fault that is not cached, with ETS2 | translated after every earlier access is performed |
//! | performing | barriers, acquires, releases; earlier accesses of the same page or word |
//! | performing a store, taking a fault | branches resolved, every earlier access translated without a fault |
//! | taking a fault, but for AArch64 | as performing |
//! | a hardware update (AArch64) | nothing if it sets the accessed flag alone, else as a store does; nobody has written the word since the walk |
//! | TLBI | branches resolved |
//! | DSB | the accesses before it; if full, also their hardware updates, and those accesses and faults of other CPUs that were translated before a TLBI that precedes the DSB and covers them |
//!
//! Loads of one word may pass each other on AArch64 if both are given the same write: see
//! [`View::overtaken`].
//!
//! On AArch64 three things are events of their own (Arm ARM B2.3):
//!
//! - a *hardware update* of an entry may be seen after the access that asks for it, by any distance:
//!   only a full DSB waits for it ([`Due`](super::machine::Due));
//! - a *fault* is ordered behind barriers as an access would be, and its handler is not ordered
//!   behind the fault but behind the walk ([`View::fault_over`]);
//! - the *store of a read-modify-write* may be seen after its load, by later loads of its own CPU
//!   first ([`Step::Half`]).
//!
//! A load takes the value of an earlier store of its own CPU to the same word, or memory's. A guess
//! that turns out wrong (a branch, or two accesses that meet at one word only after translation)
//! ends the run without a result: what such a run would have done, another run does without the
//! guess.

use super::machine::{CpuState, Execution, FORWARDED, Machine, State, Step};
use super::program::{
    Arithmetic, Barrier, Class, Invalidator, Modify, OnFault, Op, Operand, Place, Reg,
};
use super::step::compute;
use super::test::{Arch, Faults, Program};
use super::value::Value;

/// The instructions that a CPU has fetched, in program order.
#[derive(Clone, Copy)]
pub(super) struct Path {
    indices: [u8; super::parse::program::MAX_CODE],
    len: u8,
    /// Nothing more will be fetched.
    pub complete: bool,
}

impl Path {
    fn of(program: &Program, steps: &[Step], faults: Faults) -> Self {
        let mut path = Self { indices: [0; _], len: 0, complete: false };
        let mut at = 0;
        while at < program.code.len() {
            path.indices[usize::from(path.len)] = at as u8;
            path.len += 1;
            let (step, instruction) = (&steps[at], &program.code[at]);
            at = instruction.next.unwrap_or(at + 1);
            match (&instruction.op, step) {
                (Op::Branch { target, .. }, Step::Guessed { taken: true }) => at = *target,
                (Op::Branch { target, .. }, Step::Done { value, .. }) if value.bits() != 0 => {
                    at = *target;
                }
                (Op::Branch { .. }, Step::Waiting) => return path,
                (_, Step::Faulted { .. }) => match instruction.on_fault {
                    OnFault::GoTo(target) => at = target,
                    _ if faults == Faults::Stop => break,
                    _ => {}
                },
                _ => {}
            }
        }
        path.complete = true;
        path
    }

    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub fn at(&self, k: usize) -> usize {
        usize::from(self.indices[k])
    }
}

/// One CPU of a state, with what it has fetched. Positions `k` are positions in the path.
pub(super) struct View<'a> {
    pub machine: &'a Machine<'a>,
    pub state: &'a State,
    pub cpu: usize,
    pub path: Path,
}

impl<'a> View<'a> {
    pub fn new(machine: &'a Machine<'a>, state: &'a State, cpu: usize) -> Self {
        let program = &machine.test.cpus[cpu];
        let path = Path::of(program, &state.cpus[cpu].steps, machine.test.faults);
        Self { machine, state, cpu, path }
    }

    pub fn op(&self, k: usize) -> &'a Op {
        self.machine.op(self.cpu, self.path.at(k))
    }

    pub fn step(&self, k: usize) -> &'a Step {
        &self.state.cpus[self.cpu].steps[self.path.at(k)]
    }

    fn initial(&self, reg: Reg) -> Value {
        let registers = &self.machine.test.cpus[self.cpu].registers;
        registers.iter().find(|(r, _)| *r == reg).map_or_else(Value::default, |(_, value)| *value)
    }

    /// What the register holds before position `k`, if that is known.
    pub fn reg(&self, k: usize, reg: Reg) -> Option<Value> {
        for j in (0..k).rev() {
            if self.op(j).target() == Some(reg) {
                match self.step(j) {
                    Step::Done { value, .. } | Step::Half { value, .. } => return Some(*value),
                    Step::Faulted { .. } => {}
                    Step::Guessed { taken } => {
                        let Op::Select { left, right, .. } = *self.op(j) else { return None };
                        return self.operand(j, if *taken { left } else { right });
                    }
                    _ => return None,
                }
            }
        }
        Some(self.initial(reg))
    }

    /// What the register holds in the end.
    pub fn last_value(&self, reg: Reg) -> Value {
        self.reg(self.path.len(), reg).unwrap_or_default()
    }

    pub fn operand(&self, k: usize, operand: Operand) -> Option<Value> {
        match operand {
            Operand::Reg(reg) => self.reg(k, reg),
            Operand::Value(value) => Some(value),
        }
    }

    /// What a store writes.
    pub fn data(&self, k: usize) -> Option<Value> {
        match *self.op(k) {
            Op::Store { value, .. } | Op::StoreExclusive { value, .. } => self.operand(k, value),
            _ => None,
        }
    }

    /// What a read-modify-write makes of a word, `None` inside if it leaves the word alone; `None`
    /// if its operands are not known.
    pub fn modified(&self, k: usize, current: Value) -> Option<Option<Value>> {
        let Op::Swap { with, value, .. } = *self.op(k) else { return None };
        let operand = self.operand(k, value)?;
        let arch = self.machine.test.arch;
        Some(match with {
            Modify::Exchange => Some(operand),
            Modify::Add => Some(compute(arch, current, Arithmetic::Add, operand)),
            Modify::Set => Some(compute(arch, current, Arithmetic::Or, operand)),
            Modify::Clear => Some(compute(arch, current, Arithmetic::Clear, operand)),
            Modify::Compare(expected) => (self.operand(k, expected)? == current).then_some(operand),
        })
    }

    /// Is the register that its address is computed from known?
    pub fn address_known(&self, k: usize) -> bool {
        self.op(k).address().is_none_or(|reg| self.reg(k, reg).is_some())
    }

    /// The word it accesses, if that is known.
    pub fn word(&self, k: usize) -> Option<u8> {
        match self.step(k) {
            Step::Held { word, .. } | Step::Half { word, .. } | Step::Done { word, .. } => {
                Some(*word)
            }
            _ => self.op(k).place().and_then(|place| self.machine.word(place)),
        }
    }

    fn performed(&self, k: usize) -> bool {
        self.step(k).finished()
    }

    /// Translated without a fault, or in no need of translation.
    fn certain(&self, k: usize) -> bool {
        match (self.op(k).place(), self.step(k)) {
            (None, _)
            | (
                _,
                Step::Held { .. } | Step::Half { .. } | Step::Done { .. } | Step::Faulted { .. },
            ) => true,
            (Some(Place::Page(_)), _) => false,
            (Some(_), _) => self.address_known(k),
        }
    }

    /// Every earlier branch, wait and interrupt is behind us.
    fn resolved(&self, k: usize) -> bool {
        let steers = |op: &Op| op.steers() || matches!(op, Op::Select { .. });
        (0..k).all(|j| !steers(self.op(j)) || self.step(j).finished())
    }

    /// May a fault be taken at `k`, or a context be synchronized? Every earlier branch is behind us
    /// and every earlier access translated. A register that was picked (CSEL) by a guess matters
    /// only where it is an address or decides a branch (Arm ARM B2.3, pick dependencies).
    pub fn may_fault(&self, k: usize) -> bool {
        (0..k).all(|j| {
            let open = match self.op(j) {
                Op::Select { .. } => !self.step(j).finished() && self.leads(j, k),
                op => op.steers() && !self.step(j).finished(),
            };
            !open && self.certain(j)
        })
    }

    /// Does what `j` gives its register decide where an access up to `k` goes, or a branch?
    fn leads(&self, j: usize, k: usize) -> bool {
        let mut from = vec![self.op(j).target()];
        for later in j + 1..=k.min(self.path.len().saturating_sub(1)) {
            let op = self.op(later);
            let comes = |reg: Reg| from.contains(&Some(reg));
            let used = op.operands().iter().flatten().any(|operand| match operand {
                Operand::Reg(reg) => comes(*reg),
                Operand::Value(_) => false,
            });
            if op.address().is_some_and(comes) || used && matches!(op, Op::Branch { .. }) {
                return true;
            }
            let passes = used && matches!(op, Op::Set { .. } | Op::Select { .. });
            if let Some(target) = op.target() {
                from.retain(|reg| *reg != Some(target));
                if passes {
                    from.push(Some(target));
                }
            }
        }
        false
    }

    /// Nothing before it can make it undone.
    pub fn unspeculative(&self, k: usize) -> bool {
        self.resolved(k) && (0..k).all(|j| self.certain(j))
    }

    fn accesses_done(&self, before: usize, class: Class) -> bool {
        let half = |j: usize| !class.writes && matches!(self.step(j), Step::Half { .. });
        (0..before).all(|j| {
            let meets = self.op(j).class().is_some_and(|c| c.meets(class));
            !meets || self.performed(j) || half(j)
        })
    }

    fn sync_done(&self, m: usize, before: Class) -> bool {
        let invalidations = |j: usize| {
            let complete = matches!(self.step(j), Step::Issued { outstanding: 0 });
            !matches!(self.op(j), Op::Invalidate { .. }) || complete
        };
        let seen = |j: usize| {
            let at = self.path.at(j);
            !self.state.cpus[self.cpu].updates.iter().any(|due| usize::from(due.at) == at)
        };
        self.accesses_done(m, before)
            && (before != Class::BOTH || (0..m).all(|j| invalidations(j) && seen(j)))
    }

    fn context_done(&self, m: usize) -> bool {
        self.may_fault(m)
            && (0..m).all(|j| match self.op(j) {
                Op::Barrier(Barrier::Sync { before }) => self.sync_done(j, *before),
                Op::Root { .. } => self.performed(j),
                _ => true,
            })
    }

    /// May anything be done at `k` yet, as far as order of execution goes?
    fn in_turn(&self, k: usize) -> bool {
        let behind = |j: usize| match (self.op(j), self.step(j)) {
            (Op::Barrier(Barrier::Memory { before, .. }), _) => self.accesses_done(j, *before),
            (Op::Barrier(_), _) => true,
            (Op::Store { .. } | Op::Command(_), Step::Held { .. }) => {
                self.machine.execution == Execution::Tso
            }
            (_, step) => step.finished(),
        };
        self.machine.execution == Execution::Window || (0..k).all(behind)
    }

    /// May `k` start? `walk`: only by being translated.
    pub fn may_start(&self, k: usize, walk: bool) -> bool {
        let ets2 = self.machine.features.ets2;
        let blocked = |m: usize| match *self.op(m) {
            Op::Barrier(Barrier::Context) => !self.context_done(m),
            Op::Barrier(Barrier::Sync { before }) if !walk || ets2 => !self.sync_done(m, before),
            Op::TakeInterrupt => !self.performed(m),
            Op::Invalidate { by: Invalidator::SfenceVma, .. } if walk => !self.performed(m),
            Op::Barrier(Barrier::AfterInvalidations) if walk => !self.invalidations_done(m),
            Op::Root { .. } if self.machine.test.arch != Arch::Aarch64 => !self.performed(m),
            _ => false,
        };
        self.in_turn(k) && self.address_known(k) && !(0..k).any(blocked)
    }

    fn invalidations_done(&self, m: usize) -> bool {
        (0..m).all(|j| !matches!(self.op(j), Op::Invalidate { .. }) || self.performed(j))
    }

    /// Do barriers and the order of accesses let an access of `class` at `k` happen now?
    pub fn ordered(&self, k: usize, class: Class) -> bool {
        let order = self.op(k).order();
        if order.release && class.writes && !self.accesses_done(k, Class::BOTH) {
            return false;
        }
        (0..k).all(|m| match *self.op(m) {
            Op::Barrier(Barrier::Memory { before, after }) => {
                !after.meets(class) || self.accesses_done(m, before)
            }
            ref op => {
                let earlier = op.order();
                let acquires = order.acquire && !order.pc && class.reads;
                let waits = earlier.acquire || earlier.release && acquires;
                let half = !earlier.release && matches!(self.step(m), Step::Half { .. });
                !waits || self.performed(m) || half
            }
        })
    }

    /// May the load of a read-modify-write at `k` be performed, as far as barriers go?
    pub fn may_load_half(&self, k: usize) -> bool {
        self.ordered(k, Class::READS) && self.may_start(k, false)
    }

    /// Is the fault at `k` over, for those who wait for it? On AArch64 a fault is ordered behind
    /// barriers and acquires as an access of either kind would be, but not as a release, and neither
    /// behind branches nor behind earlier translations (Arm ARM B2.3, barrier-ordered-before and
    /// dependency-ordered-before). So it may be over before it is known that it is taken, and taken
    /// before it is over; its handler waits for nothing but the walk that has faulted.
    pub fn fault_over(&self, k: usize) -> bool {
        if !self.machine.weak() {
            return self.performed(k);
        }
        self.may_start(k, false)
            && (0..k).all(|m| match *self.op(m) {
                Op::Barrier(Barrier::Memory { before, .. }) => self.accesses_done(m, before),
                ref op => !op.order().acquire || self.performed(m),
            })
    }

    /// Earlier accesses of the same page or word that have to go first.
    pub fn first_at_word(&self, k: usize, word: u8, store: bool) -> bool {
        let place = self.op(k).place();
        (0..k).all(|j| {
            let Some(class) = self.op(j).class() else { return true };
            if self.performed(j) {
                return true;
            }
            let same_place = self.op(j).place() == place;
            let same_word = self.word(j) == Some(word);
            if store {
                return !same_word;
            }
            // A load may overtake a store to its word by taking the store's value.
            let half = matches!(self.step(j), Step::Half { .. });
            let store = matches!(self.op(j), Op::Store { .. }) || half;
            let forwards = store && self.word(j).is_some();
            let load = |k: usize| matches!(self.op(k), Op::Load { .. });
            // Of one page, translations are not seen to go back: TLBI-ordered-before of B2.3 orders
            // the earlier one, too, before the TLBI that the later one was made before.
            let translated = !matches!(self.op(j).place(), Some(Place::Page(_)))
                || matches!(self.step(j), Step::Held { .. });
            let passes = self.machine.weak() && load(j) && load(k) && translated;
            !same_place || passes || forwards && (half || !class.reads)
        })
    }

    /// The value that an earlier store of this CPU gives to a load of `word`: the store's index and
    /// its data, `None` inside if the data is not known.
    pub fn forwarded(&self, k: usize, word: u8) -> Option<(usize, Option<Value>)> {
        (0..k).rev().find_map(|j| {
            let pending = matches!(
                self.op(j),
                Op::Store { .. } | Op::Swap { .. } | Op::StoreExclusive { .. }
            ) && !self.performed(j)
                && self.word(j) == Some(word);
            let data = || match (self.op(j), self.step(j)) {
                (Op::Store { .. }, _) => self.data(j),
                // A load that acquires waits for the store of a read-modify-write.
                (_, Step::Half { value, .. }) if !self.op(k).order().acquire => {
                    self.modified(j, *value).flatten()
                }
                _ => None,
            };
            pending.then(|| (self.path.at(j), data()))
        })
    }

    /// A later load of the same word was satisfied by another write than `source`: the guess that
    /// the two do not meet was wrong.
    pub fn overtaken(&self, k: usize, word: u8, source: u8) -> bool {
        (k + 1..self.path.len()).any(|j| {
            let (w, s) = match *self.step(j) {
                Step::Done { word, source, .. } => (word, source),
                Step::Half { word, version, .. } => (word, version),
                _ => return false,
            };
            let reads = self.op(j).class().is_some_and(|c| c.reads)
                || matches!(self.op(j), Op::Swap { .. });
            let store = usize::from(s & !FORWARDED);
            let between =
                s & FORWARDED != 0 && (k + 1..j).any(|between| self.path.at(between) == store);
            reads && w == word && s != source && !between
        })
    }

    /// Is every access before `k` performed (what ETS2 asks of a walk that faults)?
    pub fn after_accesses(&self, k: usize) -> bool {
        self.accesses_done(k, Class::BOTH)
    }

    /// May the barrier-like step at `k` (invalidation, root, interrupt) happen now?
    pub fn may_act(&self, k: usize) -> bool {
        let stores_done = || self.accesses_done(k, Class::WRITES);
        let fenced = |class: Class| {
            (0..k).all(|m| match *self.op(m) {
                Op::Barrier(Barrier::Memory { before, after }) if after.meets(class) => {
                    self.accesses_done(m, before)
                }
                _ => true,
            })
        };
        if !self.may_start(k, false) || !self.resolved(k) {
            return false;
        }
        match *self.op(k) {
            Op::Invalidate { by, .. } => match by {
                Invalidator::Serializing => self.accesses_done(k, Class::BOTH),
                Invalidator::Tlbi => true,
                Invalidator::SfenceVma => stores_done() && fenced(Class::BOTH),
                Invalidator::SinvalVma => (0..k).all(|m| match self.op(m) {
                    Op::Barrier(Barrier::BeforeInvalidations) => {
                        self.accesses_done(m, Class::WRITES)
                    }
                    _ => true,
                }),
            },
            Op::Root { .. } => {
                let serializing = self.machine.test.arch == Arch::X86_64;
                (0..k).all(|j| self.certain(j))
                    && (!serializing || self.accesses_done(k, Class::BOTH))
            }
            Op::Interrupt { .. } => {
                self.machine.test.arch == Arch::Aarch64 || fenced(Class::WRITES)
            }
            _ => true,
        }
    }
}

/// Tells the values of stores to `word` that wait in the CPU's own store buffer. Tables are stored
/// to with immediate values on machines with store buffers.
pub(super) fn buffered(
    machine: &Machine<'_>,
    cpu: &CpuState,
    number: usize,
    word: u8,
    tell: &mut dyn FnMut(Value),
) {
    for (at, step) in cpu.steps.iter().enumerate() {
        if let (Step::Held { word: w, .. }, Op::Store { value: Operand::Value(value), .. }) =
            (step, machine.op(number, at))
            && *w == word
        {
            tell(*value);
        }
    }
}

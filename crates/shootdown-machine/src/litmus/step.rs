//! What may happen next: every transition from a state.

mod atomic;
mod invalidate;
mod settle;
mod updates;

use crate::hostile::{Access, Descriptor, FaultKind, HostileError, Kind, Outcome, TableId, Update};
use shootdown::{Reach, Tag};

use super::device;
use super::machine::{Execution, FORWARDED, Machine, NO_WORD, State, Step, Walker};
use super::program::{Class, OnFault, Op, Place};
use super::test::{Arch, Faults};
use super::value::Value;
use super::window::View;
pub(super) use invalidate::release;
pub(super) use settle::{compute, settle};

/// The address of a failing exclusive store's status.
const FAILED: Value = Value::number(1);

/// Collects the states that may follow one.
pub(super) struct Stepper<'a> {
    pub(super) machine: &'a Machine<'a>,
    outcomes: Vec<Outcome>,
    updates: Vec<Update>,
}

impl<'a> Stepper<'a> {
    pub fn new(machine: &'a Machine<'a>) -> Self {
        Self { machine, outcomes: vec![], updates: vec![] }
    }

    /// Calls `tell` with every state that may follow.
    pub fn successors(
        &mut self,
        state: &State,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        for cpu in 0..state.cpus.len() {
            let view = View::new(self.machine, state, cpu);
            for k in 0..view.path.len() {
                self.instruction(&view, k, tell)?;
            }
            self.due_updates(&view, tell)?;
            self.speculative_updates(state, cpu, tell)?;
        }
        self.devices(state, tell)
    }

    /// Is every program at its end?
    pub fn ended(&self, state: &State) -> bool {
        device::ended(state)
            && (0..state.cpus.len()).all(|cpu| {
                let view = View::new(self.machine, state, cpu);
                view.path.complete
                    && state.cpus[cpu].updates.is_empty()
                    && (0..view.path.len())
                        .all(|k| matches!(view.op(k), Op::Barrier(_)) || view.step(k).finished())
            })
    }

    fn instruction(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let op = view.op(k);
        match (op, view.step(k)) {
            (Op::Barrier(_), _) => Ok(()),
            (Op::Branch { .. } | Op::Select { .. }, Step::Waiting) => {
                if self.machine.execution == Execution::Window {
                    for taken in [false, true] {
                        self.emit(view.with(k, Step::Guessed { taken }), tell);
                    }
                }
                Ok(())
            }
            (_, Step::Waiting) if matches!(op.place(), Some(Place::Page(_))) => {
                self.translate(view, k, tell)
            }
            (Op::Command(command), Step::Waiting | Step::Held { .. }) => {
                self.command(view, k, *command, tell);
                Ok(())
            }
            (Op::WriteBack { place }, Step::Waiting) => {
                self.write_back(view, k, *place, tell);
                Ok(())
            }
            (_, Step::Waiting | Step::Held { .. }) if op.class().is_some() => {
                self.perform(view, k, tell)
            }
            (_, Step::Half { .. }) => self.complete(view, k, tell),
            (_, Step::HeldFault { .. }) => self.take_fault(view, k, tell),
            (_, Step::Waiting) => self.act(view, k, tell),
            _ => Ok(()),
        }
    }

    /// Adds a state, after whatever follows by itself.
    pub(super) fn emit(&self, mut state: State, tell: &mut dyn FnMut(State)) {
        if settle(self.machine, &mut state) {
            tell(state);
        }
    }

    fn walker<'s>(&'s self, state: &'s State) -> Walker<'s> {
        Walker { machine: self.machine, words: &state.words, cpus: &state.cpus }
    }

    fn translate(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        if !view.may_start(k, true) {
            return Ok(());
        }
        let Some(Place::Page(page)) = view.op(k).place() else { return Ok(()) };
        let number = self.machine.page_number(page);
        let writes = view.op(k).class().is_some_and(|class| class.writes);
        let kind = if writes { Kind::Write } else { Kind::Read };
        let access = Access { kind, user: self.machine.test.cpus[view.cpu].user };
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let walker = self.walker(view.state);
        view.state.hw.outcomes(&walker, view.cpu, number, access, &mut outcomes);
        let tag = view.state.hw.tag(view.cpu).0;
        for outcome in &outcomes {
            self.outcome(view, k, outcome, tag, tell)?;
        }
        self.outcomes = outcomes;
        Ok(())
    }

    fn outcome(
        &mut self,
        view: &View<'_>,
        k: usize,
        outcome: &Outcome,
        tag: u16,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        match *outcome {
            Outcome::Hit { ref translation, update, .. } => {
                let page = self.page_number(view, k);
                let frame = translation.frame_of(page).0 as usize;
                let Some(word) = self.machine.frame_word(frame) else { return Ok(()) };
                let global = translation.owner == crate::hostile::Owner::Everyone;
                if !view.may_hold(k, word) {
                    return Ok(());
                }
                let mut next = view.with(k, Step::Held { word, tag, global });
                if let Some(update) = update
                    && self.machine.updates_late()
                {
                    if !self.due(&mut next, view, k, &update) {
                        return Ok(());
                    }
                } else if let Some(update) = update {
                    let early = update.set & !Descriptor::ACCESSED == 0;
                    if !early && !view.unspeculative(k) {
                        return Ok(());
                    }
                    if !self.update(&mut next, &update)? {
                        return Ok(());
                    }
                }
                self.emit(next, tell);
            }
            Outcome::Blocked { update } => {
                let mut next = view.state.clone();
                if self.update(&mut next, &update)? {
                    self.emit(next, tell);
                }
            }
            Outcome::Fault { kind, .. } => {
                let uncacheable = matches!(kind, FaultKind::NotPresent | FaultKind::Accessed);
                let ets2 = self.machine.features.ets2 && uncacheable;
                if !ets2 || view.after_accesses(k) {
                    self.emit(view.with(k, Step::HeldFault { kind, tag }), tell);
                }
            }
        }
        Ok(())
    }

    fn page_number(&self, view: &View<'_>, k: usize) -> u32 {
        match view.op(k).place() {
            Some(Place::Page(page)) => self.machine.page_number(page),
            _ => u32::MAX,
        }
    }

    /// A word changes for everyone.
    pub(super) fn write(
        &self,
        state: &mut State,
        word: u8,
        value: Value,
    ) -> Result<(), HostileError> {
        let cell = &mut state.words.0[usize::from(word)];
        let (before, version) = *cell;
        *cell = (value, version + 1);
        if let Some(entry) = self.machine.entry(word) {
            state.io.outdated(self.machine, word, before);
            state.io.refresh(self.machine, &state.words);
            let walker = Walker { machine: self.machine, words: &state.words, cpus: &state.cpus };
            state.hw.changed(&walker, entry)?;
        }
        Ok(())
    }

    fn perform(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let class = view.op(k).class().unwrap_or(Class::BOTH);
        let Some(word) = view.word(k) else { return Ok(()) };
        if self.machine.atomics_split() && matches!(view.op(k), Op::Swap { .. }) {
            return self.read_half(view, k, word, tell);
        }
        let buffers = self.machine.execution == Execution::Tso;
        if buffers && matches!(view.op(k), Op::Store { .. }) && *view.step(k) == Step::Waiting {
            return self.issue(view, k, word, tell);
        }
        if !view.may_perform(k, class) {
            return Ok(());
        }
        let (current, version) = view.state.words.0[usize::from(word)];
        match *view.op(k) {
            Op::Store { .. } => {
                if let Some(data) = view.data(k)
                    && view.may_store(k, word)
                {
                    let next =
                        view.with(k, Step::Done { value: Value::default(), word, source: 0 });
                    self.store(view, k, next, word, data, tell)?;
                }
            }
            Op::StoreExclusive { .. } => {
                let Some(data) = view.data(k) else { return Ok(()) };
                if !view.may_store(k, word) {
                    return Ok(());
                }
                let failed = Step::Done { value: FAILED, word: NO_WORD, source: 0 };
                self.emit(view.performed_with(k, failed), tell);
                if view.monitors(k, word, version) {
                    let next =
                        view.with(k, Step::Done { value: Value::default(), word, source: 0 });
                    self.store(view, k, next, word, data, tell)?;
                }
            }
            Op::Swap { .. } => {
                if let Some(new) = view.modified(k, current)
                    && view.may_store(k, word)
                    && view.first_at_word(k, word, false)
                    && (!buffers || view.after_accesses(k))
                {
                    let done = Step::Done { value: current, word, source: version };
                    match new {
                        Some(data) => {
                            self.store(view, k, view.with(k, done), word, data, tell)?;
                        }
                        None => self.emit(view.performed_with(k, done), tell),
                    }
                }
            }
            Op::Load { .. } | Op::Wait { .. } => {
                if !view.first_at_word(k, word, false) {
                    return Ok(());
                }
                let (value, source) = match view.forwarded(k, word) {
                    Some((_, None)) => return Ok(()),
                    Some((at, Some(value))) => (value, FORWARDED | at as u8),
                    None => (current, version),
                };
                let wanted = match *view.op(k) {
                    Op::Wait { value: wanted, .. } => wanted == value,
                    _ => true,
                };
                if wanted && !view.overtaken(k, word, source) {
                    self.emit(view.performed_with(k, Step::Done { value, word, source }), tell);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A store enters the store buffer. Its own walker may look there.
    fn issue(
        &self,
        view: &View<'_>,
        k: usize,
        word: u8,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        if !view.may_start(k, false) || view.data(k).is_none() {
            return Ok(());
        }
        let mut next = view.with(k, Step::Held { word, tag: 0, global: false });
        if let Some(entry) = self.machine.entry(word) {
            let walker = Walker { machine: self.machine, words: &next.words, cpus: &next.cpus };
            next.hw.changed_for(&walker, view.cpu, entry)?;
        }
        self.emit(next, tell);
        Ok(())
    }

    fn store(
        &self,
        view: &View<'_>,
        k: usize,
        mut next: State,
        word: u8,
        data: Value,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        release(&mut next, view.cpu, view.path.at(k));
        self.write(&mut next, word, data)?;
        self.emit(next, tell);
        Ok(())
    }

    fn take_fault(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let class = view.op(k).class().unwrap_or(Class::BOTH);
        let weak = self.machine.weak();
        if !view.may_fault(k) || !view.may_start(k, false) || !weak && !view.ordered(k, class) {
            return Ok(());
        }
        let Step::HeldFault { kind, tag } = *view.step(k) else { return Ok(()) };
        let at = view.path.at(k);
        if self.machine.test.cpus[view.cpu].code[at].on_fault == OnFault::Discard {
            return Ok(());
        }
        // In order, a fault waits for no store buffer; but the return from its handler does (IRET
        // serializes, SDM vol. 3A 8.3).
        let in_turn = match (self.machine.execution, self.machine.test.faults) {
            (Execution::Window, _) => weak || view.first_at_place(k),
            (_, Faults::Stop) => true,
            (_, Faults::Skip) => view.after_accesses(k),
        };
        if !in_turn {
            return Ok(());
        }
        // Whoever waits for the fault is released when it is ordered: see `settle`.
        let mut next = view.with(k, Step::Faulted { kind, tag });
        for later in k + 1..view.path.len() {
            let at = view.path.at(later);
            let undoable = !view.step(later).finished()
                || matches!(
                    view.op(later),
                    Op::Load { .. } | Op::Set { .. } | Op::Select { .. } | Op::Branch { .. }
                );
            if !undoable {
                return Ok(());
            }
            release(&mut next, view.cpu, at);
            next.cpus[view.cpu].steps[at] = Step::Waiting;
            next.cpus[view.cpu].updates.retain(|due| usize::from(due.at) != at);
        }
        let page = self.page_number(view, k);
        let walker = Walker { machine: self.machine, words: &next.words, cpus: &next.cpus };
        next.hw.faulted(&walker, view.cpu, page)?;
        self.emit(next, tell);
        Ok(())
    }

    fn act(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        if matches!(view.op(k), Op::Set { .. } | Op::Select { .. } | Op::Branch { .. })
            || !view.may_act(k)
        {
            return Ok(());
        }
        let mut next = view.with(k, Step::DONE);
        match *view.op(k) {
            Op::Invalidate { scope, broadcast, .. } => {
                let what = self.removal(view, scope);
                let reach = if broadcast { Reach::Broadcast } else { Reach::Local };
                let outstanding = if broadcast { self.outstanding(view, scope) } else { 0 };
                next.cpus[view.cpu].steps[view.path.at(k)] = Step::Issued { outstanding };
                let walker = self.walker(view.state);
                next.hw.invalidate(&walker, view.cpu, what, reach)?;
            }
            Op::Root { table, tag, keep } => {
                let keep = keep || self.machine.test.arch != Arch::X86_64;
                let walker = self.walker(view.state);
                let root = Some(TableId(u16::from(table)));
                next.hw.load(&walker, view.cpu, root, Tag(tag), keep)?;
            }
            Op::Interrupt { cpu } => next.cpus[usize::from(cpu)].interrupts += 1,
            Op::TakeInterrupt => {
                let waiting = &mut next.cpus[view.cpu].interrupts;
                if *waiting == 0 {
                    return Ok(());
                }
                *waiting -= 1;
            }
            _ => return Ok(()),
        }
        self.emit(next, tell);
        Ok(())
    }
}

impl View<'_> {
    /// The state with one step changed.
    pub fn with(&self, k: usize, step: Step) -> State {
        let mut next = self.state.clone();
        next.cpus[self.cpu].steps[self.path.at(k)] = step;
        next
    }

    /// The same, with the access over.
    pub fn performed_with(&self, k: usize, step: Step) -> State {
        let mut next = self.with(k, step);
        release(&mut next, self.cpu, self.path.at(k));
        next
    }

    /// May an access of this class be performed as far as barriers and the kind of machine go?
    pub(super) fn may_perform(&self, k: usize, class: Class) -> bool {
        self.ordered(k, class)
            && match self.machine.execution {
                Execution::Window => self.may_start(k, false),
                // The buffer is first in, first out; loads do not wait for it.
                Execution::Tso if class.writes => self.after_accesses(k),
                Execution::Tso | Execution::Sequential => self.may_start(k, false),
            }
    }

    fn may_store(&self, k: usize, word: u8) -> bool {
        self.unspeculative(k) && self.first_at_word(k, word, true)
    }

    /// A store may not be found to meet a later load that is done: the guess was wrong.
    fn may_hold(&self, k: usize, word: u8) -> bool {
        let writes = self.op(k).class().is_some_and(|class| class.writes);
        let at = self.path.at(k);
        !writes || !self.overtaken(k, word, FORWARDED | at as u8)
    }

    /// Every earlier access of the same page is over.
    fn first_at_place(&self, k: usize) -> bool {
        let place = self.op(k).place();
        (0..k).all(|j| self.op(j).place() != place || self.step(j).finished())
    }

    /// Has the word not been written since the last exclusive load read it?
    fn monitors(&self, k: usize, word: u8, version: u8) -> bool {
        (0..k).rev().find(|j| matches!(self.op(*j), Op::Load { exclusive: true, .. })).is_some_and(
            |j| matches!(*self.step(j), Step::Done { word: w, source, .. } if w == word && source == version),
        )
    }
}

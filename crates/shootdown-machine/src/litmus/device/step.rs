//! What devices and their IOMMU may do next.

use super::{Access, Command, Io};
use crate::hostile::HostileError;
use crate::litmus::machine::{Execution, NO_WORD, State, Step};
use crate::litmus::program::{Class, Op, Operand, Place};
use crate::litmus::step::Stepper;
use crate::litmus::value::Value;
use crate::litmus::window::View;

impl Stepper<'_> {
    /// Every step of a device, and every command that takes effect.
    pub fn devices(&self, state: &State, tell: &mut dyn FnMut(State)) -> Result<(), HostileError> {
        for at in state.io.ready(self.machine.test.arch) {
            let mut next = state.clone();
            if let Some(Command::Wait { var, value, .. }) = Io::execute(self.machine, &mut next, at)
                && let Some(word) = self.machine.word(Place::Var(var))
            {
                self.write(&mut next, word, value)?;
            }
            self.emit(next, tell);
        }
        for device in 0..state.io.devices.len() {
            for at in 0..state.io.devices[device].accesses.len() {
                self.access(state, device, at, tell)?;
            }
        }
        Ok(())
    }

    fn access(
        &self,
        state: &State,
        device: usize,
        at: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let code = &self.machine.test.devices[device].code;
        let accesses = &state.io.devices[device].accesses;
        let op = |at: usize| &code[at].op;
        let is_store = |at: usize| matches!(op(at), Op::Store { .. });
        let begun = (0..at).all(|before| match op(before) {
            Op::Wait { .. } => accesses[before].finished(),
            _ => accesses[before] != Access::Waiting,
        });
        // Writes are posted: they wait for writes, and everything else waits for them.
        let in_turn = (0..at).all(|b| accesses[b].finished() || is_store(at) && !is_store(b));
        let variable = |place| self.machine.word(place).filter(|_| begun);
        match (op(at), accesses[at]) {
            (Op::Load { place: Place::Page(page), .. }, Access::Waiting) if begun => {
                self.look_up(state, device, at, *page, false, tell);
            }
            (Op::Store { place: Place::Page(page), .. }, Access::Waiting) if begun => {
                self.look_up(state, device, at, *page, true, tell);
            }
            (Op::Load { .. }, Access::Held { word, .. }) if in_turn => {
                let value = state.words.0[usize::from(word)].0;
                self.emit(finish(state, device, at, Access::Done(value)), tell);
            }
            (Op::Store { value: Operand::Value(value), .. }, Access::Held { word, .. })
                if in_turn =>
            {
                self.stored(state, device, at, word, *value, tell)?;
            }
            (Op::Store { place, value: Operand::Value(value), .. }, Access::Waiting) if in_turn => {
                if let Some(word) = variable(*place) {
                    self.stored(state, device, at, word, *value, tell)?;
                }
            }
            (Op::Wait { place, value }, Access::Waiting) => {
                let is_there = |word: &u8| state.words.0[usize::from(*word)].0 == *value;
                if variable(*place).filter(is_there).is_some() {
                    self.emit(finish(state, device, at, Access::Done(*value)), tell);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn look_up(
        &self,
        state: &State,
        device: usize,
        at: usize,
        page: u8,
        writes: bool,
        tell: &mut dyn FnMut(State),
    ) {
        let root = self.machine.test.devices[device].root;
        let page = self.machine.page_number(page);
        let mut faults = state.io.remembers_nothing(root, page)
            || state.io.may_find_nothing(self.machine, &state.words, root, page);
        for (leaf, own) in state.io.translations(device, root, page) {
            if writes && !leaf.writes {
                faults = true;
                continue;
            }
            let frame = leaf.frame as usize + (page - leaf.first) as usize;
            if let Some(word) = self.machine.frame_word(frame) {
                let mut next = state.clone();
                next.io.devices[device].accesses[at] = Access::Held { word, own };
                self.emit(next, tell);
            }
        }
        if faults {
            self.emit(finish(state, device, at, Access::Faulted), tell);
        }
    }

    fn stored(
        &self,
        state: &State,
        device: usize,
        at: usize,
        word: u8,
        value: Value,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let mut next = finish(state, device, at, Access::Done(value));
        self.write(&mut next, word, value)?;
        self.emit(next, tell);
        Ok(())
    }

    /// A CPU writes a command and the queue's tail. With a store buffer the tail goes through it.
    pub fn command(
        &self,
        view: &View<'_>,
        k: usize,
        command: Command,
        tell: &mut dyn FnMut(State),
    ) {
        let buffers = self.machine.execution == Execution::Tso;
        if buffers && *view.step(k) == Step::Waiting {
            if view.may_start(k, false) {
                let issued = Step::Held { word: NO_WORD, tag: 0, global: false };
                self.emit(view.with(k, issued), tell);
            }
            return;
        }
        // The tail is one register: stores to it keep their order.
        let first = |j: usize| !matches!(view.op(j), Op::Command(_)) || view.step(j).finished();
        let in_turn = (0..k).all(first) && view.may_perform(k, Class::WRITES);
        if in_turn && view.unspeculative(k) {
            let mut next = view.with(k, Step::DONE);
            next.io.enqueue(command);
            self.emit(next, tell);
        }
    }

    /// A CPU writes the line of an entry back, and waits for that.
    pub fn write_back(&self, view: &View<'_>, k: usize, place: Place, tell: &mut dyn FnMut(State)) {
        let Some(word) = self.machine.word(place) else { return };
        let in_turn = view.may_perform(k, Class::WRITES) && view.first_at_word(k, word, true);
        if in_turn && view.unspeculative(k) {
            let mut next = view.with(k, Step::DONE);
            next.io.written_back(word);
            self.emit(next, tell);
        }
    }
}

/// The access is over.
fn finish(state: &State, device: usize, at: usize, access: Access) -> State {
    let mut next = state.clone();
    next.io.devices[device].accesses[at] = access;
    next.io.over(device, at);
    next
}

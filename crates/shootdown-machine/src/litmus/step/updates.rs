//! Hardware updates of entries: at once, late (AArch64), or by speculation.

use super::Stepper;
use crate::hostile::{Descriptor, HostileError, Update};
use crate::litmus::machine::{Due, State};
use crate::litmus::value::Value;
use crate::litmus::window::View;

impl Stepper<'_> {
    /// Hardware sets bits in a word, if the word still says what the walker saw.
    pub(super) fn update(&self, state: &mut State, update: &Update) -> Result<bool, HostileError> {
        let Some(word) = self.machine.entry_word(update.word) else { return Ok(false) };
        let current = state.words.0[usize::from(word)].0.as_walked();
        let Some(new) = update.apply(current) else { return Ok(false) };
        if new != current {
            self.write(state, word, Value::descriptor(new))?;
        }
        Ok(true)
    }

    /// Hardware has to set bits in a word, sooner or later. False if the word no longer says what
    /// the walker saw.
    pub(super) fn due(
        &self,
        state: &mut State,
        view: &View<'_>,
        k: usize,
        update: &Update,
    ) -> bool {
        let Some(word) = self.machine.entry_word(update.word) else { return false };
        let (current, version) = state.words.0[usize::from(word)];
        let current = current.as_walked();
        let Some(new) = update.apply(current) else { return false };
        if new != current {
            let at = view.path.at(k) as u8;
            let updates = &mut state.cpus[view.cpu].updates;
            let place = updates.partition_point(|due| due.at < at);
            updates.insert(place, Due { at, update: *update, version });
        }
        true
    }

    /// Updates that are due become visible. A word that has changed since the walk has none: that
    /// walk was not the one that the access went by.
    pub(super) fn due_updates(
        &self,
        view: &View<'_>,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        for (number, due) in view.state.cpus[view.cpu].updates.iter().enumerate() {
            let Some(k) = (0..view.path.len()).find(|k| view.path.at(*k) == usize::from(due.at))
            else {
                continue;
            };
            let early = due.update.set & !Descriptor::ACCESSED == 0;
            if !view.may_start(k, true) || !early && !view.unspeculative(k) {
                continue;
            }
            let Some(word) = self.machine.entry_word(due.update.word) else { continue };
            if view.state.words.0[usize::from(word)].1 != due.version {
                continue;
            }
            let mut next = view.state.clone();
            next.cpus[view.cpu].updates.remove(number);
            if self.update(&mut next, &due.update)? {
                self.emit(next, tell);
            }
        }
        Ok(())
    }

    pub(super) fn speculative_updates(
        &mut self,
        state: &State,
        cpu: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let mut updates = std::mem::take(&mut self.updates);
        state.hw.early_updates(&self.walker(state), cpu, &mut updates);
        for update in &updates {
            let mut next = state.clone();
            if self.update(&mut next, update)? {
                self.emit(next, tell);
            }
        }
        self.updates = updates;
        Ok(())
    }
}

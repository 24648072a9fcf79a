//! Read-modify-writes whose load and store are two events (AArch64).

use super::Stepper;
use crate::hostile::HostileError;
use crate::litmus::machine::{State, Step};
use crate::litmus::program::Class;
use crate::litmus::window::View;

impl Stepper<'_> {
    /// The load of a read-modify-write. Its acquire and release are those of its halves: the release
    /// is the store's.
    pub(super) fn read_half(
        &mut self,
        view: &View<'_>,
        k: usize,
        word: u8,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let (value, version) = view.state.words.0[usize::from(word)];
        let Some(new) = view.modified(k, value) else { return Ok(()) };
        let first = view.first_at_word(k, word, true) && view.first_at_word(k, word, false);
        if !first || !view.may_load_half(k) || view.overtaken(k, word, version) {
            return Ok(());
        }
        if new.is_none() {
            let done = Step::Done { value, word, source: version };
            self.emit(view.performed_with(k, done), tell);
            return Ok(());
        }
        let (tag, global) = match *view.step(k) {
            Step::Held { tag, global, .. } => (tag, global),
            _ => (0, false),
        };
        self.emit(view.with(k, Step::Half { value, word, version, tag, global }), tell);
        Ok(())
    }

    /// The store of a read-modify-write, if nobody has written the word since the load.
    pub(super) fn complete(
        &mut self,
        view: &View<'_>,
        k: usize,
        tell: &mut dyn FnMut(State),
    ) -> Result<(), HostileError> {
        let Step::Half { value, word, version, .. } = *view.step(k) else { return Ok(()) };
        let Some(Some(data)) = view.modified(k, value) else { return Ok(()) };
        let same = view.state.words.0[usize::from(word)].1 == version;
        if !same || !view.may_perform(k, Class::WRITES) || !view.may_store(k, word) {
            return Ok(());
        }
        let done = view.with(k, Step::Done { value, word, source: version });
        self.store(view, k, done, word, data, tell)
    }
}

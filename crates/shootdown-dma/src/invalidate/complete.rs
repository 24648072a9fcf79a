//! Completion: asking for it, waiting for it, and reporting the units' errors.

use crate::sync::spin_loop;

use super::engine::WHOLE_IN_FLIGHT;
use super::lane::Slot;
use super::members::{Asks, Patience};
use super::{Engine, QueueError, Token, Unit};

impl<U: Unit> Engine<U> {
    /// Tries again to submit what units had no room for, and moves completions on. Call it now and
    /// then: from a timer, when an IOMMU has interrupted, when the CPU is idle. Never waits.
    ///
    /// # Errors
    /// The errors that units have returned to any call for this domain since the last `poll`: each
    /// kind of error once, however often it was returned (if there are several kinds, one now and
    /// the others by the next calls); and [`QueueError::Stuck`] as long as it lasts. All lanes were
    /// served nevertheless.
    pub fn poll(&self) -> Result<(), QueueError> {
        let mut lasting = Ok(());
        for (index, lane) in self.lanes.iter().enumerate().rev() {
            let moved = self.advance(index, Asks::Once);
            let told = if lane.is_wanted() { self.tell_again(index) } else { Ok(()) };
            for error in [moved, told].into_iter().filter_map(Result::err) {
                match error.is_final() {
                    true => lasting = Err(error),
                    false => self.unheard.put(error),
                }
            }
        }
        self.unheard.take().map_or(lasting, Err)
    }

    /// Submits again what could not be submitted before. A unit that takes no commands has nothing
    /// under way whose completion would cause a retry.
    fn tell_again(&self, index: usize) -> Result<(), QueueError> {
        self.try_flush(index, true)
    }

    /// Records an error that a call got and did not return: the next [`poll`](Self::poll) returns
    /// it.
    pub(super) fn put_down(&self, error: QueueError) {
        self.unheard.put(error);
    }

    /// Whether all caches have invalidated what the token covers. Never waits, never allocates; may
    /// be called from interrupts. The next [`poll`](Self::poll) returns errors of units that it
    /// finds.
    #[must_use]
    pub fn is_complete(&self, token: Token) -> bool {
        let Some(lane) = self.lane_of(token) else { return token == Token::DONE };
        if lane.done() >= token.batch {
            return true;
        }
        if let Err(error) = self.advance(token.lane as usize, Asks::Once) {
            self.put_down(error);
        }
        lane.done() >= token.batch
    }

    /// Waits until the token is complete, and submits its batch if need be. Holds no lock
    /// meanwhile; must not be called with interrupts off. `relax` is a turn of the waiting; it
    /// returns false to give up.
    ///
    /// # Errors
    /// [`QueueError::Stuck`], [`QueueError::DeviceTimeout`] if a device of the domain does not
    /// acknowledge, and [`QueueError::GaveUp`]; [`QueueError::NotListed`] if it is another engine's
    /// token. The token is not complete then, and what it covers may not be reused. Other errors do
    /// not end the wait; the next [`poll`](Self::poll) returns them.
    pub fn wait(&self, token: Token, relax: &mut impl FnMut() -> bool) -> Result<(), QueueError> {
        let Some(lane) = self.lane_of(token) else {
            return if token == Token::DONE { Ok(()) } else { Err(QueueError::NotListed) };
        };
        let index = token.lane as usize;
        let patience = Patience::default();
        while lane.done() < token.batch {
            let mut told = Ok(());
            if lane.closed() < token.batch && lane.has_room(self.in_flight(index)) {
                told = self.tell_again(index);
            }
            // The lane's batch may be part of a batch of the whole lane for which there was no
            // room.
            let whole = &self.lanes[self.whole()];
            if whole.is_wanted() && whole.has_room(WHOLE_IN_FLIGHT) {
                told = told.and(self.tell_again(self.whole()));
            }
            let moved = self.advance(index, Asks::Again(&patience));
            for error in [told, moved].into_iter().filter_map(Result::err) {
                self.put_down(error);
            }
            match moved.and(told) {
                // The batch is complete; any error concerns a later one.
                _ if lane.done() >= token.batch => break,
                Err(error) if error.is_final() => return Err(error),
                _ if self.members.iter().any(|m| m.silent().is_some()) => {
                    return Err(QueueError::DeviceTimeout);
                }
                _ => {}
            }
            if !relax() {
                return Err(QueueError::GaveUp);
            }
            (0..patience.rest()).for_each(|_| spin_loop());
        }
        Ok(())
    }

    /// Moves the lane's completions on as far as they go.
    fn advance(&self, index: usize, asks: Asks<'_>) -> Result<(), QueueError> {
        let lane = &self.lanes[index];
        loop {
            let batch = lane.done() + 1;
            if batch > lane.closed() || !self.is_slot_complete(&lane.slot(batch), asks)? {
                return Ok(());
            }
            lane.finish(batch);
        }
    }

    fn is_slot_complete(&self, slot: &Slot<'_>, asks: Asks<'_>) -> Result<bool, QueueError> {
        let whole = slot.followed();
        if whole > self.lanes[self.whole()].done() {
            self.advance(self.whole(), asks)?;
            if whole > self.lanes[self.whole()].done() {
                return Ok(false);
            }
        }
        for (unit, member) in self.members.iter().enumerate() {
            match slot.get(unit) {
                0 => {}
                ticket if !member.reached(ticket, asks)? => return Ok(false),
                _ => {}
            }
        }
        Ok(true)
    }
}

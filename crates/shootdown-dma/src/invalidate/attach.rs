//! Devices come and go.
//!
//! A device that comes is listed before its configuration entry becomes valid (M1 of `members.rs`). A device that leaves is
//! forgotten after the entry was cleared, in two steps (I11): first what is cached of the entry, since whoever finds that goes on
//! asking, and then what was found through it. Only when both are complete is it taken off the list.

use crate::addr::DeviceId;

use super::members::{AttachError, Departure, Member, Seat};
use super::{Engine, QueueError, Unit};

impl<U: Unit> Engine<U> {
    /// Lists a device behind the unit of this number; `caches`: it has a cache of translations (ATC) that is turned on. To
    /// be called before the device's configuration entry is made valid.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, unit: usize, device: DeviceId, caches: bool) -> Result<Seat, AttachError> {
        let member = self.members.get(unit).ok_or(AttachError::NoSuchUnit)?;
        let caching = member.attach(device, caches)?;
        Ok(Seat { unit, device, caching })
    }

    /// Makes everybody forget a device whose configuration entry was cleared, waits until that is complete, and gives the
    /// seat back. `relax` is a turn of the waiting; it returns false to give up.
    ///
    /// # Errors
    /// See [`QueueError`], and the seat: the device is still listed. [`QueueError::DeviceTimeout`]: it does not answer; reset
    /// it, and call [`evict`](Self::evict).
    pub fn detach(
        &self,
        seat: Seat,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), (QueueError, Seat)> {
        let member = &self.members[seat.unit];
        // [I11] What leads to the tables is forgotten before anybody is told to forget what was found there: a device whose
        // entry is cached goes on asking.
        let mut phases = [Departure::Config, Departure::Translations].into_iter();
        let mut phase = phases.next();
        let mut ticket = None;
        while let Some(what) = phase {
            let step = match ticket {
                None => member.tell_departed(&seat, what).map(|told| {
                    ticket = Some(told.0);
                    without!(ConfigNotAwaited) && what == Departure::Config
                }),
                Some(ticket) => member.completed(ticket),
            };
            // Asked after the ticket: it may be complete without the device.
            let answers = seat.caching.is_none() || member.answers(seat.device);
            match step {
                Err(error) if error.is_final() => return Err((error, seat)),
                _ if !answers => return Err((QueueError::DeviceTimeout, seat)),
                Ok(true) => (phase, ticket) = (phases.next(), None),
                _ if !relax() => return Err((QueueError::GaveUp, seat)),
                _ => {}
            }
        }
        member.detach(seat.caching, true);
        Ok(())
    }

    /// Takes a device out that was reset or removed, and whose configuration entry was cleared: it has no cache any more, and
    /// what it has not answered does not hold others up. What the unit has cached for it stays until it is told, so the
    /// unit goes on being told.
    pub fn evict(&self, seat: Seat) {
        self.members[seat.unit].detach(seat.caching, false);
    }

    /// A device of the domain that does not answer, if there is one: nothing becomes complete until it is
    /// [evicted](Self::evict).
    #[must_use]
    pub fn silent(&self) -> Option<DeviceId> {
        self.members.iter().find_map(Member::silent)
    }
}

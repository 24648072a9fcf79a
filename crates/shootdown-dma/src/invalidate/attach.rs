//! Devices come and go.
//!
//! A device that comes is listed before its configuration entry becomes valid (M1 of `members.rs`),
//! and, if it has a cache of its own, finds a unit that has forgotten the domain
//! ([`welcome`](Engine::welcome)); when it is valid the unit is told, which may have cached that it
//! was not ([`announce`](Engine::announce)). A device that leaves is forgotten after the entry was
//! cleared, in two steps (I11): first what is cached of the entry, since whoever finds that goes on
//! asking, and then what was found through it. Only when both are complete is it taken off the
//! list. One that is gone already ([`evict`](Engine::evict)) is not asked any more, and the unit is
//! told all the same: who is plugged in next at its place would be served by what is cached of its
//! entry.

use crate::addr::DeviceId;

use super::members::{Asks, AttachError, Attachment, Departure, Member};
use super::{Engine, QueueError, Ticket, Unit};

impl<U: Unit> Engine<U> {
    /// Lists a device behind the unit of this number; `caches`: it has a cache of translations
    /// (ATC) that is turned on. To be called before the device's configuration entry is made
    /// valid, and [`welcome`](Self::welcome) after it.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(
        &self,
        unit: usize,
        device: DeviceId,
        caches: bool,
    ) -> Result<Attachment, AttachError> {
        let member = self.members.get(unit).ok_or(AttachError::NoSuchUnit)?;
        let caching = member.attach(device, caches)?;
        Ok(Attachment { engine: self.id(), unit, device, caching })
    }

    /// A device's configuration entry has become valid: makes a unit forget that it was not, and
    /// waits until it has. To be called before the device is used. An SMMU may have cached an
    /// entry that is not valid (Arm IHI 0070, 3.21.3), AMD-Vi wants to be told of every change
    /// of an entry, and VT-d has cached it in caching mode, under domain id 0. Elsewhere it is
    /// superfluous, and costs one command.
    ///
    /// # Errors
    /// See [`QueueError`]. The unit may not serve the device yet; try again.
    /// [`QueueError::NotListed`]: the attachment is another domain's.
    pub fn announce(
        &self,
        attachment: &Attachment,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), QueueError> {
        let member = self.member(attachment)?;
        self.tell_and_wait(member, || member.tell_arrived(attachment), relax)
    }

    /// A device with a cache of its own was listed: makes its unit forget what it has of the
    /// domain, and waits until it has. To be called before the device's configuration entry is
    /// made valid; costs nothing for other devices.
    ///
    /// Without it a flush that has read the list before the device was on it, and whose commands
    /// are on their way, would clear the unit's cache and not the device's, which may have
    /// asked in between and got what the flush was for (M3 of `members.rs`).
    ///
    /// # Errors
    /// See [`QueueError`]. The device is listed, and must not be served; try again, or
    /// [`detach`](Self::detach) it.
    pub fn welcome(
        &self,
        attachment: &Attachment,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), QueueError> {
        if attachment.caching.is_none() {
            return Ok(());
        }
        let member = self.member(attachment)?;
        self.tell_and_wait(member, || member.tell_domain(), relax)
    }

    /// The unit that a device is behind, if it is listed here.
    fn member(&self, attachment: &Attachment) -> Result<&Member<U>, QueueError> {
        if attachment.engine != self.id() {
            return Err(QueueError::NotListed);
        }
        Ok(&self.members[attachment.unit])
    }

    fn tell_and_wait(
        &self,
        member: &Member<U>,
        tell: impl Fn() -> Result<Ticket, QueueError>,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), QueueError> {
        let mut ticket = None;
        loop {
            let step = match ticket {
                None => match tell() {
                    Ok(told) => {
                        ticket = Some(told.0);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Some(ticket) => member.completed(ticket, Asks::Once),
            };
            match step {
                Ok(true) => return Ok(()),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => self.put_down(error),
                Ok(false) => {}
            }
            if !relax() {
                return Err(QueueError::GaveUp);
            }
        }
    }

    /// Takes a device off the list that was never served.
    pub(crate) fn unlist(&self, attachment: &Attachment) {
        self.members[attachment.unit].detach(attachment.caching);
    }

    /// Makes everybody forget a device whose configuration entry was cleared, waits until that is
    /// complete, and gives the attachment back. `relax` is a turn of the waiting; it returns
    /// false to give up.
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment: the device is still listed.
    /// [`QueueError::DeviceTimeout`]: it does not answer; reset it, and call
    /// [`evict`](Self::evict). [`QueueError::NotListed`]: the attachment is another domain's;
    /// nothing has changed.
    pub fn detach(
        &self,
        attachment: Attachment,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), (QueueError, Attachment)> {
        let phases = [Departure::Config, Departure::Translations];
        self.depart(attachment, phases.into_iter(), relax)
    }

    /// Takes a device out that was reset or removed, and whose configuration entry was cleared: it
    /// has no cache any more. What it has not answered does not hold others up from now on,
    /// whatever is returned. Waits until the unit has forgotten its entry, and what was found
    /// through it.
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment: the unit may still know the device, so that nothing
    /// may be plugged in at its place until this was tried again and has succeeded.
    pub fn evict(
        &self,
        attachment: Attachment,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), (QueueError, Attachment)> {
        match self.member(&attachment) {
            Ok(member) => member.unlist(attachment.caching),
            Err(error) => return Err((error, attachment)),
        }
        let attachment = Attachment { caching: None, ..attachment };
        let phases = [Departure::Config, Departure::Translations];
        self.depart(attachment, phases.into_iter(), relax)
    }

    fn depart(
        &self,
        attachment: Attachment,
        mut phases: impl Iterator<Item = Departure>,
        relax: &mut impl FnMut() -> bool,
    ) -> Result<(), (QueueError, Attachment)> {
        let member = match self.member(&attachment) {
            Ok(member) => member,
            Err(error) => return Err((error, attachment)),
        };
        // [I11] What leads to the tables is forgotten before anybody is told to forget what was
        // found there: a device whose entry is cached goes on asking.
        let mut phase = phases.next();
        let mut ticket = None;
        while let Some(what) = phase {
            let step = match ticket {
                None => match member.tell_departed(&attachment, what) {
                    Ok(told) => {
                        ticket = Some(told.0);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Some(ticket) => member.completed(ticket, Asks::Once),
            };
            if let Err(error) = step {
                self.put_down(error);
            }
            // Asked after the ticket: it may be complete without the device.
            let answers = attachment.caching.is_none() || member.answers(attachment.device);
            match step {
                Err(error) if error.is_final() => return Err((error, attachment)),
                _ if !answers => return Err((QueueError::DeviceTimeout, attachment)),
                Ok(true) => (phase, ticket) = (phases.next(), None),
                _ if !relax() => return Err((QueueError::GaveUp, attachment)),
                _ => {}
            }
        }
        member.detach(attachment.caching);
        Ok(())
    }

    /// A device of the domain that does not answer, if there is one: nothing becomes complete until
    /// it is [evicted](Self::evict).
    #[must_use]
    pub fn silent(&self) -> Option<DeviceId> {
        self.members.iter().find_map(Member::silent)
    }
}

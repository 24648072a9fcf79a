//! Devices that join and leave a domain.
//!
//! A device that joins is listed before its configuration entry becomes valid (M1 of `members.rs`).
//! If it has a cache of its own, its unit first invalidates the domain
//! ([`welcome`](Engine::welcome)). When the entry is valid, the unit invalidates it
//! ([`announce`](Engine::announce)), since it may have cached that the entry was not valid. A
//! device leaves after its entry was cleared, in two steps (I11): first the cached entry is
//! invalidated, since a device whose entry is cached goes on translating, and then the translations
//! that were found through it. Only when both are complete is the device taken off the list. For a
//! device that is gone already ([`evict`](Engine::evict)), its own cache is left out, and the unit
//! is invalidated all the same: otherwise the next device that is plugged in there would be served
//! from the cached entry.

use crate::addr::DeviceId;

use super::members::{Asks, AttachError, Attachment, Departure, Member};
use super::{Engine, QueueError, Ticket, Unit};

impl<U: Unit> Engine<U> {
    /// Lists a device behind the unit of this number; `caches`: it has a cache of translations
    /// (ATC) that is turned on. Call it before the device's configuration entry is made valid, and
    /// [`welcome`](Self::welcome) after it.
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

    /// A device's configuration entry has become valid: invalidates the unit's cached entry that
    /// was not valid, and waits. Call it before the device is used. An SMMU may have cached an
    /// entry that is not valid (Arm IHI 0070, 3.21.3), AMD-Vi requires the command after every
    /// change of an entry, and VT-d has cached the absence in caching mode, under domain id 0. For
    /// other units it is superfluous, and costs one command.
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

    /// A device with a cache of its own was listed: invalidates what its unit has cached of the
    /// domain, and waits. Call it before the device's configuration entry is made valid; for other
    /// devices it costs nothing.
    ///
    /// Without it, consider a flush that has read the list before the device was on it, and whose
    /// commands are still in the queue. They invalidate the unit's cache and not the device's, and
    /// the device may have filled its cache from the unit's before that (M3 of `members.rs`).
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

    /// Invalidates what unit and device have cached for a device whose configuration entry was
    /// cleared, waits until that is complete, and consumes the attachment. `relax` is a turn of the
    /// waiting; it returns false to give up.
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment: the device is still listed.
    /// [`QueueError::DeviceTimeout`]: the device does not acknowledge; reset it, and call
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
    /// has no cache any more. From now on its missing acknowledgements hold up no other
    /// invalidation, whatever this returns. Waits until the unit has invalidated its entry, and
    /// what was found through it.
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment: the unit may still have the device's entry, so
    /// nothing may be plugged in at its place until this was tried again and has succeeded.
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
        // [I11] The cached entry is invalidated before the translations that were found through it:
        // a device whose entry is cached goes on translating.
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
            // Asked after the ticket, which may be complete without the device.
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

    /// A device of the domain that does not acknowledge, if there is one: nothing becomes complete
    /// until it is [evicted](Self::evict).
    #[must_use]
    pub fn silent(&self) -> Option<DeviceId> {
        self.members.iter().find_map(Member::silent)
    }
}

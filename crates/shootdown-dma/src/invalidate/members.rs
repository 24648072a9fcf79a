//! The members of a domain: its units, and the devices behind them that have caches of their own.
//!
//! The units are fixed when the engine is made; commands go to a unit as long as a device of the
//! domain is behind it. Devices come and go while other CPUs flush:
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | M1 device listed, then fence, then its entry made valid | SeqCst fence | M2 | a flush that does not see the device clears entries before the device can walk to them |
//! | M2 entries cleared, then fence, then the list read | SeqCst fence | M1, M3 | without it a flush may read the list first and miss a device that still walks to the old entries |
//! | M3 device with a cache listed, fence (M1), then the domain invalidated and that completed, then its entry made valid | | M2 | the commands of a flush that does not see the device may still be in the queue; such a device does not walk the tables but gets what the unit has cached |
//!
//! The code that attaches a device does M1 and M3: [`attach`](super::Engine::attach) and
//! [`welcome`](super::Engine::welcome) have returned before the configuration entry becomes valid.

use core::cell::Cell;
use core::fmt;

use crate::addr::{DeviceId, DomainId};
use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

use super::pending::{SPANS, Span};
use super::promotion::{Plan, Promotion};
use super::{BATCH, Command, QueueError, Ticket, Unit};

/// Devices with caches that a domain may have behind one unit.
#[cfg(not(loom))]
pub(super) const CACHING: usize = 32;
#[cfg(loom)]
pub(super) const CACHING: usize = 1;

const LISTED: u64 = 1 << 32;

/// How a caller asks a unit for its progress.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks<'a> {
    /// Once: the caller goes on if the ticket is not complete.
    Once,
    /// In a loop: the caller waits.
    Again(&'a Patience),
}

/// How long to wait before asking again, and for how many turns a unit has made no progress.
///
/// All waiting CPUs read the same word, which the unit writes. If all of them read it all the time,
/// the unit would spend its time fetching that line back. So a CPU with many commands ahead of its
/// own asks seldom.
#[derive(Default, Debug)]
pub(super) struct Patience {
    /// How often in a row the unit's progress was the same.
    turns: Cell<u32>,
    /// The unit's progress at the last look.
    last: Cell<u64>,
    /// How many commands are ahead of ours.
    ahead: Cell<u64>,
}

/// Turns of waiting for each ticket ahead: less than a command takes (hundreds of nanoseconds).
/// None for the last few, so that the next in line is not late.
const TURNS_EACH: u64 = if cfg!(loom) { 0 } else { 2 };
const LAST_FEW: u64 = 8;

impl Patience {
    fn has_seen(&self, completed: u64, ticket: u64) {
        let same = self.last.replace(completed) == completed;
        self.turns.set(if same { self.turns.get().wrapping_add(1) } else { 0 });
        self.ahead.set(ticket.saturating_sub(completed));
    }

    /// Turns to wait before asking again, beyond the first.
    pub fn rest(&self) -> u64 {
        (self.ahead.get().saturating_sub(LAST_FEW) * TURNS_EACH).min(256)
    }
}

/// Why a device is not in the domain. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The engine has no unit of this number.
    NoSuchUnit,
    /// The domain has 32 devices with caches behind this unit.
    Full,
    /// The unit may still have cached translations of the domain, from which the device would fill
    /// its cache.
    NotClean(QueueError),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchUnit => "name a unit that the engine was made with",
            Self::Full => "turn off the device's own cache (ATS), or give it a domain of its own",
            Self::NotClean(error) => return write!(f, "the unit was not made ready: {error}"),
        })
    }
}

impl core::error::Error for AttachError {}

/// A device's place in a domain. [`detach`](super::Engine::detach) consumes it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a device without its attachment can't be detached"]
pub struct Attachment {
    /// The engine that has returned it.
    pub(super) engine: u64,
    pub(super) unit: usize,
    pub(super) device: DeviceId,
    pub(super) caching: Option<usize>,
}

/// What is invalidated when a device leaves, one step after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Departure {
    /// The cached configuration, which leads to the tables.
    Config,
    /// The translations that were found through it.
    Translations,
}

/// A unit as a member of a domain.
#[derive(Debug)]
pub(super) struct Member<U> {
    pub(super) unit: U,
    domain: DomainId,
    devices: AtomicU32,
    caching: Fixed<AtomicU64>,
    /// The newest ticket that was seen complete: saves asking the unit.
    seen: AtomicU64,
}

impl<U: Unit> Member<U> {
    pub fn new(unit: U, domain: DomainId) -> Result<Self, NoMemory> {
        Ok(Self {
            unit,
            domain,
            devices: AtomicU32::new(0),
            caching: Fixed::new(CACHING, |_| AtomicU64::new(0))?,
            seen: AtomicU64::new(0),
        })
    }

    /// Lists a device; returns its slot among those with caches. It has a fence (M1).
    pub fn attach(&self, device: DeviceId, caches: bool) -> Result<Option<usize>, AttachError> {
        let slot = if caches { Some(self.take_slot(device)?) } else { None };
        self.devices.fetch_add(1, Ordering::Relaxed);
        // Without the fence a flush may miss the device, and the device may read an entry before it is
        // cleared.
        fence(Ordering::SeqCst); // [M1]
        Ok(slot)
    }

    fn take_slot(&self, device: DeviceId) -> Result<usize, AttachError> {
        let listed = LISTED | u64::from(device.0);
        let take = |slot: &AtomicU64| {
            slot.compare_exchange(0, listed, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        self.caching.iter().position(take).ok_or(AttachError::Full)
    }

    /// Takes a device off the list: nothing that it used is cached.
    pub fn detach(&self, slot: Option<usize>) {
        self.unlist(slot);
        self.devices.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a device has no cache any more. Commands still go to the unit.
    pub fn unlist(&self, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.caching[slot].store(0, Ordering::Relaxed);
        }
    }

    fn caching(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let words = self.caching.iter().map(|slot| slot.load(Ordering::Relaxed));
        words.filter(|word| word & LISTED != 0).map(|word| DeviceId(word as u32))
    }

    /// Submits commands to the unit, and to the devices behind it. `None`: no device is behind it.
    /// Called after the fence of M2.
    pub fn tell(
        &self,
        spans: Option<&[Span]>,
        promotion: &Promotion,
    ) -> Result<Option<Ticket>, QueueError> {
        if self.devices.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let mut room = [Span::EMPTY; SPANS];
        let all = self.unit.forgets_all();
        let plan = match spans {
            None => promotion.whole(all),
            Some(spans) => {
                let room = &mut room[..spans.len()];
                room.copy_from_slice(spans);
                promotion.plan(room, self.unit.is_crowded(), all)
            }
        };
        let mut batch = Batch::new(&self.unit);
        let spans = match plan {
            Plan::Spans(count) => Some(&room[..count]),
            _ => None,
        };
        match plan {
            Plan::Domain => batch.push(Command::Domain(self.domain))?,
            Plan::Everything => batch.push(Command::All)?,
            Plan::Spans(_) => {
                for span in spans.into_iter().flatten() {
                    batch.push(self.pages(*span))?;
                }
            }
        }
        // [I6] The devices' caches after the unit's own.
        for device in self.caching() {
            match spans {
                Some(spans) if spans.len() <= promotion.device_ranges as usize => {
                    for span in spans {
                        batch.push(Command::Device { device, range: span.range() })?;
                    }
                }
                _ => batch.push(Command::Device { device, range: None })?,
            }
        }
        batch.submit().map(Some)
    }

    /// Whether so many commands are ahead that invalidating the domain is cheaper than waiting.
    pub fn is_behind(&self, promotion: &Promotion) -> bool {
        self.devices.load(Ordering::Relaxed) != 0 && promotion.is_long(self.unit.ahead())
    }

    fn pages(&self, span: Span) -> Command {
        let domain = self.domain;
        match span.range() {
            Some(range) => Command::Pages { domain, range, leaf_only: span.leaf_only },
            None => Command::Domain(domain),
        }
    }

    /// Invalidates all that the unit has cached of the domain.
    pub fn tell_domain(&self) -> Result<Ticket, QueueError> {
        self.unit.submit(&[Command::Domain(self.domain)])
    }

    /// Invalidates the unit's cached absence of the device. (VT-d caches that under domain id 0,
    /// other units do not use the domain.)
    pub fn tell_arrived(&self, attachment: &Attachment) -> Result<Ticket, QueueError> {
        self.unit.submit(&[Command::Config { device: attachment.device, domain: DomainId(0) }])
    }

    /// Invalidates one step of a device that left.
    pub fn tell_departed(
        &self,
        attachment: &Attachment,
        what: Departure,
    ) -> Result<Ticket, QueueError> {
        let Attachment { device, .. } = *attachment;
        match what {
            Departure::Config => {
                self.unit.submit(&[Command::Config { device, domain: self.domain }])
            }
            Departure::Translations if attachment.caching.is_some() => self
                .unit
                .submit(&[Command::Domain(self.domain), Command::Device { device, range: None }]),
            Departure::Translations => self.unit.submit(&[Command::Domain(self.domain)]),
        }
    }

    /// Whether the ticket is complete, and all devices acknowledge.
    pub fn reached(&self, ticket: u64, asks: Asks<'_>) -> Result<bool, QueueError> {
        let answer = || self.caching().all(|device| self.unit.answers(device));
        Ok(self.completed(ticket, asks)? && answer())
    }

    /// Whether the ticket is complete, apart from devices that do not acknowledge.
    pub fn completed(&self, ticket: u64, asks: Asks<'_>) -> Result<bool, QueueError> {
        // ORDERING: Acquire pairs with the store below: `seen` stands for the effects that
        // `completed` has guaranteed. Without it the caller may reuse a page before those effects.
        if self.seen.load(Ordering::Acquire) >= ticket {
            return Ok(true);
        }
        let completed = match asks {
            Asks::Once => self.unit.completed()?.0,
            Asks::Again(patience) => {
                let completed = self.unit.completed_by_turn(patience.turns.get())?.0;
                patience.has_seen(completed, ticket);
                completed
            }
        };
        if completed < ticket {
            // Nothing is written: many CPUs may be waiting, and they all read it.
            return Ok(false);
        }
        self.seen.fetch_max(completed, Ordering::AcqRel);
        Ok(true)
    }

    /// Whether the device acknowledges invalidations.
    pub fn answers(&self, device: DeviceId) -> bool {
        self.unit.answers(device)
    }

    /// The first device of the domain that does not acknowledge.
    pub fn silent(&self) -> Option<DeviceId> {
        self.caching().find(|device| !self.unit.answers(*device))
    }
}

/// Commands on their way to a unit: as many submissions as they need; the last ticket covers all.
struct Batch<'a, U> {
    unit: &'a U,
    commands: [Command; BATCH],
    len: usize,
}

impl<'a, U: Unit> Batch<'a, U> {
    fn new(unit: &'a U) -> Self {
        Self { unit, commands: [Command::All; BATCH], len: 0 }
    }

    fn push(&mut self, command: Command) -> Result<(), QueueError> {
        if self.len == BATCH {
            self.unit.submit(&self.commands)?;
            self.len = 0;
        }
        self.commands[self.len] = command;
        self.len += 1;
        Ok(())
    }

    fn submit(self) -> Result<Ticket, QueueError> {
        self.unit.submit(&self.commands[..self.len])
    }
}

//! Who has to be told: the units of a domain, and the devices behind them that have caches of their
//! own.
//!
//! Units are named when the engine is made; one is told as long as a device of the domain is behind
//! it. Devices come and go while others flush:
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | M1 device listed, then fence, then its entry made valid | SeqCst fence | M2 | a flush that does not see the device clears entries before the device can walk to them |
//! | M2 entries cleared, then fence, then the list read | SeqCst fence | M1, M3 | |
//! | M3 device with a cache listed, fence (M1), then the domain invalidated and that completed, then its entry made valid | | M2 | a flush that does not see the device may have its commands still to be taken: the device does not walk, it is given what the unit has |
//!
//! M1 and M3 are the attacher's: [`attach`](super::Engine::attach) and
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

/// Who wants to know how far a unit is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks<'a> {
    /// Somebody who goes on if it is not far enough.
    Once,
    /// Somebody who waits.
    Again(&'a Patience),
}

/// How long to wait, and how long somebody has waited for a unit that makes no progress.
///
/// All who wait read the same word, which the unit writes for each of them in turn: if all did so
/// all the time, it would be busy fetching that word back. So who has many before him asks seldom.
#[derive(Default, Debug)]
pub(super) struct Patience {
    /// Answers that were the same, in a row.
    turns: Cell<u32>,
    /// How far the unit was.
    last: Cell<u64>,
    /// How much is before us.
    ahead: Cell<u64>,
}

/// Turns of waiting for each ticket ahead: less than a command takes (hundreds of nanoseconds).
/// None for the last few: who is next shall not be late.
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
    /// The unit has not forgotten what it has of the domain, which the device's cache would be
    /// filled with.
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

/// A device's place in a domain. Given back by [`detach`](super::Engine::detach).
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a device without its attachment can't be detached"]
pub struct Attachment {
    /// Of the engine that has given it.
    pub(super) engine: u64,
    pub(super) unit: usize,
    pub(super) device: DeviceId,
    pub(super) caching: Option<usize>,
}

/// What is forgotten of a device that leaves, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Departure {
    /// The way to the tables.
    Config,
    /// What was found there.
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

    /// Lists a device; returns its slot among those with caches. The caller fences (M1).
    pub fn attach(&self, device: DeviceId, caches: bool) -> Result<Option<usize>, AttachError> {
        let slot = if caches { Some(self.take_slot(device)?) } else { None };
        self.devices.fetch_add(1, Ordering::Relaxed);
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

    /// A device has no cache any more. The unit goes on being told.
    pub fn unlist(&self, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.caching[slot].store(0, Ordering::Relaxed);
        }
    }

    fn caching(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let words = self.caching.iter().map(|slot| slot.load(Ordering::Relaxed));
        words.filter(|word| word & LISTED != 0).map(|word| DeviceId(word as u32))
    }

    /// Tells the unit, and the devices behind it. `None`: there is nobody behind it. After the
    /// fence of M2.
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
        // [I6] After the unit's own.
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

    /// Is so much before a command that forgetting the domain is cheaper than waiting?
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

    /// Makes the unit forget all that it has of the domain.
    pub fn tell_domain(&self) -> Result<Ticket, QueueError> {
        self.unit.submit(&[Command::Domain(self.domain)])
    }

    /// Makes the unit forget that there was no device. (VT-d remembers that under domain id 0,
    /// others do not ask for the domain.)
    pub fn tell_arrived(&self, attachment: &Attachment) -> Result<Ticket, QueueError> {
        self.unit.submit(&[Command::Config { device: attachment.device, domain: DomainId(0) }])
    }

    /// Makes the unit forget a device that left.
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

    /// Is the ticket complete, and can all devices be relied on?
    pub fn reached(&self, ticket: u64, asks: Asks<'_>) -> Result<bool, QueueError> {
        let answer = || self.caching().all(|device| self.unit.answers(device));
        Ok(self.completed(ticket, asks)? && answer())
    }

    /// Is the ticket complete, as far as devices answer?
    pub fn completed(&self, ticket: u64, asks: Asks<'_>) -> Result<bool, QueueError> {
        // ORDERING: Acquire pairs with the store below: `seen` stands for the effects that
        // `completed` promised.
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
            // Nothing is written: many may be waiting, and they all read it.
            return Ok(false);
        }
        self.seen.fetch_max(completed, Ordering::AcqRel);
        Ok(true)
    }

    /// Can the device be relied on?
    pub fn answers(&self, device: DeviceId) -> bool {
        self.unit.answers(device)
    }

    /// The first device of the domain that can't be relied on.
    pub fn silent(&self) -> Option<DeviceId> {
        self.caching().find(|device| !self.unit.answers(*device))
    }
}

/// Commands on their way to a unit: as many submissions as they need, the last ticket covers all.
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

//! An IOMMU in software that behaves as badly as the manuals allow: for tests, and to observe an
//! engine.
//!
//! It is a [`Unit`], together with the tables that it translates by: which page of which domain is
//! mapped to which frame. It changes only by [`step`](Model::step), which takes one choice of an
//! adversary (drawn from the seed):
//! - it walks to any entry that exists, for any device, and caches it for ever, in the IOTLB, and
//!   in the ATC of the device if it has one; ATCs are also filled from the IOTLB;
//! - it caches tables as it does entries: it still walks to a table that was unlinked;
//! - it executes commands at any time, in any order that the contract of [`Unit`] allows, across
//!   submissions; a submission completes some time after its last command was executed.
//!
//! [`Powers`] select which of these it does. [`stale`](Model::stale) is the oracle: it returns what
//! a device can still reach that is not mapped.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use crate::addr::{DeviceId, DomainId};
use crate::sync::{AtomicBool, Ordering};

use super::{Command, QueueError, Ticket, Unit};

/// Entries of a table page, as the walk cache of the model counts them (a real one has 512).
pub const TABLE: u64 = 16;

/// What the adversary may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Powers {
    /// It walks ahead to any entry that exists.
    pub prefetch: bool,
    /// It executes commands in any order that respects devices' caches.
    pub reorder: bool,
    /// It fills ATCs from the IOTLB.
    pub refill: bool,
    /// Commands that the queue holds; a submission that does not fit is refused as full.
    pub room: usize,
}

impl Powers {
    /// All of them, and a queue of 64 commands.
    pub const ALL: Self = Self { prefetch: true, reorder: true, refill: true, room: 64 };

    /// The same with a queue of another length.
    #[must_use]
    pub const fn with_room(self, room: usize) -> Self {
        Self { room, ..self }
    }
}

/// A translation in a cache.
type Entry = (DomainId, u64, u64);

#[derive(Debug)]
struct Submission {
    ticket: u64,
    commands: VecDeque<Command>,
}

#[derive(Debug, Default)]
struct State {
    tables: BTreeMap<(DomainId, u64), u64>,
    /// Entries that were in tables when these were unlinked; a cached walk still leads to them.
    unlinked: BTreeMap<(DomainId, u64), u64>,
    devices: BTreeMap<DeviceId, (DomainId, bool)>,
    configs: BTreeMap<DeviceId, DomainId>,
    iotlb: BTreeSet<Entry>,
    walks: BTreeSet<(DomainId, u64)>,
    atc: BTreeSet<(DeviceId, u64, u64)>,
    silent: BTreeSet<DeviceId>,
    queue: VecDeque<Submission>,
    submitted: u64,
    completed: u64,
    random: u64,
    executed: u64,
}

/// An IOMMU in software; see the [module](self).
#[derive(Debug)]
pub struct Model {
    locked: AtomicBool,
    state: UnsafeCell<State>,
    powers: Powers,
}

// SAFETY: `state` is accessed only through `with`, by one thread at a time; it holds nothing that
// is bound to a thread.
unsafe impl Sync for Model {}

impl Model {
    /// A unit with all [powers](Powers::ALL), which draws its choices from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_powers(seed, Powers::ALL)
    }

    /// A unit with these powers.
    #[must_use]
    pub fn with_powers(seed: u64, powers: Powers) -> Self {
        let state = State { random: seed.wrapping_mul(2).wrapping_add(1), ..State::default() };
        Self { locked: AtomicBool::new(false), state: UnsafeCell::new(state), powers }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: the lock is held, and `f` can't call back: it has no reference to the model.
        let result = f(unsafe { &mut *self.state.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Makes the device's configuration entry valid. `caches`: it has an ATC.
    pub fn attach(&self, device: DeviceId, domain: DomainId, caches: bool) {
        self.with(|s| s.devices.insert(device, (domain, caches)));
    }

    /// Clears the configuration entry; what is cached of it stays.
    pub fn detach(&self, device: DeviceId) {
        self.with(|s| s.devices.remove(&device));
    }

    /// Stores an entry to the tables.
    pub fn map(&self, domain: DomainId, page: u64, frame: u64) {
        self.with(|s| s.tables.insert((domain, page), frame));
    }

    /// Clears an entry in the tables. What is cached stays.
    pub fn unmap(&self, domain: DomainId, page: u64) {
        self.with(|s| s.tables.remove(&(domain, page)));
    }

    /// Unlinks the table page that holds the entry of `page` ([`TABLE`] entries), with the entries
    /// in it.
    pub fn unlink(&self, domain: DomainId, page: u64) {
        self.with(|s| {
            let first = page / TABLE * TABLE;
            let cached = s.walks.contains(&(domain, page / TABLE));
            for page in first..first + TABLE {
                let entry = s.tables.remove(&(domain, page));
                if let Some(frame) = entry.filter(|_| cached) {
                    s.unlinked.insert((domain, page), frame);
                }
            }
        });
    }

    /// The frame that a device reaches by an address. Caches come first, and keep what is found.
    pub fn access(&self, device: DeviceId, page: u64) -> Option<u64> {
        self.with(|s| s.access(device, page, true))
    }

    /// Frames that devices of the domain can reach at these pages although they are not mapped
    /// there (now).
    pub fn stale(&self, domain: DomainId, pages: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let pages: BTreeSet<u64> = pages.into_iter().collect();
        self.with(|s| s.stale(domain, &pages))
    }

    /// The device stops acknowledging; it keeps what it has in its ATC.
    pub fn silence(&self, device: DeviceId) {
        self.with(|s| s.silent.insert(device));
    }

    /// Resets the device: its ATC is empty, and it acknowledges again.
    pub fn reset(&self, device: DeviceId) {
        self.with(|s| {
            s.silent.remove(&device);
            s.atc.retain(|entry| entry.0 != device);
        });
    }

    /// Translations of the domain that the IOTLB has, and cached walks.
    #[must_use]
    pub fn cached(&self, domain: DomainId) -> usize {
        self.with(|s| {
            let entries = s.iotlb.iter().filter(|e| e.0 == domain).count();
            entries + s.walks.iter().filter(|w| w.0 == domain).count()
        })
    }

    /// How many commands it has executed.
    #[must_use]
    pub fn executed(&self) -> u64 {
        self.with(|s| s.executed)
    }

    /// Commands that are submitted and not executed.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.with(|s| s.queue.iter().map(|q| q.commands.len()).sum())
    }

    /// The adversary takes one step.
    pub fn step(&self) {
        let powers = self.powers;
        self.with(|s| match s.draw(4) {
            0 if powers.prefetch => s.prefetch(),
            1 if powers.refill => s.refill(),
            _ => s.execute(powers.reorder),
        });
    }
}

impl State {
    fn draw(&mut self, below: u64) -> u64 {
        // xorshift64* (Vigna, 2016): good enough for choices, the same on every host.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    /// The domain that requests of a device belong to: a cached entry is used first.
    fn domain(&mut self, device: DeviceId, remember: bool) -> Option<DomainId> {
        if let Some(domain) = self.configs.get(&device) {
            return Some(*domain);
        }
        let (domain, _) = *self.devices.get(&device)?;
        if remember {
            self.configs.insert(device, domain);
        }
        Some(domain)
    }

    fn access(&mut self, device: DeviceId, page: u64, remember: bool) -> Option<u64> {
        if let Some(entry) = self.atc.range((device, page, 0)..=(device, page, u64::MAX)).next() {
            return Some(entry.2);
        }
        let domain = self.domain(device, remember)?;
        let frame = self.translate(domain, page, remember)?;
        if remember && self.devices.get(&device).is_some_and(|d| d.1) {
            self.atc.insert((device, page, frame));
        }
        Some(frame)
    }

    fn translate(&mut self, domain: DomainId, page: u64, remember: bool) -> Option<u64> {
        let cached = self.iotlb.range((domain, page, 0)..=(domain, page, u64::MAX)).next();
        if let Some(entry) = cached {
            return Some(entry.2);
        }
        // A cached walk that still leads to an unlinked table is used before the tables.
        let table = (domain, page / TABLE);
        let through = self.walks.contains(&table).then(|| self.unlinked.get(&(domain, page)));
        let frame = *through.flatten().or_else(|| self.tables.get(&(domain, page)))?;
        if remember {
            self.walks.insert(table);
            self.iotlb.insert((domain, page, frame));
        }
        Some(frame)
    }

    fn stale(&mut self, domain: DomainId, pages: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let devices: BTreeSet<DeviceId> =
            self.configs.keys().chain(self.devices.keys()).copied().collect();
        for page in pages {
            let mapped = self.tables.get(&(domain, *page)).copied();
            for device in &devices {
                let belongs = self.configs.get(device) == Some(&domain)
                    || self.devices.get(device).is_some_and(|d| d.0 == domain);
                let reached = if belongs { self.access(*device, *page, false) } else { None };
                found.extend(reached.filter(|f| Some(*f) != mapped).map(|f| (*page, f)));
            }
            let left = self.iotlb.range((domain, *page, 0)..=(domain, *page, u64::MAX));
            found.extend(left.filter(|e| Some(e.2) != mapped).map(|e| (*page, e.2)));
        }
        found
    }

    fn prefetch(&mut self) {
        let domain_pages: Vec<(DomainId, u64)> =
            self.tables.keys().chain(self.unlinked.keys()).copied().collect();
        if domain_pages.is_empty() || self.devices.is_empty() {
            return;
        }
        let (domain, page) = domain_pages[self.draw(domain_pages.len() as u64) as usize];
        let n = self.draw(self.devices.len() as u64) as usize;
        let device = self.devices.keys().nth(n).copied();
        match device {
            Some(device) if self.domain(device, true) == Some(domain) => {
                self.access(device, page, true);
            }
            _ => {}
        }
    }

    /// A device fills its ATC from the IOTLB.
    fn refill(&mut self) {
        if self.iotlb.is_empty() {
            return;
        }
        let n = self.draw(self.iotlb.len() as u64) as usize;
        let entry = self.iotlb.iter().nth(n).copied();
        let Some((domain, page, frame)) = entry else { return };
        let asks =
            self.devices.iter().find(|(_, d)| **d == (domain, true)).map(|(device, _)| *device);
        if let Some(device) = asks {
            self.atc.insert((device, page, frame));
        }
    }

    fn execute(&mut self, reorder: bool) {
        if self.queue.front().is_some_and(|first| first.commands.is_empty()) && self.draw(2) == 0 {
            self.completed = self.queue.pop_front().map_or(self.completed, |first| first.ticket);
            return;
        }
        // Commands for the unit in any order, of all that was submitted; commands for devices when
        // all submissions before them, and the rest of their own, were executed.
        let mut candidates = Vec::new();
        let mut own_before = false;
        for (n, submission) in self.queue.iter().enumerate() {
            let own = |c: &Command| !c.is_for_device();
            own_before |= submission.commands.iter().any(own);
            let may = |c: &&Command| own(c) || !own_before;
            let commands = submission.commands.iter().enumerate();
            candidates.extend(commands.filter(|(_, c)| may(c)).map(|(at, _)| (n, at)));
        }
        if candidates.is_empty() {
            return;
        }
        let choice = if reorder { self.draw(candidates.len() as u64) as usize } else { 0 };
        let (n, at) = candidates[choice];
        if let Some(command) = self.queue[n].commands.remove(at) {
            self.apply(command);
            self.executed += 1;
        }
    }

    fn apply(&mut self, command: Command) {
        self.forget(command);
        // No walk leads to a table that is unlinked and not cached.
        let walks = &self.walks;
        self.unlinked.retain(|at, _| walks.contains(&(at.0, at.1 / TABLE)));
    }

    fn forget(&mut self, command: Command) {
        match command {
            Command::Pages { domain, range, leaf_only } => {
                let pages = range.first()..=range.last();
                self.iotlb.retain(|e| e.0 != domain || !pages.contains(&e.1));
                if !leaf_only {
                    let tables = range.first() / TABLE..=range.last() / TABLE;
                    self.walks.retain(|w| w.0 != domain || !tables.contains(&w.1));
                }
            }
            Command::Domain(domain) => {
                self.iotlb.retain(|e| e.0 != domain);
                self.walks.retain(|w| w.0 != domain);
            }
            Command::All => {
                self.iotlb.clear();
                self.walks.clear();
            }
            Command::Device { device, .. } if self.silent.contains(&device) => {}
            Command::Device { device, range } => self.atc.retain(|e| {
                e.0 != device || range.is_some_and(|r| !(r.first()..=r.last()).contains(&e.1))
            }),
            Command::Config { device, .. } => {
                self.configs.remove(&device);
            }
        }
    }
}

// SAFETY: (1) `completed` moves on in `execute`, when all commands of a submission were applied, in
// order of submission; for a device that ignored one, `answers` is false. (2) `execute` takes a
// command for a device when all others of its submission, and of those before, were executed. (3)
// Tickets are counted under the lock.
unsafe impl Unit for Model {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let room = self.powers.room;
        self.with(|s| {
            let queued: usize = s.queue.iter().map(|q| q.commands.len() + 1).sum();
            if queued + commands.len() + 1 > room {
                return Err(QueueError::Full);
            }
            s.submitted += 1;
            let commands = commands.iter().copied().collect();
            s.queue.push_back(Submission { ticket: s.submitted, commands });
            Ok(Ticket(s.submitted))
        })
    }

    fn forgets_all(&self) -> bool {
        true
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        self.with(|s| Ok(Ticket(s.completed)))
    }

    fn answers(&self, device: DeviceId) -> bool {
        self.with(|s| !s.silent.contains(&device))
    }

    fn is_crowded(&self) -> bool {
        self.ahead() * 2 > self.powers.room as u64
    }

    fn ahead(&self) -> u64 {
        self.with(|s| s.queue.iter().map(|q| q.commands.len() as u64 + 1).sum())
    }
}

//! Hostile IOMMUs: everything that they, and the devices behind them, could have cached.
//!
//! What a real one caches is a matter of chance. These have cached every translation that was
//! reachable at any time since the last command that covers it: they walk at every store to a
//! table, along every path that they know, and a path that they know they keep, through table pages
//! that were unlinked since (paging-structure caches). So what the software has to fear is a set
//! that follows from the order of its own steps; left to chance is only when a command takes
//! effect, and when that is heard of.
//!
//! | power of the hardware | here | switch |
//! |---|---|---|
//! | never evicts | leaves stay until a command covers them | always |
//! | prefetches any present entry at any time | leaves grow at every store | [`Power::Speculation`] |
//! | remembers that there was nothing, until told | `known` has what it does not | [`Power::RemembersAbsence`] |
//! | walks on from a cached entry after it was unlinked | `walks` is left to commands that are not leaf-only | [`Power::WalkCaches`] |
//! | a command takes effect at any time before it is heard of | chosen when it is submitted | [`Power::LateInvalidation`] |
//! | a device asks for translations again when it forgets them | its cache is filled from the unit's, also with stale ones | the device has a cache |
//! | accesses that have begun go on until completion | what is forgotten early is `flying` | [`Power::InFlight`] |
//! | reads memory, not CPUs' caches | words have older values until they are written back | [`Power::StaleLines`] |
//! | reads an entry of several words at several times | `device.rs` | [`Power::TornEntries`] |
//! | keeps what it has read of a device's entry | `device.rs` | [`Power::CachedEntries`] |
//! | a translation survives one command | `spared` | [`Power::SurvivesOnce`] |
//! | can't be told, refuses, finds that a device does not answer | `faults.rs` | [`Power::QueueErrors`] |
//! | caches a large page in pieces, and forgets a piece | [`Cached::without`] | [`Power::Fracture`] |
//!
//! | file | has |
//! |---|---|
//! | `tables.rs`, `device.rs` | what there is to read: words of tables, entries of devices |
//! | `walk.rs` | what units find and keep |
//! | `command.rs` | what they forget, and when that is complete |
//! | `usable.rs`, `seen.rs` | what the oracle asks, and what is worth having seen |
//!
//! What depends on the model of the hardware (remembering absence, reading memory, surviving)
//! happens only if the world says that it has such a model ([`Model`]), since its kernel must be
//! told. Queues in memory are not here: units are told by commands, as the library's engine makes
//! them, and fail as its queues do; these have tests of their own.

mod cached;
mod command;
mod device;
mod faults;
mod seen;
mod tables;
#[cfg(test)]
mod tests;
mod unit;
mod usable;
mod walk;

pub use cached::Cached;
pub use device::{Half, VALID};
pub use tables::{Decoded, Walker};

use std::collections::{BTreeMap, BTreeSet};

use shootdown_dma::DeviceId;

use super::memory::mix;
use super::powers::{Power, Powers};
use device::Device;
use tables::Words;
use unit::{Devices, Unit};

/// What IOMMUs there are, and what they are like.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// How they read tables.
    pub walker: Walker,
    /// How many there are.
    pub units: usize,
    /// They look into CPUs' caches when they walk.
    pub coherent: bool,
    /// They remember what was not mapped (VT-d's caching mode, AMD-Vi's NpCache).
    pub remembers_absence: bool,
    /// A translation may survive one command (an erratum).
    pub survives_once: bool,
    /// How often each may fail to be told something, or find that a device does not answer.
    pub faults: u8,
    /// The device that may stop answering.
    pub moody: Option<DeviceId>,
    /// How often it may be denied that commands are complete, before it has to be told.
    pub denials: u8,
}

/// Adds a translation to a hash.
fn add_leaf(leaf: &Cached, mark: u64, add: &mut impl FnMut(u64)) {
    let rights = u64::from(leaf.writes) | u64::from(leaf.reads) << 1 | u64::from(leaf.domain) << 8;
    add(leaf.first ^ leaf.to.rotate_left(24) ^ leaf.pages << 50 ^ mix(mark ^ rights << 32));
}

/// The IOMMUs of a hunted machine, and the devices behind them.
pub(super) struct Iommu {
    powers: Powers,
    model: Option<Model>,
    words: Words,
    units: Vec<Unit>,
    devices: Devices,
    /// What is worth having seen, and was not told yet.
    seen: BTreeSet<&'static str>,
}

impl Iommu {
    pub fn new(powers: Powers) -> Self {
        let (words, devices) = (Words::default(), BTreeMap::new());
        Self { powers, model: None, words, units: Vec::new(), devices, seen: BTreeSet::new() }
    }

    /// There are such.
    pub fn set_up(&mut self, model: Model) {
        self.model = Some(model);
        self.units = (0..model.units).map(|_| Unit::default()).collect();
    }

    fn has(&self, power: Power) -> bool {
        let model = |f: fn(&Model) -> bool| self.model.as_ref().is_some_and(f);
        self.powers.has(power)
            && match power {
                Power::StaleLines => model(|m| !m.coherent),
                Power::RemembersAbsence => model(|m| m.remembers_absence),
                Power::SurvivesOnce => model(|m| m.survives_once),
                Power::QueueErrors => model(|m| m.faults != 0),
                _ => true,
            }
    }

    /// There is a device behind a unit; it has a cache of its own, or not. It is served when its
    /// entry says so.
    pub fn plug(&mut self, device: DeviceId, unit: usize, caches: bool) {
        let device = self.devices.entry(device.0).or_insert_with(|| Device::new(device.0, unit));
        (device.plugged, device.silent) = (true, false);
        device.atc = caches.then(BTreeSet::new);
        self.fill();
    }

    /// The device is gone, with all that it had cached.
    pub fn unplug(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device.0) {
            (device.plugged, device.silent, device.atc) = (false, false, None);
        }
    }

    /// Writes a word of a device's entry.
    pub fn write_entry(&mut self, device: DeviceId, half: Half, value: u64) {
        let (torn, kept) = (self.has(Power::TornEntries), self.has(Power::CachedEntries));
        let Some(unit) = self.devices.get(&device.0).map(|device| device.unit) else { return };
        let before: BTreeSet<u16> = self.tops(unit).map(|top| top.domain).collect();
        if let Some(device) = self.devices.get_mut(&device.0) {
            let torn = device.write(half, value, torn, kept);
            self.seen.extend(torn.then_some(seen::TORN));
        }
        if self.has(Power::RemembersAbsence) {
            // Of a domain that nobody was in, nobody has looked at anything yet.
            let new = self.tops(unit).filter(|top| !before.contains(&top.domain));
            for (leaf, table) in self.present(new.collect()) {
                self.units[unit].known.insert(leaf);
                self.units[unit].tables.insert(table);
            }
        }
        self.fill();
    }

    pub fn hash(&self) -> u64 {
        let mut hash = 0x10aa;
        let mut add = |value: u64| hash = mix(hash ^ value);
        self.words.hash(&mut add);
        self.units.iter().for_each(|unit| unit.hash(&mut add));
        self.devices.values().for_each(|device| device.hash(&mut add));
        hash
    }
}

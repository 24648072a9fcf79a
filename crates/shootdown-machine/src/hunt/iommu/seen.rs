//! What is worth having seen: caches that go on with what a word of a table said.
//!
//! A program that never came there has shown nothing, however clean it was.

use super::cached::Cached;
use super::tables::{Decoded, Place};
use super::{Iommu, Model, Power};

/// A unit has a translation whose entry changes.
const IN_UNIT: &str = "stale-in-unit";
/// A device has it in a cache of its own.
const IN_DEVICE: &str = "stale-in-device";
/// A unit has the path through an entry that changes.
const PATH: &str = "path-kept";
/// A unit may remember that there was nothing, where something is put.
const ABSENCE: &str = "absence-remembered";

/// A unit has kept what it was told to forget.
pub(super) const SURVIVED: &str = "survived-a-command";
/// Accesses go on with what was forgotten.
pub(super) const IN_FLIGHT: &str = "in-flight";
/// Of a large page a piece is kept, as a command was for the rest.
pub(super) const PIECE: &str = "piece-kept";
/// A unit has put an entry of a device together that never was one.
pub(super) const TORN: &str = "torn-entry";

impl Iommu {
    /// What has come of commands, and of entries of devices, since this was asked last.
    pub fn has_come_of_it(&mut self) -> impl Iterator<Item = &'static str> + use<> {
        std::mem::take(&mut self.seen).into_iter()
    }

    /// What caches have of a word that is about to become `value`.
    pub fn outlived_by(&self, place: Place, value: u64) -> Vec<&'static str> {
        let mut seen = Vec::new();
        let Some(Model { walker, .. }) = self.model else { return seen };
        for (unit, at) in self.units.iter().enumerate() {
            for way in self.ways(unit).filter(|way| way.table == place.0) {
                let says = |word| (walker.decode)(way.level, word);
                let (before, now) = (says(self.words.now(place)), says(value));
                if before == now {
                    continue;
                }
                let first = way.first + u64::from(place.1) * walker.span(way.level);
                let is_it = |leaf: &Cached| leaf.domain == way.domain && leaf.first == first;
                match before {
                    Decoded::Leaf { .. } => {
                        let behind = self.devices.values().filter(|device| device.unit == unit);
                        let mut cached = behind.filter_map(|device| device.atc.as_ref()).flatten();
                        seen.extend(at.leaves.iter().any(is_it).then_some(IN_UNIT));
                        seen.extend(cached.any(is_it).then_some(IN_DEVICE));
                    }
                    Decoded::Table(table) => {
                        let kept = at.walks.iter().any(|walk| walk.table == table.0);
                        seen.extend(kept.then_some(PATH));
                    }
                    Decoded::Nothing => {
                        seen.extend(self.has(Power::RemembersAbsence).then_some(ABSENCE));
                    }
                }
            }
        }
        seen
    }
}

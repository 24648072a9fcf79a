//! What the oracle asks: what devices could reach, and what they would not find.

use std::collections::BTreeSet;

use shootdown_dma::{DeviceId, DomainId, IovaRange, PhysAddr};

use super::Iommu;
use super::cached::{Cached, Walk};
use super::walk::Found;
use crate::hunt::powers::Power;

impl Iommu {
    /// All that could be used.
    pub fn usable(&self) -> impl Iterator<Item = Cached> + '_ {
        let units = self.units.iter();
        let own = units.flat_map(|u| u.leaves.iter().chain(u.flying.iter().map(|f| &f.leaf)));
        own.chain(self.devices.values().flat_map(|d| d.atc.iter().flatten())).copied()
    }

    /// The device accesses a page: what a walk finds is cached.
    pub fn touch(&mut self, range: IovaRange) {
        if self.has(Power::Speculation) {
            return; // it is there already
        }
        for unit in 0..self.units.len() {
            for top in self.tops(unit).collect::<BTreeSet<_>>() {
                let mut page = range.first();
                while page <= range.last() {
                    let Found::Leaf(leaf) = self.walk(top, page) else {
                        page += 1;
                        continue;
                    };
                    self.units[unit].leaves.insert(leaf);
                    page = leaf.first + leaf.pages;
                }
            }
        }
        self.refill_devices();
    }

    /// The kernel begins to use a device. `false`: its unit remembers that it had no tables.
    pub fn serve(&mut self, device: DeviceId) -> bool {
        let remembers = self.has(Power::RemembersAbsence);
        let Some(device) = self.devices.get_mut(&device.0) else { return false };
        device.served = device.known || !remembers;
        device.served
    }

    /// The first page of a range at which a device of this domain that is in use could find
    /// nothing, and why. `tag`: by a unit's number, the tag there.
    pub fn faults(
        &self,
        range: IovaRange,
        tag: impl Fn(usize) -> DomainId,
    ) -> Option<(u64, &'static str)> {
        for device in self.devices.values().filter(|d| d.plugged && d.served) {
            let unit = &self.units[device.unit];
            let Some(entry) = device.entry().filter(|e| e.domain == tag(device.unit).0) else {
                continue;
            };
            let remembers = self.has(Power::RemembersAbsence);
            let levels = self.model.as_ref().map_or(1, |m| m.walker.levels);
            let top = Walk { domain: entry.domain, level: levels, first: 0, table: entry.root };
            let mut page = range.first();
            while page <= range.last() {
                match self.walk(top, page) {
                    Found::Nothing => return Some((page, "may still read that nothing is there")),
                    Found::Leaf(leaf) if remembers && !unit.known.contains(&leaf) => {
                        return Some((page, "remembers that nothing was there"));
                    }
                    Found::Leaf(leaf) => page = leaf.first + leaf.pages,
                }
            }
        }
        None
    }

    /// A path that leads to this table page.
    pub fn walks_to(&self, table: PhysAddr) -> Option<u64> {
        let mut ways = (0..self.units.len()).flat_map(|unit| self.ways(unit));
        ways.find(|walk| walk.table == table.0).map(|walk| walk.first)
    }
}

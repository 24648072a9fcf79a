//! What goes wrong with a queue, as a driver of one tells of it.
//!
//! There may be no room; then nothing was submitted. A command may be refused: what was not
//! complete is submitted again. A device may not answer: the same, and without it from then on. It
//! goes on with what it has, until it is taken out.

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::Command;

use super::Iommu;
use crate::hunt::powers::Power;

impl Iommu {
    /// May something go wrong with this unit?
    pub fn may_fail(&self, unit: usize) -> bool {
        let most = self.model.map_or(0, |model| model.faults);
        self.has(Power::QueueErrors) && self.units[unit].faults < most
    }

    /// There is no room.
    pub fn is_full(&mut self, unit: usize) {
        let at = &mut self.units[unit];
        (at.faults, at.was_full) = (at.faults + 1, true);
    }

    /// Has there been no room somewhere since this was asked last?
    pub fn was_full(&mut self) -> bool {
        self.units.iter_mut().fold(false, |was, unit| was | std::mem::take(&mut unit.was_full))
    }

    /// What is not complete is submitted again: nothing of it has taken effect yet.
    pub fn again(&mut self, unit: usize) {
        let at = &mut self.units[unit];
        at.faults += 1;
        at.queue.iter_mut().for_each(|submitted| submitted.executed = false);
    }

    /// The device that is told something just now and may leave it unanswered.
    pub fn may_be_silent(&self, unit: usize) -> Option<DeviceId> {
        let moody = self.model?.moody?;
        let mut told = self.units[unit].queue.iter().flat_map(|submitted| &submitted.commands);
        told.any(|c| matches!(c, Command::Device { device, .. } if *device == moody))
            .then_some(moody)
            .filter(|device| !self.is_silent(*device))
    }

    /// It does.
    pub fn is_silent_now(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device.0) {
            device.silent = true;
        }
    }

    /// Does the device leave what it is told unanswered?
    pub fn is_silent(&self, device: DeviceId) -> bool {
        self.devices.get(&device.0).is_some_and(|device| device.silent)
    }
}

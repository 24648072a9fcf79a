//! The operations of a unit that is on: devices are admitted and expelled, records are taken, the
//! queue is reset.

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::Format;
use shootdown_dma::table::{Format as _, VtdSecondLevel};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use crate::bus::{Bus, Register};
use crate::error::{AdmitError, Error};
use crate::memory::{Memory, PAGE};
use crate::renewable::Renewable;
use crate::ring::Ring;
use crate::unit::RemappingUnit;

use super::entries::{ContextHigh, ContextLow};
use super::fault::Record;
use super::registers::FaultStatus;
use super::{Vtd, queue_format};

impl<B, M, F> RemappingUnit for Vtd<B, M, F>
where
    B: Bus + Clone + Send,
    M: Memory + Clone + Send,
    F: Format + Send,
{
    type Tables = VtdSecondLevel;
    type Queue = Renewable<Ring<B, M>, F>;
    type Record = Record;

    fn tables(&self) -> VtdSecondLevel {
        self.tables
    }

    fn address_bits(&self) -> u32 {
        // MGAW, and what the tables resolve.
        (self.capability.max_width() + 1).min(12 + self.tables.page_bits())
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        self.extended.coherent()
    }

    fn remembers_absence(&self) -> bool {
        // An invalidation flushes write buffers (see the head of `mod.rs`).
        self.capability.caching_mode() || self.capability.write_buffers()
    }

    unsafe fn admit(
        &self,
        device: DeviceId,
        root: PhysAddr,
        id: DomainId,
    ) -> Result<(), AdmitError> {
        let number = device.0 as usize;
        if number >= 1 << 16 {
            return Err(AdmitError::NoSuchDevice);
        }
        let ids = 1u32 << (4 + 2 * self.capability.domains()).min(16);
        if id.0 == 0 || u32::from(id.0) >= ids {
            return Err(AdmitError::BadId); // [V2]
        }
        if root.0 == 0 || root.0 & (PAGE as u64 - 1) != 0 || root.0 >> 52 != 0 {
            return Err(AdmitError::BadRoot);
        }
        let _entries = self.entries.lock();
        let table = self.make_table_of(number >> 8)?;
        let words = self.words_of(table, number & 0xff);
        if ContextLow::from_bits(words[0].load(Ordering::Relaxed)).present() {
            return Err(AdmitError::Admitted);
        }
        let high = ContextHigh::new().with_width(self.tables.address_width()).with_domain(id.0);
        words[1].store(high.into_bits(), Ordering::Relaxed);
        self.memory.write_back(words);
        self.bus.barrier();
        let low = ContextLow::new().with_present(true).with_root(root.0 >> 12);
        words[0].store(low.into_bits(), Ordering::Release); // [V1]
        self.memory.write_back(words);
        self.bus.barrier();
        Ok(())
    }

    fn expel(&self, device: DeviceId) -> bool {
        let _entries = self.entries.lock();
        // SAFETY: one word of the entry is cleared, which takes from the device what it reached.
        let Some(words) = (unsafe { self.entry(device) }) else { return false };
        let before = ContextLow::from_bits(words[0].swap(0, Ordering::AcqRel)); // [V1]
        self.memory.write_back(words);
        self.bus.barrier();
        before.present()
    }

    fn next_record(&self) -> Option<Record> {
        // If another CPU takes records, it takes these too.
        let _records = self.records.try_lock()?;
        let count = self.capability.fault_records() + 1;
        let status = FaultStatus::read(&self.bus);
        let first = usize::from(status.record());
        // From the oldest on. A record that was written meanwhile is found as well: all are looked
        // at.
        let record = (0..count).find_map(|behind| self.take_record((first + behind) % count));
        if record.is_none() && status.overflow() {
            FaultStatus::new().with_overflow(true).write(&self.bus);
            return Some(Record::Lost);
        }
        record
    }

    unsafe fn renew(&self) -> Result<(), Error> {
        let format = queue_format(self.capability, self.extended, self.port.slots());
        let reset = || self.drain().and_then(|()| self.begin());
        // SAFETY: after `begin` the unit has invalidated everything and its queue is empty; for
        // devices' caches: as the caller promises.
        unsafe { self.queue.renew(&self.bus, self.port.clone(), (self.wrap)(format), reset) }
    }
}

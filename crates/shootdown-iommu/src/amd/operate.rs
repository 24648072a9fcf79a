//! The operations of a unit that is on: devices are admitted and expelled, events are taken, the
//! queue is reset.

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::Format;
use shootdown_dma::table::{AmdV1, Format as _};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use crate::bus::{Bus, Register};
use crate::error::{AdmitError, Error};
use crate::memory::{Memory, PAGE};
use crate::renewable::Renewable;
use crate::ring::Ring;
use crate::unit::RemappingUnit;

use super::device_table::{self, BLOCKED, Translation};
use super::fault::Record;
use super::log::Log;
use super::registers::Status;
use super::{Amd, queue_format};

impl<B, M, F> RemappingUnit for Amd<B, M, F>
where
    B: Bus + Clone + Send,
    M: Memory + Clone + Send,
    F: Format + Send,
{
    type Tables = AmdV1;
    type Queue = Renewable<Ring<B, M, Log<B, M>>, F>;
    type Record = Record;

    fn tables(&self) -> AmdV1 {
        self.tables
    }

    fn address_bits(&self) -> u32 {
        12 + self.tables.page_bits()
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        true // tables are read coherently; entries too, by CONTROL.Coherent
    }

    fn remembers_absence(&self) -> bool {
        self.options.remembers_absence
    }

    unsafe fn admit(
        &self,
        device: DeviceId,
        root: PhysAddr,
        id: DomainId,
    ) -> Result<(), AdmitError> {
        let words = self.words_of(device).ok_or(AdmitError::NoSuchDevice)?;
        if root.0 == 0 || root.0 & (PAGE as u64 - 1) != 0 || root.0 >> 52 != 0 {
            return Err(AdmitError::BadRoot);
        }
        let _entries = self.entries.lock();
        if words[0].load(Ordering::Relaxed) != BLOCKED.into_bits() {
            return Err(AdmitError::Admitted);
        }
        words[1].store(device_table::domain(id).into_bits(), Ordering::Relaxed);
        self.memory.write_back(words);
        self.bus.barrier();
        let translation = device_table::translated(&self.tables, root);
        words[0].store(translation.into_bits(), Ordering::Release); // [A2]
        self.memory.write_back(words);
        self.bus.barrier();
        Ok(())
    }

    fn expel(&self, device: DeviceId) -> bool {
        let Some(words) = self.words_of(device) else { return false };
        let _entries = self.entries.lock();
        let before = words[0].swap(BLOCKED.into_bits(), Ordering::AcqRel); // [A2]
        self.memory.write_back(words);
        self.bus.barrier();
        Translation::from_bits(before) != BLOCKED
    }

    fn next_record(&self) -> Option<Record> {
        // If another CPU takes events, it takes these too.
        let _records = self.records.try_lock()?;
        let record = self.log.next(|| {
            // `attend` handles what it finds, and an error that it returns is an event of this log,
            // so nothing is lost. A queue that is stuck returns that error to every caller.
            let _ = self.queue.attend();
        });
        let lost = || {
            let overflow = Status::read(&self.bus).event_overflow();
            (overflow && !self.lost_told.swap(true, Ordering::Relaxed)).then_some(Record::Lost)
        };
        record.or_else(lost)
    }

    unsafe fn renew(&self) -> Result<(), Error> {
        let format = queue_format(self.features, self.port.slots());
        let reset = || self.begin();
        // SAFETY: after `begin` the unit has invalidated everything and its queue is empty; for
        // devices' caches: as the caller promises.
        unsafe { self.queue.renew(&self.bus, self.port.clone(), (self.wrap)(format), reset) }
    }
}

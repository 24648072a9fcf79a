//! The operations of a unit that is on: devices are admitted and expelled, events are taken, the
//! queue is reset.

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::Format;
use shootdown_dma::sync::fence;
use shootdown_dma::table::{ArmStage1, Format as _};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use crate::bus::{Bus, Register};
use crate::error::{AdmitError, Error};
use crate::memory::{Memory, PAGE};
use crate::renewable::Renewable;
use crate::ring::Ring;
use crate::unit::RemappingUnit;

use super::entries::{self, Stream0, Stream1};
use super::fault::{EVENT, Record};
use super::registers::{Cr0, EventCons, EventProd};
use super::{OUTPUT_48, Smmu, queue_format};

impl<B, M, F> RemappingUnit for Smmu<B, M, F>
where
    B: Bus + Clone + Send,
    M: Memory + Clone + Send,
    F: Format + Send,
{
    type Tables = ArmStage1;
    type Queue = Renewable<Ring<B, M>, F>;
    type Record = Record;

    fn tables(&self) -> ArmStage1 {
        self.tables
    }

    fn address_bits(&self) -> u32 {
        12 + self.tables.page_bits()
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        true // or it would not have been set up
    }

    fn remembers_absence(&self) -> bool {
        false // nor may any (3.21)
    }

    unsafe fn admit(
        &self,
        device: DeviceId,
        root: PhysAddr,
        id: DomainId,
    ) -> Result<(), AdmitError> {
        let (idr0, _, _, idr5) = self.identification;
        if !idr0.asid_16() && id.0 > 0xff {
            return Err(AdmitError::BadId);
        }
        if root.0 == 0 || root.0 & (PAGE as u64 - 1) != 0 || root.0 >> 48 != 0 {
            return Err(AdmitError::BadRoot);
        }
        let _entries = self.entries.lock();
        let stream = self.streams.make(&self.bus, device)?;
        if Stream0::from_bits(stream.entry[0].load(Ordering::Relaxed)).valid() {
            return Err(AdmitError::Admitted);
        }
        let output = idr5.output_size().min(OUTPUT_48);
        let (shape, table, attributes) = entries::context(&self.tables, output, root, id);
        stream.context[1].store(table.into_bits(), Ordering::Relaxed);
        stream.context[3].store(attributes, Ordering::Relaxed);
        self.bus.barrier();
        stream.context[0].store(shape.into_bits(), Ordering::Release); // [S1]
        stream.entry[1].store(Stream1::CACHEABLE.into_bits(), Ordering::Relaxed);
        self.memory.write_back(stream.context);
        self.memory.write_back(stream.entry);
        self.bus.barrier();
        let config = entries::stage_1(stream.context_at);
        stream.entry[0].store(config.into_bits(), Ordering::Release); // [S1, S2]
        self.memory.write_back(stream.entry);
        self.bus.barrier();
        Ok(())
    }

    fn expel(&self, device: DeviceId) -> bool {
        let Some(stream) = self.streams.find(device) else { return false };
        let _entries = self.entries.lock();
        let before = stream.entry[0].swap(0, Ordering::AcqRel); // [S1]
        self.memory.write_back(stream.entry);
        self.bus.barrier();
        stream.context[0].store(0, Ordering::Release); // [S2]
        self.memory.write_back(stream.context);
        self.bus.barrier();
        Stream0::from_bits(before).valid()
    }

    fn next_record(&self) -> Option<Record> {
        // If another CPU takes events, it takes these too.
        let _records = self.records.try_lock()?;
        let (produced, consumed) = (EventProd::read(&self.bus), EventCons::read(&self.bus));
        // Index, and whether the number of rounds is odd.
        let mask = (2 << self.log_events()) - 1;
        if produced.position() & mask == consumed.position() & mask {
            let lost = produced.overflow() != consumed.overflow();
            if lost {
                consumed.with_overflow(produced.overflow()).write(&self.bus);
            }
            return lost.then_some(Record::Lost);
        }
        // ORDERING: Acquire: a register is no atomic; its partner is the unit, which has written
        // the event before it moved EVENTQ_PROD.
        fence(Ordering::Acquire);
        let at = (consumed.position() & (mask >> 1)) as usize * EVENT / 8;
        let words = &self.events.words()[at..at + EVENT / 8];
        let event = core::array::from_fn(|word| words[word].load(Ordering::Relaxed));
        // The event was read before its place is the unit's again.
        self.bus.barrier();
        let next = (consumed.position() + 1) & mask;
        consumed.with_position(next).write(&self.bus);
        Some(Record::decode(event))
    }

    unsafe fn renew(&self) -> Result<(), Error> {
        let format = queue_format(self.identification, self.survives, self.port.slots());
        let reset = || self.begin(Cr0::new().with_events(true).with_translation(true));
        // SAFETY: after `begin` the unit has invalidated everything and its queue is empty; for
        // devices' caches: as the caller promises.
        unsafe { self.queue.renew(&self.bus, self.port.clone(), (self.wrap)(format), reset) }
    }
}

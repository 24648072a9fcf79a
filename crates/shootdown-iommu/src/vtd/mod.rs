//! Intel VT-d with legacy tables: turned on, kept and turned off.
//!
//! | structure | entries | here |
//! |---|---|---|
//! | root table | 16 bytes for each bus | one page |
//! | context table | 16 bytes for each function | one page for each bus that a device was admitted on |
//! | queue | 16 bytes | [`Options::slots`]; written by the library |
//!
//! # Turning it on
//! (VT-d, chapter 11, "Global Command Register"; 6.5 for the queue.) What firmware or a previous
//! kernel has left on stays on, so translation is never off in between:
//! 1. A queue that is on is emptied and turned off, since registers can invalidate only without a
//!    queue.
//! 2. Faults are masked, and old records are discarded.
//! 3. The root table, which is empty, takes effect, after write buffers were flushed, where the
//!    unit has such. If translation was on, devices lose their access with the next step; if not,
//!    nothing changes yet.
//! 4. Entries and translations are invalidated by registers; accesses under way are drained.
//! 5. The queue is turned on, empty.
//! 6. Translation is turned on. From here on devices reach only what they were admitted to.
//! 7. Only then the protection of memory by firmware (PMEN) is turned off.
//!
//! # Turning it off
//! In reverse order: translation, then the queue. *Then every device reaches all of memory*; so the
//! host keeps them from DMA before.
//!
//! # Resetting the queue
//! A queue must be empty to be turned off (6.5.2), and the unit may have refused a slot of it. So
//! all slots become waits that store to an unused word, errors are acknowledged, and the unit takes
//! one more of them. Then follow steps 4 and 5. Translation stays on, by the same tables.
//!
//! # Write buffers
//! A unit with `CAP.RWBF` may not see what was stored to tables for some time. Before it
//! invalidates anything it flushes its buffers by itself (chapter 11, "IOTLB Invalidate Register",
//! IVT). Where no invalidation is needed otherwise, which is after mapping, software has to flush.
//! Such units are chipsets of 2008 and before. A domain makes no extra register write for them: the
//! unit [reports](crate::RemappingUnit::remembers_absence) that it needs an invalidation after
//! mapping, as a unit that caches absent entries does.
//!
//! # Invariants
//! - V1: of an entry the half with the *present* bit is written last, and cleared first; the
//!   invalidation follows after that.
//! - V2: id 0 belongs to no domain: units that cache absent entries tag them with that id (6.1).
//! - V3: a context table is not freed before the unit is off.

pub mod entries;
pub mod fault;
mod operate;
pub mod registers;

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::{Format, Vtd as QueueFormat};
use shootdown_dma::invalidate::vtd::{self, Facts};
use shootdown_dma::sync::AtomicU64;
use shootdown_dma::table::VtdSecondLevel;
use shootdown_dma::{DeviceId, PhysAddr};
use spin::Mutex;

use crate::bus::{Bus, Register, wait};
use crate::error::{AdmitError, Error, Step, Unfit};
use crate::memory::{Kept, Memory, PAGE, Pages, WORDS};
use crate::renewable::Renewable;
use crate::ring::{self, Ring};
use crate::unit::Message;
use entries::RootEntry;
use fault::Record;
use registers::{
    Capability, ContextCommand, ExtendedCapability, FaultAddress, FaultControl, FaultData,
    FaultStatus, FaultUpperAddress, GlobalCommand, GlobalStatus, IotlbCommand, ProtectedMemory,
    QueueAddress, QueueHead, QueueTail, RootTable,
};

/// The most slots that IQA.QS can encode.
const MOST_SLOTS: usize = 1 << 15;

/// The host's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Slots of the queue, rounded up to a power of two: 256 to 32,768.
    pub slots: usize,
    /// The number of address bits, if the unit has tables for them: see
    /// [`VtdSecondLevel::from_capability`].
    pub address_bits: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { slots: 256, address_bits: 48 }
    }
}

/// A unit that is set up; see the [module](self). The operations of a unit that is on, as a
/// [`RemappingUnit`](crate::RemappingUnit), are in `operate.rs`.
pub struct Vtd<B: Bus, M: Memory, F = QueueFormat> {
    bus: B,
    memory: M,
    capability: Capability,
    extended: ExtendedCapability,
    tables: VtdSecondLevel,
    port: Ring<B, M>,
    queue: Renewable<Ring<B, M>, F>,
    wrap: fn(QueueFormat) -> F,
    root: Kept<M>,
    ring: Kept<M>,
    status: Kept<M>,
    /// Held while entries change.
    entries: Mutex<()>,
    /// Held while records are taken.
    records: Mutex<()>,
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send> Vtd<B, M> {
    /// Sets the unit up: every access is refused until its device is admitted.
    ///
    /// # Errors
    /// See [`Error`]. After [`Error::Timeout`] the unit is in the state that it had reached, and
    /// keeps the memory whose address it has got; after all other errors it was not touched.
    ///
    /// # Safety
    /// The registers are those of a VT-d unit, and no other code writes to them, now or later.
    /// Devices behind it may lose their access.
    pub unsafe fn set_up(bus: B, memory: M, options: Options) -> Result<Self, Error> {
        // SAFETY: as the caller promises.
        unsafe { Self::set_up_with(bus, memory, options, |format| format) }
    }
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send, F: Format + Send> Vtd<B, M, F> {
    /// The same, with the queue's format wrapped: to count commands, or to inject errors.
    ///
    /// # Errors
    /// As [`set_up`](Vtd::set_up).
    ///
    /// # Safety
    /// As [`set_up`](Vtd::set_up); what the wrapper encodes covers the command that it got.
    pub unsafe fn set_up_with(
        bus: B,
        memory: M,
        options: Options,
        wrap: fn(QueueFormat) -> F,
    ) -> Result<Self, Error> {
        let (capability, extended) = (Capability::read(&bus), ExtendedCapability::read(&bus));
        let tables = fit(capability, extended, &memory, options.address_bits)?;
        let status = GlobalStatus::read(&bus);
        if status.translation() && RootTable::read(&bus).mode() != 0 {
            return Err(Error::Unfit(Unfit::OtherMode));
        }
        let root = Pages::of_bytes(memory.clone(), PAGE)?;
        let ring = ring::pages(memory.clone(), options.slots.min(MOST_SLOTS))?;
        let word = Pages::of_bytes(memory.clone(), PAGE)?;
        let port = Ring::new(bus.clone(), memory.clone(), &ring, &word, ring::NoLog);
        let queue = queue_format(capability, extended, port.slots());
        let queue = Renewable::new(port.clone(), wrap(queue))?;
        memory.write_back(root.words());
        let (root, ring, word) = (root.keep(), ring.keep(), word.keep());
        let records = Mutex::new(());
        let unit = Self {
            tables,
            port,
            queue,
            wrap,
            root,
            ring,
            status: word,
            entries: Mutex::new(()),
            records,
            bus,
            memory,
            capability,
            extended,
        };
        unit.turn_on(status)?;
        Ok(unit)
    }

    fn turn_on(&self, before: GlobalStatus) -> Result<(), Error> {
        let bus = &self.bus;
        if before.queue() {
            wait(bus, Step::DrainQueue, || {
                QueueHead::read(bus).slot() == QueueTail::read(bus).slot()
            })?;
            self.command(Step::QueueOff, |states| states.with_queue(false), |now| !now.queue())?;
        }
        FaultControl::new().with_masked(true).write(bus);
        self.forget_records();
        if self.capability.write_buffers() {
            self.command(
                Step::WriteBuffers,
                |states| states.with_flush_write_buffers(true),
                |now| !now.flushes_write_buffers(),
            )?;
        }
        RootTable::new().with_page(self.root.address().0 >> 12).write(bus);
        self.command(Step::Tables, |states| states.with_set_root(true), |now| now.root())?;
        self.begin()?;
        self.command(
            Step::TranslationOn,
            |states| states.with_translation(true),
            |now| now.translation(),
        )?;
        if self.capability.protected_low() || self.capability.protected_high() {
            ProtectedMemory::new().write(bus);
            wait(bus, Step::Protection, || !ProtectedMemory::read(bus).is_protected())?;
        }
        Ok(())
    }

    /// Makes one change of GCMD, and waits until GSTS shows it.
    fn command(
        &self,
        step: Step,
        change: impl FnOnce(GlobalCommand) -> GlobalCommand,
        done: impl Fn(GlobalStatus) -> bool,
    ) -> Result<(), Error> {
        change(GlobalStatus::read(&self.bus).states()).write(&self.bus);
        wait(&self.bus, step, || done(GlobalStatus::read(&self.bus)))
    }

    /// Without a queue: invalidates all entries, then all translations.
    fn forget_all(&self) -> Result<(), Error> {
        const ALL: u8 = 1;
        let bus = &self.bus;
        ContextCommand::new().with_go(true).with_granularity(ALL).write(bus);
        wait(bus, Step::ForgetEntries, || !ContextCommand::read(bus).go())?;
        // The command register follows the address register.
        let at = self.extended.iotlb_offset() * 16 + 8;
        let command = IotlbCommand::new()
            .with_go(true)
            .with_granularity(ALL)
            .with_drain_reads(self.capability.drains_reads())
            .with_drain_writes(self.capability.drains_writes());
        bus.write64(at, command.into_bits());
        wait(bus, Step::ForgetTranslations, || !IotlbCommand::from_bits(bus.read64(at)).go())
    }

    /// Invalidates everything, and makes the unit read its queue, which is empty.
    fn begin(&self) -> Result<(), Error> {
        self.forget_all()?;
        let bus = &self.bus;
        QueueTail::new().write(bus);
        let pages = self.port.slots() * ring::SLOT / PAGE;
        let page = self.port.address().0 >> 12;
        QueueAddress::new().with_page(page).with_size(pages.ilog2()).write(bus);
        self.command(Step::QueueOn, |states| states.with_queue(true), |now| now.queue())
    }

    /// Makes the unit stop to read its queue: a slot that it refuses becomes a wait that stores to
    /// an unused word.
    fn drain(&self) -> Result<(), Error> {
        use shootdown_dma::invalidate::queue::Port;
        let (bus, slots) = (&self.bus, self.port.slots());
        let idle = vtd::wait(PhysAddr(self.port.status_address().0 + 8), 0, false);
        self.port.fill((0..slots).map(|_| idle));
        let errors = FaultStatus::new().with_queue_error(true).with_completion_error(true);
        errors.with_timeout(true).write(bus);
        if !GlobalStatus::read(bus).queue() {
            return Ok(()); // a reset before stopped here
        }
        // One more than there were: QEMU turns a queue off only if the last slot that it has taken
        // was a wait.
        let tail = (QueueTail::read(bus).slot() + 1) % slots as u64;
        QueueTail::new().with_slot(tail).write(bus);
        wait(bus, Step::DrainQueue, || QueueHead::read(bus).slot() == tail)?;
        self.command(Step::QueueOff, |states| states.with_queue(false), |now| !now.queue())
    }

    /// Turns the unit off, and takes its memory back. The host handles what devices behind it have
    /// cached.
    ///
    /// # Errors
    /// The unit does not acknowledge a step. It keeps its memory.
    ///
    /// # Safety
    /// No device behind it does DMA from now on, or all of them may reach all of memory. No domain
    /// uses its queue any more.
    #[expect(clippy::result_large_err, reason = "the unit comes back, and once")]
    pub unsafe fn turn_off(self) -> Result<(), (Self, Error)> {
        let off = self
            .command(
                Step::TranslationOff,
                |states| states.with_translation(false),
                |now| !now.translation(),
            )
            .and_then(|()| self.drain());
        if let Err(error) = off {
            return Err((self, error));
        }
        let Self { root, ring, status, memory, queue, .. } = self;
        drop(queue);
        for entry in root.words().iter().step_by(2) {
            let entry = RootEntry::from_bits(entry.load(Ordering::Acquire));
            if entry.present() {
                // SAFETY: allocated by `context_table`; only the unit used it, and the unit is off
                // (V3).
                unsafe { memory.free(PhysAddr(entry.table() << 12), 1) };
            }
        }
        // SAFETY: the unit is off: translation, and the queue.
        unsafe {
            root.release();
            ring.release();
            status.release();
        }
        Ok(())
    }

    /// The context table of a bus, if there is one.
    fn table_of(&self, bus: usize) -> Option<PhysAddr> {
        // ORDERING: Acquire, with the Release in `make_table_of`: the table's zeros.
        let entry = RootEntry::from_bits(self.root.word(2 * bus).load(Ordering::Acquire));
        entry.present().then_some(PhysAddr(entry.table() << 12))
    }

    /// Called with `entries` held: the same, made if there is none.
    fn make_table_of(&self, bus: usize) -> Result<PhysAddr, AdmitError> {
        if let Some(table) = self.table_of(bus) {
            return Ok(table);
        }
        let table = Pages::of_bytes(self.memory.clone(), PAGE).map_err(|_| AdmitError::NoMemory)?;
        self.memory.write_back(table.words());
        let entry = RootEntry::new().with_present(true).with_table(table.address().0 >> 12);
        let table = table.keep().address();
        self.bus.barrier();
        // ORDERING: Release, with the Acquire in `table_of`.
        let word = self.root.word(2 * bus);
        word.store(entry.into_bits(), Ordering::Release);
        self.memory.write_back(core::slice::from_ref(word));
        Ok(table)
    }

    /// Both words of a device's entry in the context table of its bus, for tests and dumps; `None`
    /// if no device was admitted on that bus.
    ///
    /// # Safety
    /// The caller does not store to them, or it is responsible for the devices' accesses.
    #[must_use]
    pub unsafe fn entry(&self, device: DeviceId) -> Option<&[AtomicU64]> {
        let number = usize::try_from(device.0).ok().filter(|number| *number < 1 << 16)?;
        self.table_of(number >> 8).map(|table| self.words_of(table, number & 0xff))
    }

    fn words_of(&self, table: PhysAddr, function: usize) -> &[AtomicU64] {
        // SAFETY: a context table, which stays as long as the unit is on (V3).
        let words = unsafe { self.memory.words(table, WORDS) };
        &words[function * 2..function * 2 + 2]
    }

    /// The offset of a fault record.
    fn record_at(&self, number: usize) -> usize {
        (self.capability.fault_offset() + number) * 16
    }

    /// Takes the record of this number, if it is valid.
    fn take_record(&self, number: usize) -> Option<Record> {
        let at = self.record_at(number);
        let high = self.bus.read64(at + 8);
        let record = Record::decode(self.bus.read64(at), high)?;
        self.bus.write64(at + 8, fault::RecordHigh::new().with_recorded(true).into_bits());
        Some(record)
    }

    fn forget_records(&self) {
        for number in 0..=self.capability.fault_records() {
            self.take_record(number);
        }
        FaultStatus::new().with_overflow(true).write(&self.bus);
    }

    /// Makes faults interrupt by this message; `None`: they are only recorded.
    ///
    /// The handler takes [records](crate::RemappingUnit::next_record) until there are none, and
    /// calls [`Renewable::attend`] for the queue's errors, which interrupt in the same way. As long
    /// as records are left there is no other interrupt.
    pub fn interrupt(&self, message: Option<Message>) {
        let bus = &self.bus;
        FaultControl::new().with_masked(true).write(bus);
        let Some(Message { address, data }) = message else { return };
        FaultData::new().with_value(data).write(bus);
        FaultAddress::new().with_value(address as u32).write(bus);
        FaultUpperAddress::new().with_value((address >> 32) as u32).write(bus);
        FaultControl::new().write(bus);
    }

    /// Its capabilities.
    pub const fn capability(&self) -> Capability {
        self.capability
    }

    /// Its extended capabilities.
    pub const fn extended_capability(&self) -> ExtendedCapability {
        self.extended
    }

    /// Its registers.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    /// Its queue, as this crate's type.
    pub const fn renewable(&self) -> &Renewable<Ring<B, M>, F> {
        &self.queue
    }
}

/// The tables that the unit walks, if it has all that the library needs.
fn fit<M: Memory>(
    capability: Capability,
    extended: ExtendedCapability,
    memory: &M,
    address_bits: u32,
) -> Result<VtdSecondLevel, Error> {
    if !extended.queue() {
        return Err(Error::Unfit(Unfit::NoQueue));
    }
    if !extended.coherent() && memory.is_coherent() {
        return Err(Error::Unfit(Unfit::NotCoherent));
    }
    VtdSecondLevel::from_capability(capability.into_bits(), address_bits)
        .ok_or(Error::Unfit(Unfit::NoTables))
}

fn queue_format(cap: Capability, ecap: ExtendedCapability, slots: usize) -> QueueFormat {
    let facts = Facts::from_cap(cap.into_bits()).with_ecap(ecap.into_bits());
    QueueFormat { facts, slots: slots as u64 }
}

//! AMD-Vi: turned on, kept and turned off.
//!
//! | structure | entries | here |
//! |---|---|---|
//! | device table | 32 bytes for each function | for all up to [`Options::last_device`] |
//! | command buffer | 16 bytes | [`Options::slots`]; written by the library |
//! | event log | 16 bytes | as many; see [`log`] |
//!
//! # Turning it on
//! (AMD-Vi 2.11, "Making Changes in the System", and chapter 3.) What firmware or a previous kernel
//! has left on stays on, so translation is never off in between:
//! 1. A command buffer and a log that are on are turned off. Translation is as it was.
//! 2. The device table takes effect, in which every entry is valid and allows nothing. If the unit
//!    was on, devices lose their access with 4; if not, nothing changes yet.
//! 3. The log, empty, and the unit itself are turned on: whatever it has not cached it reads from
//!    the new table. From here on devices reach only what they were admitted to, and what the unit
//!    may have cached, which is never more than before.
//! 4. The command buffer is turned on; commands invalidate everything, and `set_up` waits for them.
//! 5. The command buffer is turned on again, empty: the library's queue begins at slot 0.
//!
//! # Turning it off
//! In reverse order: the command buffer, the log, then the unit. *Then every device reaches all of
//! memory*; so the host keeps them from DMA before.
//!
//! # Resetting the queue
//! Steps 4 and 5 again. The unit stays on, by the same table.
//!
//! # Invariants
//! - A1: every entry of the device table is valid from the beginning, and allows nothing. An entry
//!   that is not valid would let its device through untranslated. That the unit refuses a device
//!   beyond the table is *assumed*: [`Options::last_device`] is the last that can exist, unless the
//!   host says otherwise.
//! - A2: of an entry that changes, the word with the rights is written last, and cleared first; the
//!   invalidation follows after that.

pub mod device_table;
pub mod fault;
pub mod log;
mod operate;
pub mod registers;

use core::sync::atomic::{AtomicBool, Ordering};

use shootdown_dma::invalidate::amd::{self, Facts};
use shootdown_dma::invalidate::queue::{Amd as QueueFormat, Format, Port, Slot};
use shootdown_dma::sync::AtomicU64;
use shootdown_dma::table::AmdV1;
use shootdown_dma::{DeviceId, DomainId};
use spin::Mutex;

use crate::bus::{Bus, Register, wait};
use crate::error::{Error, Step, Unfit};
use crate::memory::{Kept, Memory, PAGE, Pages};
use crate::renewable::Renewable;
use crate::ring::{self, Ring};
use device_table::{BLOCKED, ENTRY};
use log::Log;
use registers::{
    CommandBuffer, CommandHead, CommandTail, Control, DeviceTable, ExtendedFeatures, Status,
};

/// The host's choices, and facts that are not in the unit's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The last device behind the unit, by IVRS: the table ends with it.
    pub last_device: u16,
    /// Slots of the command buffer and entries of the log, rounded up to a power of two: 256 to
    /// 32,768.
    pub slots: usize,
    /// Levels of tables: 3 to 6. The unit has to support this number (EFR.HATS).
    pub levels: u32,
    /// Whether the unit caches absent entries (NpCache, bit 26 of the header of its capability in
    /// PCI's configuration).
    pub remembers_absence: bool,
    /// The flags of its IVHD block (`acpi::ivrs::Unit::flags`): HtTunEn, PassPW, ResPassPW, Isoc
    /// are passed to the unit.
    pub flags: u8,
    /// Whether events interrupt. The unit's MSI capability in PCI's configuration, which the host
    /// writes, has the message. The handler calls [`Amd::acknowledge`], takes
    /// [records](crate::RemappingUnit::next_record) until there are none, and calls
    /// [`Renewable::attend`].
    pub interrupts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            last_device: u16::MAX,
            slots: 256,
            levels: 4,
            remembers_absence: false,
            flags: 0,
            interrupts: false,
        }
    }
}

/// The most slots that ComLen can encode.
const MOST_SLOTS: usize = 1 << 15;

/// InvTimeOut: one second. PCIe (ATS) gives devices one minute to acknowledge, which is too long to
/// wait; with 0 the unit would wait for ever.
const ONE_SECOND: u8 = 4;

/// A unit that is set up; see the [module](self). The operations of a unit that is on, as a
/// [`RemappingUnit`](crate::RemappingUnit), are in `operate.rs`.
pub struct Amd<B: Bus, M: Memory, F = QueueFormat> {
    bus: B,
    memory: M,
    features: ExtendedFeatures,
    tables: AmdV1,
    options: Options,
    port: Ring<B, M, Log<B, M>>,
    queue: Renewable<Ring<B, M, Log<B, M>>, F>,
    wrap: fn(QueueFormat) -> F,
    log: Log<B, M>,
    devices: Kept<M>,
    ring: Kept<M>,
    events: Kept<M>,
    status: Kept<M>,
    /// Held while entries change.
    entries: Mutex<()>,
    /// Held while events are taken out.
    records: Mutex<()>,
    /// A record that events were lost has been returned.
    lost_told: AtomicBool,
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send> Amd<B, M> {
    /// Sets the unit up: every access is refused until its device is admitted.
    ///
    /// # Errors
    /// See [`Error`]. After [`Error::Timeout`] the unit is in the state that it had reached, and
    /// keeps the memory whose address it has got; after all other errors it was not touched.
    ///
    /// # Safety
    /// The registers are those of an AMD-Vi unit, and no other code writes to them, now or later.
    /// Devices behind it may lose their access.
    pub unsafe fn set_up(bus: B, memory: M, options: Options) -> Result<Self, Error> {
        // SAFETY: as the caller promises.
        unsafe { Self::set_up_with(bus, memory, options, |format| format) }
    }
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send, F: Format + Send> Amd<B, M, F> {
    /// The same, with the queue's format wrapped: to count commands, or to inject errors.
    ///
    /// # Errors
    /// As [`set_up`](Amd::set_up).
    ///
    /// # Safety
    /// As [`set_up`](Amd::set_up); what the wrapper encodes covers the command that it got.
    pub unsafe fn set_up_with(
        bus: B,
        memory: M,
        options: Options,
        wrap: fn(QueueFormat) -> F,
    ) -> Result<Self, Error> {
        let features = ExtendedFeatures::read(&bus);
        let levels = options.levels;
        let tables =
            AmdV1::new(levels, true).filter(|_| (3..=4 + features.host_levels()).contains(&levels));
        let tables = tables.ok_or(Error::Unfit(Unfit::NoTables))?;
        let bytes = (usize::from(options.last_device) + 1) * ENTRY;
        let devices = Pages::of_bytes(memory.clone(), bytes)?;
        for entry in devices.words().chunks_exact(ENTRY / 8) {
            entry[0].store(BLOCKED.into_bits(), Ordering::Relaxed); // [A1]
        }
        memory.write_back(devices.words());
        let slots = options.slots.min(MOST_SLOTS);
        let ring = ring::pages(memory.clone(), slots)?;
        let events = ring::pages(memory.clone(), slots)?;
        let word = Pages::of_bytes(memory.clone(), PAGE)?;
        let log = Log::new(bus.clone(), memory.clone(), &events);
        let port = Ring::new(bus.clone(), memory.clone(), &ring, &word, log.clone());
        let queue = Renewable::new(port.clone(), wrap(queue_format(features, port.slots())))?;
        let (devices, ring) = (devices.keep(), ring.keep());
        let (events, status) = (events.keep(), word.keep());
        let (entries, records) = (Mutex::new(()), Mutex::new(()));
        let unit = Self {
            bus,
            memory,
            features,
            tables,
            options,
            port,
            queue,
            wrap,
            log,
            devices,
            ring,
            events,
            status,
            entries,
            records,
            lost_told: AtomicBool::new(false),
        };
        unit.turn_on()?;
        Ok(unit)
    }

    /// CONTROL, with the unit and its log on.
    fn control(&self) -> Control {
        let flag = |bit: u8| self.options.flags & 1 << bit != 0;
        Control::new()
            .with_enabled(true)
            .with_tunnel(flag(0))
            .with_pass_posted(flag(1))
            .with_response_pass_posted(flag(2))
            .with_isochronous(flag(3))
            .with_events(true)
            .with_event_interrupts(self.options.interrupts)
            .with_coherent(true)
            .with_invalidation_timeout(ONE_SECOND)
    }

    fn turn_on(&self) -> Result<(), Error> {
        let bus = &self.bus;
        self.queues_off()?;
        let pages = self.devices.words().len() * 8 / PAGE;
        self.bus.barrier();
        DeviceTable::new()
            .with_page(self.devices.address().0 >> 12)
            .with_size(pages as u64 - 1)
            .write(bus);
        CommandBuffer::new()
            .with_page(self.port.address().0 >> 12)
            .with_length(self.port.slots().ilog2())
            .write(bus);
        self.log.place();
        self.control().write(bus);
        wait(bus, Step::Events, || Status::read(bus).events_run())?;
        self.begin()
    }

    /// Turns the command buffer and the log off; the unit is as it was.
    fn queues_off(&self) -> Result<(), Error> {
        let bus = &self.bus;
        let control = Control::read(bus);
        control.with_commands(false).with_events(false).with_page_requests(false).write(bus);
        wait(bus, Step::QueueOff, || !Status::read(bus).commands_run())?;
        wait(bus, Step::Events, || !Status::read(bus).events_run())
    }

    /// Makes the unit read its command buffer, which is empty.
    fn empty(&self) -> Result<(), Error> {
        let bus = &self.bus;
        let control = Control::read(bus);
        control.with_commands(false).write(bus);
        wait(bus, Step::QueueOff, || !Status::read(bus).commands_run())?;
        CommandHead::new().write(bus);
        CommandTail::new().write(bus);
        control.with_commands(true).write(bus);
        wait(bus, Step::QueueOn, || Status::read(bus).commands_run())
    }

    /// Invalidates everything, and makes the unit read its command buffer, which is empty.
    fn begin(&self) -> Result<(), Error> {
        let all = [amd::all()];
        if self.features.invalidate_all() {
            self.run(Step::ForgetTranslations, all)?;
        } else {
            // Each entry, and each possible domain.
            let last = u32::from(self.options.last_device);
            let entries = (0..=last).map(|device| amd::device_entry(DeviceId(device)));
            self.run(Step::ForgetEntries, entries)?;
            let domains = (0..=u16::MAX).map(|id| amd::domain(DomainId(id)));
            self.run(Step::ForgetTranslations, domains)?;
        }
        self.empty()
    }

    /// Runs commands, a ring of them at a time, each ring followed by a wait for all of it.
    fn run(&self, step: Step, commands: impl IntoIterator<Item = Slot>) -> Result<(), Error> {
        const DONE: u64 = 1;
        // One for the wait, and one that stays free: a full ring looks like an empty one.
        let most = self.port.slots() - 2;
        let mut commands = commands.into_iter().peekable();
        let done = amd::completion_wait(Some((self.port.status_address(), DONE)), false);
        while commands.peek().is_some() {
            self.empty()?;
            self.port.status().store(0, Ordering::Relaxed);
            let mut count = 1;
            let taken = commands.by_ref().take(most).inspect(|_| count += 1);
            self.port.fill(taken.chain([done]));
            CommandTail::new().with_slot(count).write(&self.bus);
            self.port.wait_for(step, DONE)?;
        }
        Ok(())
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
        if let Err(error) = self.queues_off() {
            return Err((self, error));
        }
        Control::new().write(&self.bus);
        // It has no status; the register is read back, after which accesses under way have ended.
        if let Err(error) =
            wait(&self.bus, Step::TranslationOff, || !Control::read(&self.bus).enabled())
        {
            return Err((self, error));
        }
        let Self { devices, ring, events, status, queue, .. } = self;
        drop(queue);
        // SAFETY: the unit is off, its command buffer and its log too.
        unsafe {
            devices.release();
            ring.release();
            events.release();
            status.release();
        }
        Ok(())
    }

    /// The four words of a device's entry, for tests and dumps; `None` if it is beyond the table.
    ///
    /// # Safety
    /// The caller does not store to them, or it is responsible for the devices' accesses.
    #[must_use]
    pub unsafe fn entry(&self, device: DeviceId) -> Option<&[AtomicU64]> {
        self.words_of(device)
    }

    fn words_of(&self, device: DeviceId) -> Option<&[AtomicU64]> {
        if device.0 > u32::from(self.options.last_device) {
            return None;
        }
        let at = device.0 as usize * ENTRY / 8;
        Some(&self.devices.words()[at..at + ENTRY / 8])
    }

    /// Acknowledges an interrupt about events. Call it before they are taken out: an event that
    /// comes after it interrupts again.
    pub fn acknowledge(&self) {
        Status::new().with_event_interrupt(true).write(&self.bus);
    }

    /// Makes the unit log events again when it has stopped because the log was full:
    /// [`Record::Lost`](fault::Record::Lost) was the last
    /// [record](crate::RemappingUnit::next_record). `false`: there is nothing to do, or there are
    /// records left.
    ///
    /// # Errors
    /// The unit does not acknowledge a step. [`Error::Busy`]: try again.
    pub fn restart_log(&self) -> Result<bool, Error> {
        let _records = self.records.lock();
        // The library's queue writes CONTROL as well, when it goes on after an error.
        let restarted = self.queue.paused(&self.bus, || self.log.restart())?;
        if restarted {
            self.lost_told.store(false, Ordering::Relaxed);
        }
        Ok(restarted)
    }

    /// Its features.
    pub const fn features(&self) -> ExtendedFeatures {
        self.features
    }

    /// Its registers.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    /// Its queue, as this crate's type.
    pub const fn renewable(&self) -> &Renewable<Ring<B, M, Log<B, M>>, F> {
        &self.queue
    }
}

fn queue_format(features: ExtendedFeatures, slots: usize) -> QueueFormat {
    QueueFormat { slots: slots as u64, facts: Facts::from_efr(features.into_bits()) }
}

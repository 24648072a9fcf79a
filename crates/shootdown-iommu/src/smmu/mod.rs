//! An Arm SMMUv3, first stage: turned on, kept and turned off.
//!
//! | structure | entries | here |
//! |---|---|---|
//! | stream table | 64 bytes for each device | one or two levels, for [`Options::stream_bits`] |
//! | context descriptor | 64 bytes: tables, their format, ASID | one for each stream, behind the entries |
//! | command queue | 16 bytes | [`Options::slots`]; written by the library |
//! | event queue | 32 bytes | [`Options::events`] |
//!
//! # Turning it on
//! (IHI 0070, 3.11: "Reset, Enable and initialization".) An SMMU takes another stream table only
//! while it is off; so its behaviour while it is off is set first:
//! 1. GBPA: while it is off, it refuses accesses. (A unit without that register, such as QEMU's
//!    before version 8, lets them pass while it is off, as before: [`Smmu::aborts_when_off`].)
//! 2. The unit is turned off, and its interrupts too.
//! 3. Attributes, the stream table, in which no entry is valid, and the queues, empty, are set.
//! 4. The command queue is turned on; commands invalidate everything, and `set_up` waits for them.
//! 5. The command queue is turned on again, empty: the library's queue begins at slot 0.
//! 6. The event queue is turned on, then translation. From here on devices reach only what they
//!    were admitted to.
//!
//! # Turning it off
//! All at once. Because of 1, devices then reach nothing.
//!
//! # Resetting the queue
//! Steps 4 and 5 again; errors of commands are acknowledged. Translation stays on, by the same
//! table.
//!
//! # Invariants
//! - S1: the word of an entry with the *valid* bit is written last, and cleared first; the
//!   invalidation follows after that. The unit may cache an invalid entry too (3.21.3), so an entry
//!   that was made valid is announced.
//! - S2: a context descriptor is valid before the stream's entry that leads to it.

pub mod entries;
pub mod fault;
mod operate;
pub mod registers;
mod streams;

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::{Format, Slot, Smmu as QueueFormat};
use shootdown_dma::invalidate::smmu::{self, Facts, Signal};
use shootdown_dma::sync::AtomicU64;
use shootdown_dma::table::ArmStage1;
use spin::Mutex;

use crate::bus::{Bus, Register, wait};
use crate::error::{Error, Step, Unfit};
use crate::memory::{Kept, Memory, PAGE, Pages};
use crate::renewable::Renewable;
use crate::ring::{self, NoLog, Ring};
use crate::unit::Message;
use fault::EVENT;
use registers::{
    CommandCons, CommandProd, CommandQueue, Cr0, Cr0Ack, Cr1, Cr2, ERROR_MESSAGE, EVENT_MESSAGE,
    EventCons, EventProd, EventQueue, Gbpa, Gerror, Gerrorn, Idr0, Idr1, Idr3, Idr5, IrqCtrl,
    IrqCtrlAck, MESSAGE_ATTRIBUTES, MessageAddress,
};
use streams::Streams;

/// The host's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bits of the stream numbers in the table; no more than the unit has (IDR1.SIDSIZE).
    pub stream_bits: u32,
    /// Slots of the command queue, rounded up to a power of two: at least 256 (512 if
    /// [`survives`](Self::survives)), and no more than the unit takes (IDR1.CMDQS).
    pub slots: usize,
    /// Entries of the event queue, rounded up to a power of two: at least 128, and no more than
    /// the unit takes (IDR1.EVENTQS).
    pub events: usize,
    /// Levels of tables with pages of 4 KiB: 3 (39 bits) or 4 (48).
    pub levels: u32,
    /// Whether an entry can survive one invalidation (Tegra264, erratum T264-SMMU-3). Then each
    /// invalidation is issued twice.
    pub survives: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { stream_bits: 16, slots: 256, events: 128, levels: 4, survives: false }
    }
}

/// How the unit interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupts {
    /// It does not: the host polls for events and errors.
    Off,
    /// By wires, whose numbers are in firmware tables.
    Wires,
    /// By messages, if it can ([`Idr0::messages`]).
    Messages {
        /// When there are events.
        events: Message,
        /// When something goes wrong with its queues.
        errors: Message,
    },
}

/// The index of MAIR's field that says write-back: see [`entries::WRITE_BACK`].
const WRITE_BACK: u8 = 0;

/// Output addresses of tables have 48 bits here: IPS 5.
const OUTPUT_48: u64 = 5;

/// A unit that is set up; see the [module](self). The operations of a unit that is on, as a
/// [`RemappingUnit`](crate::RemappingUnit), are in `operate.rs`.
pub struct Smmu<B: Bus, M: Memory, F = QueueFormat> {
    bus: B,
    memory: M,
    identification: (Idr0, Idr1, Idr3, Idr5),
    tables: ArmStage1,
    survives: bool,
    aborts_when_off: bool,
    port: Ring<B, M>,
    queue: Renewable<Ring<B, M>, F>,
    wrap: fn(QueueFormat) -> F,
    streams: Streams<M>,
    ring: Kept<M>,
    events: Kept<M>,
    status: Kept<M>,
    /// Held while entries change.
    entries: Mutex<()>,
    /// Held while events are taken out.
    records: Mutex<()>,
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send> Smmu<B, M> {
    /// Sets the unit up: every access is refused until its device is admitted.
    ///
    /// # Errors
    /// See [`Error`]. After [`Error::Timeout`] the unit is in the state that it had reached, and
    /// keeps the memory whose address it has got; after all other errors it was not touched.
    ///
    /// # Safety
    /// The registers are both pages of an SMMUv3, and no other code writes to them, now or later.
    /// Devices behind it may lose their access.
    pub unsafe fn set_up(bus: B, memory: M, options: Options) -> Result<Self, Error> {
        // SAFETY: as the caller promises.
        unsafe { Self::set_up_with(bus, memory, options, |format| format) }
    }
}

impl<B: Bus + Clone + Send, M: Memory + Clone + Send, F: Format + Send> Smmu<B, M, F> {
    /// The same, with the queue's format wrapped: to count commands, or to inject errors.
    ///
    /// # Errors
    /// As [`set_up`](Smmu::set_up).
    ///
    /// # Safety
    /// As [`set_up`](Smmu::set_up); what the wrapper encodes covers the command that it got.
    pub unsafe fn set_up_with(
        bus: B,
        memory: M,
        options: Options,
        wrap: fn(QueueFormat) -> F,
    ) -> Result<Self, Error> {
        let (idr0, idr1) = (Idr0::read(&bus), Idr1::read(&bus));
        let identification = (idr0, idr1, Idr3::read(&bus), Idr5::read(&bus));
        let tables = fit(identification, options)?;
        let bits = options.stream_bits.min(idr1.stream_bits());
        // More than a ring of the library takes, or than can be counted, is cut down to what the
        // unit takes.
        let most = |bits: u32| 1usize << bits.min(19);
        let slots = options.slots.max(256).min(most(idr1.command_queue()));
        let events = options.events.max(PAGE / EVENT).min(most(idr1.event_queue()));
        let ring = ring::pages(memory.clone(), slots)?;
        let word = Pages::of_bytes(memory.clone(), PAGE)?;
        let events = Pages::of_bytes(memory.clone(), events * EVENT)?;
        let port = Ring::new(bus.clone(), memory.clone(), &ring, &word, NoLog);
        let format = queue_format(identification, options.survives, port.slots());
        let queue = Renewable::new(port.clone(), wrap(format))?;
        let streams = Streams::new(memory.clone(), bits, idr0.stream_levels() == 1)?;
        let (ring, events, status) = (ring.keep(), events.keep(), word.keep());
        let (entries, records) = (Mutex::new(()), Mutex::new(()));
        let mut unit = Self {
            bus,
            memory,
            identification,
            tables,
            survives: options.survives,
            aborts_when_off: false,
            port,
            queue,
            wrap,
            streams,
            ring,
            events,
            status,
            entries,
            records,
        };
        unit.turn_on()?;
        Ok(unit)
    }

    fn turn_on(&mut self) -> Result<(), Error> {
        self.aborts_when_off = self.refuse_when_off()?;
        self.switch(Step::TranslationOff, Cr0::new())?;
        self.interrupt(Interrupts::Off)?;
        let bus = &self.bus;
        Cr1::CACHEABLE.write(bus);
        Cr2::new().with_record_bad_streams(true).with_private_maintenance(true).write(bus);
        bus.barrier();
        self.streams.place(bus);
        CommandQueue::new()
            .with_address(self.port.address().0 >> 5)
            .with_bits(self.port.slots().ilog2())
            .write(bus);
        EventQueue::new()
            .with_address(self.events.address().0 >> 5)
            .with_bits(self.log_events())
            .write(bus);
        EventProd::new().write(bus);
        EventCons::new().write(bus);
        // Discard errors from before.
        Gerrorn::from(Gerror::read(bus).into_bits()).write(bus);
        self.begin(Cr0::new())?;
        let queues = Cr0::new().with_commands(true).with_events(true);
        self.switch(Step::Events, queues)?;
        self.switch(Step::TranslationOn, queues.with_translation(true))
    }

    /// Makes the unit refuse accesses while it is off. `false`: the unit does not confirm it.
    fn refuse_when_off(&self) -> Result<bool, Error> {
        let bus = &self.bus;
        let updated = || wait(bus, Step::Bypass, || !Gbpa::read(bus).update());
        updated()?;
        Gbpa::read(bus).with_abort(true).with_update(true).write(bus);
        updated()?;
        Ok(Gbpa::read(bus).abort())
    }

    /// Writes CR0, and waits until CR0ACK shows it.
    fn switch(&self, step: Step, on: Cr0) -> Result<(), Error> {
        on.write(&self.bus);
        wait(&self.bus, step, || Cr0Ack::read(&self.bus).value() == on.into_bits())
    }

    /// Makes the unit read its queue, which is empty; `others` of CR0 stay on.
    fn empty(&self, others: Cr0) -> Result<(), Error> {
        let bus = &self.bus;
        self.switch(Step::QueueOff, others)?;
        CommandProd::new().write(bus);
        CommandCons::new().write(bus);
        // Errors of earlier commands do not matter any more.
        self.acknowledge_now(Gerror::new().with_command(true));
        self.switch(Step::QueueOn, others.with_commands(true))
    }

    /// Invalidates everything, and makes the unit read its queue, which is empty; `others` of CR0
    /// stay on.
    fn begin(&self, others: Cr0) -> Result<(), Error> {
        self.empty(others)?;
        let all: [Slot; 3] = [smmu::cfgi_all(), smmu::tlbi_all(), smmu::sync(Signal::None)];
        self.port.fill(all);
        let end = all.len() as u32;
        CommandProd::new().with_position(end).write(&self.bus);
        wait(&self.bus, Step::ForgetTranslations, || {
            CommandCons::read(&self.bus).position() == end
        })?;
        self.empty(others)
    }

    /// Turns the unit off, and takes its memory back. Devices reach nothing then, if the unit [says
    /// so](Self::aborts_when_off).
    ///
    /// # Errors
    /// The unit does not acknowledge a step. It keeps its memory.
    ///
    /// # Safety
    /// No domain uses its queue any more. If it does not refuse accesses when it is off, no device
    /// behind it does DMA from now on, or all of them may reach all of memory.
    #[expect(clippy::result_large_err, reason = "the unit comes back, and once")]
    pub unsafe fn turn_off(self) -> Result<(), (Self, Error)> {
        let off = self
            .interrupt(Interrupts::Off)
            .and_then(|()| self.switch(Step::TranslationOff, Cr0::new()));
        if let Err(error) = off {
            return Err((self, error));
        }
        let Self { streams, ring, events, status, queue, .. } = self;
        drop(queue);
        // SAFETY: the unit is off, and its queues too.
        unsafe {
            streams.release();
            ring.release();
            events.release();
            status.release();
        }
        Ok(())
    }

    /// Does the unit say that it refuses accesses while it is off?
    pub const fn aborts_when_off(&self) -> bool {
        self.aborts_when_off
    }

    /// Lets the unit interrupt, or not. The handler takes
    /// [records](crate::RemappingUnit::next_record) until there are none, looks for
    /// [errors](Self::errors), and calls [`Renewable::attend`].
    ///
    /// # Errors
    /// The unit does not do what it is told. [`Unfit::NoMessages`]: it has wires alone; interrupts
    /// are off.
    pub fn interrupt(&self, how: Interrupts) -> Result<(), Error> {
        let bus = &self.bus;
        let switch = |on: IrqCtrl| {
            on.write(bus);
            wait(bus, Step::Interrupts, || IrqCtrlAck::read(bus).value() == on.into_bits())
        };
        switch(IrqCtrl::new())?;
        let on = IrqCtrl::new().with_events(true).with_errors(true);
        let none = Message { address: 0, data: 0 };
        let can = self.identification.0.messages();
        let (events, errors) = match how {
            Interrupts::Off => return Ok(()),
            Interrupts::Wires => (none, none),
            Interrupts::Messages { .. } if !can => return Err(Error::Unfit(Unfit::NoMessages)),
            Interrupts::Messages { events, errors } => (events, errors),
        };
        if can {
            for (at, message) in [(EVENT_MESSAGE, events), (ERROR_MESSAGE, errors)] {
                // Bits 51 to 2.
                let to = MessageAddress::from(message.address & 0x000f_ffff_ffff_fffc);
                bus.write64(at[0], to.into_bits());
                bus.write32(at[1], message.data);
                bus.write32(at[2], MESSAGE_ATTRIBUTES);
            }
        }
        switch(on)
    }

    /// Errors that are not acknowledged. The library handles those of commands.
    pub fn errors(&self) -> Gerror {
        let acknowledged = Gerrorn::read(&self.bus).value();
        Gerror::from(Gerror::read(&self.bus).into_bits() ^ acknowledged)
    }

    /// Acknowledges errors, where they are there; that of commands is left to the library.
    ///
    /// # Errors
    /// [`Error::Busy`]: nothing has changed; try again.
    pub fn acknowledge(&self, errors: Gerror) -> Result<(), Error> {
        // The library's queue acknowledges by the same register.
        self.queue.paused(&self.bus, || {
            self.acknowledge_now(errors.with_command(false));
            Ok(())
        })
    }

    fn acknowledge_now(&self, errors: Gerror) {
        let before = Gerrorn::read(&self.bus).value();
        let there = Gerror::read(&self.bus).into_bits() ^ before;
        Gerrorn::from(before ^ (there & errors.into_bits())).write(&self.bus);
    }

    /// The eight words of a stream's entry, and those of its context descriptor, for cases and
    /// dumps; `None` if no stream in its part of the table was admitted yet.
    ///
    /// # Safety
    /// The caller does not store to them, or it is responsible for the devices' accesses.
    #[must_use]
    pub unsafe fn entry(&self, device: DeviceId) -> Option<[&[AtomicU64]; 2]> {
        self.streams.find(device).map(|stream| [stream.entry, stream.context])
    }

    fn log_events(&self) -> u32 {
        (self.events.words().len() * 8 / EVENT).ilog2()
    }

    /// What it can do: IDR0, 1, 3 and 5.
    pub const fn identification(&self) -> (Idr0, Idr1, Idr3, Idr5) {
        self.identification
    }

    /// Its registers.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    /// Its queue, with what is this crate's.
    pub const fn renewable(&self) -> &Renewable<Ring<B, M>, F> {
        &self.queue
    }
}

/// The tables that the unit walks, if it has all that the library needs.
fn fit(of: (Idr0, Idr1, Idr3, Idr5), options: Options) -> Result<ArmStage1, Error> {
    const AARCH64: u8 = 0b10;
    let (idr0, idr1, _, idr5) = of;
    if !idr0.stage_1() || idr0.table_formats() & AARCH64 == 0 || !idr5.granule_4k() {
        return Err(Error::Unfit(Unfit::NoTables));
    }
    if !idr0.coherent() {
        return Err(Error::Unfit(Unfit::NotCoherent));
    }
    if idr1.queues_preset() || idr1.tables_preset() {
        return Err(Error::Unfit(Unfit::Preset));
    }
    if idr1.command_queue() < 8 || idr1.event_queue() < 7 {
        return Err(Error::Unfit(Unfit::TooSmall));
    }
    ArmStage1::new(options.levels, WRITE_BACK).ok_or(Error::Unfit(Unfit::NoTables))
}

fn queue_format(of: (Idr0, Idr1, Idr3, Idr5), survives: bool, slots: usize) -> QueueFormat {
    let (idr0, _, idr3, _) = of;
    let facts = Facts::from_idr3(idr3.into_bits());
    QueueFormat { facts, slots: slots as u64, stores: idr0.messages(), survives }
}

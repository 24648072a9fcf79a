//! AMD-Vi, on a model of its registers: the order in which it is turned on and off, resets, the
//! log.

mod common;

use common::{File, Model, Pool, Reach, load, store};
use shootdown_dma::invalidate::{Command, QueueError, Unit as _};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};
use shootdown_iommu::amd::fault::{Kind, Record};
use shootdown_iommu::amd::{Amd, Options};
use shootdown_iommu::error::{Step, Unfit};
use shootdown_iommu::{AdmitError, Error, RemappingUnit};

const DEVICE_TABLE: usize = 0x00;
const COMMANDS: usize = 0x08;
const LOG: usize = 0x10;
const CONTROL: usize = 0x18;
const EFR: usize = 0x30;
const COMMAND_HEAD: usize = 0x2000;
const COMMAND_TAIL: usize = 0x2008;
const EVENT_HEAD: usize = 0x2010;
const EVENT_TAIL: usize = 0x2018;
const STATUS: usize = 0x2020;

const ENABLED: u64 = 1 << 0;
const EVENTS: u64 = 1 << 2;
const COMMANDS_ENABLED: u64 = 1 << 12;
const OVERFLOW: u64 = 1 << 0;
const EVENTS_RUN: u64 = 1 << 3;
const COMMANDS_RUN: u64 = 1 << 4;
/// As QEMU 7.2 has it: INVALIDATE_ALL, six levels.
const FEATURES: u64 = 0x29d3;

#[derive(Default)]
struct Unit {
    /// Bits of STATUS that never change.
    deaf: u64,
    /// The table of the kernel before.
    old: u64,
    /// Opcodes that were taken, and how often.
    taken: [usize; 16],
    /// Devices that do not answer.
    silent: Option<u16>,
    /// Completion waits are taken, and nothing is stored.
    mute: bool,
}

impl Unit {
    fn log(&self, file: &mut File, low: u64, high: u64) {
        if file.get64(STATUS) & EVENTS_RUN == 0 {
            return;
        }
        let count = 1 << (file.get64(LOG) >> 56 & 0xf);
        let tail = file.get64(EVENT_TAIL);
        let next = (tail + 16) % (count * 16);
        if next == file.get64(EVENT_HEAD) {
            file.set64(STATUS, file.get64(STATUS) & !EVENTS_RUN | OVERFLOW);
            return;
        }
        let at = (file.get64(LOG) & 0x000f_ffff_ffff_f000) + tail;
        store(at + 8, high);
        store(at, low);
        file.set64(EVENT_TAIL, next);
    }

    fn run(&mut self, file: &mut File) {
        let ring = file.get64(COMMANDS) & 0x000f_ffff_ffff_f000;
        let slots = 1 << (file.get64(COMMANDS) >> 56 & 0xf);
        while file.get64(STATUS) & COMMANDS_RUN != 0 {
            let head = file.get64(COMMAND_HEAD);
            if head == file.get64(COMMAND_TAIL) {
                return;
            }
            let (low, high) = (load(ring + head), load(ring + head + 8));
            self.taken[(low >> 60) as usize] += 1;
            match low >> 60 {
                1 if low & 1 != 0 && !self.mute => store(low & 0x000f_ffff_ffff_fff8, high),
                1..=3 | 8 => {}
                4 if self.silent == Some(low as u16) => self.log(file, 7 << 60 | low & 0xffff, 0),
                4 => {}
                _ => {
                    file.set64(STATUS, file.get64(STATUS) & !COMMANDS_RUN);
                    self.log(file, 5 << 60, ring + head);
                    return;
                }
            }
            file.set64(COMMAND_HEAD, (head + 16) % (slots * 16));
        }
    }
}

impl common::Unit for Unit {
    fn write(&mut self, file: &mut File, offset: usize, value: u64, width: usize) {
        assert_eq!(width, 8);
        let status = file.get64(STATUS);
        match offset {
            CONTROL => {
                file.set64(CONTROL, value);
                let mut now = status & !(EVENTS_RUN | COMMANDS_RUN);
                if value & (ENABLED | EVENTS) == ENABLED | EVENTS && now & OVERFLOW == 0 {
                    now |= EVENTS_RUN;
                }
                if value & (ENABLED | COMMANDS_ENABLED) == ENABLED | COMMANDS_ENABLED {
                    now |= COMMANDS_RUN;
                }
                file.set64(STATUS, now & !self.deaf | status & self.deaf);
                self.run(file);
            }
            COMMANDS | COMMAND_HEAD => {
                assert_eq!(status & COMMANDS_RUN, 0, "not while commands are read");
                file.set64(offset, value);
            }
            LOG | EVENT_TAIL => {
                assert_eq!(status & EVENTS_RUN, 0, "not while events are written");
                file.set64(offset, value);
            }
            STATUS => file.set64(STATUS, status & !(value & 0b111)),
            COMMAND_TAIL => {
                file.set64(offset, value);
                self.run(file);
            }
            _ => file.set64(offset, value),
        }
    }

    fn reach(&self, file: &File) -> Reach {
        let table = file.get64(DEVICE_TABLE);
        if file.get64(CONTROL) & ENABLED == 0 {
            Reach::All
        } else if self.old != 0 && table == self.old {
            Reach::Before
        } else {
            // An entry that is not valid lets its device through.
            let bytes = ((table & 0x1ff) + 1) * 4096;
            let first = table & 0x000f_ffff_ffff_f000;
            let valid = (0..bytes).step_by(32).all(|at| load(first + at) & 0b11 == 0b11);
            if valid { Reach::Now } else { Reach::All }
        }
    }
}

fn model_of(unit: Unit, set: impl FnOnce(&mut File)) -> &'static Model<Unit> {
    Model::new(unit, |file| {
        file.set64(EFR, FEATURES);
        set(file);
    })
}

fn model() -> &'static Model<Unit> {
    model_of(Unit::default(), |_| {})
}

type Driver = Amd<&'static Model<Unit>, &'static Pool>;

const OPTIONS: Options = Options {
    last_device: 0x2ff,
    slots: 256,
    levels: 4,
    remembers_absence: false,
    flags: 0b1001,
    interrupts: true,
};

fn set_up(model: &'static Model<Unit>) -> (Result<Driver, Error>, &'static Pool) {
    let pool: &Pool = Box::leak(Box::default());
    // SAFETY: the model's, and nobody else's.
    (unsafe { Amd::set_up(model, pool, OPTIONS) }, pool)
}

fn complete(unit: &Driver, commands: &[Command]) -> Result<(), QueueError> {
    let ticket = unit.queue().submit(commands)?;
    for _ in 0..200 {
        if unit.queue().completed()? >= ticket {
            return Ok(());
        }
    }
    Err(QueueError::Stuck)
}

#[test]
fn turning_on_leaves_no_window() {
    let model = model();
    let (unit, _) = set_up(model);
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
    complete(&unit.unwrap(), &[Command::All]).unwrap();
    let control = model.with(|inner| inner.file.get64(CONTROL));
    // IommuEn, HtTunEn, EventLogEn, EventIntEn, one second, Coherent, Isoc, CmdBufEn.
    assert_eq!(control, 0b1_1100_1000_1111);
    // Of 0x300 entries: eight pages, less one.
    assert_eq!(model.with(|inner| inner.file.get64(DEVICE_TABLE)) & 0xfff, 7);
}

/// The unit stays on, with the table of the kernel before until it has this one's.
#[test]
fn a_unit_that_is_on_is_taken_over_without_a_window() {
    let old = 0x1234_5001;
    let model = model_of(Unit { old, ..Unit::default() }, |file| {
        file.set64(DEVICE_TABLE, old);
        file.set64(CONTROL, ENABLED | EVENTS | COMMANDS_ENABLED);
        file.set64(STATUS, EVENTS_RUN | COMMANDS_RUN);
    });
    let (unit, _) = set_up(model);
    complete(&unit.unwrap(), &[Command::All]).unwrap();
    assert_eq!(model.history(), [Reach::Before, Reach::Now]);
}

#[test]
fn every_step_that_is_not_acknowledged_is_an_error() {
    let on = |status| {
        move |file: &mut File| {
            file.set64(STATUS, status);
        }
    };
    for (deaf, status, step) in [
        (COMMANDS_RUN, COMMANDS_RUN, Step::QueueOff),
        (EVENTS_RUN, EVENTS_RUN, Step::Events),
        (EVENTS_RUN, 0, Step::Events),
        (COMMANDS_RUN, 0, Step::QueueOn),
    ] {
        let model = model_of(Unit { deaf, ..Unit::default() }, on(status));
        let (unit, pool) = set_up(model);
        assert_eq!(unit.err(), Some(Error::Timeout(step)));
        assert_eq!(pool.pages(), 8 + 3, "table, ring, log, status");
    }
    let mute = model_of(Unit { mute: true, ..Unit::default() }, |_| {});
    assert_eq!(set_up(mute).0.err(), Some(Error::Timeout(Step::ForgetTranslations)));
    // Levels that it has not.
    let pool: &Pool = Box::leak(Box::default());
    let model = model_of(Unit::default(), |file| file.set64(EFR, 1 << 6));
    // SAFETY: the model's.
    let unit = unsafe { Amd::set_up(model, pool, Options { levels: 5, ..OPTIONS }) };
    assert_eq!((unit.err(), pool.pages()), (Some(Error::Unfit(Unfit::NoTables)), 0));
}

/// Without INVALIDATE_ALL each entry and each domain is told.
#[test]
fn a_unit_that_can_not_forget_everything_is_told_of_each() {
    let model = model_of(Unit::default(), |file| file.set64(EFR, 0));
    let (unit, _) = set_up(model);
    let taken = model.with(|inner| inner.unit.taken);
    assert_eq!((taken[2], taken[3], taken[8]), (0x300, 1 << 16, 0));
    complete(&unit.unwrap(), &[Command::Domain(DomainId(1))]).unwrap();
}

const ROOT: PhysAddr = PhysAddr(0xabc0_0000);

#[test]
fn entries_lie_where_the_unit_looks() {
    let model = model();
    let (unit, pool) = set_up(model);
    let unit = unit.unwrap();
    let entry = |device: u64| {
        let table = model.with(|inner| inner.file.get64(DEVICE_TABLE)) & !0xfff;
        [load(table + device * 32), load(table + device * 32 + 8)]
    };
    // SAFETY: no device.
    let admit = |device, root, id| unsafe { unit.admit(DeviceId(device), root, DomainId(id)) };
    admit(0x2ff, ROOT, 7).unwrap();
    assert_eq!(entry(0x2ff), [0x6000_0000_abc0_0803, 7]);
    assert_eq!(entry(0x2fe), [0b11, 0]);
    assert_eq!(admit(0x2ff, ROOT, 8), Err(AdmitError::Admitted));
    assert_eq!(admit(0x300, ROOT, 8), Err(AdmitError::NoSuchDevice));
    assert_eq!(admit(0, PhysAddr(1 << 52), 8), Err(AdmitError::BadRoot));
    assert!(unit.expel(DeviceId(0x2ff)));
    assert_eq!(entry(0x2ff), [0b11, 7]);
    assert!(!unit.expel(DeviceId(0x2ff)) && !unit.expel(DeviceId(0x300)));
    // SAFETY: no device, no domain.
    unsafe { unit.turn_off() }.map_err(|(_, error)| error).unwrap();
    assert_eq!(pool.pages(), 0);
}

#[test]
fn a_queue_that_stands_still_is_reset() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    model.with(|inner| inner.file.set64(STATUS, EVENTS_RUN));
    let ticket = unit.queue().submit(&[Command::All]).unwrap();
    assert!(unit.queue().completed().unwrap() < ticket);
    // SAFETY: no device.
    let renew = || unsafe { unit.renew() };
    model.with(|inner| inner.unit.mute = true);
    assert_eq!(renew(), Err(Error::Timeout(Step::ForgetTranslations)));
    assert_eq!(unit.queue().completed(), Err(QueueError::Stuck));
    model.with(|inner| inner.unit.mute = false);
    renew().unwrap();
    assert!(unit.queue().completed().unwrap() >= ticket);
    complete(&unit, &[Command::All]).unwrap();
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
}

/// The event of a device that does not answer is 7, IOTLB_INV_TIMEOUT: whoever waits is told, and
/// not of an illegal command, which is 5. (The image once took 5 for it.)
#[test]
fn a_device_that_does_not_answer_is_found_in_the_log() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    let device = |id| Command::Device { device: DeviceId(id), range: None };
    // Commands that are none, of nobody; and a page fault.
    model.with(|inner| {
        let common::Inner { file, unit, .. } = inner;
        unit.log(file, 5 << 60 | 0x28, 0);
        unit.log(file, 2 << 60 | 0x28, 0x1000);
    });
    complete(&unit, &[device(0x28)]).unwrap();
    model.with(|inner| inner.unit.silent = Some(0x28));
    let ticket = unit.queue().submit(&[device(0x28)]).unwrap();
    let mut told = 0;
    for _ in 0..400 {
        match unit.queue().completed() {
            Ok(done) if done >= ticket => break,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, QueueError::DeviceTimeout);
                told += 1;
            }
        }
    }
    assert!(told > 0 && !unit.queue().answers(DeviceId(0x28)));
    assert!(unit.queue().answers(DeviceId(0x29)));
    // All of it is in the log still, in order.
    let kinds = core::iter::from_fn(|| unit.next_record()).map(|record| match record {
        Record::Event { kind, .. } => kind,
        Record::Lost => panic!("nothing was lost"),
    });
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds[..2], [Kind::IllegalCommand, Kind::PageFault]);
    assert_eq!(kinds[2..], [Kind::InvalidationTimeout; 3]);
}

/// Faults are taken out before the queue has looked at what is behind them; it sees the timeout all
/// the same.
#[test]
fn taking_faults_out_hides_no_timeout() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    model.with(|inner| {
        let common::Inner { file, unit, .. } = inner;
        unit.log(file, 2 << 60 | 0x28, 0x1000);
        unit.log(file, 7 << 60 | 0x29, 0);
    });
    let kinds: Vec<_> = core::iter::from_fn(|| unit.next_record()).collect();
    assert_eq!(kinds.len(), 2);
    // Three times, and it is silent: two more.
    for _ in 0..2 {
        model.with(|inner| {
            let common::Inner { file, unit, .. } = inner;
            unit.log(file, 7 << 60 | 0x29, 0);
        });
        assert!(unit.queue().answers(DeviceId(0x29)));
        assert!(unit.next_record().is_some());
    }
    assert!(!unit.queue().answers(DeviceId(0x29)));
}

/// Rounds of the log, and its overflow, after which it begins again.
#[test]
fn the_log_comes_around_and_begins_again() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    let log = |address| {
        model.with(|inner| {
            let common::Inner { file, unit, .. } = inner;
            unit.log(file, 2 << 60, address);
        });
    };
    let address = |record| match record {
        Some(Record::Event { address, .. }) => address,
        other => panic!("{other:?}"),
    };
    for number in 0..600 {
        log(number);
        assert_eq!(address(unit.next_record()), number);
        assert_eq!(unit.next_record(), None);
    }
    (0..256).for_each(log);
    assert_eq!(unit.restart_log(), Ok(false), "there are records left");
    for number in 0..255 {
        assert_eq!(address(unit.next_record()), number);
    }
    assert_eq!((unit.next_record(), unit.next_record()), (Some(Record::Lost), None));
    assert_eq!(unit.restart_log(), Ok(true));
    log(9);
    assert_eq!(address(unit.next_record()), 9);
    assert_eq!((unit.next_record(), unit.restart_log()), (None, Ok(false)));
    complete(&unit, &[Command::All]).unwrap();
}

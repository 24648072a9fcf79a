//! SMMUv3, on a model of its registers: the order in which it is turned on and off, resets, events.

mod common;

use common::{File, Inner, Model, Pool, Reach, load, store};
use shootdown_dma::invalidate::{Command, QueueError, Unit as _};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};
use shootdown_iommu::error::{Step, Unfit};
use shootdown_iommu::smmu::fault::{Kind, Record};
use shootdown_iommu::smmu::registers::Gerror;
use shootdown_iommu::smmu::{Interrupts, Options, Smmu};
use shootdown_iommu::unit::Message;
use shootdown_iommu::{AdmitError, Error, RemappingUnit};

const IDR0: usize = 0x00;
const IDR1: usize = 0x04;
const IDR3: usize = 0x0c;
const IDR5: usize = 0x14;
const CR0: usize = 0x20;
const CR0ACK: usize = 0x24;
const CR1: usize = 0x28;
const GBPA: usize = 0x44;
const IRQ_CTRL: usize = 0x50;
const IRQ_CTRLACK: usize = 0x54;
const GERROR: usize = 0x60;
const GERRORN: usize = 0x64;
const STRTAB_BASE: usize = 0x80;
const STRTAB_BASE_CFG: usize = 0x88;
const CMDQ_BASE: usize = 0x90;
const CMDQ_PROD: usize = 0x98;
const CMDQ_CONS: usize = 0x9c;
const EVENTQ_BASE: usize = 0xa0;
const EVENTQ_PROD: usize = 0x1_00a8;
const EVENTQ_CONS: usize = 0x1_00ac;

const ENABLED: u32 = 1 << 0;
const EVENTS: u32 = 1 << 2;
const COMMANDS: u32 = 1 << 3;
const ABORT: u32 = 1 << 20;

#[derive(Default)]
struct Unit {
    /// A register, and bits of it, that are not acknowledged.
    deaf: Option<(usize, u32)>,
    /// It has no GBPA: 0 is read, as of QEMU 7.2.
    always_bypasses: bool,
    /// The table of the kernel before.
    old: u64,
    /// Opcodes that were taken.
    taken: Vec<u8>,
}

impl Unit {
    fn run(&mut self, file: &mut File) {
        let base = file.get64(CMDQ_BASE);
        let slots = 1u32 << (base & 0x1f);
        let there = |file: &File| file.get32(GERROR) ^ file.get32(GERRORN);
        while file.get32(CR0ACK) & COMMANDS != 0 && there(file) & 1 == 0 {
            let cons = file.get32(CMDQ_CONS) & 0xf_ffff;
            if cons == file.get32(CMDQ_PROD) {
                return;
            }
            let at = (base & 0x000f_ffff_ffff_ffe0) + u64::from(cons % slots) * 16;
            match load(at) as u8 {
                opcode @ (0x03..=0x06 | 0x11 | 0x12 | 0x30 | 0x46) => self.taken.push(opcode),
                _ => {
                    file.set32(CMDQ_CONS, cons | 1 << 24);
                    file.set32(GERROR, file.get32(GERROR) ^ 1);
                    return;
                }
            }
            file.set32(CMDQ_CONS, (cons + 1) % (2 * slots));
        }
    }

    fn event(&self, file: &mut File, words: [u64; 4]) {
        let base = file.get64(EVENTQ_BASE);
        let count = 1u32 << (base & 0x1f);
        let (prod, cons) = (file.get32(EVENTQ_PROD), file.get32(EVENTQ_CONS));
        if file.get32(CR0ACK) & EVENTS == 0 {
            return;
        }
        if (prod ^ cons) & (2 * count - 1) == count {
            // Full: OVFLG is made to differ from OVACKFLG.
            file.set32(EVENTQ_PROD, prod & !(1 << 31) | !cons & 1 << 31);
            return;
        }
        let at = (base & 0x000f_ffff_ffff_ffe0) + u64::from(prod % count) * 32;
        (0..4).for_each(|word| store(at + 8 * word, words[word as usize]));
        file.set32(EVENTQ_PROD, prod & 1 << 31 | (((prod & 0xf_ffff) + 1) % (2 * count)));
    }
}

impl common::Unit for Unit {
    fn write(&mut self, file: &mut File, offset: usize, value: u64, width: usize) {
        let low = value as u32;
        let deaf = |bits: u32| self.deaf.is_some_and(|(at, not)| at == offset && bits & not != 0);
        let (on, queues) = (file.get32(CR0ACK) & ENABLED, file.get32(CR0ACK));
        match offset {
            CR0 => {
                let changed = low ^ queues;
                file.set32(CR0, low);
                if !deaf(changed) {
                    file.set32(CR0ACK, low);
                }
                self.run(file);
            }
            GBPA => {
                assert!(low >> 31 != 0 && file.get32(GBPA) >> 31 == 0);
                if !self.always_bypasses {
                    file.set32(GBPA, if deaf(1) { low } else { low & !(1 << 31) });
                }
            }
            IRQ_CTRL => {
                file.set32(IRQ_CTRL, low);
                if !deaf(low) {
                    file.set32(IRQ_CTRLACK, low);
                }
            }
            CR1 | STRTAB_BASE | STRTAB_BASE_CFG => {
                assert_eq!(on, 0, "{offset:#x} is read only while the unit is on");
                if width == 4 { file.set32(offset, low) } else { file.set64(offset, value) }
            }
            CMDQ_BASE | CMDQ_CONS => {
                assert_eq!(queues & COMMANDS, 0, "{offset:#x} while commands are read");
                if width == 4 { file.set32(offset, low) } else { file.set64(offset, value) }
            }
            EVENTQ_BASE | EVENTQ_PROD => {
                assert_eq!(queues & EVENTS, 0, "{offset:#x} while events are written");
                if width == 4 { file.set32(offset, low) } else { file.set64(offset, value) }
            }
            CMDQ_PROD | GERRORN => {
                file.set32(offset, low);
                self.run(file);
            }
            _ if width == 4 => file.set32(offset, low),
            _ => file.set64(offset, value),
        }
    }

    fn reach(&self, file: &File) -> Reach {
        if file.get32(CR0ACK) & ENABLED == 0 {
            let abort = file.get32(GBPA) & ABORT != 0;
            return if abort { Reach::Now } else { Reach::All };
        }
        let is_old = self.old != 0 && file.get64(STRTAB_BASE) == self.old;
        let forgotten = self.taken.contains(&0x04) && self.taken.contains(&0x30);
        if is_old || !forgotten { Reach::Before } else { Reach::Now }
    }
}

/// As QEMU 7.2 has them.
fn model_of(unit: Unit, set: impl FnOnce(&mut File)) -> &'static Model<Unit> {
    Model::new(unit, |file| {
        file.set32(IDR0, 0x0d40_101a);
        file.set32(IDR1, 0x0273_0010);
        file.set32(IDR3, 0x1404);
        file.set32(IDR5, 0x74);
        set(file);
    })
}

fn model() -> &'static Model<Unit> {
    model_of(Unit::default(), |_| {})
}

type Driver = Smmu<&'static Model<Unit>, &'static Pool>;

fn set_up(model: &'static Model<Unit>) -> (Result<Driver, Error>, &'static Pool) {
    let pool: &Pool = Box::leak(Box::default());
    // SAFETY: the model's, and nobody else's.
    (unsafe { Smmu::set_up(model, pool, Options::default()) }, pool)
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

/// From all of memory to nothing while it is off already, and never back.
#[test]
fn turning_on_leaves_no_window() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
    assert!(unit.aborts_when_off());
    assert_eq!(model.with(|inner| inner.unit.taken.clone()), [0x04, 0x30, 0x46]);
    complete(&unit, &[Command::All]).unwrap();
    // SAFETY: no domain.
    unsafe { unit.turn_off() }.map_err(|(_, error)| error).unwrap();
    assert_eq!(model.history(), [Reach::All, Reach::Now], "off, it refuses");
}

/// A unit that can't refuse while it is off says so, and lets through what it has let through
/// before.
#[test]
fn a_unit_without_gbpa_says_so() {
    let model = model_of(Unit { always_bypasses: true, ..Unit::default() }, |_| {});
    let (unit, _) = set_up(model);
    assert!(!unit.unwrap().aborts_when_off());
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
}

#[test]
fn a_unit_that_is_on_is_taken_over_without_a_window() {
    let old = 0x1234_5000;
    let model = model_of(Unit { old, ..Unit::default() }, |file| {
        let on = ENABLED | EVENTS | COMMANDS;
        [CR0, CR0ACK].into_iter().for_each(|at| file.set32(at, on));
        file.set64(STRTAB_BASE, old);
        // Errors of before.
        file.set32(GERROR, 1 | 1 << 2);
        file.set32(CMDQ_CONS, 1 << 24);
    });
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    complete(&unit, &[Command::All]).unwrap();
    assert_eq!(unit.errors(), Gerror::new());
    assert_eq!(model.history(), [Reach::Before, Reach::Now]);
}

#[test]
fn every_step_that_is_not_acknowledged_is_an_error() {
    for (register, bits, step) in [
        (GBPA, 1, Step::Bypass),
        (CR0, COMMANDS, Step::QueueOn),
        (CR0, EVENTS, Step::Events),
        (CR0, ENABLED, Step::TranslationOn),
    ] {
        let deaf = Unit { deaf: Some((register, bits)), ..Unit::default() };
        let (unit, pool) = set_up(model_of(deaf, |_| {}));
        assert_eq!(unit.err(), Some(Error::Timeout(step)));
        assert_eq!(pool.pages(), 4, "streams, ring, events, status");
    }
    let on = Unit { deaf: Some((CR0, ENABLED)), old: 1, ..Unit::default() };
    let on = model_of(on, |file| file.set32(CR0ACK, ENABLED));
    assert_eq!(set_up(on).0.err(), Some(Error::Timeout(Step::TranslationOff)));
}

#[test]
fn what_the_library_needs_is_asked_for() {
    for (register, value, why) in [
        (IDR0, 0x0d40_101a & !(1 << 1), Unfit::NoTables),
        (IDR0, 0x0d40_101a & !(1 << 3), Unfit::NoTables),
        (IDR0, 0x0d40_101a & !(1 << 4), Unfit::NotCoherent),
        (IDR5, 0x64, Unfit::NoTables),
        (IDR1, 0x2273_0010, Unfit::Preset),
        (IDR1, 0x4273_0010, Unfit::Preset),
        (IDR1, 0x00f3_0010, Unfit::TooSmall),
    ] {
        let model = model_of(Unit::default(), |file| file.set32(register, value));
        let (unit, pool) = set_up(model);
        assert_eq!((unit.err(), pool.pages()), (Some(Error::Unfit(why)), 0), "{value:#x}");
    }
}

const ROOT: PhysAddr = PhysAddr(0x8000_1000);

/// The eight words of a stream's entry, walked as a unit does.
fn walk(inner: &Inner<Unit>, stream: u64) -> Option<[u64; 8]> {
    let (base, shape) = (inner.file.get64(STRTAB_BASE), inner.file.get32(STRTAB_BASE_CFG));
    if stream >> (shape & 0x3f) != 0 {
        return None;
    }
    let at = match shape >> 16 & 3 {
        0 => base + stream * 64,
        _ => {
            let split = shape >> 6 & 0x1f;
            let level_1 = load(base + (stream >> split) * 8);
            let within = stream & ((1 << split) - 1);
            if level_1 & 0x1f == 0 || within >> ((level_1 & 0x1f) - 1) != 0 {
                return None;
            }
            (level_1 & 0x000f_ffff_ffff_ffc0) + within * 64
        }
    };
    Some(core::array::from_fn(|word| load(at + 8 * word as u64)))
}

/// In tables of one level and of two.
#[test]
fn entries_lie_where_the_unit_walks() {
    for (bits, two) in [(16, true), (7, false), (16, false)] {
        let idr0 = if two { 0x0d40_101a } else { 0x0540_101a };
        let model = model_of(Unit::default(), |file| file.set32(IDR0, idr0));
        let pool: &Pool = Box::leak(Box::default());
        let options = Options { stream_bits: bits, ..Options::default() };
        // SAFETY: the model's.
        let unit = unsafe { Smmu::set_up(model, pool, options) }.unwrap();
        let before = pool.pages();
        let last = (1 << bits) - 1;
        let entry = |stream| model.with(|inner| walk(inner, stream));
        assert_eq!(entry(u64::from(last)), if two { None } else { Some([0; 8]) });
        // SAFETY: no device.
        let admit = |stream, root, id| unsafe { unit.admit(DeviceId(stream), root, DomainId(id)) };
        admit(last, ROOT, 0xabc).unwrap();
        let stream = entry(u64::from(last)).unwrap();
        assert_eq!((stream[0] & 0xf, stream[1]), (0b1011, 0xd4));
        assert_eq!(stream[2..], [0; 6]);
        let context = stream[0] & 0x000f_ffff_ffff_ffc0;
        let context: [u64; 8] = core::array::from_fn(|word| load(context + 8 * word as u64));
        // 48 bits, output addresses of 44.
        let tables = 16 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 30 | 1 << 31 | 4 << 32 | 1 << 41;
        let faults = 1 << 45 | 1 << 46;
        assert_eq!(context[0], tables | faults | 1 << 47 | 0xabc << 48);
        assert_eq!(context[1..], [ROOT.0, 0, 0xff, 0, 0, 0, 0]);
        assert_eq!(entry(u64::from(last) - 1), Some([0; 8]));
        assert_eq!(pool.pages() - before, if two { 8 } else { 0 });
        assert_eq!(admit(last, ROOT, 1), Err(AdmitError::Admitted));
        assert_eq!(admit(last + 1, ROOT, 1), Err(AdmitError::NoSuchDevice));
        assert_eq!(admit(0, PhysAddr(0), 1), Err(AdmitError::BadRoot));
        assert!(unit.expel(DeviceId(last)) && !unit.expel(DeviceId(last)));
        assert!(!unit.expel(DeviceId(last + 1)));
        assert_eq!(entry(u64::from(last)).unwrap()[0], 0);
        // SAFETY: no domain.
        unsafe { unit.turn_off() }.map_err(|(_, error)| error).unwrap();
        assert_eq!(pool.pages(), 0);
    }
}

/// ASIDs have eight bits, unless IDR0 says more.
#[test]
fn ids_are_those_that_the_unit_has() {
    let model = model_of(Unit::default(), |file| file.set32(IDR0, 0x0d40_001a));
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    // SAFETY: no device.
    let admit = |id| unsafe { unit.admit(DeviceId(1), ROOT, DomainId(id)) };
    assert_eq!(admit(0x100), Err(AdmitError::BadId));
    admit(0xff).unwrap();
}

#[test]
fn a_queue_that_stands_still_is_reset() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    model.with(|inner| {
        inner.file.set32(GERROR, 1 | 1 << 2);
        inner.file.set32(CMDQ_CONS, 1 << 24);
    });
    let ticket = unit.queue().submit(&[Command::All]).unwrap();
    assert!(unit.queue().completed().unwrap() < ticket);
    // SAFETY: no device.
    let renew = || unsafe { unit.renew() };
    model.with(|inner| inner.unit.deaf = Some((CR0, COMMANDS)));
    assert_eq!(renew(), Err(Error::Timeout(Step::QueueOff)));
    assert_eq!(unit.queue().submit(&[Command::All]), Err(QueueError::Stuck));
    model.with(|inner| inner.unit.deaf = None);
    renew().unwrap();
    assert!(unit.queue().completed().unwrap() >= ticket);
    complete(&unit, &[Command::All]).unwrap();
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
    // The other error is the host's.
    assert!(unit.errors().event_abort() && !unit.errors().command());
    model.with(|inner| inner.file.set32(GERROR, inner.file.get32(GERROR) ^ 1));
    unit.acknowledge(Gerror::from(u32::MAX)).unwrap();
    assert!(!unit.errors().event_abort() && unit.errors().command());
}

/// Rounds of the queue, and its overflow, which is told once and holds nothing up.
#[test]
fn events_come_around_and_are_lost_once() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    let event = |address| {
        model.with(|inner| {
            let Inner { file, unit, .. } = inner;
            unit.event(file, [0x10 | 8 << 32, 0, address, 0]);
        });
    };
    let address = |record| match record {
        Some(Record::Event { kind: Kind::Translation, address, .. }) => address,
        other => panic!("{other:?}"),
    };
    for number in 0..600 {
        event(number);
        assert_eq!(address(unit.next_record()), number);
        assert_eq!(unit.next_record(), None);
    }
    for round in 0..2 {
        (0..130).for_each(event);
        for number in 0..128 {
            assert_eq!(address(unit.next_record()), number, "{round}");
        }
        assert_eq!((unit.next_record(), unit.next_record()), (Some(Record::Lost), None));
    }
}

#[test]
fn it_interrupts_when_it_is_told_to() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    let message = |data| Message { address: 0x0802_0040, data };
    let messages = Interrupts::Messages { events: message(1), errors: message(2) };
    assert_eq!(unit.interrupt(messages), Err(Error::Unfit(Unfit::NoMessages)));
    assert_eq!(model.with(|inner| inner.file.get32(IRQ_CTRL)), 0);
    unit.interrupt(Interrupts::Wires).unwrap();
    assert_eq!(model.with(|inner| inner.file.get32(IRQ_CTRL)), 0b101);
    model.with(|inner| inner.unit.deaf = Some((IRQ_CTRL, 0b101)));
    assert_eq!(unit.interrupt(Interrupts::Wires), Err(Error::Timeout(Step::Interrupts)));
    let other = model_of(Unit::default(), |file| file.set32(IDR0, 0x0d40_301a));
    let (unit, _) = set_up(other);
    unit.unwrap().interrupt(messages).unwrap();
    let written = other.with(|Inner { file, .. }| {
        [0x68, 0xb0].map(|at| (file.get64(at), file.get32(at + 8), file.get32(at + 12)))
    });
    assert_eq!(written, [(0x0802_0040, 2, 1), (0x0802_0040, 1, 1)]);
}

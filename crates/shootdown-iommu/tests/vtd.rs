//! VT-d, on a model of its registers: the order in which it is turned on and off, resets, records.

mod common;

use common::{File, Inner, Model, Pool, Reach, load, store};
use shootdown_dma::invalidate::{Command, QueueError, Unit as _};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};
use shootdown_iommu::error::{Step, Unfit};
use shootdown_iommu::fault::{Access, Class};
use shootdown_iommu::vtd::fault::{Reason, Record};
use shootdown_iommu::vtd::{Options, Vtd};
use shootdown_iommu::{AdmitError, Error, Fault, RemappingUnit};

const CAP: usize = 0x08;
const ECAP: usize = 0x10;
const GCMD: usize = 0x18;
const GSTS: usize = 0x1c;
const RTADDR: usize = 0x20;
const CCMD: usize = 0x28;
const FSTS: usize = 0x34;
const FECTL: usize = 0x38;
const PMEN: usize = 0x64;
const IQH: usize = 0x80;
const IQT: usize = 0x88;
const IQA: usize = 0x90;
const IOTLB: usize = 0xf8;
const RECORDS: usize = 0x220;

const TE: u32 = 1 << 31;
const SRTP: u32 = 1 << 30;
const WBF: u32 = 1 << 27;
const QIE: u32 = 1 << 26;
const IRE: u32 = 1 << 25;

/// 39 bits, one record at 0x220, PLMR and PHMR, drains.
const CAPABILITY: u64 = 0x00d2_008c_2226_0266;
const QUEUED: u64 = 0xf42;
/// CAP.RWBF.
const BUFFERS: u64 = 1 << 4;

#[derive(Default)]
struct Unit {
    /// A register, and bits of it, that are not acknowledged.
    deaf: Option<(usize, u32)>,
    /// Write buffers were flushed, by command or by an invalidation.
    flushed: bool,
    /// The root table that is in effect.
    root: u64,
    /// Entries were forgotten since it is; so were translations.
    forgotten: [bool; 2],
    /// That of the kernel before.
    old: u64,
    /// Descriptors that were taken, but waits.
    taken: Vec<u64>,
}

impl common::Unit for Unit {
    fn write(&mut self, file: &mut File, offset: usize, value: u64, width: usize) {
        let low = value as u32;
        let deaf = |bits: u32| self.deaf.is_some_and(|(at, not)| at == offset && bits & not != 0);
        match offset {
            GCMD => {
                let status = file.get32(GSTS);
                let changed = (low ^ status) & (TE | QIE | IRE);
                let once = low & (SRTP | WBF);
                assert!((changed | once).count_ones() <= 1, "one change at a time");
                if deaf(changed | once) {
                    file.set32(GSTS, status | once & WBF);
                    return;
                }
                self.flushed |= low & WBF != 0;
                if changed & QIE != 0 {
                    assert_eq!(file.get64(IQH), file.get64(IQT), "the queue must be empty");
                    assert!(low & QIE == 0 || file.get64(IQH) == 0);
                }
                if low & SRTP != 0 {
                    let sees = self.flushed || file.get64(CAP) & BUFFERS == 0;
                    assert!(sees, "what the table holds is in write buffers");
                    self.root = file.get64(RTADDR);
                    self.forgotten = [false; 2];
                }
                file.set32(GSTS, status ^ changed | low & SRTP);
            }
            CCMD | IOTLB => {
                assert_eq!(file.get32(GSTS) & QIE, 0, "registers do not invalidate beside a queue");
                let is_all =
                    if offset == CCMD { value >> 61 == 0b101 } else { value >> 60 & 7 == 1 };
                assert!(is_all, "all of it");
                if offset == IOTLB {
                    assert_eq!(value >> 48 & 3, 3, "accesses under way are drained");
                    assert!(self.forgotten[0], "entries first");
                }
                self.forgotten[usize::from(offset == IOTLB)] = true;
                file.set64(offset, value & !(u64::from(!deaf(1)) << 63));
            }
            FSTS => file.set32(FSTS, file.get32(FSTS) & !(low & 0x71)),
            PMEN if deaf(1) => {}
            PMEN => file.set32(PMEN, low & 1 << 31 | low >> 31),
            IQA => {
                assert_eq!(file.get32(GSTS) & QIE, 0);
                file.set64(IQA, value);
                file.set64(IQH, 0);
            }
            IQT => {
                file.set64(IQT, value);
                self.run(file);
            }
            _ if offset == RECORDS + 8 => {
                file.set64(offset, file.get64(offset) & !(value & 1 << 63));
            }
            _ if width == 4 => file.set32(offset, low),
            _ => file.set64(offset, value),
        }
    }

    fn reach(&self, file: &File) -> Reach {
        if file.get32(GSTS) & TE == 0 {
            return if file.get32(PMEN) & 1 != 0 { Reach::Now } else { Reach::All };
        }
        if self.root == self.old || self.forgotten != [true; 2] {
            return Reach::Before;
        }
        Reach::Now
    }
}

impl Unit {
    fn run(&mut self, file: &mut File) {
        let slots = 256 << (file.get64(IQA) & 7);
        while file.get32(GSTS) & QIE != 0 && file.get32(FSTS) & 1 << 4 == 0 {
            let head = file.get64(IQH);
            if head == file.get64(IQT) {
                return;
            }
            let at = (file.get64(IQA) & !0xfff) + head;
            let (low, high) = (load(at), load(at + 8));
            match low & 0xf {
                5 if low & 1 << 5 != 0 => {
                    let word = load(high & !7);
                    let shift = (high & 4) * 8;
                    store(high & !7, word & !(0xffff_ffff << shift) | low >> 32 << shift);
                }
                1 | 2 if low & 0x30 != 0 => self.taken.push(low),
                _ => {
                    file.set32(FSTS, file.get32(FSTS) | 1 << 4);
                    return;
                }
            }
            file.set64(IQH, (head + 16) % (slots * 16));
        }
    }
}

fn model() -> &'static Model<Unit> {
    model_of(Unit::default(), |_| {})
}

fn model_of(unit: Unit, set: impl FnOnce(&mut File)) -> &'static Model<Unit> {
    Model::new(unit, |file| {
        file.set64(CAP, CAPABILITY);
        file.set64(ECAP, QUEUED);
        set(file);
    })
}

type Driver = Vtd<&'static Model<Unit>, &'static Pool>;

fn set_up(model: &'static Model<Unit>) -> (Result<Driver, Error>, &'static Pool) {
    let pool: &Pool = Box::leak(Box::default());
    // SAFETY: the model's, and nobody else's.
    (unsafe { Vtd::set_up(model, pool, Options::default()) }, pool)
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

/// From all of memory to nothing, in one step, and memory that firmware protects stays so until
/// then.
#[test]
fn turning_on_leaves_no_window() {
    let plain = model();
    let (unit, _) = set_up(plain);
    assert_eq!(plain.history(), [Reach::All, Reach::Now]);
    complete(&unit.unwrap(), &[Command::All]).unwrap();
    let protected = model_of(Unit::default(), |file| file.set32(PMEN, 1 << 31 | 1));
    let (unit, _) = set_up(protected);
    unit.unwrap();
    assert_eq!(protected.history(), [Reach::Now]);
    assert_eq!(protected.with(|inner| inner.file.get32(PMEN)), 0);
}

/// Translation and the queue are on, as another kernel, or firmware, has left them. Interrupts stay
/// remapped.
#[test]
fn a_unit_that_is_on_is_taken_over_without_a_window() {
    let old = 0x1234_5000;
    let before = Unit { root: old, old, forgotten: [true; 2], ..Unit::default() };
    let on = model_of(before, |file| {
        file.set32(GSTS, TE | QIE | IRE);
        file.set64(RTADDR, old);
        file.set64(IQH, 0x40);
        file.set64(IQT, 0x40);
    });
    let (unit, _) = set_up(on);
    complete(&unit.unwrap(), &[Command::Domain(DomainId(1))]).unwrap();
    assert_eq!(on.history(), [Reach::Before, Reach::Now]);
    assert_eq!(on.with(|inner| inner.file.get32(GSTS)) & (TE | QIE | IRE), TE | QIE | IRE);
}

/// A queue that does not become empty can't be turned off; and the mode can't change while
/// translation is on.
#[test]
fn what_can_not_be_taken_over_is_not_touched() {
    let busy = model_of(Unit { old: 1, root: 1, ..Unit::default() }, |file| {
        file.set32(GSTS, TE | QIE);
        file.set64(IQT, 0x40);
    });
    assert_eq!(set_up(busy).0.err(), Some(Error::Timeout(Step::DrainQueue)));
    assert_eq!(busy.history(), [Reach::Before]);
    let scalable = model_of(Unit { old: 1, root: 1, ..Unit::default() }, |file| {
        file.set32(GSTS, TE);
        file.set64(RTADDR, 0x1400);
    });
    let (unit, pool) = set_up(scalable);
    assert_eq!(unit.err(), Some(Error::Unfit(Unfit::OtherMode)));
    assert_eq!((scalable.history(), pool.pages()), (vec![Reach::Before], 0));
}

/// I4: no register that is not acknowledged is passed over, and memory that the unit may know of
/// stays.
#[test]
fn every_step_that_is_not_acknowledged_is_an_error() {
    for (register, bits, step) in [
        (GCMD, WBF, Step::WriteBuffers),
        (GCMD, SRTP, Step::Tables),
        (CCMD, 1, Step::ForgetEntries),
        (IOTLB, 1, Step::ForgetTranslations),
        (GCMD, QIE, Step::QueueOn),
        (GCMD, TE, Step::TranslationOn),
        (PMEN, 1, Step::Protection),
    ] {
        let deaf = Unit { deaf: Some((register, bits)), ..Unit::default() };
        let (unit, pool) = set_up(model_of(deaf, |file| {
            file.set64(CAP, CAPABILITY | BUFFERS);
            file.set32(PMEN, 1 << 31 | 1);
        }));
        assert_eq!(unit.err(), Some(Error::Timeout(step)));
        assert_eq!(pool.pages(), 3, "root, ring, status");
    }
}

/// A unit that does not see at once what is stored: it is flushed before its tables take effect,
/// and told of what was mapped.
#[test]
fn write_buffers_are_flushed() {
    let buffered = model_of(Unit::default(), |file| file.set64(CAP, CAPABILITY | BUFFERS));
    let unit = set_up(buffered).0.unwrap();
    assert!(unit.remembers_absence());
    assert_eq!(buffered.history(), [Reach::All, Reach::Now]);
    assert_eq!(buffered.with(|inner| inner.file.get32(GSTS)) & WBF, 0);
    let plain = set_up(model()).0.unwrap();
    assert!(!plain.remembers_absence());
    assert!(!plain.bus().with(|inner| inner.unit.flushed), "it has none");
}

#[test]
fn what_the_library_needs_is_asked_for() {
    for (cap, ecap, why) in [
        (CAPABILITY, QUEUED & !2, Unfit::NoQueue),
        (CAPABILITY & !(0x1f << 8), QUEUED, Unfit::NoTables),
    ] {
        let model = model_of(Unit::default(), |file| {
            file.set64(CAP, cap);
            file.set64(ECAP, ecap);
        });
        let (unit, pool) = set_up(model);
        assert_eq!((unit.err(), pool.pages()), (Some(Error::Unfit(why)), 0));
    }
    let pool: &Pool = Box::leak(Box::new(Pool { coherent: true, ..Pool::default() }));
    // SAFETY: the model's.
    let unit = unsafe { Vtd::set_up(model(), pool, Options::default()) };
    assert_eq!(unit.err(), Some(Error::Unfit(Unfit::NotCoherent)));
    for limit in 0..3 {
        let pool: &Pool = Box::leak(Box::new(Pool { limit: Some(limit), ..Pool::default() }));
        // SAFETY: the model's.
        let unit = unsafe { Vtd::set_up(model(), pool, Options::default()) };
        assert_eq!((unit.err(), pool.pages()), (Some(Error::NoMemory), 0));
    }
}

const DEVICE: DeviceId = DeviceId(0x0228);
const ROOT: PhysAddr = PhysAddr(0xabc0_0000);

/// The words of an entry, walked as a unit does.
fn walk(inner: &Inner<Unit>, device: DeviceId) -> Option<[u64; 2]> {
    let root = load((inner.unit.root & !0xfff) + u64::from(device.0 >> 8) * 16);
    let at = (root & !0xfff) + u64::from(device.0 & 0xff) * 16;
    (root & 1 != 0).then(|| [load(at), load(at + 8)])
}

#[test]
fn entries_lie_where_the_unit_walks() {
    let model = model();
    let (unit, pool) = set_up(model);
    let unit = unit.unwrap();
    assert_eq!(model.with(|inner| walk(inner, DEVICE)), None);
    // SAFETY: no device.
    let admit = |device, root, id| unsafe { unit.admit(device, root, id) };
    admit(DEVICE, ROOT, DomainId(7)).unwrap();
    let entry = [ROOT.0 | 1, 1 | 7 << 8];
    assert_eq!(model.with(|inner| walk(inner, DEVICE)), Some(entry));
    assert_eq!(model.with(|inner| walk(inner, DeviceId(0x0229))), Some([0; 2]));
    assert_eq!(admit(DEVICE, ROOT, DomainId(8)), Err(AdmitError::Admitted));
    assert_eq!(admit(DeviceId(1 << 16), ROOT, DomainId(8)), Err(AdmitError::NoSuchDevice));
    assert_eq!(admit(DeviceId(0), ROOT, DomainId(0)), Err(AdmitError::BadId));
    assert_eq!(admit(DeviceId(0), PhysAddr(0x1001), DomainId(1)), Err(AdmitError::BadRoot));
    assert_eq!(model.with(|inner| walk(inner, DeviceId(0))), None);
    // The other half stays until the entry is used again.
    assert!(unit.expel(DEVICE));
    assert_eq!(model.with(|inner| walk(inner, DEVICE)), Some([0, entry[1]]));
    assert!(!unit.expel(DEVICE) && !unit.expel(DeviceId(0)) && !unit.expel(DeviceId(1 << 16)));
    admit(DEVICE, ROOT, DomainId(9)).unwrap();
    assert_eq!(pool.pages(), 4);
    // SAFETY: no device, no domain.
    unsafe { unit.turn_off() }.map_err(|(_, error)| error).unwrap();
    assert_eq!(pool.pages(), 0);
    assert_eq!(model.with(|inner| inner.file.get32(GSTS)) & (TE | QIE), 0);
}

/// A unit that stays on keeps its memory, and comes back.
#[test]
fn what_does_not_turn_off_comes_back() {
    let model = model();
    let (unit, pool) = set_up(model);
    model.with(|inner| inner.unit.deaf = Some((GCMD, TE)));
    // SAFETY: no device, no domain.
    let (unit, error) = unsafe { unit.unwrap().turn_off() }.err().unwrap();
    assert_eq!((error, pool.pages()), (Error::Timeout(Step::TranslationOff), 3));
    complete(&unit, &[Command::All]).unwrap();
}

/// A descriptor that is none is at the head; the queue is full of what the unit has not taken.
/// Reset: it goes on, and tickets of before are complete.
#[test]
fn a_queue_that_stands_still_is_reset() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    model.with(|inner| inner.file.set32(FSTS, 1 << 4));
    let ticket = unit.queue().submit(&[Command::All]).unwrap();
    assert!(unit.queue().completed().unwrap() < ticket);
    // SAFETY: no device.
    unsafe { unit.renew() }.unwrap();
    assert_eq!(model.with(|inner| inner.file.get32(FSTS)), 0);
    assert!(unit.queue().completed().unwrap() >= ticket);
    complete(&unit, &[Command::All]).unwrap();
    assert_eq!(model.history(), [Reach::All, Reach::Now]);
}

/// A reset that fails is no queue to rely on, until another one succeeds.
#[test]
fn a_reset_that_fails_leaves_the_queue_stuck() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    let ticket = unit.queue().submit(&[Command::All]).unwrap();
    model.with(|inner| inner.unit.deaf = Some((CCMD, 1)));
    // SAFETY: no device.
    let renew = || unsafe { unit.renew() };
    assert_eq!(renew(), Err(Error::Timeout(Step::ForgetEntries)));
    assert_eq!(unit.queue().completed(), Err(QueueError::Stuck));
    assert_eq!(unit.queue().submit(&[Command::All]), Err(QueueError::Stuck));
    model.with(|inner| inner.unit.deaf = None);
    renew().unwrap();
    assert!(unit.queue().completed().unwrap() >= ticket);
    let next = unit.queue().submit(&[Command::All]).unwrap();
    assert!(next > ticket, "tickets go on");
}

#[test]
fn records_are_taken_out_one_by_one() {
    let model = model();
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    assert_eq!(unit.next_record(), None);
    model.with(|inner| {
        inner.file.set64(RECORDS, 0x7000_0fff);
        inner.file.set64(RECORDS + 8, 1 << 63 | 6 << 32 | 1 << 62 | 0x28);
        inner.file.set32(FSTS, 0b11);
    });
    let record = unit.next_record().unwrap();
    assert!(matches!(record, Record::Refused { reason: Reason::NoRead, .. }));
    let fault = Fault {
        device: Some(DeviceId(0x28)),
        pasid: None,
        address: Some(0x7000_0000),
        access: Some(Access::Read),
        class: Class::Translation,
    };
    assert_eq!(Fault::from(record), fault);
    // There were more; that is told once.
    assert_eq!((unit.next_record(), unit.next_record()), (Some(Record::Lost), None));
}

/// What firmware has left is nobody's, and a message is complete before it may be sent.
#[test]
fn faults_interrupt_when_they_are_told_to() {
    let model = model_of(Unit::default(), |file| {
        file.set64(RECORDS + 8, 1 << 63);
        file.set32(FSTS, 1);
    });
    let (unit, _) = set_up(model);
    let unit = unit.unwrap();
    assert_eq!(unit.next_record(), None);
    assert_eq!(model.with(|inner| inner.file.get32(FECTL)), 1 << 31);
    let message = shootdown_iommu::unit::Message { address: 0x1_fee0_1000, data: 0x41 };
    unit.interrupt(Some(message));
    let registers =
        |inner: &mut Inner<Unit>| [FECTL, 0x3c, 0x40, 0x44].map(|at| inner.file.get32(at));
    assert_eq!(model.with(registers), [0, 0x41, 0xfee0_1000, 1]);
    unit.interrupt(None);
    assert_eq!(model.with(registers)[0], 1 << 31);
}

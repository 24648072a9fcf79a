//! The queues of VT-d, SMMUv3 and AMD-Vi over hostile units that read their rings.
#![cfg(not(loom))]

mod hardware;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hardware::{Fault, Hardware, Kind};
use proptest::prelude::*;
use shootdown_dma_woven::invalidate::queue::{Amd, Format, Queue, SLOTS, STRIKES, Smmu, Vtd};
use shootdown_dma_woven::invalidate::{
    Command, Engine, Promotion, QueueError, Ticket, Unit, amd, smmu, vtd,
};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::{DeviceId, DomainId, IovaRange};

const KINDS: [Kind; 4] = [Kind::Vtd, Kind::Smmu(true), Kind::Smmu(false), Kind::Amd];

const AMD: amd::Facts = amd::Facts { forgets_all: true };

fn vtd_format(slots: u64) -> Vtd {
    let facts = vtd::Facts {
        page_selective: true,
        max_order: 9,
        drains_reads: true,
        drains_writes: true,
        throttles_devices: false,
    };
    Vtd { facts, slots }
}

fn smmu_format(slots: u64, stores: bool) -> Smmu {
    Smmu { facts: smmu::Facts::from_idr3(1 << 10), slots, stores, survives: false }
}

/// A queue over a unit, and what is owed: tickets, with domain, device and pages that nobody may
/// reach after.
struct World<'a, F> {
    queue: Queue<&'a Hardware, F>,
    hardware: &'a Hardware,
    owed: VecDeque<(Ticket, u64, u64, std::ops::Range<u64>)>,
    errors: Vec<QueueError>,
    next_page: u64,
}

impl<'a, F: Format> World<'a, F> {
    fn new(hardware: &'a Hardware, format: F, start: u64) -> Self {
        let queue = Queue::small(hardware, format, start);
        Self { queue, hardware, owed: VecDeque::new(), errors: Vec::new(), next_page: 1 }
    }

    /// Unmaps pages that the unit has cached, and tells it. Pages are never used again.
    fn unmap(&mut self, pages: u64, caches: bool) -> Result<Ticket, QueueError> {
        let (domain, device) = (7 + pages % 2, 3 + pages % 2);
        let pages = self.next_page..self.next_page + pages;
        let range = IovaRange::new(pages.start, pages.end - pages.start);
        {
            let mut state = self.hardware.state.lock().unwrap();
            state.iotlb.extend(pages.clone().map(|page| (domain, page)));
        }
        if caches {
            self.hardware.refill(device, domain);
        }
        let id = DomainId(domain as u16);
        let own = Command::Pages { domain: id, range: range.unwrap(), leaf_only: true };
        let other = Command::Device { device: DeviceId(device as u32), range };
        // The device first: to put it behind is the queue's work.
        let commands = [other, own];
        let ticket = self.queue.submit(if caches { &commands } else { &commands[1..] })?;
        self.next_page = pages.end + 1;
        self.owed.push_back((ticket, domain, if caches { device } else { 0 }, pages));
        Ok(ticket)
    }

    fn step(&mut self, refill: bool) {
        self.hardware.step();
        if refill {
            (0..2).for_each(|n| self.hardware.refill(3 + n, 7 + n));
        }
    }

    /// I1, I6, I9: what is complete is forgotten, by whom is relied on.
    fn check(&mut self) {
        let done = match self.queue.completed() {
            Ok(ticket) => ticket,
            Err(error) => {
                self.errors.push(error);
                return;
            }
        };
        let state = self.hardware.state.lock().unwrap();
        for (ticket, domain, device, pages) in &self.owed {
            if *ticket > done {
                continue;
            }
            for page in pages.clone() {
                assert!(
                    !state.iotlb.contains(&(*domain, page)),
                    "{page:#x} in the IOTLB, {ticket:?}"
                );
                let cached = state.atc.contains(&(*device, page));
                let relied = self.queue.answers(DeviceId(*device as u32));
                assert!(!(cached && relied), "{page:#x} in the ATC of {device}, {ticket:?}");
            }
        }
        drop(state);
        self.owed.retain(|owed| owed.0 > done);
    }

    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.owed.is_empty() {
                return;
            }
            self.step(true);
            self.check();
        }
        panic!("no progress: {:?} {:?}", self.owed, self.hardware.state.lock().unwrap());
    }
}

/// So many unmappings, with steps of the unit between as `choices` says.
fn scenario<F: Format>(world: &mut World<'_, F>, choices: &[(u64, bool, u8)]) {
    for (pages, caches, steps) in choices {
        let mut tries = 0;
        while let Err(error) = world.unmap(*pages, *caches) {
            world.errors.extend(Some(error).filter(|error| *error != QueueError::Full));
            tries += 1;
            assert!(tries < 20_000, "full for ever: {:?}", world.hardware.state.lock().unwrap());
            world.step(true);
            world.check();
        }
        for _ in 0..*steps {
            world.step(true);
            world.check();
        }
    }
    world.drain();
}

/// Runs it on a kind of unit; returns the errors that were told, and the faults that there were.
fn run(
    kind: Kind,
    slots: u64,
    start: u64,
    seed: u64,
    plan: Option<(u64, Fault)>,
    choices: &[(u64, bool, u8)],
) -> (Vec<QueueError>, u32) {
    let hardware = Hardware::new(kind, slots, start, seed);
    hardware.state.lock().unwrap().plan = plan;
    fn go<F: Format>(mut world: World<'_, F>, choices: &[(u64, bool, u8)]) -> Vec<QueueError> {
        scenario(&mut world, choices);
        world.errors
    }
    let errors = match kind {
        Kind::Vtd => go(World::new(&hardware, vtd_format(slots), start), choices),
        Kind::Smmu(stores) => go(World::new(&hardware, smmu_format(slots, stores), start), choices),
        Kind::Amd => go(World::new(&hardware, Amd { slots, facts: AMD }, start), choices),
    };
    let faults = hardware.state.lock().unwrap().faults;
    (errors, faults)
}

const MIXED: [(u64, bool, u8); 12] = [
    (1, false, 0),
    (3, true, 2),
    (2, true, 0),
    (1, true, 5),
    (4, false, 1),
    (5, true, 0),
    (1, true, 9),
    (7, false, 0),
    (2, true, 1),
    (3, false, 3),
    (1, true, 0),
    (6, true, 2),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_complete_is_forgotten(
        seed: u64,
        rounds in 0..4u64,
        log in 4..8u32,
        choices in prop::collection::vec((1..9u64, any::<bool>(), 0..12u8), 1..30),
    ) {
        let slots = 1 << log;
        for kind in KINDS {
            let start = (1 << 32) - slots * rounds;
            run(kind, slots, start, seed, None, &choices);
        }
    }

    #[test]
    fn nothing_is_lost_by_an_error(
        seed: u64, at in 0..60u64, silent: bool, times in 1..8u32,
        choices in prop::collection::vec((1..9u64, any::<bool>(), 0..12u8), 10..30),
    ) {
        let fault = if silent { Fault::Silent(times) } else { Fault::Refuse(1) };
        for kind in KINDS {
            run(kind, 32, 0, seed, Some((at, fault)), &choices);
        }
    }
}

/// I9, exhaustively in where: the same work, with a fault at each slot that is read.
#[test]
fn a_fault_at_every_slot() {
    for kind in KINDS {
        let mut seen = 0;
        for at in 0..60 {
            for seed in 0..5 {
                let (errors, faults) = run(kind, 16, 0, seed, Some((at, Fault::Refuse(1))), &MIXED);
                assert_eq!(errors.len() as u32, faults, "{kind:?} {at}");
                assert!(errors.iter().all(|e| *e == QueueError::Refused));
                seen += faults;
                for times in 1..2 + STRIKES as u32 {
                    let plan = Some((at, Fault::Silent(times)));
                    let (errors, faults) = run(kind, 32, 0, seed, plan, &MIXED);
                    let told = errors.iter().filter(|e| **e == QueueError::DeviceTimeout).count();
                    assert!(kind == Kind::Amd || told as u32 <= faults, "{kind:?} {at} {errors:?}");
                    assert!(errors.iter().all(|e| *e == QueueError::DeviceTimeout));
                    seen += faults;
                }
            }
        }
        assert!(seen > 100, "{kind:?}: only {seen} faults");
    }
}

/// I8: a ring of four slots, where 32 bits wrap.
#[test]
fn positions_wrap_in_the_smallest_ring() {
    for kind in KINDS {
        for seed in 0..50 {
            let singles = [(1, false, 3); 20];
            run(kind, 4, (1 << 32) - 3, seed, None, &singles);
        }
    }
}

#[test]
fn what_is_refused_for_ever_is_the_end() {
    let hardware = Hardware::new(Kind::Vtd, 16, 0, 1);
    hardware.state.lock().unwrap().plan = Some((0, Fault::Refuse(9)));
    let mut world = World::new(&hardware, vtd_format(16), 0);
    let ticket = world.unmap(1, false).unwrap();
    for _ in 0..1000 {
        world.step(true);
        world.check();
    }
    assert_eq!(world.errors.last(), Some(&QueueError::Stuck));
    assert_eq!(world.queue.completed(), Err(QueueError::Stuck));
    assert_eq!(world.unmap(1, false), Err(QueueError::Stuck));
    assert!(world.owed.iter().any(|owed| owed.0 == ticket), "it never completes");
}

#[test]
fn a_silent_device_is_left_out_until_it_is_revived() {
    for kind in KINDS {
        let hardware = Hardware::new(kind, 32, 0, 1);
        hardware.state.lock().unwrap().plan = Some((0, Fault::Silent(STRIKES as u32)));
        fn go<F: Format>(mut world: World<'_, F>) {
            let device = DeviceId(4);
            world.unmap(1, true).unwrap();
            world.drain();
            assert!(!world.queue.answers(device));
            assert!(world.queue.answers(DeviceId(3)));
            let others = world.unmap(2, true).unwrap();
            world.drain();
            // Its own commands are left out: what is told is shorter.
            let own = world.unmap(1, true).unwrap();
            assert!(own.0 - others.0 < 5);
            world.drain();
            world.hardware.state.lock().unwrap().atc.clear();
            assert_eq!(world.queue.revive(device), Ok(()));
            assert!(world.queue.answers(device));
            let again = world.unmap(1, true).unwrap();
            assert!(again.0 - own.0 > own.0 - others.0);
            world.drain();
        }
        match kind {
            Kind::Vtd => go(World::new(&hardware, vtd_format(32), 0)),
            Kind::Smmu(stores) => go(World::new(&hardware, smmu_format(32, stores), 0)),
            Kind::Amd => go(World::new(&hardware, Amd { slots: 32, facts: AMD }, 0)),
        }
    }
}

#[test]
fn three_eighths_of_the_ring_are_handed_out() {
    let hardware = Hardware::new(Kind::Vtd, 16, 0, 1);
    let mut world = World::new(&hardware, vtd_format(16), 0);
    let taken = (0..100).take_while(|_| world.unmap(1, false).is_ok()).count();
    assert_eq!(taken, 3, "six slots, two each");
    assert_eq!(world.unmap(1, false), Err(QueueError::Full));
    assert!(world.queue.is_crowded());
    world.drain();
    assert!(world.unmap(1, false).is_ok());
}

#[test]
fn a_ring_that_is_too_small_or_no_power_of_two_is_refused() {
    for (slots, fits) in
        [(SLOTS as u64, true), (SLOTS as u64 / 2, false), (SLOTS as u64 + 1, false)]
    {
        let hardware = Hardware::new(Kind::Amd, slots, 0, 1);
        assert_eq!(Queue::new(&hardware, Amd { slots, facts: AMD }).is_ok(), fits);
    }
}

/// A promise of `Unit`: a batch of any commands fits an empty queue.
#[test]
fn a_batch_fits_an_empty_queue() {
    let slots = SLOTS as u64;
    let range = IovaRange::new(0x7_ffff, 0x5_5555).unwrap();
    let (domain, device) = (DomainId(1), DeviceId(1));
    for command in [
        Command::Pages { domain, range, leaf_only: true },
        Command::Device { device, range: Some(range) },
        Command::Config { device, domain },
    ] {
        let batch = [command; shootdown_dma_woven::invalidate::BATCH];
        let hardware = KINDS.map(|kind| Hardware::new(kind, slots, 0, 1));
        assert!(Queue::new(&hardware[0], vtd_format(slots)).unwrap().submit(&batch).is_ok());
        assert!(Queue::new(&hardware[1], smmu_format(slots, true)).unwrap().submit(&batch).is_ok());
        assert!(
            Queue::new(&hardware[3], Amd { slots, facts: AMD }).unwrap().submit(&batch).is_ok()
        );
    }
}

/// An SMMU whose entries may survive one invalidation.
fn survivors(seed: u64) {
    let hardware = Hardware::new(Kind::Smmu(true), 64, 0, seed);
    hardware.state.lock().unwrap().survives = true;
    let format = Smmu { survives: true, ..smmu_format(64, true) };
    scenario(&mut World::new(&hardware, format, 0), &MIXED);
}

#[test]
fn what_survives_once_does_not_survive_twice() {
    (0..50).for_each(survivors);
}

/// The work holds as it is, and breaks without the step.
fn is_missed(step: Mutant, work: impl Fn()) {
    mutant::set(None);
    work();
    mutant::set(Some(step));
    let outcome = catch_unwind(AssertUnwindSafe(&work));
    let reached = mutant::reached();
    mutant::set(None);
    assert!(reached, "{step:?} is not come by");
    assert!(outcome.is_err(), "nobody misses {step:?}");
}

#[test]
fn every_step_of_the_queue_is_missed() {
    let each = |seeds: u64, work: &dyn Fn(Kind, u64)| {
        for kind in KINDS {
            (0..seeds).for_each(|seed| work(kind, seed));
        }
    };
    let calm = |kind, seed| drop(run(kind, 16, 0, seed, None, &MIXED));
    let fault = |fault| {
        move |kind, seed| {
            for at in 0..30 {
                run(kind, 32, 0, seed, Some((at, fault)), &MIXED);
            }
        }
    };
    is_missed(Mutant::RoomUnchecked, || each(5, &calm));
    is_missed(Mutant::BarrierSkipped, || each(5, &calm));
    is_missed(Mutant::RepeatSkipped, || each(5, &|_, seed| survivors(seed)));
    is_missed(Mutant::RefusedDropped, || each(2, &fault(Fault::Refuse(1))));
    is_missed(Mutant::LostForgotten, || each(2, &fault(Fault::Silent(1))));
    is_missed(Mutant::SilentRelied, || each(2, &fault(Fault::Silent(STRIKES as u32))));
    is_missed(Mutant::LogUnread, || each(2, &fault(Fault::Silent(1))));
    is_missed(Mutant::DevicesUntoldOf, || each(2, &fault(Fault::Silent(1))));
}

/// An engine over real queues: a domain behind a unit of each kind.
#[test]
fn an_engine_drives_all_kinds() {
    let slots = SLOTS as u64;
    let hardware = KINDS.map(|kind| Hardware::new(kind, slots, 0, 1));
    let units: [Box<dyn Unit>; 4] = [
        Box::new(Queue::new(&hardware[0], vtd_format(slots)).unwrap()),
        Box::new(Queue::new(&hardware[1], smmu_format(slots, true)).unwrap()),
        Box::new(Queue::new(&hardware[2], smmu_format(slots, false)).unwrap()),
        Box::new(Queue::new(&hardware[3], Amd { slots, facts: AMD }).unwrap()),
    ];
    let members = units.iter().map(|unit| (unit, DomainId(7)));
    let engine = Engine::new(2, members, Promotion::DEFAULT).unwrap();
    for unit in 0..4 {
        let _attachment = engine.attach(unit, DeviceId(3), true).unwrap();
    }
    for round in 0..300u64 {
        let first = 1 + round * 8;
        for unit in &hardware {
            unit.state.lock().unwrap().iotlb.extend((first..first + 8).map(|page| (7, page)));
            unit.refill(3, 7);
        }
        let range = IovaRange::new(first, 1 + round % 8).unwrap();
        let token = engine.note(round as usize, range, true);
        if round % 4 != 3 {
            continue;
        }
        (0..2).for_each(|cpu| engine.flush(cpu));
        let outcome = engine.wait(token, &mut || {
            hardware.iter().for_each(|unit| {
                unit.step();
                unit.refill(3, 7);
            });
            true
        });
        assert_eq!(outcome, Ok(()));
        for unit in &hardware {
            let state = unit.state.lock().unwrap();
            for page in range.first()..=range.last() {
                assert!(!state.iotlb.contains(&(7, page)), "{:?}", unit.kind);
                assert!(!state.atc.contains(&(3, page)), "{:?}", unit.kind);
            }
        }
    }
}

/// Buffers that were mapped for good go away together: each unit forgets everything, if it can be
/// told that, and its device then.
#[test]
fn all_goes_at_once_on_all_kinds() {
    let slots = SLOTS as u64;
    let tables = amd::Facts { forgets_all: false };
    for together in [true, false] {
        let kinds = [Kind::Vtd, Kind::Smmu(true), Kind::Smmu(false), Kind::Amd, Kind::Amd];
        let hardware = kinds.map(|kind| Hardware::new(kind, slots, 0, 1));
        let units: [Box<dyn Unit>; 5] = [
            Box::new(Queue::new(&hardware[0], vtd_format(slots)).unwrap()),
            Box::new(Queue::new(&hardware[1], smmu_format(slots, true)).unwrap()),
            Box::new(Queue::new(&hardware[2], smmu_format(slots, false)).unwrap()),
            Box::new(Queue::new(&hardware[3], Amd { slots, facts: AMD }).unwrap()),
            Box::new(Queue::new(&hardware[4], Amd { slots, facts: tables }).unwrap()),
        ];
        let alone = Promotion::DEFAULT.with_live(1).with_everything(1, 0);
        let engine = Engine::new(1, units.iter().map(|unit| (unit, DomainId(7))), alone).unwrap();
        for (unit, hardware) in hardware.iter().enumerate() {
            let _attachment = engine.attach(unit, DeviceId(3), true).unwrap();
            let mut state = hardware.state.lock().unwrap();
            state.iotlb.extend([(7, 5), (7, 0x5_0000), (8, 5)]);
            state.atc.extend([(3, 5), (3, 0x5_0000), (4, 5)]);
        }
        let token = if together {
            engine.note_everything(0)
        } else {
            // So many that they are.
            engine.note_all(0, || {
                (0..12u64).map(|n| (IovaRange::new(5 + (n << 12), 1).unwrap(), true))
            })
        };
        let mut turns = 0;
        let outcome = engine.wait(token, &mut || {
            hardware.iter().for_each(Hardware::step);
            turns += 1;
            turns < 100_000
        });
        assert_eq!(outcome, Ok(()));
        for (n, unit) in hardware.iter().enumerate() {
            let state = unit.state.lock().unwrap();
            assert!(state.iotlb.iter().all(|e| e.0 == 8), "{:?}: {:?}", unit.kind, state.iotlb);
            assert_eq!(
                state.iotlb.is_empty(),
                n != 4,
                "{:?} forgets what it can be told",
                unit.kind
            );
            assert!(state.atc.iter().all(|e| e.0 == 4), "{:?}: {:?}", unit.kind, state.atc);
        }
    }
}

/// Real threads submit to one ring, whose positions wrap 32 bits meanwhile.
#[test]
fn threads_share_a_ring() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for kind in KINDS {
        let (slots, start) = (32, (1 << 32) - 64);
        let hardware = Hardware::new(kind, slots, start, 1);
        let unit: Box<dyn Unit + Send> = match kind {
            Kind::Vtd => Box::new(Queue::small(&hardware, vtd_format(slots), start)),
            Kind::Smmu(stores) => {
                Box::new(Queue::small(&hardware, smmu_format(slots, stores), start))
            }
            Kind::Amd => Box::new(Queue::small(&hardware, Amd { slots, facts: AMD }, start)),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hardware.step();
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..3u64)
                .map(|n| {
                    let (unit, hardware) = (&unit, &hardware);
                    threads.spawn(move || {
                        for round in 0..60 {
                            let page = 1 + n * 1000 + round;
                            hardware.state.lock().unwrap().iotlb.insert((7, page));
                            hardware.refill(3, 7);
                            let range = IovaRange::new(page, 1);
                            let own = Command::Pages {
                                domain: DomainId(7),
                                range: range.unwrap(),
                                leaf_only: true,
                            };
                            let commands = [own, Command::Device { device: DeviceId(3), range }];
                            let ticket = loop {
                                match unit.submit(&commands) {
                                    Ok(ticket) => break ticket,
                                    Err(_) => std::thread::yield_now(),
                                }
                            };
                            while unit.completed().unwrap() < ticket {
                                std::thread::yield_now();
                            }
                            let state = hardware.state.lock().unwrap();
                            assert!(
                                !state.iotlb.contains(&(7, page))
                                    && !state.atc.contains(&(3, page))
                            );
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(Result::is_ok), "{kind:?}");
        });
    }
}

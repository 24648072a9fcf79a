//! The engine over the hostile model unit: nothing is reachable when it is complete.
#![cfg(not(loom))]

use proptest::prelude::*;
use shootdown_dma::invalidate::model::{Model, Powers, TABLE};
use shootdown_dma::invalidate::{Command, Engine, Promotion, QueueError, Ticket, Token, Unit};
use shootdown_dma::{DeviceId, DomainId, IovaRange};

const DOMAIN: DomainId = DomainId(7);
const DEVICE: DeviceId = DeviceId(3);
const PAGES: u64 = 64;

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).expect("not empty, not page 0")
}

/// Waits with so many turns of the unit.
fn wait<U: Unit>(engine: &Engine<U>, token: Token, units: &[&Model]) -> Result<(), QueueError> {
    let mut turns = 0;
    engine.wait(token, &mut || {
        units.iter().for_each(|unit| unit.step());
        turns += 1;
        turns < 100_000
    })
}

#[derive(Clone, Debug)]
enum Op {
    Map(u64),
    Access(u64),
    Unmap {
        first: u64,
        pages: u64,
        cpu: usize,
        submit: bool,
    },
    /// Clears and unlinks a whole table.
    Unlink {
        page: u64,
        cpu: usize,
    },
    Everything(usize),
    Flush(usize),
    FlushAll,
    Poll,
    Steps(u8),
    Wait(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let page = 1..PAGES;
    let op = prop_oneof![
        6 => page.clone().prop_map(Op::Map),
        6 => page.clone().prop_map(Op::Access),
        6 => (page.clone(), 1..6u64, 0..3usize, any::<bool>())
            .prop_map(|(first, pages, cpu, submit)| Op::Unmap { first, pages, cpu, submit }),
        1 => (page, 0..3usize).prop_map(|(page, cpu)| Op::Unlink { page, cpu }),
        1 => (0..3usize).prop_map(Op::Everything),
        2 => (0..3usize).prop_map(Op::Flush),
        1 => Just(Op::FlushAll),
        2 => Just(Op::Poll),
        6 => (0..20u8).prop_map(Op::Steps),
        2 => any::<prop::sample::Index>().prop_map(|i| Op::Wait(i.index(64))),
    ];
    prop::collection::vec(op, 1..80)
}

/// Each page has frames of its own, never used twice: whatever is reached is known by its number.
struct World<'a> {
    units: [&'a Model; 2],
    engine: Engine<&'a Model>,
    frames: u64,
    /// What was unmapped: a token, and the frames that may be reused with it.
    queue: Vec<(Token, Vec<u64>)>,
    mapped: std::collections::BTreeMap<u64, u64>,
}

impl<'a> World<'a> {
    fn new(units: [&'a Model; 2]) -> Self {
        let engine = Engine::new(2, units.map(|u| (u, DOMAIN)), Promotion::DEFAULT).unwrap();
        for (n, unit) in units.iter().enumerate() {
            let _ = engine.attach(n, DEVICE, n == 0).unwrap();
            unit.attach(DEVICE, DOMAIN, n == 0);
        }
        Self { units, engine, frames: 0, queue: Vec::new(), mapped: Default::default() }
    }

    fn clear(&mut self, pages: impl Iterator<Item = u64>) -> Vec<u64> {
        pages.filter_map(|page| self.mapped.remove(&page)).collect()
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Map(page) if !self.mapped.contains_key(&page) => {
                self.frames += 1;
                self.mapped.insert(page, self.frames);
                self.units.iter().for_each(|u| u.map(DOMAIN, page, self.frames));
            }
            Op::Map(_) => {}
            Op::Access(page) => {
                for unit in self.units {
                    let _ = unit.access(DEVICE, page);
                }
            }
            Op::Unmap { first, pages, cpu, submit } => {
                let frames = self.clear(first..first + pages);
                for unit in self.units {
                    (first..first + pages).for_each(|page| unit.unmap(DOMAIN, page));
                }
                let range = range(first, pages);
                let token = if submit {
                    self.engine.invalidate(cpu, range, true)
                } else {
                    self.engine.note(cpu, range, true)
                };
                self.queue.push((token, frames));
            }
            Op::Unlink { page, cpu } => {
                let first = page / TABLE * TABLE;
                let frames = self.clear(first..first + TABLE);
                self.units.iter().for_each(|u| u.unlink(DOMAIN, page));
                let range = range(first.max(1), TABLE - u64::from(first == 0));
                self.queue.push((self.engine.note(cpu, range, false), frames));
            }
            Op::Everything(cpu) => {
                let frames = self.clear(0..PAGES + 8);
                for unit in self.units {
                    (0..PAGES + 8).for_each(|page| unit.unmap(DOMAIN, page));
                }
                self.queue.push((self.engine.note_everything(cpu), frames));
            }
            Op::Flush(cpu) => self.engine.flush(cpu),
            Op::FlushAll => {
                // Everything that is deferred is deferred with this token, too.
                let token = self.engine.flush_all();
                let frames = self.queue.iter().flat_map(|o| o.1.clone()).collect();
                self.queue.push((token, frames));
            }
            Op::Poll => self.engine.poll().unwrap(),
            Op::Steps(n) => (0..n).for_each(|_| self.units.iter().for_each(|u| u.step())),
            Op::Wait(n) if n < self.queue.len() => {
                wait(&self.engine, self.queue[n].0, &self.units).unwrap();
            }
            Op::Wait(_) => {}
        }
    }

    /// I1: frames that may be reused are reached by nobody.
    fn check(&self) -> Result<(), String> {
        let stale = self.units.map(|unit| unit.stale(DOMAIN, 0..PAGES + 8)).concat();
        for (token, frames) in &self.queue {
            let reached = stale.iter().find(|(_, frame)| frames.contains(frame));
            // The oracle looked first: what it saw was reached before the engine says that it is
            // not.
            if let Some(at) = reached.filter(|_| self.engine.is_complete(*token)) {
                return Err(format!("{at:?} is reached after {token:?}"));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn nothing_is_reached_after_completion(seed: u64, room in 18..80usize, ops in ops()) {
        let powers = Powers::ALL.with_room(room);
        let units = [Model::with_powers(seed, powers), Model::with_powers(!seed, powers)];
        let mut world = World::new([&units[0], &units[1]]);
        for op in &ops {
            world.run(op);
            prop_assert_eq!(world.check(), Ok(()), "after {:?}", op);
        }
        // All of it completes, by polling alone once it was asked for.
        (0..2).for_each(|cpu| world.engine.flush(cpu));
        for _ in 0..20_000 {
            if world.queue.iter().all(|(token, _)| world.engine.is_complete(*token)) {
                break;
            }
            world.run(&Op::Steps(1));
            world.run(&Op::Poll);
        }
        for (token, _) in &world.queue {
            prop_assert!(world.engine.is_complete(*token), "{token:?} does not complete");
        }
        prop_assert_eq!(world.check(), Ok(()));
    }
}

#[test]
fn a_batch_grows_while_a_unit_is_full() {
    let unit = Model::with_powers(1, Powers::ALL.with_room(18));
    let engine = Engine::new(1, [(&unit, DOMAIN)], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let tokens: Vec<Token> =
        (0..200).map(|n| engine.invalidate(0, range(1 + 3 * n, 1), true)).collect();
    assert!(unit.queued() <= 18);
    assert!(!engine.is_submitted(*tokens.last().unwrap()));
    wait(&engine, *tokens.last().unwrap(), &[&unit]).unwrap();
    assert!(tokens.iter().all(|t| engine.is_complete(*t)));
    assert!(unit.executed() < 40, "{} commands for 200 pages", unit.executed());
}

#[test]
fn a_unit_with_no_device_behind_it_is_not_told() {
    let [near, far] = [Model::new(1), Model::new(2)];
    let engine =
        Engine::new(1, [(&near, DOMAIN), (&far, DomainId(9))], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, true).unwrap();
    let token = engine.invalidate(0, range(5, 1), true);
    assert_eq!((near.queued(), far.queued()), (2, 0));
    wait(&engine, token, &[&near, &far]).unwrap();
    // A device that comes is told from then on, under the id of that unit.
    let _attachment = engine.attach(1, DEVICE, false).unwrap();
    let token = engine.invalidate(0, range(5, 1), true);
    assert_eq!(far.queued(), 1);
    wait(&engine, token, &[&near, &far]).unwrap();
}

#[test]
fn a_silent_device_holds_its_domain_back_until_it_is_evicted() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN)], Promotion::DEFAULT).unwrap();
    let other = Engine::new(1, [(&unit, DomainId(8))], Promotion::DEFAULT).unwrap();
    let attachment = engine.attach(0, DEVICE, true).unwrap();
    let _other = other.attach(0, DeviceId(4), true).unwrap();
    unit.attach(DEVICE, DOMAIN, true);
    unit.map(DOMAIN, 5, 50);
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    unit.silence(DEVICE);
    unit.unmap(DOMAIN, 5);
    let token = engine.invalidate(0, range(5, 1), true);
    assert_eq!(wait(&engine, token, &[&unit]), Err(QueueError::DeviceTimeout));
    assert_eq!(unit.access(DEVICE, 5), Some(50), "it still reaches the page");
    assert!(!engine.is_complete(token));
    assert_eq!(engine.silent(), Some(DEVICE));
    // Others go on.
    let elsewhere = other.invalidate(0, range(5, 1), true);
    assert_eq!(wait(&other, elsewhere, &[&unit]), Ok(()));
    unit.detach(DEVICE);
    let step = &mut || {
        unit.step();
        true
    };
    let (error, attachment) = engine.detach(attachment, step).unwrap_err();
    assert_eq!(error, QueueError::DeviceTimeout);
    unit.reset(DEVICE);
    engine.evict(attachment, step).map_err(|(error, _)| error).unwrap();
    (0..1000).for_each(|_| unit.step());
    assert!(engine.is_complete(token));
}

#[test]
fn who_gives_up_can_ask_again() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN)], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let token = engine.note(0, range(5, 1), true);
    assert_eq!(engine.wait(token, &mut || false), Err(QueueError::GaveUp));
    assert!(engine.is_submitted(token) && !engine.is_complete(token));
    assert_eq!(wait(&engine, token, &[&unit]), Ok(()));
}

/// A unit on top of which an interrupt unmaps something, for the same CPU, while the lane is
/// locked.
struct Interrupting<'a> {
    unit: &'a Model,
    engine: std::sync::OnceLock<&'a Engine<&'a Interrupting<'a>>>,
    noted: std::sync::Mutex<Vec<Token>>,
    depth: std::sync::atomic::AtomicUsize,
    cpu: usize,
}

// SAFETY: the promises are the model's.
unsafe impl Unit for Interrupting<'_> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.depth.fetch_add(1, Relaxed) < 3 {
            let engine = self.engine.get().expect("set before the first");
            let token = engine.invalidate(self.cpu, range(9, 1), true);
            self.noted.lock().unwrap().push(token);
        }
        self.unit.submit(commands)
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        self.unit.completed()
    }
}

/// An unmapping for the last of so many CPUs that there could be, or for one of those that there
/// are.
fn interrupted(cpus: usize, cpu: usize) {
    let unit = Model::new(1);
    let unit: &Model = Box::leak(Box::new(unit));
    let interrupting = Box::leak(Box::new(Interrupting {
        unit,
        engine: Default::default(),
        noted: Default::default(),
        depth: Default::default(),
        cpu,
    }));
    let interrupting: &_ = interrupting;
    let engine = Engine::new(cpus, [(interrupting, DOMAIN)], Promotion::DEFAULT).unwrap();
    let engine: &_ = Box::leak(Box::new(engine));
    let _ = interrupting.engine.set(engine);
    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let token = engine.invalidate(cpu, range(5, 1), true);
    let noted = interrupting.noted.lock().unwrap().clone();
    assert_eq!(noted.len(), 3);
    // Nobody polls, and nobody waits but by asking.
    for _ in 0..10_000 {
        unit.step();
    }
    for token in noted.into_iter().chain([token]) {
        assert!(engine.is_complete(token), "{token:?}");
    }
}

#[test]
fn an_interrupt_on_top_of_a_submission_is_served() {
    interrupted(1, 0);
}

/// A caller without a number of its own passes any, and the lane of its number is taken.
#[test]
fn any_number_of_a_cpu_will_do() {
    for cpus in 1..6 {
        (0..4).for_each(|below| interrupted(cpus, usize::MAX - below));
    }
}

/// Real threads, twice as many as there are CPU numbers, and a unit that works beside them.
#[test]
fn threads_share_lanes() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let unit = Model::with_powers(7, Powers::ALL.with_room(20));
    let engine = Engine::new(2, [(&unit, DOMAIN)], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN, true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                unit.step();
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..4u64)
            .map(|n| {
                let (engine, unit) = (&engine, &unit);
                threads.spawn(move || {
                    for round in 0..150 {
                        let page = 1 + n * 1000 + round % 7 * 3;
                        unit.map(DOMAIN, page, 1);
                        let _ = unit.access(DEVICE, page);
                        unit.unmap(DOMAIN, page);
                        let token = match round % 5 {
                            0 => engine.flush_all(),
                            1 | 2 => engine.invalidate(n as usize, range(page, 1), true),
                            _ => engine.note(n as usize, range(page, 1), true),
                        };
                        let mut turns = 0u64;
                        let outcome = engine.wait(token, &mut || {
                            std::thread::yield_now();
                            turns += 1;
                            turns < 10_000_000
                        });
                        assert_eq!(outcome, Ok(()));
                        assert_eq!(unit.stale(DOMAIN, [page]), [], "I1");
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

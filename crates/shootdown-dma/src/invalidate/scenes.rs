//! Scenes that break when a step of the engine is missing: each passes as the code is.

use alloc::collections::BTreeMap;
use std::format;
use std::vec::Vec;

use crate::addr::{DeviceId, DomainId, IovaRange};

use super::model::{Model, Powers, TABLE};
use super::pending::{Span, merge};
use super::{Attachment, Command, Engine, Promotion, QueueError, Ticket, Token, Unit};

pub(crate) mod errors;

const DOMAIN: [DomainId; 2] = [DomainId(7), DomainId(9)];
const DEVICE: DeviceId = DeviceId(3);
const PAGES: u64 = 48;
const TURNS: usize = 5_000;

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).unwrap()
}

/// Frames are numbered, and no number is used twice: what is reached is known by it.
struct World<'a> {
    units: [&'a Model; 2],
    engine: Engine<&'a Model>,
    mapped: BTreeMap<u64, u64>,
    queue: Vec<(Token, Vec<u64>)>,
    frames: u64,
    random: u64,
}

impl<'a> World<'a> {
    fn new(units: [&'a Model; 2], seed: u64) -> Self {
        let members = [0, 1].map(|n| (units[n], DOMAIN[n]));
        // Every other time everything is cheaper than the domain.
        let promotion = if seed % 2 == 0 {
            Promotion::DEFAULT
        } else {
            Promotion::DEFAULT.with_everything(100, 0)
        };
        let engine = Engine::new(2, members, promotion).unwrap();
        for (n, unit) in units.iter().enumerate() {
            let _ = engine.attach(n, DEVICE, n == 0).unwrap();
            unit.attach(DEVICE, DOMAIN[n], n == 0);
        }
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { units, engine, mapped: BTreeMap::new(), queue: Vec::new(), frames: 0, random }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn each(&self, f: impl Fn(&Model, DomainId)) {
        (0..2).for_each(|n| f(self.units[n], DOMAIN[n]));
    }

    fn clear(&mut self, pages: impl Iterator<Item = u64> + Clone) -> Vec<u64> {
        self.each(|unit, domain| pages.clone().for_each(|page| unit.unmap(domain, page)));
        pages.filter_map(|page| self.mapped.remove(&page)).collect()
    }

    fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.each(|unit, _| unit.step()));
    }

    fn turn(&mut self) {
        let (page, cpu) = (1 + self.draw(PAGES), self.draw(3) as usize);
        match self.draw(16) {
            0..=3 if !self.mapped.contains_key(&page) => {
                self.frames += 1;
                self.mapped.insert(page, self.frames);
                let frame = self.frames;
                self.each(|unit, domain| unit.map(domain, page, frame));
            }
            0..=6 => self.each(|unit, _| {
                let _ = unit.access(DEVICE, page);
            }),
            7..=9 => {
                let pages = 1 + self.draw(3);
                let frames = self.clear(page..page + pages);
                let now = self.draw(2) == 0;
                let range = range(page, pages);
                let token = if now {
                    self.engine.invalidate(cpu, range, true)
                } else {
                    self.engine.note(cpu, range, true)
                };
                self.queue.push((token, frames));
            }
            10 => {
                let first = page / TABLE * TABLE;
                let frames = (first..first + TABLE).filter_map(|page| self.mapped.remove(&page));
                let frames = frames.collect();
                self.each(|unit, domain| unit.unlink(domain, page));
                let range = range(first.max(1), TABLE - u64::from(first == 0));
                self.queue.push((self.engine.note(cpu, range, false), frames));
            }
            11 => self.engine.flush(cpu),
            12 => {
                let frames = self.queue.iter().flat_map(|queue| queue.1.clone()).collect();
                self.queue.push((self.engine.flush_all(), frames));
            }
            13 => self.engine.poll().unwrap(),
            _ => {
                let count = self.draw(12);
                self.steps(count);
            }
        }
    }

    fn check(&mut self) {
        let stale: Vec<(u64, u64)> =
            (0..2).flat_map(|n| self.units[n].stale(DOMAIN[n], 0..PAGES + 4)).collect();
        for (token, frames) in &self.queue {
            let reached = stale.iter().find(|(_, frame)| frames.contains(frame));
            if let Some(at) = reached.filter(|_| self.engine.is_complete(*token)) {
                panic!("I1: {at:?} is reached after {token:?} is complete");
            }
        }
        self.queue.retain(|(token, _)| !self.engine.is_complete(*token));
    }

    fn drain(&mut self) {
        (0..2).for_each(|cpu| self.engine.flush(cpu));
        for _ in 0..TURNS {
            if self.queue.is_empty() {
                return;
            }
            self.steps(1);
            self.engine.poll().unwrap();
            self.check();
        }
        panic!("no progress");
    }
}

/// I1, I7: random work on a domain behind two hostile units, one of them with little room.
#[test]
pub(crate) fn nothing_is_reached_after_completion() {
    for seed in 0..12 {
        let powers = [Powers::ALL, Powers::ALL.with_room(18)];
        let units = [0, 1].map(|n| Model::with_powers(seed * 2 + n as u64, powers[n]));
        let mut world = World::new([&units[0], &units[1]], seed);
        for _ in 0..150 {
            world.turn();
            world.check();
        }
        world.drain();
    }
}

/// More ranges than a batch keeps apart, and none that touch.
#[test]
pub(crate) fn too_many_ranges_are_all_told() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN[0], true);
    let pages = || (0..20).map(|n| 1 + 3 * n);
    for page in pages() {
        unit.map(DOMAIN[0], page, page);
        assert_eq!(unit.access(DEVICE, page), Some(page));
        unit.unmap(DOMAIN[0], page);
    }
    let last = pages().map(|page| engine.note(0, range(page, 1), true)).last().unwrap();
    wait(&engine, last, &unit).unwrap();
    assert_eq!(unit.stale(DOMAIN[0], pages()), []);
}

/// Many who wait at the same time are told about together: each alone at first, then all by the
/// domain's batches.
#[test]
pub(crate) fn who_comes_late_joins() {
    const CPUS: u64 = 64;
    let unit = Model::new(1);
    let engine = Engine::new(CPUS as usize, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN[0], true);
    let pages = || (0..CPUS).map(|cpu| (cpu, 1 + 3 * cpu));
    pages().for_each(|(_, page)| {
        unit.map(DOMAIN[0], page, page);
        assert_eq!(unit.access(DEVICE, page), Some(page));
    });
    let tokens: Vec<Token> = pages()
        .map(|(cpu, page)| {
            unit.unmap(DOMAIN[0], page);
            engine.invalidate(cpu as usize, range(page, 1), true)
        })
        .collect();
    let ahead = unit.ahead();
    assert!(ahead < CPUS, "{ahead} commands for {CPUS} who wait");
    assert!(tokens.iter().any(|token| !engine.is_submitted(*token)), "the next batch is open");
    for (token, (_, page)) in tokens.into_iter().zip(pages()) {
        wait(&engine, token, &unit).unwrap();
        assert_eq!(unit.stale(DOMAIN[0], std::iter::once(page)), []);
    }
}

/// A span that has lost tables is told so, whatever it is joined with.
#[test]
pub(crate) fn freed_tables_are_remembered() {
    let leaf = Span { first: 1, last: 4, leaf_only: true };
    let freed = Span { first: 3, last: 9, leaf_only: false };
    let mut spans = [leaf, freed];
    assert_eq!(merge(&mut spans), 1);
    assert_eq!(spans[0], Span { first: 1, last: 9, leaf_only: false });
}

fn wait<U: Unit>(engine: &Engine<U>, token: Token, unit: &Model) -> Result<(), QueueError> {
    let mut turns = 0;
    engine.wait(token, &mut || {
        unit.step();
        turns += 1;
        turns < TURNS
    })
}

/// A device that keeps what it was told to forget.
#[test]
pub(crate) fn a_silent_device_holds_its_domain_back() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN[0], true);
    unit.map(DOMAIN[0], 5, 50);
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    unit.silence(DEVICE);
    unit.unmap(DOMAIN[0], 5);
    let token = engine.invalidate(0, range(5, 1), true);
    (0..TURNS).for_each(|_| unit.step());
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    assert!(!engine.is_complete(token), "I1: it reaches the page");
}

/// I11: a device that leaves takes all with it, and its domain's id may be reused.
#[test]
pub(crate) fn who_leaves_leaves_nothing() {
    for seed in 0..40 {
        let unit = Model::new(seed);
        let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
        let caches = seed % 2 == 0;
        let attachment = engine.attach(0, DEVICE, caches).unwrap();
        unit.attach(DEVICE, DOMAIN[0], caches);
        for page in 1..9 {
            unit.map(DOMAIN[0], page, page);
            let _ = unit.access(DEVICE, page);
        }
        unit.detach(DEVICE);
        let step = &mut || {
            unit.step();
            // It goes on asking as long as anything answers.
            (1..9).for_each(|page| {
                let _ = unit.access(DEVICE, page);
            });
            true
        };
        engine.detach(attachment, step).map_err(|(error, _)| error).unwrap();
        assert_eq!(unit.access(DEVICE, 5), None);
        assert_eq!(unit.cached(DOMAIN[0]), 0, "seed {seed}: nothing of the domain is cached");
    }
}

/// A device is reset and taken out; what the unit has cached for it is there for the next.
#[test]
pub(crate) fn who_comes_after_an_eviction_finds_nothing() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN[0], true);
    unit.map(DOMAIN[0], 5, 50);
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    unit.detach(DEVICE);
    unit.reset(DEVICE);
    evict(&engine, attachment, &unit);
    unit.unmap(DOMAIN[0], 5);
    let token = engine.note(0, range(5, 1), true);
    wait(&engine, token, &unit).unwrap();
    let next = DeviceId(4);
    let _attachment = engine.attach(0, next, false).unwrap();
    unit.attach(next, DOMAIN[0], false);
    assert_eq!(unit.access(next, 5), None, "I1");
}

/// A unit that writes down what it is told.
struct Recorder<'a> {
    unit: &'a Model,
    told: std::sync::Mutex<Vec<Command>>,
}

// SAFETY: the promises are the model's.
unsafe impl Unit for &Recorder<'_> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        self.told.lock().unwrap().extend(commands);
        self.unit.submit(commands)
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        self.unit.completed()
    }

    fn forgets_all(&self) -> bool {
        true
    }
}

/// Buffers that were mapped for good go away together: IOTLB and ATC are emptied, as a whole, by
/// one batch.
#[test]
pub(crate) fn what_goes_as_a_whole_is_forgotten_everywhere() {
    let whole = Promotion::DEFAULT.with_everything(100, 0);
    for (promotion, own) in
        [(whole, Command::All), (Promotion::DEFAULT, Command::Domain(DOMAIN[0]))]
    {
        for (seed, scattered) in (0..8).flat_map(|seed| [(seed, true), (seed, false)]) {
            let unit = Model::new(seed);
            let recorder = Recorder { unit: &unit, told: std::sync::Mutex::default() };
            let engine = Engine::new(1, [(&recorder, DOMAIN[0])], promotion).unwrap();
            let _attachment = engine.attach(0, DEVICE, true).unwrap();
            unit.attach(DEVICE, DOMAIN[0], true);
            let pages = || (0..20).map(|n| 1 + n * 100);
            pages().for_each(|page| unit.map(DOMAIN[0], page, page + 7));
            assert!(pages().all(|page| unit.access(DEVICE, page) == Some(page + 7)));
            pages().for_each(|page| unit.unmap(DOMAIN[0], page));
            let token = if scattered {
                engine.note_all(0, || pages().map(|page| (range(page, 1), true)))
            } else {
                engine.note_everything(0)
            };
            wait(&engine, token, &unit).unwrap();
            let told = recorder.told.lock().unwrap();
            assert_eq!(*told, [own, Command::Device { device: DEVICE, range: None }], "at once");
            assert_eq!(unit.stale(DOMAIN[0], pages()), [], "I1");
        }
    }
}

/// The same, and the next device is plugged in at the same place, for another domain.
#[test]
pub(crate) fn who_takes_the_place_of_an_evicted_finds_nothing() {
    let unit = Model::new(1);
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let other = DomainId(DOMAIN[0].0 + 7);
    let next = Engine::new(1, [(&unit, other)], Promotion::DEFAULT).unwrap();
    let attachment = engine.attach(0, DEVICE, true).unwrap();
    unit.attach(DEVICE, DOMAIN[0], true);
    unit.map(DOMAIN[0], 5, 50);
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    unit.detach(DEVICE);
    unit.reset(DEVICE);
    evict(&engine, attachment, &unit);
    let _attachment = next.attach(0, DEVICE, false).unwrap();
    unit.attach(DEVICE, other, false);
    assert_eq!(unit.access(DEVICE, 5), None, "I11: what is cached of the entry is another's");
}

fn evict(engine: &Engine<&Model>, attachment: Attachment, unit: &Model) {
    let step = &mut || {
        unit.step();
        true
    };
    engine.evict(attachment, step).map_err(|(error, _)| error).unwrap();
}

/// A unit whose submissions are interrupted by unmappings for the same CPU.
struct Interrupting<'a> {
    unit: &'a Model,
    engine: std::sync::OnceLock<&'a Engine<&'a Interrupting<'a>>>,
    state: std::sync::Mutex<(usize, Vec<Token>)>,
}

// SAFETY: the promises are the model's.
unsafe impl Unit for Interrupting<'_> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let depth = {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            state.0
        };
        if depth <= 3 {
            let engine = self.engine.get().unwrap();
            let token = engine.invalidate(0, range(9, 1), true);
            self.state.lock().unwrap().1.push(token);
        }
        self.unit.submit(commands)
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        self.unit.completed()
    }
}

/// Interrupts find the lanes locked, and what they note is submitted by whoever they interrupted.
#[test]
pub(crate) fn interrupts_leave_their_request() {
    let unit: &Model = std::boxed::Box::leak(std::boxed::Box::new(Model::new(1)));
    let interrupting: &Interrupting = std::boxed::Box::leak(std::boxed::Box::new(Interrupting {
        unit,
        engine: std::sync::OnceLock::new(),
        state: std::sync::Mutex::default(),
    }));
    let engine = Engine::new(1, [(interrupting, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let engine: &_ = std::boxed::Box::leak(std::boxed::Box::new(engine));
    let _ = interrupting.engine.set(engine);
    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let token = engine.invalidate(0, range(5, 1), true);
    let mut tokens = interrupting.state.lock().unwrap().1.clone();
    tokens.push(token);
    assert_eq!(tokens.len(), 4);
    // Nobody polls.
    (0..TURNS).for_each(|_| unit.step());
    for token in tokens {
        assert!(engine.is_complete(token), "{}", format!("{token:?} was forgotten"));
    }
}

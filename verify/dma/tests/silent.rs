//! Devices that do not answer, behind units that say which one it was and behind such as don't.
#![cfg(not(loom))]

mod hardware;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hardware::{Fault, Hardware, Kind};
use shootdown_dma_woven::invalidate::queue::{Amd, Format, Queue, ReviveError, STRIKES, Smmu, Vtd};
use shootdown_dma_woven::invalidate::{
    Attachment, Command, Engine, Promotion, QueueError, Ticket, Unit, amd, smmu, vtd,
};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::{DeviceId, DomainId, IovaRange};

const KINDS: [Kind; 4] = [Kind::Vtd, Kind::Smmu(true), Kind::Smmu(false), Kind::Amd];
/// Those that do not say which device it was.
const UNNAMED: [Kind; 3] = [Kind::Vtd, Kind::Smmu(true), Kind::Smmu(false)];
const TURNS: u32 = 20_000;

/// What is done with a queue of any kind.
trait Work {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware);
}

fn on(kind: Kind, slots: u64, seed: u64, work: &mut impl Work) {
    let hardware = &Hardware::new(kind, slots, 0, seed);
    match kind {
        Kind::Vtd => {
            let format = Vtd { facts: vtd::Facts::from_cap(0), slots };
            work.go(&Queue::small(hardware, format, 0), hardware);
        }
        Kind::Smmu(stores) => {
            let facts = smmu::Facts::from_idr3(1 << 10);
            let format = Smmu { facts, slots, stores, survives: false };
            work.go(&Queue::small(hardware, format, 0), hardware);
        }
        Kind::Amd => {
            let format = Amd { slots, facts: amd::Facts { forgets_all: true } };
            work.go(&Queue::small(hardware, format, 0), hardware);
        }
    }
}

/// Waits for a ticket; returns the time-outs that were told.
fn wait<F: Format>(queue: &Queue<&Hardware, F>, hardware: &Hardware, ticket: Ticket) -> usize {
    let mut told = 0;
    for _ in 0..TURNS {
        hardware.step();
        match queue.completed() {
            Ok(done) if done >= ticket => return told,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, QueueError::DeviceTimeout);
                told += 1;
            }
        }
    }
    panic!("{ticket:?} does not complete: {:?}", hardware.state.lock().unwrap());
}

fn told(devices: impl IntoIterator<Item = u32>) -> Vec<Command> {
    let all = devices.into_iter().map(DeviceId);
    all.map(|device| Command::Device { device, range: None }).collect()
}

/// The work holds as it is, and breaks without each of the steps.
fn are_missed(steps: &[Mutant], work: impl Fn()) {
    mutant::set(None);
    work();
    for step in steps {
        mutant::set(Some(*step));
        let outcome = catch_unwind(AssertUnwindSafe(&work));
        let reached = mutant::reached();
        mutant::set(None);
        assert!(reached, "{step:?} is not come by");
        assert!(outcome.is_err(), "nobody misses {step:?}");
    }
}

const DOMAIN: u64 = 7;
const OTHERS: u64 = 9;
const PAGE: u64 = 5;

/// Devices 1 to `devices`, all of them with caches and in one domain, of which one is dead; another
/// domain has a device.
struct OneIsDead {
    devices: u64,
    dead: u64,
}

impl OneIsDead {
    /// The unit and all devices have the page.
    fn cache(&self, hardware: &Hardware) {
        hardware.state.lock().unwrap().iotlb.insert((DOMAIN, PAGE));
        (1..=self.devices).for_each(|device| hardware.refill(device, DOMAIN));
    }
}

impl Work for OneIsDead {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware) {
        let [engine, others] = [DOMAIN, OTHERS]
            .map(|id| Engine::new(1, [(queue, DomainId(id as u16))], Promotion::DEFAULT).unwrap());
        let mut turns = 0;
        let step = &mut || {
            hardware.step();
            turns += 1;
            assert!(turns < 2 * TURNS, "no end: {:?}", hardware.state.lock().unwrap());
            true
        };
        let attach = |engine: &Engine<_>, device, step: &mut dyn FnMut() -> bool| -> Attachment {
            let attachment = engine.attach(0, DeviceId(device as u32), true).unwrap();
            engine.welcome(&attachment, &mut || step()).unwrap();
            attachment
        };
        let mut attachments: Vec<_> =
            (1..=self.devices).map(|d| attach(&engine, d, step)).collect();
        let _other = attach(&others, 100, step);
        let range = IovaRange::new(PAGE, 1).unwrap();

        self.cache(hardware);
        hardware.state.lock().unwrap().dead.insert(self.dead);
        let dead = DeviceId(self.dead as u32);
        let before = hardware.state.lock().unwrap().faults;
        let token = engine.invalidate(0, range, true);
        while engine.silent().is_none() || !engine.is_submitted(token) {
            step();
            let _ = engine.poll();
        }
        // Another domain's work goes on, and when it is done so is all that came before.
        let behind = others.invalidate(0, range, true);
        others.wait(behind, step).unwrap();
        let kind = hardware.kind;
        for device in 1..=self.devices {
            let relied = queue.answers(DeviceId(device as u32));
            assert_eq!(relied, device != self.dead, "{kind:?}: {device}, {} is dead", self.dead);
            let cached = hardware.state.lock().unwrap().atc.contains(&(device, PAGE));
            assert_eq!(cached, device == self.dead, "{kind:?}: {device}, {} is dead", self.dead);
        }
        assert_eq!(engine.silent(), Some(dead));
        assert!(!engine.is_complete(token), "I1: {dead:?} has the page");
        let faults = hardware.state.lock().unwrap().faults - before;
        println!("{kind:?}: {} devices, {} dead: {faults} times", self.devices, self.dead);

        // It is taken out and reset; then all goes on, also with itself.
        {
            let mut state = hardware.state.lock().unwrap();
            state.dead.clear();
            state.atc.retain(|entry| entry.0 != self.dead);
        }
        let attachment = attachments.remove(self.dead as usize - 1);
        engine.evict(attachment, step).map_err(|(error, _)| error).unwrap();
        engine.wait(token, step).unwrap();
        assert_eq!(queue.revive(dead), Ok(()));
        attachments.push(attach(&engine, self.dead, step));
        self.cache(hardware);
        let token = engine.invalidate(0, range, true);
        engine.wait(token, step).unwrap();
        assert!(hardware.state.lock().unwrap().atc.is_empty());
        assert_eq!(engine.silent(), None);
    }
}

/// Of so many devices in a ring of so many slots the first one is dead, one in the middle, the last
/// one.
fn one_is_dead(slots: u64, devices: u64) {
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (1..4).map(move |n| (kind, n))) {
        for dead in [1, devices / 2, devices] {
            on(kind, slots, seed, &mut OneIsDead { devices, dead });
        }
    }
}

#[test]
fn of_ten_devices_the_dead_one_is_found() {
    are_missed(&[Mutant::ToldTogether, Mutant::AnsweredSuspected], || one_is_dead(256, 10));
}

/// Where there is no room to ask each of them alone, the first ones are.
#[test]
fn of_many_devices_the_dead_one_is_found_in_a_small_ring() {
    one_is_dead(32, 8);
}

/// The ring is full, and nobody asks how far the unit is, which stands still.
struct NobodyAsks;

impl Work for NobodyAsks {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware) {
        hardware.state.lock().unwrap().plan = Some((0, Fault::Silent(1)));
        while queue.submit(&told([5])).is_ok() {}
        let (mut errors, mut turns) = (Vec::new(), 0);
        while let Err(error) = queue.submit(&told([5])) {
            hardware.step();
            errors.extend(Some(error).filter(|error| *error != QueueError::Full));
            turns += 1;
            assert!(turns < TURNS, "full for ever: {:?}", hardware.state.lock().unwrap());
        }
        assert_eq!(errors, [QueueError::DeviceTimeout], "{:?}", hardware.kind);
    }
}

#[test]
fn who_finds_no_room_finds_what_stands_still() {
    are_missed(&[Mutant::FullUnattended], || {
        UNNAMED.iter().for_each(|kind| on(*kind, 32, 1, &mut NobodyAsks));
    });
}

/// Twelve devices are told three times each; one does not answer, so many times, and then it does.
/// Which are relied on then?
struct LateAnswers(u32);

impl Work for LateAnswers {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware) {
        let commands = told((1..=12).cycle().take(36));
        for _ in 0..self.0 {
            // The last of them: all others are lost with it.
            let last = hardware.state.lock().unwrap().read + 35;
            hardware.state.lock().unwrap().plan = Some((last, Fault::Silent(1)));
            let ticket = queue.submit(&commands).unwrap();
            assert_eq!(wait(queue, hardware, ticket), 1, "{:?}", hardware.kind);
        }
        for device in 1..=12 {
            assert!(queue.answers(DeviceId(device)), "{:?}: {device}", hardware.kind);
        }
    }
}

#[test]
fn who_answers_when_asked_alone_is_not_silent() {
    are_missed(&[Mutant::FirstStruck], || {
        for (kind, seed) in UNNAMED.into_iter().flat_map(|kind| (1..4).map(move |n| (kind, n))) {
            on(kind, 128, seed, &mut LateAnswers(2 * STRIKES as u32));
        }
    });
}

/// More devices do not answer than can be kept in mind.
struct ManyAreDead;

impl Work for ManyAreDead {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware) {
        let kind = hardware.kind;
        let submit = |devices: &mut dyn Iterator<Item = u32>| {
            let ticket = queue.submit(&told(devices)).unwrap();
            wait(queue, hardware, ticket);
        };
        let relied = |devices: &mut dyn Iterator<Item = u32>, relied: bool| {
            for device in devices {
                assert_eq!(queue.answers(DeviceId(device)), relied, "{kind:?}: {device}");
            }
        };
        // Once: that may be the link.
        for device in 1..=10 {
            hardware.state.lock().unwrap().plan = Some((0, Fault::Silent(1)));
            submit(&mut std::iter::once(device));
        }
        relied(&mut (1..=20), true);
        hardware.state.lock().unwrap().dead.extend(1..=10);
        submit(&mut (1..=12));
        relied(&mut (1..=20), false);
        // One of them was reset: that does not help.
        hardware.state.lock().unwrap().dead.remove(&1);
        assert_eq!(queue.revive(DeviceId(1)), Err(ReviveError::AllSilent));
        assert_eq!(queue.revive(DeviceId(10)), Err(ReviveError::AllSilent));
        relied(&mut (1..=20), false);
        hardware.state.lock().unwrap().dead.clear();
        assert_eq!(queue.revive_all(), Ok(()));
        relied(&mut (1..=20), true);
        let told = hardware.state.lock().unwrap().read;
        submit(&mut (1..=12));
        assert!(hardware.state.lock().unwrap().read - told >= 12, "{kind:?}: they are told");
        // Everything is forgotten: strikes too.
        hardware.state.lock().unwrap().plan = Some((0, Fault::Silent(STRIKES as u32 - 1)));
        submit(&mut std::iter::once(10));
        relied(&mut (1..=20), true);
    }
}

#[test]
fn many_dead_devices_silence_all_until_all_are_revived() {
    are_missed(&[Mutant::OthersAllSilent, Mutant::OthersUnforgiven], || {
        for (kind, seed) in KINDS.into_iter().flat_map(|kind| (1..4).map(move |n| (kind, n))) {
            on(kind, 256, seed, &mut ManyAreDead);
        }
    });
}

/// Submissions for some of eight devices each, of which some are dead.
struct Random(u64);

impl Random {
    fn draw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % below
    }

    fn some(&mut self, most: u64) -> BTreeSet<u64> {
        (0..self.draw(most + 1)).map(|_| 1 + self.draw(8)).collect()
    }
}

impl Work for Random {
    fn go<F: Format>(&mut self, queue: &Queue<&Hardware, F>, hardware: &Hardware) {
        let dead = self.some(3);
        hardware.state.lock().unwrap().dead = dead.clone();
        let mut owed: Vec<(Ticket, u64, BTreeSet<u64>)> = Vec::new();
        let (mut page, mut turns) = (1, 0);
        while page < 20 || !owed.is_empty() {
            turns += 1;
            assert!(turns < TURNS, "{owed:?} {:?}", hardware.state.lock().unwrap());
            if page < 20 && self.draw(3) == 0 {
                let devices = self.some(8);
                hardware.state.lock().unwrap().iotlb.insert((DOMAIN, page));
                devices.iter().for_each(|device| hardware.refill(*device, DOMAIN));
                let range = IovaRange::new(page, 1);
                let domain = DomainId(DOMAIN as u16);
                let own = Command::Pages { domain, range: range.unwrap(), leaf_only: true };
                let each = devices.iter().map(|d| DeviceId(*d as u32));
                let commands: Vec<_> =
                    each.map(|device| Command::Device { device, range }).chain([own]).collect();
                if let Ok(ticket) = queue.submit(&commands) {
                    owed.push((ticket, page, devices));
                }
                page += 1;
            }
            hardware.step();
            let device = 1 + self.draw(8);
            hardware.refill(device, DOMAIN);
            let done = match queue.completed() {
                Ok(done) => done,
                Err(error) => {
                    assert_eq!(error, QueueError::DeviceTimeout);
                    continue;
                }
            };
            let state = hardware.state.lock().unwrap();
            for (_, page, devices) in owed.iter().filter(|owed| owed.0 <= done) {
                assert!(!state.iotlb.contains(&(DOMAIN, *page)), "{page} in the IOTLB");
                for device in devices {
                    let relied = queue.answers(DeviceId(*device as u32));
                    let cached = state.atc.contains(&(*device, *page));
                    assert!(!(relied && cached), "{page} in the ATC of {device}");
                }
            }
            owed.retain(|owed| owed.0 > done);
        }
        for device in (1..=8).filter(|device| !dead.contains(device)) {
            assert!(queue.answers(DeviceId(device as u32)), "{device} answers; dead: {dead:?}");
        }
    }
}

/// I1, I9: what is complete is forgotten by all that are relied on, and these are all that answer.
#[test]
fn who_is_relied_on_has_forgotten() {
    for kind in KINDS {
        for (slots, seed) in [32, 64, 256].into_iter().flat_map(|s| (1..200).map(move |n| (s, n))) {
            on(kind, slots, seed, &mut Random(seed * 2 + 1));
        }
    }
}

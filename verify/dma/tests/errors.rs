//! Errors of queues, as the host hears of them: over hostile units that read their rings, whoever
//! finds them.
#![cfg(not(loom))]

mod hardware;

use hardware::{Fault, Hardware, Kind};
use shootdown_dma_woven::invalidate::queue::{Amd, Queue, Smmu, Vtd};
use shootdown_dma_woven::invalidate::{Engine, Promotion, QueueError, Token, Unit, amd, smmu, vtd};
use shootdown_dma_woven::{DeviceId, DomainId, IovaRange};

const KINDS: [Kind; 4] = [Kind::Vtd, Kind::Smmu(true), Kind::Smmu(false), Kind::Amd];
const SLOTS: u64 = 128;

fn unit(hardware: &Hardware) -> Box<dyn Unit + '_> {
    match hardware.kind {
        Kind::Vtd => {
            let format = Vtd { facts: vtd::Facts::from_cap(0), slots: SLOTS };
            Box::new(Queue::small(hardware, format, 0))
        }
        Kind::Smmu(stores) => {
            let facts = smmu::Facts::from_idr3(1 << 10);
            let format = Smmu { facts, slots: SLOTS, stores, survives: false };
            Box::new(Queue::small(hardware, format, 0))
        }
        Kind::Amd => {
            let facts = amd::Facts { forgets_all: true };
            Box::new(Queue::small(hardware, Amd { slots: SLOTS, facts }, 0))
        }
    }
}

/// Who finds an error.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Poll,
    Asks,
    Waits,
}

/// Two domains behind a unit that refuses the slot that it reads at `at` once: what both hear of it
/// until nothing is owed.
fn told(kind: Kind, finder: Finder, at: u64) -> (Vec<QueueError>, u32) {
    let hardware = Hardware::new(kind, SLOTS, 0, at);
    hardware.state.lock().unwrap().plan = Some((at, Fault::Refuse(1)));
    let unit = unit(&hardware);
    let engines =
        [7, 9].map(|id| Engine::new(1, [(&unit, DomainId(id))], Promotion::DEFAULT).unwrap());
    let mut told = Vec::new();
    for engine in &engines {
        let _attachment = engine.attach(0, DeviceId(3), false).unwrap();
    }
    for page in 1..12 {
        let tokens: Vec<Token> = engines
            .iter()
            .map(|engine| engine.invalidate(0, IovaRange::new(page * 5, 1).unwrap(), true))
            .collect();
        for (engine, token) in engines.iter().zip(tokens) {
            match finder {
                Finder::Waits => {
                    let mut turns = 0;
                    let outcome = engine.wait(token, &mut || {
                        hardware.step();
                        turns += 1;
                        turns < 10_000
                    });
                    assert_eq!(outcome, Ok(()), "a refusal holds nobody up");
                }
                Finder::Poll => {
                    while !engine.is_complete(token) {
                        hardware.step();
                        told.extend(engine.poll().err());
                    }
                }
                Finder::Asks => {
                    while !engine.is_complete(token) {
                        hardware.step();
                    }
                }
            }
        }
    }
    for engine in &engines {
        told.extend((0..4).filter_map(|_| engine.poll().err()));
    }
    drop(engines);
    drop(unit);
    let faults = hardware.state.lock().unwrap().faults;
    (told, faults)
}

#[test]
fn a_refusal_is_told_once_whoever_finds_it() {
    for kind in KINDS {
        for finder in [Finder::Poll, Finder::Asks, Finder::Waits] {
            let mut faults = 0;
            for at in 0..40 {
                let (told, refused) = told(kind, finder, at);
                let expected = vec![QueueError::Refused; refused as usize];
                assert_eq!(told, expected, "{kind:?}, found by {finder:?}, at {at}");
                faults += refused;
            }
            assert!(faults >= 35, "{kind:?}: only {faults} refusals");
        }
    }
}

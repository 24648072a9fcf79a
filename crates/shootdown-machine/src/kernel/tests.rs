//! The port's broadcast invalidation, under the oracle's eyes.

use shootdown::ids::{Stride, VaRange};
use shootdown::regime::{Invalidate, Reach, Regime};

use super::port::Hardware;
use super::state::with;
use crate::oracle::Invariant;
use crate::{Config, CpuId, Machine, Outcome, Profile, Time, Violation, engine};

const VA: u64 = 0x10_0000;

/// CPU 1 reads a page all the time, which CPU 0 takes away with a broadcast and no interrupt.
/// Without the sync, CPU 0 claims too early that it is gone.
fn unmap_by_broadcast(sync: bool) -> Result<Outcome, Box<Violation>> {
    let config = Config {
        cpus: Some(2),
        ..Config::new(Profile::named("zen3-milan-36").expect("it is built in"))
    };
    let mut machine = Machine::new(config).expect("a machine");
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            c.compute(Time::from_us(20));
            c.kernel(|_| {
                let (token, tag) = with(|s| {
                    let (root, tag) = s.mmus.of(1).loaded();
                    s.spaces[0].areas.remove(VA, VA + 4096);
                    assert!(s.memory.unmap(root, VA).is_some());
                    (s.memory.flush_begins(root, None, false), tag)
                });
                let range = VaRange::new(VA, 1, Stride::Page4K).expect("a page");
                Hardware::publish();
                Hardware::invalidate(
                    Invalidate::Range { tag, range, leaf_only: true },
                    Reach::Broadcast,
                );
                let cached = || with(|s| s.mmus.of(1).cached(tag));
                assert_ne!(cached(), 0, "it is not complete before the sync");
                if sync {
                    Hardware::sync(Reach::Broadcast);
                    assert_eq!(cached(), 0);
                }
                engine::step();
                let _ = with(|s| s.memory.flush_returns(token));
            });
        })
        .expect("cpu0 is free");
    machine
        .spawn(CpuId(1), move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(VA, 1, Stride::Page4K);
            });
            // Until a real program would be sent a signal.
            while c.read(VA) {
                c.compute(Time::from_ns(50));
            }
        })
        .expect("cpu1 is free");
    machine.run()
}

#[test]
fn an_old_entry_may_be_used_until_the_broadcast_is_complete_and_not_after() {
    let outcome = unmap_by_broadcast(true).unwrap_or_else(|b| panic!("{b}"));
    let latency = Profile::named("zen3-milan-36").unwrap().costs(false).broadcast.unwrap().latency;
    assert_eq!(outcome.cpus[0].fabric.operations, 1);
    assert_eq!(outcome.cpus[0].fabric.waited, latency);
    assert_eq!(outcome.cpus[0].invalidations.broadcast, 1);
    assert_eq!(outcome.total().interrupts.sent, 0);
    let violation = unmap_by_broadcast(false).unwrap_err();
    assert_eq!(violation.invariant, Invariant::Revocation.name(), "{violation}");
}

#[test]
fn local_invalidations_stay_local() {
    let config = Config {
        cpus: Some(2),
        ..Config::new(Profile::named("zen3-milan-36").expect("it is built in"))
    };
    let mut machine = Machine::new(config).expect("a machine");
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            c.compute(Time::from_us(20));
            c.kernel(|_| {
                let tag = with(|s| s.mmus.of(1).loaded().1);
                Hardware::invalidate(Invalidate::Tag(tag), Reach::Local);
                Hardware::sync(Reach::Local);
                assert_ne!(with(|s| s.mmus.of(1).cached(tag)), 0);
            });
        })
        .expect("cpu0 is free");
    machine
        .spawn(CpuId(1), move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(VA, 1, Stride::Page4K);
            });
            c.read(VA);
            c.compute(Time::from_us(40));
        })
        .expect("cpu1 is free");
    let outcome = machine.run().unwrap_or_else(|b| panic!("{b}"));
    assert_eq!(outcome.total().fabric.operations, 0);
}

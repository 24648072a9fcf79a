//! Claims about cache lines, counted: what the hot paths touch, and what they leave alone.

use std::cell::Cell;
use std::rc::Rc;

use shootdown_machine::shootdown::{Policy, Switched};
use shootdown_machine::{Config, CpuId, Footprint, LineCounts, Machine, Profile, Stride, Time};

const VA: u64 = 0x7000_0000;

fn machine(cpus: u32, policy: Policy) -> Machine {
    let profile = Profile::named("haswell-ep-48").unwrap();
    Machine::new(Config { cpus: Some(cpus), policy, ..Config::new(profile) }).unwrap()
}

/// What the last of several switches between two spaces did to shared memory.
fn settled_switch(policy: Policy) -> (Switched, Footprint) {
    let mut machine = machine(2, policy);
    let spaces = [machine.new_space(), machine.new_space()];
    let seen = Rc::new(Cell::new(None));
    let out = Rc::clone(&seen);
    machine
        .spawn(CpuId(0), move |c| {
            for round in 0..100 {
                let next = spaces[round % 2];
                let (switched, footprint) = c.kernel(|k| k.footprint(|k| k.load(Some(next))));
                out.set(switched.map(|s| (s, footprint)));
            }
        })
        .unwrap();
    machine.run().unwrap();
    seen.take().unwrap()
}

#[test]
fn a_switch_to_a_remembered_space_touches_three_lines_and_fences_once() {
    let (switched, footprint) = settled_switch(Policy::SHOOTDOWN);
    assert_eq!(switched, Switched::Kept);
    assert!(footprint.lines <= 3, "{footprint:?}");
    assert!(footprint.fences + footprint.rmws <= 1, "{footprint:?}");
    assert_eq!(footprint.fetched, 0, "{footprint:?}");
}

#[test]
fn a_switch_back_writes_nothing_that_others_read_of_the_space() {
    // The CPU's private and shared line; the space's own lines (generation, set of CPUs) are only
    // read.
    let (_, footprint) = settled_switch(Policy::SHOOTDOWN);
    assert!(footprint.written <= 2, "{footprint:?}");
    // A policy that leaves the set at each switch writes it twice per switch.
    let eager = Policy {
        leave: shootdown_machine::shootdown::policy::Leave::AtSwitch,
        ..Policy::SHOOTDOWN
    };
    let (_, eager) = settled_switch(eager);
    assert!(eager.rmws >= 2 && eager.written > footprint.written, "{eager:?}");
}

/// CPU 1 switches between two spaces, lazily in between, while CPU 0 flushes one of them: what
/// happens to CPU 1's lines.
fn lazy_traffic(policy: Policy) -> LineCounts {
    let mut machine = machine(2, policy);
    let (space, other) = (machine.new_space(), machine.new_space());
    let over = Rc::new(Cell::new(false));
    let stop = Rc::clone(&over);
    machine
        .spawn(CpuId(0), move |c| {
            c.kernel(|k| k.load(Some(space)));
            for _ in 0..300 {
                c.kernel(|k| k.flush(VA, 1, false));
                c.compute(Time::from_us(1));
            }
            stop.set(true);
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            while !over.get() {
                for next in [Some(space), None, Some(other)] {
                    c.kernel(|k| k.load(next));
                    c.compute(Time::from_us(5));
                }
            }
        })
        .unwrap();
    machine.run().unwrap().cpus[1].lines
}

#[test]
fn reading_the_lazy_flag_from_afar_takes_no_private_line_away() {
    let apart = lazy_traffic(Policy::LINUX_5_13);
    let together = lazy_traffic(Policy { split_lazy_line: false, ..Policy::LINUX_5_13 });
    let dirtied_per_fence = |c: LineCounts| c.remote_dirtied * 100 / c.fences;
    assert!(dirtied_per_fence(together) > dirtied_per_fence(apart) + 20, "{apart:?} {together:?}");
}

#[test]
fn a_flush_with_nobody_to_tell_moves_no_line() {
    let mut machine = machine(4, Policy::SHOOTDOWN);
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            c.kernel(|k| k.load(Some(space)));
            c.syscall(|k| k.map_at(VA, 1, Stride::Page4K));
            for _ in 0..32 {
                c.kernel(|k| k.flush(VA, 1, false));
            }
            let (_, footprint) = c.kernel(|k| k.footprint(|k| k.flush(VA, 1, false)));
            assert_eq!(footprint.fetched, 0, "{footprint:?}");
            assert!(footprint.fences <= 1, "{footprint:?}");
        })
        .unwrap();
    machine.run().unwrap();
}

//! Guests whose CPUs take turns on physical ones: under the oracle's eyes, as in every run.

use std::cell::Cell;
use std::rc::Rc;

use shootdown_machine::shootdown::mutant::{self, Mutant};
use shootdown_machine::{
    Config, CpuId, Host, Machine, MachineError, Outcome, Policy, Profile, Stride, Time, Violation,
};

const VA: u64 = 0x10_0000;
const PAGES: u64 = 2;
const CALLS: u64 = 40;

fn guest(cpus: u32, host: Option<Host>, policy: Policy) -> Config {
    let profile = Profile::named("zen4-vm").expect("it is built in");
    Config { cpus: Some(cpus), host, policy, ..Config::new(profile) }
}

fn on(physical: u32, marks: bool) -> Option<Host> {
    Some(Host { physical, marks })
}

fn hypercalls() -> Policy {
    Policy { hypercall_from: 1, ..Policy::SHOOTDOWN }
}

/// CPU 0 gives pages back, time after time, while the others use them. The outcome, and the
/// longest that a call took, its own CPU's absence apart.
fn giving_back(config: Config) -> Result<(Outcome, Time), Box<Violation>> {
    let cpus = config.cpus.expect("given");
    let mut machine = Machine::new(config).expect("a machine");
    let space = machine.new_space();
    let (over, longest) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(Time::ZERO)));
    for cpu in 1..cpus {
        let over = Rc::clone(&over);
        machine
            .spawn(CpuId(cpu), move |c| {
                c.kernel(|k| k.switch_to(Some(space)));
                while !over.get() {
                    c.touch(VA, PAGES, true);
                    c.compute(Time::from_us(3));
                }
            })
            .expect("the CPU is free");
    }
    let (said, worst) = (Rc::clone(&over), Rc::clone(&longest));
    machine
        .spawn(CpuId(0), move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(VA, PAGES, Stride::Page4K);
            });
            for call in 0..CALLS {
                c.touch(VA, PAGES, true);
                c.compute(Time::from_us(100 + 37 * call % 500));
                let away = c.outcome_so_far().cpus[0].time.away;
                let begun = c.now();
                c.syscall(|k| k.discard(VA, PAGES));
                let absent = c.outcome_so_far().cpus[0].time.away.since(away);
                worst.set(worst.get().max((c.now() - begun).since(absent)));
            }
            c.syscall(|k| k.unmap(VA, PAGES));
            said.set(true);
        })
        .expect("CPU 0 is free");
    machine.run().map(|outcome| (outcome, longest.get()))
}

#[test]
fn only_interrupts_wait_for_cpus_that_are_away() {
    let ms = Time::from_us(1000);
    let us = Time::from_us(100);
    for physical in [2, 3] {
        let (_, waits) = giving_back(guest(4, on(physical, false), Policy::SHOOTDOWN)).unwrap();
        assert!(waits > ms, "{waits:?}");
        let (outcome, marks) =
            giving_back(guest(4, on(physical, true), Policy::SHOOTDOWN)).unwrap();
        assert!(marks < us, "{marks:?}");
        let marked = outcome.cpus[0].library.marked_preempted;
        assert!(marked > CALLS / 2 && outcome.cpus[0].library.handed_to_hypervisor == 0);
        let (outcome, handed) = giving_back(guest(4, on(physical, false), hypercalls())).unwrap();
        assert!(handed < us, "{handed:?}");
        let library = outcome.cpus[0].library;
        assert!(library.handed_to_hypervisor > CALLS && library.kicks_sent == 0);
        assert_eq!((library.hypercall_failed, library.marked_preempted), (0, 0));
    }
}

#[test]
fn trees_and_push_get_along_with_a_hypervisor() {
    for policy in [Policy { tree_above: 1, ..Policy::SHOOTDOWN }, Policy::LINUX_6_15, Policy::NAIVE]
    {
        for (marks, hypercall_from) in [(true, 0), (false, 1), (true, 2)] {
            let policy = Policy { hypercall_from, ..policy };
            giving_back(guest(6, on(2, marks), policy)).unwrap();
        }
    }
}

#[test]
fn turns_are_shared_out_and_absence_is_accounted_for() {
    let (outcome, _) = giving_back(guest(4, on(2, true), Policy::SHOOTDOWN)).unwrap();
    for cpu in &outcome.cpus {
        let away = cpu.time.away.us() / outcome.end.us();
        assert!((0.3..0.7).contains(&away), "{away}");
    }
    let (outcome, _) = giving_back(guest(4, on(4, true), Policy::SHOOTDOWN)).unwrap();
    assert!(outcome.cpus.iter().all(|cpu| cpu.time.away == Time::ZERO));
}

#[test]
fn the_oracle_sees_what_a_hypervisor_was_not_told() {
    let broken = |missing, config| {
        mutant::set(Some(missing));
        let result = giving_back(config);
        mutant::set(None);
        result.map(|_| ()).expect_err("a promise is broken")
    };
    broken(Mutant::RunsCutShort, guest(4, on(2, false), hypercalls()));
    // There is no hypervisor, so that every hypercall fails.
    broken(Mutant::HypercallFailureTrusted, guest(4, None, hypercalls()));
    let (outcome, _) = giving_back(guest(4, None, hypercalls())).unwrap();
    assert!(outcome.cpus[0].library.hypercall_failed >= CALLS);
}

#[test]
fn guests_that_cannot_be_are_refused() {
    let error = |config| Machine::new(config).err().expect("refused");
    for physical in [0, 5] {
        let found = error(guest(4, on(physical, true), Policy::SHOOTDOWN));
        assert_eq!(found, MachineError::Physical { physical, cpus: 4 });
    }
    let zen4 = Profile::named("zen4").expect("it is built in");
    let config = Config { profile: zen4, ..guest(4, on(2, true), Policy::SHOOTDOWN) };
    assert_eq!(error(config), MachineError::NoHypervisor);
}

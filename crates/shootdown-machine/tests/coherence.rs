//! The library under every policy on the machine, oracle on; and with a step of its protocol
//! removed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown_machine::shootdown::mutant::{self, Mutant};
use shootdown_machine::shootdown::residency::Strategy;
use shootdown_machine::{
    Config, Cpu, CpuId, Machine, Outcome, Policy, Profile, Space, Stride, Time, Violation,
};

const POLICIES: [(&str, Policy); 8] = [
    ("naive", Policy::NAIVE),
    ("linux-4.13", Policy::LINUX_4_13),
    ("linux-4.14", Policy::LINUX_4_14),
    ("linux-5.13", Policy::LINUX_5_13),
    ("arm64-mainline", Policy::ARM64_MAINLINE),
    ("shootdown", Policy::SHOOTDOWN),
    ("active", Policy { broadcast: Some(Strategy::Active), ..Policy::SHOOTDOWN }),
    ("trim", Policy { broadcast: Some(Strategy::Trim), ..Policy::SHOOTDOWN }),
];

fn config(profile: &str, cpus: u32, policy: Policy) -> Config {
    Config { cpus: Some(cpus), policy, ..Config::new(Profile::named(profile).unwrap()) }
}

fn enter(c: &mut Cpu, space: Space) {
    c.kernel(|k| k.switch_to(Some(space)));
}

const VA: u64 = 0x7000_0000;

/// CPU 0 maps, unmaps, discards, protects and cleans what all others read and write.
fn churn(config: Config, rounds: u64) -> Result<Outcome, Box<Violation>> {
    let cpus = config.cpu_count().unwrap();
    let mut machine = Machine::new(config).unwrap();
    let space = machine.new_space();
    let over = Rc::new(Cell::new(false));
    let stop = Rc::clone(&over);
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            for round in 0..rounds {
                c.syscall(|k| k.map_at(VA, 40, Stride::Page4K));
                c.touch(VA, 40, true);
                c.compute(Time::from_us(3));
                match round % 5 {
                    0 => c.syscall(|k| k.discard(VA, 40)),
                    1 => c.syscall(|k| k.protect(VA + 0x1000, 3, false)),
                    2 => assert!(c.syscall(|k| k.clean(VA, 2)) > 0),
                    3 => c.syscall(|k| k.unmap(VA + 0x2000, 1)),
                    _ => c.syscall(|k| k.unmap(VA, 40)),
                }
                c.touch(VA, 40, false);
                c.compute(Time::from_us(2));
            }
            stop.set(true);
        })
        .unwrap();
    for cpu in 1..cpus {
        let over = Rc::clone(&over);
        machine
            .spawn(CpuId(cpu), move |c| {
                enter(c, space);
                let mut page = u64::from(cpu);
                while !over.get() {
                    page = (page + 7) % 40; // every page in turn
                    if page.is_multiple_of(3) {
                        c.write(VA + page * 4096);
                    } else {
                        c.read(VA + page * 4096);
                    }
                    c.compute(Time::from_ns(40));
                    if page == 7 && cpu.is_multiple_of(3) {
                        c.kernel(|k| k.switch_to(None));
                        c.compute(Time::from_us(25));
                        enter(c, space);
                    }
                }
            })
            .unwrap();
    }
    machine.run()
}

#[test]
fn every_policy_keeps_its_promises_on_every_machine() {
    for profile in Profile::names() {
        for (name, policy) in POLICIES {
            for (mitigations, tags) in [(false, true), (true, true), (true, false)] {
                let config = Config { mitigations, tags, ..config(profile, 6, policy) };
                let outcome = churn(config, 15).unwrap_or_else(|b| panic!("{profile} {name}: {b}"));
                let total = outcome.total();
                let told = total.interrupts.received + total.fabric.operations;
                assert!(told > 0, "{profile} {name}");
                assert!(total.tlb.faults > 40, "{profile} {name}");
            }
        }
    }
}

#[test]
fn times_add_up_and_two_runs_agree() {
    let run = || churn(config("haswell-ep-48", 12, Policy::SHOOTDOWN), 20).unwrap();
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    for cpu in &first.cpus {
        let parts: Time = cpu.time.fields().map(|(_, t)| t).sum();
        assert!(parts >= first.end && cpu.finished.unwrap() <= first.end);
    }
    let total = first.total();
    assert_eq!(total.interrupts.sent, total.interrupts.received + total.interrupts.merged);
    assert_eq!(total.library.kicks_sent, total.interrupts.sent);
}

/// Two CPUs that unmap in one space at the same time, and two more that do so in another.
#[test]
fn crossed_flushes_never_deadlock() {
    for (name, policy) in POLICIES {
        let mut machine = Machine::new(config("haswell-ep-48", 4, policy)).unwrap();
        let spaces = [machine.new_space(), machine.new_space()];
        for cpu in 0..4u32 {
            let space = spaces[cpu as usize / 2];
            machine
                .spawn(CpuId(cpu), move |c| {
                    enter(c, space);
                    let mine = c.syscall(|k| k.map(8, Stride::Page4K));
                    for _ in 0..50 {
                        c.touch(mine, 8, true);
                        c.syscall(|k| k.discard(mine, 8));
                    }
                })
                .unwrap();
        }
        machine.run().unwrap_or_else(|b| panic!("{name}: {b}"));
    }
}

/// Spaces come and go on a few CPUs, more of them than there are tag slots.
#[test]
fn spaces_end_while_others_run() {
    for (name, policy) in POLICIES {
        for mitigations in [false, true] {
            let config = Config { mitigations, ..config("skylake-laptop", 3, policy) };
            let mut machine = Machine::new(config).unwrap();
            for cpu in 0..3 {
                machine
                    .spawn(CpuId(cpu), move |c| {
                        let mut spaces: Vec<Space> =
                            (0..9).map(|_| c.kernel(|k| k.new_space())).collect();
                        for round in 0..40usize {
                            let at = (round * 7) % spaces.len();
                            enter(c, spaces[at]);
                            if c.touch(VA, 5, true) < 5 {
                                c.syscall(|k| k.map_at(VA, 5, Stride::Page4K));
                                assert_eq!(c.touch(VA, 5, true), 5);
                            }
                            c.kernel(|k| k.switch_to(None));
                            if round % 4 == 3 {
                                c.kernel(|k| {
                                    k.end_space(spaces[at]);
                                    spaces[at] = k.new_space();
                                });
                            }
                        }
                        c.kernel(|k| k.leave());
                    })
                    .unwrap();
            }
            let outcome = machine.run().unwrap_or_else(|b| panic!("{name}: {b}"));
            assert!(outcome.total().library.lazy_entries > 0 || name == "naive");
        }
    }
}

#[test]
fn large_pages_map_and_unmap() {
    let mut machine = Machine::new(config("zen4", 2, Policy::SHOOTDOWN)).unwrap();
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            let va = c.syscall(|k| k.map(3, Stride::Page2M));
            assert_eq!(c.touch(va, 1536, true), 1536);
            let faults = c.outcome_so_far().total().tlb.faults;
            assert_eq!(faults, 3);
            c.syscall(|k| k.unmap(va, 512));
            assert!(!c.read(va));
            assert!(c.read(va + (2 << 20)));
        })
        .unwrap();
    machine.run().unwrap();
}

/// The mutants that the churn above can show, and the promises that they break.
#[test]
fn the_oracle_objects_when_a_step_is_missing() {
    let cases: [(Mutant, Policy); 4] = [
        (Mutant::RespondWithoutInvalidate, Policy::SHOOTDOWN),
        (Mutant::NoWait, Policy::SHOOTDOWN),
        (Mutant::FilterLosesOne, Policy::LINUX_5_13),
        (Mutant::GatherWithoutFlush, Policy::NAIVE),
    ];
    // A CPU that waits for others catches up meanwhile, so this one shows only where nobody is
    // waited for.
    let alone = (1, Mutant::NoLocalWork, Policy::LINUX_4_13);
    for (cpus, mutant, policy) in cases.map(|(m, p)| (6, m, p)).into_iter().chain([alone]) {
        mutant::set(Some(mutant));
        let result = churn(config("haswell-ep-48", cpus, policy), 40);
        mutant::set(None);
        let Err(violation) = result else { panic!("{mutant:?} went unnoticed") };
        assert!(
            ["revocation", "frame-reuse", "master-invariant"].contains(&violation.invariant),
            "{mutant:?}: {violation}"
        );
        assert!(!violation.timeline.is_empty());
    }
}

/// A CPU is lazy while a page goes away, and uses it when it is back.
fn lazy_meanwhile() -> Result<Outcome, Box<Violation>> {
    let mut machine = Machine::new(config("skylake-laptop", 2, Policy::SHOOTDOWN)).unwrap();
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            c.syscall(|k| k.map_at(VA, 2, Stride::Page4K));
            c.touch(VA, 2, true);
            c.idle_until(Time::from_us(20));
            c.syscall(|k| k.discard(VA, 1));
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            c.idle_until(Time::from_us(8));
            enter(c, space);
            assert!(c.read(VA));
            c.kernel(|k| {
                k.switch_to(None);
                k.idle_until(Time::from_us(30));
                k.switch_to(Some(space));
            });
            assert!(c.read(VA));
        })
        .unwrap();
    machine.run()
}

#[test]
fn a_lazy_cpu_is_left_alone_and_catches_up() {
    let outcome = lazy_meanwhile().unwrap();
    assert_eq!(outcome.total().interrupts.sent, 0);
    assert_eq!(outcome.cpus[1].library.lazy_exits_stale, 1);
    assert_eq!(outcome.cpus[1].tlb.faults, 1);
    mutant::set(Some(Mutant::LazyExitTrusts));
    let result = lazy_meanwhile();
    mutant::set(None);
    assert_eq!(result.unwrap_err().invariant, "revocation");
}

/// One flush to many: those that have the space loaded are interrupted, nobody else is.
#[test]
fn only_cpus_of_the_space_are_interrupted() {
    let mut machine = Machine::new(config("generic-4096", 700, Policy::SHOOTDOWN)).unwrap();
    let (space, other) = (machine.new_space(), machine.new_space());
    for cpu in 1..700 {
        machine
            .spawn(CpuId(cpu), move |c| {
                enter(c, if cpu % 2 == 0 { space } else { other });
                c.compute(Time::from_us(300));
            })
            .unwrap();
    }
    let seen = Rc::new(RefCell::new(None));
    let out = Rc::clone(&seen);
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            c.syscall(|k| k.map_at(VA, 1, Stride::Page4K));
            c.write(VA);
            c.compute(Time::from_us(50));
            let before = c.outcome_so_far();
            c.syscall(|k| k.unmap(VA, 1));
            *out.borrow_mut() = Some(c.outcome_so_far().since(&before));
        })
        .unwrap();
    let outcome = machine.run().unwrap();
    let interrupted: Vec<_> = outcome.cpus.iter().map(|c| c.interrupts.received).collect();
    assert!(interrupted.iter().step_by(2).skip(1).all(|n| *n == 1));
    assert!(interrupted.iter().skip(1).step_by(2).all(|n| *n == 0));
    assert!(seen.borrow().as_ref().unwrap().cpus[0].time.waiting > Time::ZERO);
}

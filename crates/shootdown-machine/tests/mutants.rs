//! Every step of the core's protocol that the machine can show to be needed: with the step, the run
//! ends well; without it, the oracle objects and names the promise.
//!
//! Not here: the three fences (the machine runs accesses one after the other; the model checker
//! shows them), and what only happens before the first program runs.

use std::cell::Cell;
use std::rc::Rc;

use shootdown_machine::shootdown::mutant::{self, Mutant};
use shootdown_machine::{
    Config, Cpu, CpuId, Machine, Outcome, Policy, Profile, Space, Stride, Time, Violation,
};

const VA: u64 = 0x7000_0000;

const STALE: &str = "revocation";
const KEPT: &str = "master-invariant";

type Run = Result<Outcome, Box<Violation>>;

fn config(cpus: u32, policy: Policy) -> Config {
    Config { cpus: Some(cpus), policy, ..Config::new(Profile::named("haswell-ep-48").unwrap()) }
}

fn enter(c: &mut Cpu, space: Space) {
    c.kernel(|k| k.switch_to(Some(space)));
}

fn until(c: &mut Cpu, us: u64) {
    let end = Time::from_us(us);
    if c.now() < end {
        c.compute(end - c.now());
    }
}

/// Runs a scene as it is, which has to end well, and without a step, which has to end in a
/// violation of this promise.
fn shows(mutant: Mutant, promise: &str, scene: impl Fn() -> Run) {
    if let Err(violation) = scene() {
        panic!("nothing is missing: {violation}");
    }
    mutant::set(Some(mutant));
    let result = scene();
    mutant::set(None);
    let Err(violation) = result else { panic!("{mutant:?} went unnoticed") };
    assert_eq!(violation.invariant, promise, "{mutant:?}: {violation}");
}

#[test]
fn every_mutant_has_a_name_of_its_own_and_a_sentence() {
    let names: std::collections::BTreeSet<_> = Mutant::ALL.iter().map(|m| m.name()).collect();
    assert_eq!(names.len(), Mutant::ALL.len(), "names are unique");
    for m in Mutant::ALL {
        assert_eq!(Mutant::from_name(m.name()), Some(*m));
        assert!(m.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", m.name());
        assert!(m.sentence().ends_with('.') && !m.sentence().starts_with(' '), "{}", m.sentence());
    }
    assert_eq!(Mutant::from_name("no-such-step"), None);
}

/// CPU 1 uses a space, another one meanwhile, and the first again; CPU 0 takes a page away
/// meanwhile.
fn away(policy: Policy) -> Run {
    let mut machine = Machine::new(config(2, policy)).unwrap();
    let (space, other) = (machine.new_space(), machine.new_space());
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
            c.touch(VA, 4, true);
            until(c, 60);
            c.syscall(|k| k.discard(VA + 0x1000, 1));
            c.syscall(|k| k.discard(VA + 0x2000, 1));
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            until(c, 30);
            enter(c, space);
            assert_eq!(c.touch(VA, 4, false), 4);
            enter(c, other);
            until(c, 120);
            enter(c, space);
            assert_eq!(c.touch(VA, 4, false), 4);
        })
        .unwrap();
    machine.run()
}

#[test]
fn a_remembered_slot_looks_at_its_generation() {
    for policy in [Policy::SHOOTDOWN, Policy::LINUX_4_14] {
        shows(Mutant::SlotTrusts, KEPT, || away(policy));
    }
}

/// CPU 1 is lazy while CPU 0 takes two pages away, one after the other.
fn lazy_two_steps() -> Run {
    let mut machine = Machine::new(config(2, Policy::SHOOTDOWN)).unwrap();
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
            c.touch(VA, 4, true);
            until(c, 60);
            c.syscall(|k| k.discard(VA + 0x1000, 1));
            c.syscall(|k| k.discard(VA + 0x2000, 1));
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            until(c, 30);
            enter(c, space);
            c.touch(VA, 4, false);
            c.kernel(|k| k.switch_to(None));
            until(c, 120);
            enter(c, space);
            c.touch(VA, 4, false);
        })
        .unwrap();
    machine.run()
}

#[test]
fn who_is_several_steps_behind_replays_all_of_them() {
    shows(Mutant::ReplayOnlyNewest, STALE, lazy_two_steps);
    shows(Mutant::LazyExitTrusts, STALE, lazy_two_steps);
}

/// CPU 2 has interrupts off while two others take a page away each.
fn two_flushers(policy: Policy) -> Run {
    let mut machine = Machine::new(config(3, policy)).unwrap();
    let space = machine.new_space();
    for cpu in 0..2 {
        machine
            .spawn(CpuId(cpu), move |c| {
                enter(c, space);
                if cpu == 0 {
                    c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
                    c.touch(VA, 4, true);
                }
                until(c, 60 + u64::from(cpu));
                c.syscall(|k| k.discard(VA + 0x1000 * u64::from(cpu), 1));
            })
            .unwrap();
    }
    machine
        .spawn(CpuId(2), move |c| {
            until(c, 30);
            enter(c, space);
            c.touch(VA, 4, false);
            until(c, 50);
            c.kernel(|k| k.with_interrupts_off(|k| k.compute(Time::from_us(50))));
            c.touch(VA, 4, false);
        })
        .unwrap();
    machine.run()
}

#[test]
fn a_hint_is_trusted_only_by_who_misses_just_that_step() {
    shows(Mutant::PartialOverMissedStep, STALE, || two_flushers(Policy::LINUX_5_13));
}

#[test]
fn a_new_space_gets_an_empty_slot() {
    shows(Mutant::EvictionKeeps, "tag-reuse", || {
        let mut machine = Machine::new(config(1, Policy::SHOOTDOWN)).unwrap();
        let spaces: Vec<_> = (0..12).map(|_| machine.new_space()).collect();
        machine
            .spawn(CpuId(0), move |c| {
                for space in spaces {
                    enter(c, space);
                    c.syscall(|k| k.map_at(VA, 1, Stride::Page4K));
                    c.write(VA);
                }
            })
            .unwrap();
        machine.run()
    });
}

/// All CPUs read a page that CPU 0 takes away.
fn taken(config: Config) -> Run {
    let cpus = config.cpu_count().unwrap();
    let mut machine = Machine::new(config).unwrap();
    let space = machine.new_space();
    let over = Rc::new(Cell::new(false));
    for cpu in 0..cpus {
        let over = Rc::clone(&over);
        machine
            .spawn(CpuId(cpu), move |c| {
                enter(c, space);
                if cpu == 0 {
                    c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
                    for _ in 0..4 {
                        c.touch(VA, 4, true);
                        c.compute(Time::from_us(40));
                        c.syscall(|k| k.discard(VA + 0x1000, 1));
                        c.syscall(|k| k.discard(VA + 0x2000, 1));
                    }
                    over.set(true);
                }
                while !over.get() {
                    c.touch(VA, 4, false);
                    c.compute(Time::from_ns(150));
                }
            })
            .unwrap();
    }
    machine.run()
}

#[test]
fn the_flusher_counts_asks_waits_and_the_others_do_as_told() {
    for mutant in [
        Mutant::NoGenerationBump,
        Mutant::FilterLosesOne,
        Mutant::RespondWithoutInvalidate,
        Mutant::GatherWithoutFlush,
    ] {
        for policy in [Policy::NAIVE, Policy::LINUX_4_14, Policy::LINUX_5_13, Policy::SHOOTDOWN] {
            shows(mutant, STALE, || taken(config(4, policy)));
        }
    }
    // The other policies wait for each call.
    shows(Mutant::NoWait, STALE, || taken(config(4, Policy::SHOOTDOWN)));
}

#[test]
fn a_missed_cpu_is_found_although_it_never_uses_the_page_again() {
    shows(Mutant::FilterLosesOne, STALE, || {
        let mut machine = Machine::new(config(2, Policy::SHOOTDOWN)).unwrap();
        let space = machine.new_space();
        machine
            .spawn(CpuId(0), move |c| {
                enter(c, space);
                c.syscall(|k| k.map_at(VA, 1, Stride::Page4K));
                until(c, 60);
                c.syscall(|k| k.discard(VA, 1));
            })
            .unwrap();
        machine
            .spawn(CpuId(1), move |c| {
                until(c, 30);
                enter(c, space);
                c.read(VA);
                until(c, 100);
            })
            .unwrap();
        machine.run()
    });
}

#[test]
fn the_flusher_does_its_own_work() {
    shows(Mutant::NoLocalWork, STALE, || taken(config(1, Policy::LINUX_5_13)));
}

#[test]
fn the_user_half_is_invalidated_before_user_code_runs() {
    // Whole tags are flushed here, and those of the user half on the way out.
    let mitigated = || Config { mitigations: true, ..config(2, Policy::LINUX_4_14) };
    let whole = || Policy { ranges: false, ..Policy::LINUX_4_14 };
    shows(Mutant::UserHalfForgotten, STALE, || taken(Config { policy: whole(), ..mitigated() }));
}

/// CPU 0 takes a page away from many CPUs, one of which has interrupts off and uses it.
fn one_is_late() -> Run {
    let profile = Profile::named("generic-4096").unwrap();
    let mut machine = Machine::new(Config { cpus: Some(200), ..Config::new(profile) }).unwrap();
    let space = machine.new_space();
    for cpu in 0..200 {
        machine
            .spawn(CpuId(cpu), move |c| {
                enter(c, space);
                if cpu == 0 {
                    c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
                    c.touch(VA, 4, true);
                    until(c, 60);
                    c.syscall(|k| k.discard(VA, 1));
                    return;
                }
                until(c, 30);
                c.touch(VA, 4, false);
                if cpu == 37 {
                    until(c, 50);
                    c.kernel(|k| {
                        k.with_interrupts_off(|k| {
                            k.compute(Time::from_us(100));
                            k.touch_kernel(VA, 1, false);
                        });
                    });
                }
                until(c, 150);
                c.read(VA);
            })
            .unwrap();
    }
    machine.run()
}

#[test]
fn a_tree_reports_when_all_of_a_group_are_done() {
    shows(Mutant::TreeFirstReports, STALE, one_is_late);
}

/// CPU 1 is lazy while CPU 0 takes a page away together with its tables, and walks there on its
/// own.
fn lazy_walk(policy: Policy) -> Run {
    let mut machine = Machine::new(config(2, policy)).unwrap();
    let space = machine.new_space();
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, space);
            c.syscall(|k| k.map_at(VA, 4, Stride::Page4K));
            c.touch(VA, 4, true);
            until(c, 60);
            c.syscall(|k| k.unmap(VA, 4));
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            until(c, 30);
            enter(c, space);
            assert!(c.read(VA));
            c.kernel(|k| {
                k.switch_to(None);
                k.idle_until(Time::from_us(200));
                // Not cached as a leaf: the walk caches lead the way.
                k.speculate(VA + 0x5000);
            });
        })
        .unwrap();
    machine.run()
}

// Earlier policies interrupt lazy CPUs in any case.
#[test]
fn lazy_cpus_are_reached_when_tables_are_freed() {
    for policy in [Policy::LINUX_5_13, Policy::SHOOTDOWN] {
        for mutant in [Mutant::FilterSkipsLazyFreed, Mutant::GatherForgetsTables] {
            shows(mutant, "walk-cache-reuse", || lazy_walk(policy));
        }
    }
}

/// CPU 1 reads kernel pages under several spaces while CPU 0 takes them away.
fn kernel_pages(config: Config) -> Run {
    let mut machine = Machine::new(config).unwrap();
    let spaces = [machine.new_space(), machine.new_space()];
    let va = Rc::new(Cell::new(0));
    let seen = Rc::clone(&va);
    machine
        .spawn(CpuId(0), move |c| {
            enter(c, spaces[0]);
            va.set(c.syscall(|k| k.map_kernel(3)));
            until(c, 100);
            c.syscall(|k| k.unmap_kernel(va.get(), 3));
        })
        .unwrap();
    machine
        .spawn(CpuId(1), move |c| {
            until(c, 20);
            for space in spaces {
                enter(c, space);
                assert_eq!(c.kernel(|k| k.touch_kernel(seen.get(), 3, true)), 3);
            }
            until(c, 200);
            for space in spaces {
                enter(c, space);
                assert_eq!(c.kernel(|k| k.touch_kernel(seen.get(), 3, false)), 0);
            }
        })
        .unwrap();
    machine.run()
}

#[test]
fn a_kernel_flush_reaches_every_tag() {
    for policy in [Policy::NAIVE, Policy::LINUX_4_14, Policy::LINUX_5_13, Policy::SHOOTDOWN] {
        for (mitigations, tags) in [(false, true), (true, true), (true, false), (false, false)] {
            kernel_pages(Config { mitigations, tags, ..config(2, policy) })
                .unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
    shows(Mutant::OtherTagsForgotten, KEPT, || {
        kernel_pages(Config { mitigations: true, ..config(2, Policy::SHOOTDOWN) })
    });
}

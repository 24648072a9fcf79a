//! Machine-wide tags and hardware that broadcasts, under the `loom` model checker: a CPU that comes
//! to a space, perhaps under a fresh tag, against a flush of it, by each strategy; and, one step
//! after the other, what the hardware must be told.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_tlbi`
#![cfg(loom)]

mod loom_support;
#[path = "loom_support/tlbi.rs"]
#[allow(dead_code)] // shared
mod tlbi;

use std::cell::Cell;
use std::sync::Arc;

use loom::sync::atomic::Ordering;
use loom::thread;
use loom_support::holds;
use shootdown_woven::cpu_set::Bits;
use shootdown_woven::mutant::Mutant;
use shootdown_woven::*;
use tlbi::*;

/// CPU 1 comes to space 0 while CPU 0 unmaps its page. Before, each CPU runs through these spaces.
fn comes(policy: &'static Policy, before: [&[usize]; 2]) {
    ALONE.set(false);
    let spaces = begin(policy, &PLAIN);
    for (cpu, visited) in (0..).zip(before) {
        spaces.runs(cpu, visited);
    }
    let here = before[0].last() == Some(&0);
    let other = {
        let spaces = Arc::clone(&spaces);
        thread::spawn(move || {
            CPU.with(|c| c.set(1));
            spaces.run(0);
            spaces.look();
        })
    };
    spaces.unmap(0, false);
    if here {
        spaces.look();
    }
    other.join().unwrap();
    spaces.over();
}

#[test]
fn a_cpu_comes_while_the_page_is_unmapped_from_another() {
    use Mutant::*;
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[0], &[1]]));
    };
    holds("comes, always", &ALWAYS, &[BroadcastStaysLocal, BroadcastWithoutSync]);
    holds("comes, sticky", &STICKY, &[OwnerNeverShared, OwnWithoutFence, ResidencyWithoutFence]);
    holds("comes, active", &ACTIVE, &[ActiveNotCounted, ActiveWithoutFence]);
    holds("comes, trim", &TRIM, &[JoinWithoutFence]);
}

#[test]
fn a_cpu_comes_back_while_the_page_is_unmapped_from_another() {
    use Mutant::*;
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[0], &[0, 1]]));
    };
    holds("comes back, always", &ALWAYS, &[BroadcastStaysLocal]);
    holds("comes back, sticky", &STICKY, &[OwnerNeverShared]);
    holds("comes back, active", &ACTIVE, &[StaleTagTrusted, StaleNotNoted, ActiveWithoutFence]);
    holds("comes back, trim", &TRIM, &[BroadcastStaysLocal]);
}

#[test]
fn a_space_gets_its_first_tag_while_its_page_is_unmapped() {
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[2], &[1]]));
    };
    holds("first tag, always", &ALWAYS, &[Mutant::EnterWithoutFence]);
    holds("first tag, sticky", &STICKY, &[Mutant::OwnWithoutFence]);
    holds("first tag, active", &ACTIVE, &[]);
    holds("first tag, trim", &TRIM, &[Mutant::JoinWithoutFence]);
}

#[test]
fn a_space_gets_a_fresh_tag_while_its_page_is_unmapped() {
    // CPU 1 has run it in the generation before.
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[], &[0, 1, 2, 3]]));
    };
    holds("fresh tag, always", &ALWAYS, &[Mutant::EnterWithoutFence]);
    holds("fresh tag, sticky", &STICKY, &[Mutant::ResidencyNotRenewed]);
    holds("fresh tag, active", &ACTIVE, &[]);
    holds("fresh tag, trim", &TRIM, &[Mutant::ResidencyNotRenewed]);
}

#[test]
fn a_cpu_flushes_before_it_uses_a_tag_of_a_new_generation() {
    let check = |policy| {
        holds("new generation", None, &[Mutant::GenerationNotFlushed], move || {
            alone(policy, &PLAIN, |spaces| {
                spaces.runs(0, &[0, 1, 2, 3]);
                spaces.runs(1, &[3, 2, 1]);
                spaces.runs(0, &[0, 1]);
            });
        });
    };
    [&ALWAYS, &STICKY, &ACTIVE, &TRIM].into_iter().for_each(check);
}

#[test]
fn no_step_of_a_walk_leads_into_freed_tables() {
    let mutants = [Mutant::BroadcastLeafOnly, Mutant::ActiveIgnoresFreed];
    for mutant in mutants {
        let policies = [&ALWAYS, &STICKY, &ACTIVE, &TRIM];
        holds("freed tables", None, &[mutant], move || {
            for policy in policies {
                alone(policy, &PLAIN, |spaces| {
                    spaces.runs(1, &[0, 1]);
                    spaces.runs(0, &[0]);
                    let tag = usize::from(spaces.spaces[0].tag().unwrap().0);
                    spaces.unmap(0, true);
                    for tlb in &world().tlbs {
                        assert!(!tlb.lock().unwrap()[tag].step, "a step into a freed table");
                    }
                });
            }
        });
    }
}

#[test]
fn both_halves_of_a_pair_are_invalidated() {
    holds("pairs", None, &[Mutant::BroadcastUserHalfForgotten], || {
        for policy in [&ALWAYS, &STICKY, &ACTIVE, &TRIM] {
            alone(policy, &SPLIT, |spaces| {
                spaces.runs(1, &[0]);
                spaces.runs(0, &[0]);
                spaces.unmap(0, false);
                on(1, || spaces.look());
                spaces.look();
            });
        }
    });
}

#[test]
fn a_cpu_that_leaves_the_set_flushes_first() {
    holds("trim", None, &[Mutant::TrimWithoutFlush], || {
        alone(&TRIM, &PLAIN, |spaces| {
            spaces.runs(1, &[0, 1]);
            spaces.runs(0, &[0]);
            let space = &spaces.spaces[0];
            let elsewhere = VaRange::new(0x5000, 1, Stride::Page4K).unwrap();
            // The page stays mapped, and cached on CPU 1: only the flush of the tag takes it away.
            let flush = || space.flush(&Model::pin(), Request::pages(elsewhere)).unwrap();
            let mut flushes = 0;
            while space.cpus().len() == 2 {
                flush();
                flushes += 1;
                assert!(flushes < 200, "nobody is asked to leave");
            }
            spaces.unmap(0, false);
            spaces.runs(1, &[0]);
            on(1, || spaces.look());
        });
    });
}

#[test]
fn what_hardware_does_not_do_is_done_again() {
    let check = |name, facts: &'static Facts, mutant| {
        holds(name, None, &[mutant], move || {
            for policy in [&ALWAYS, &STICKY, &ACTIVE, &TRIM] {
                alone(policy, facts, |spaces| {
                    spaces.runs(1, &[0]);
                    spaces.runs(0, &[0]);
                    spaces.unmap(0, false);
                    on(1, || spaces.look());
                    spaces.look();
                });
            }
        });
    };
    check("repeated sync", &REPEATS, Mutant::SyncNotRepeated);
    check("repeated invalidation", &SURVIVES, Mutant::SurvivorForgotten);
    check("early completion", &EARLY, Mutant::EarlyCompletionTrusted);
}

/// CPU 1 takes the interrupt for a flush of space 0 in space 1, and comes back before CPU 0 has
/// looked.
#[test]
fn who_was_interrupted_elsewhere_has_answered() {
    std::thread_local!(static SPACES_OF: Cell<*const Spaces> = const { Cell::new(std::ptr::null()) });
    fn goes_and_comes_back() {
        // SAFETY: set below for as long as the spaces live.
        let spaces = unsafe { &*SPACES_OF.get() };
        spaces.run(1);
        interrupts();
        spaces.run(0);
        MEANWHILE.set(|| panic!("Progress: it has acknowledged, and is asked again"));
    }
    for policy in [&ALWAYS, &STICKY] {
        holds("interrupted elsewhere", None, &[Mutant::SwitchAcknowledgesNothing], move || {
            MEANWHILE.set(goes_and_comes_back);
            alone(policy, &EARLY, |spaces| {
                SPACES_OF.set(spaces);
                spaces.runs(1, &[1, 0]);
                spaces.runs(0, &[1]);
                spaces.unmap(0, false);
                MEANWHILE.set(interrupts);
                on(1, || spaces.look());
            });
        });
    }
}

/// CPU 1 is interrupted for one flush. That acknowledges for no other that comes after.
#[test]
fn an_interrupt_answers_for_what_was_complete_before() {
    holds("interrupted before", None, &[Mutant::KickAcknowledgesAhead], || {
        alone(&ALWAYS, &EARLY, |spaces| {
            spaces.runs(1, &[0]);
            let other = VaRange::new(0x3000, 1, Stride::Page4K).unwrap();
            spaces.spaces[0].flush(&Model::pin(), Request::pages(other)).unwrap();
            spaces.unmap(0, false);
            on(1, || spaces.look());
        });
    });
}

#[test]
fn a_kernel_page_is_gone_everywhere() {
    let check = |facts: &'static Facts, mutant| {
        holds("kernel page", None, &[mutant], move || {
            alone(&STICKY, facts, |spaces| {
                spaces.runs(1, &[1]);
                spaces.runs(0, &[0]);
                world().kernel.store(0, Ordering::Relaxed);
                let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
                flush_kernel::<Model>(&Model::pin(), page).unwrap();
                for cpu in 0..2 {
                    on(cpu, || assert_eq!(access(1), 0, "cpu{cpu} reads what was flushed"));
                }
            });
        });
    };
    check(&PLAIN, Mutant::KernelBroadcastWithoutSync);
    check(&EARLY, Mutant::KernelCompletionTrusted);
}

#[test]
fn a_device_keeps_a_tag_until_nothing_is_cached_for_it() {
    let mutants = [Mutant::UnpinWithoutFlush, Mutant::RetireIgnoresPins];
    for mutant in mutants {
        holds("pinned tag", None, &[mutant], || {
            alone(&STICKY, &ROOMY, |spaces| {
                // CPU 1 stands for the device, which nobody switches and no rollover flushes.
                let space = &spaces.spaces[4];
                let tag = space.pin_tag(&Model::pin()).unwrap();
                on(1, || {
                    world().loaded[1].set(Some((4, tag)));
                    access(0);
                    world().loaded[1].set(None);
                });
                assert_eq!(space.retire(&Model::pin()), Err(RetireError::Pinned));
                // SAFETY: the device has done its walk, and forgotten.
                unsafe { space.unpin_tag(&Model::pin()) }.unwrap();
                let cached = world().tlbs[1].lock().unwrap()[usize::from(tag.0)];
                assert_eq!(cached.pages[0], None, "the next owner's device would use it");
            });
        });
    }
}

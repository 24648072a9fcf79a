//! Something unwinds while a call is in flight: nobody runs a function whose captures are gone, and
//! what comes after works as before.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use mock::*;
use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::{CpuId, Platform, Policy, Request, Stride, VaRange, call_on};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

fn set(cpus: &[u32]) -> CpuSet<1> {
    let mut set = CpuSet::EMPTY;
    cpus.iter().for_each(|cpu| set.insert(CpuId(*cpu)));
    set
}

fn unwind() -> ! {
    resume_unwind(Box::new("on purpose"))
}

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

/// The function is over and done with when `call_on` is left, whichever way.
fn nothing_runs_after(policy: &'static Policy, work: impl Fn(CpuId) + Sync) {
    let over = AtomicBool::new(false);
    let late = AtomicU32::new(0);
    mask(1);
    mask(2);
    let call = || {
        call_on::<Mock, _>(&Mock::pin(), &set(&[0, 1, 2]), &|cpu| {
            if over.load(Ordering::Relaxed) {
                late.fetch_add(1, Ordering::Relaxed);
            }
            work(cpu);
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "it has unwound");
    over.store(true, Ordering::Relaxed);
    unmask(1);
    unmask(2);
    assert_eq!(late.load(Ordering::Relaxed), 0, "a CPU has run what was gone");
    let ran = AtomicU32::new(0);
    call_on::<Mock, _>(&Mock::pin(), &set(&[0, 1, 2]), &|_| {
        ran.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap_or_else(|e| panic!("the next call of {policy:?}: {e}"));
    assert_eq!(ran.load(Ordering::Relaxed), 3);
}

#[test]
fn a_call_is_taken_back_when_its_own_part_unwinds() {
    for policy in [&Policy::SHOOTDOWN, &TREE] {
        in_fresh_world(move || {
            boot(3, policy, &PCID);
            nothing_runs_after(policy, |cpu| {
                if cpu == CpuId(0) {
                    unwind();
                }
            });
        });
    }
}

#[test]
fn who_has_begun_is_waited_for() {
    // CPU 1 is in the middle of the function when the initiator's part unwinds.
    for policy in [&Policy::SHOOTDOWN, &TREE] {
        in_fresh_world(move || {
            boot(3, policy, &PCID);
            nothing_runs_after(policy, |cpu| {
                if cpu == CpuId(0) {
                    unmask(1);
                    unwind();
                }
            });
        });
    }
}

#[test]
fn a_call_is_taken_back_when_a_handler_unwinds_while_it_waits() {
    for policy in [&Policy::SHOOTDOWN, &TREE] {
        in_fresh_world(move || {
            boot(3, policy, &PCID);
            *world().during_wait.borrow_mut() = Some(Box::new(|| unwind()));
            nothing_runs_after(policy, |_| ());
        });
    }
}

/// A function that unwinds on its target, against what its documentation asks for: the target and
/// the initiator go on.
#[test]
fn a_function_that_unwinds_leaves_its_cpu_serving_others() {
    for policy in [&Policy::SHOOTDOWN, &TREE] {
        in_fresh_world(move || {
            boot(3, policy, &PCID);
            let space = new_space();
            map(space, 1, 10);
            switch(1, space);
            assert_eq!(on_cpu(1, |_| access(1)), Some(10));
            let call = |pin: &Pin, cpus: &[u32]| {
                call_on::<Mock, _>(pin, &set(cpus), &|cpu| {
                    if cpu == CpuId(1) {
                        unwind();
                    }
                })
            };
            let both = &[1, 2][..];
            let unwound = catch_unwind(AssertUnwindSafe(|| call(&Mock::pin(), both)));
            world().current.set(0);
            assert!(unwound.is_err(), "the mock's interrupts are calls");
            unmap(space, 1);
            let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
            space.flush(&Mock::pin(), Request::pages(page)).unwrap();
            assert_eq!(on_cpu(1, |_| access(1)), None, "it serves");
        });
    }
}

/// Of two functions that a CPU is to run, the first unwinds.
#[test]
fn what_others_have_asked_for_is_not_lost() {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    mask(2);
    *world().during_wait.borrow_mut() = Some(Box::new(move || {
        on_cpu(1, |pin| {
            *world().during_wait.borrow_mut() = Some(Box::new(|| {
                let unwound = catch_unwind(|| unmask(2));
                assert!(unwound.is_err());
                world().current.set(1);
                on_cpu(2, |pin| {
                    let _ = shootdown::poll::<Mock>(pin);
                });
            }));
            let done = AtomicBool::new(false);
            call_on::<Mock, _>(pin, &set(&[2]), &|_| done.store(true, Ordering::Relaxed)).unwrap();
            assert!(done.into_inner());
        });
    }));
    call_on::<Mock, _>(&Mock::pin(), &set(&[2]), &|_| unwind()).unwrap();
}

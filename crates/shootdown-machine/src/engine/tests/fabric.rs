//! The fabric against arithmetic.

use super::*;
use crate::time::Time;

fn emag(cpus: u32) -> (Bench, u64, u64, u64) {
    let bench = Bench::new("ampere-emag-32", cpus);
    let fabric = bench.costs().broadcast.expect("it has one");
    (bench, fabric.issue.ps(), fabric.latency.ps(), fabric.service.ps())
}

#[test]
fn a_lone_broadcast_takes_its_latency_and_the_next_one_waits_for_the_service() {
    let (mut bench, issue, latency, service) = emag(1);
    bench.job(0, move || {
        let one = || {
            broadcast(1);
            await_broadcast();
        };
        assert_eq!(timed(one), issue + latency);
        let begun = now().ps() - latency;
        one();
        assert_eq!(now().ps(), begun + service + latency, "the server was not free");
        compute(Time::from_us(10));
        assert_eq!(timed(one), issue + latency, "it is free again");
        assert_eq!(timed(await_broadcast), 0, "nothing is under way");
    });
    let outcome = bench.run().unwrap()[0];
    assert_eq!(outcome.fabric.operations, 3);
    assert_eq!(outcome.fabric.waited, outcome.time.waiting);
}

#[test]
fn operations_are_served_one_by_one_in_the_order_of_issue() {
    const CPUS: u32 = 32;
    const EACH: u64 = 50;
    let (mut bench, issue, latency, service) = emag(CPUS);
    let order = Rc::new(RefCell::new(Vec::new()));
    for cpu in 0..CPUS {
        let order = Rc::clone(&order);
        bench.job(cpu, move || {
            for _ in 0..EACH {
                broadcast(1);
                await_broadcast();
                order.borrow_mut().push((now().ps(), cpu));
            }
        });
    }
    bench.run().unwrap();
    let order = order.borrow();
    for (k, (done, cpu)) in (0u64..).zip(order.iter()) {
        assert_eq!(u64::from(*cpu), k % u64::from(CPUS), "first come, first served");
        assert_eq!(*done, issue + k * service + latency);
    }
}

#[test]
fn a_sync_waits_for_all_that_its_cpu_issued() {
    let (mut bench, issue, latency, service) = emag(1);
    bench.job(0, move || {
        let all = timed(|| {
            broadcast(8);
            await_broadcast();
        });
        assert_eq!(all, issue + 7 * service + latency);
    });
    bench.run().unwrap();
}

/// The fabric of `bench` is kept busy by CPU 0 for as long as CPU 1 computes; how long that takes
/// it.
fn computing_beside(issuer: bool, length: Time) -> (u64, CpuOutcome) {
    let (mut bench, ..) = emag(2);
    let over = Rc::new(Cell::new(false));
    let took = Rc::new(Cell::new(0));
    if issuer {
        let over = Rc::clone(&over);
        bench.job(0, move || {
            while !over.get() {
                broadcast(1);
                await_broadcast();
            }
        });
    }
    let said = Rc::clone(&took);
    bench.job(1, move || {
        said.set(timed(|| compute(length)));
        over.set(true);
    });
    let outcome = bench.run().unwrap()[1];
    (took.get(), outcome)
}

#[test]
fn a_bystander_loses_the_tax_and_no_more() {
    let length = Time::from_us(1_000);
    assert_eq!(computing_beside(false, length).0, length.ps());
    let (took, outcome) = computing_beside(true, length);
    // A fifth of all time is lost while the fabric is always busy. Rounding: one picosecond a part.
    let expected = length.ps() * 5 / 4;
    assert!(took.abs_diff(expected) < 2_000_000, "{took} instead of {expected}");
    assert_eq!(outcome.fabric.taxed.ps(), took - length.ps());
    assert_eq!(outcome.time.user + outcome.time.kernel, Time::from_ps(took));
}

#[test]
fn who_idles_waits_or_broadcasts_is_not_taxed() {
    let (mut bench, ..) = emag(3);
    bench.job(0, || {
        for _ in 0..100 {
            broadcast(1);
            await_broadcast();
            compute(Time::from_ns(500));
        }
    });
    bench.job(1, || {
        idle_until(Time::from_us(300));
        send(std::iter::once(2), Vector::Wake, false);
    });
    bench.job(2, || {
        idle_until(Time::NEVER);
    });
    let outcomes = bench.run().unwrap();
    let taxed: Vec<Time> = outcomes.iter().map(|o| o.fabric.taxed).collect();
    assert_eq!(taxed[0], Time::ZERO);
    // What runs after waking up is taxed: a few hundred nanoseconds at most.
    assert!(taxed[1] < Time::from_ns(100) && taxed[2] < Time::from_ns(200), "{taxed:?}");
    let end = outcomes[0].finished.unwrap();
    assert!(end < outcomes[1].finished.unwrap() + Time::from_us(100));
}

#[test]
fn without_a_fabric_nobody_is_taxed() {
    let mut bench = Bench::new("haswell-ep-48", 2);
    for cpu in 0..2 {
        bench.job(cpu, || assert_eq!(timed(|| compute(Time::from_us(5))), 5_000_000));
    }
    let outcomes = bench.run().unwrap();
    assert!(outcomes.iter().all(|o| o.fabric == crate::outcome::FabricUse::default()));
}

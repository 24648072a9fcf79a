//! Two CPUs that flush one space at each other are answered at once, whatever they are doing: also
//! a kick that comes during the local work of an overlapped flush.

use shootdown_machine::{Config, CpuId, Machine, Policy, Profile, Stride, Time};

/// The longest wait among both CPUs, in nanoseconds, rounded up to a power of two.
fn longest_wait(policy: Policy) -> u64 {
    let mut config = Config::new(Profile::named("haswell-ep-48").unwrap());
    config.cpus = Some(2);
    config.mitigations = true;
    config.policy = policy;
    let mut machine = Machine::new(config).unwrap();
    let space = machine.new_space();
    for cpu in 0..2 {
        machine
            .spawn(CpuId(cpu), move |c| {
                let page = c.kernel(|k| {
                    k.switch_to(Some(space));
                    k.map(1, Stride::Page4K)
                });
                c.write(page);
                for i in 0..2_000 {
                    // Steps without a common divisor: every phase of one flush meets every phase of
                    // another.
                    c.compute(Time::from_ns(300 + (i * (37 + u64::from(cpu) * 4)) % 1_009));
                    c.syscall(|k| k.flush(page, 1, false));
                }
            })
            .unwrap();
    }
    let waits = machine.run().unwrap_or_else(|e| panic!("{e}")).total().library.waits;
    waits.iter().rposition(|n| *n != 0).map_or(0, |bin| 1 << bin)
}

#[test]
fn nobody_waits_longer_than_a_few_interrupts() {
    for policy in [
        Policy::NAIVE,
        Policy::LINUX_4_14,
        Policy::LINUX_5_13,
        Policy { overlap: false, ..Policy::SHOOTDOWN },
        Policy::SHOOTDOWN,
    ] {
        let longest = longest_wait(policy);
        assert!(longest <= 1 << 13, "{longest} ns under {policy:?}");
    }
}

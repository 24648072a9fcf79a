//! How fast the machine itself is, on this host: simulated accesses per second, complete shootdowns
//! per second, and a storm of flushes to 4096 CPUs. The oracle is on in all of them, as always.
//!
//! ```sh
//! cargo run --release -p shootdown-machine --example speed [accesses|shootdowns|storm [FLUSHES]]
//! ```
//!
//! `cargo bench -p shootdown-machine` does the same.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use shootdown_machine::{Config, CpuId, Machine, Outcome, Policy, Profile, Stride, Time};

const VA: u64 = 0x7000_0000;

/// `cpus` CPUs read a few pages `n` times in all.
fn accesses(cpus: u32, n: u64) -> (Outcome, f64) {
    let profile = Profile::named("skylake-laptop").expect("built in");
    let config = Config { cpus: Some(cpus), ..Config::new(profile) };
    let mut machine = Machine::new(config).expect("valid");
    let space = machine.new_space();
    for cpu in 0..cpus {
        let program = move |c: &mut shootdown_machine::Cpu| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(VA + u64::from(cpu) * 0x10_0000, 32, Stride::Page4K);
            });
            for i in 0..n / u64::from(cpus) {
                c.read(VA + u64::from(cpu) * 0x10_0000 + (i % 32) * 4096);
            }
        };
        machine.spawn(CpuId(cpu), program).expect("free");
    }
    timed(machine)
}

/// CPU 0 flushes one page `n` times; CPU 1 has the space and computes.
fn shootdowns(n: u64) -> (Outcome, f64) {
    let profile = Profile::named("haswell-ep-48").expect("built in");
    let config = Config { cpus: Some(2), ..Config::new(profile) };
    storm(config, n)
}

/// CPU 0 flushes one page `n` times; all others have the space and compute.
fn storm(config: Config, n: u64) -> (Outcome, f64) {
    let cpus = config.cpu_count().expect("valid");
    let mut machine = Machine::new(config).expect("valid");
    let space = machine.new_space();
    let over = Rc::new(Cell::new(false));
    for cpu in 1..cpus {
        let over = Rc::clone(&over);
        let program = move |c: &mut shootdown_machine::Cpu| {
            c.kernel(|k| k.load(Some(space)));
            while !over.get() {
                c.compute(Time::from_us(100));
            }
        };
        machine.spawn(CpuId(cpu), program).expect("free");
    }
    let program = move |c: &mut shootdown_machine::Cpu| {
        c.kernel(|k| {
            k.load(Some(space));
            k.compute(Time::from_us(5));
            for _ in 0..n {
                k.flush(VA, 1, false);
            }
        });
        over.set(true);
    };
    machine.spawn(CpuId(0), program).expect("free");
    timed(machine)
}

fn timed(machine: Machine) -> (Outcome, f64) {
    let start = Instant::now();
    let outcome = machine.run().unwrap_or_else(|violation| panic!("{violation}"));
    (outcome, start.elapsed().as_secs_f64())
}

/// The most memory this process has had, in MiB; `None` where the host does not say.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// Measures what was asked for, or everything.
#[allow(clippy::cast_precision_loss)] // for printing
pub fn main() {
    // `cargo bench` adds an option of its own.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let only = words.next();
    let flushes = words.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let runs = |name: &str| only.as_deref().is_none_or(|o| o == name);
    for cpus in [1, 2] {
        if runs("accesses") {
            let n = 20_000_000;
            let (_, seconds) = accesses(cpus, n);
            println!("accesses, {cpus} CPU: {:.1} M/s (target 20)", n as f64 / seconds / 1e6);
        }
    }
    if runs("shootdowns") {
        let n = 300_000;
        let (outcome, seconds) = shootdowns(n);
        assert_eq!(outcome.total().interrupts.received, n);
        println!(
            "single-target shootdowns: {:.0} k/s (target 300), {} ps of virtual time",
            n as f64 / seconds / 1e3,
            outcome.end.ps(),
        );
    }
    for (name, policy) in [("shootdown", Policy::SHOOTDOWN), ("linux-5.13", Policy::LINUX_5_13)] {
        if runs("storm") || runs(name) {
            let profile = Profile::named("generic-4096").expect("built in");
            let (outcome, seconds) = storm(Config { policy, ..Config::new(profile) }, flushes);
            let received = outcome.total().interrupts.received;
            println!(
                "storm of {flushes} flushes to 4095 CPUs, {name}: {seconds:.1} s (target 20), \
                 {received} interrupts, {} ps of virtual time, peak {} MiB (target 4096)",
                outcome.end.ps(),
                peak().map_or("?".to_owned(), |mib| mib.to_string()),
            );
        }
    }
}

//! Giving a page its write permission back, with the flush that this needs not, and without.
//!
//! One thread makes a page read-only and writable again, over and over; the others read the page
//! all the time, so that they have what is to be flushed. Measured is the call that makes it
//! writable. *Flushing*, the kernel flushes the page after it, as Linux did for every `mprotect`
//! until 2022; *eliding*, it does what [`shootdown::elide`] says: nothing.
//!
//! Published (Amit, October 2021, an Intel KVM guest, model and clock not named): 5342 cycles with
//! the flush and 2496 without, for one thread; 10458 and 2505 for two. The profile is that of
//! another guest, so only ratios are held against these.
//!
//! Calibrated: nothing here. The profile's call (`kernel.area`) comes from a call that takes the
//! permission away, which flushes: 2053 ns with one thread on the profile's machine; with two it
//! took 12,939, which is beside the figures too. Predicted: that without the flush the second
//! thread costs nothing.

use shootdown::policy::Policy;
use shootdown_machine::{Profile, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, per, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Elide;

const MACHINE: &str = "zen4-vm";
const WORKLOAD: &str = "a page made writable again";
const SOURCE: &str =
    "Amit, October 2021, mprotect without flushes that are not needed, a KVM guest";
const MEASURED: &str = "mprotect(PROT_READ), which flushes, measured on a Zen 4 virtual machine, 2 CPUs: the profile's";
/// Threads, and the microseconds of that.
const OF_THE_PROFILE: [(u32, f64); 2] = [(1, 2.053), (2, 12.939)];
/// Threads; cycles with the flush, and without.
const PUBLISHED: [(u32, f64, f64); 2] = [(1, 5342.0, 2496.0), (2, 10458.0, 2505.0)];

const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 24];
const PAGE: u64 = 0x4000_0000;

const CALL: &str = "call";
const OVER_ALONE: &str = "over one thread";
const OVER_ELIDING: &str = "over eliding";

/// With the flush, and without.
const WAYS: [(&str, bool); 2] = [("eliding", false), ("flushing", true)];

impl Experiment for Elide {
    fn name(&self) -> &'static str {
        "elide"
    }

    fn line(&self) -> &'static str {
        "making a page writable that others read: with a flush, and without the flush that it needs not"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies, Knob::Cpus])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let limit = request.cpus.map(|n| machines::check_cpus(n, 1)).transpose()?;
        let limit = limit.unwrap_or(u32::MAX).min(profile.topology.cpus.count());
        let threads: Vec<u32> = THREADS.into_iter().filter(|n| *n <= limit).collect();
        let policies = request.runnable(self.name())?.unwrap_or_else(|| {
            vec![("linux-5.13", Policy::LINUX_5_13), ("shootdown", Policy::SHOOTDOWN)]
        });
        let calls = if request.quick { 200 } else { 2_000 };
        let progress = Progress::new("elide", (policies.len() * threads.len() * WAYS.len()) as u64);
        let mut document = Document::new("elide", &profile.name, request.seed);
        for (policy, mechanisms) in &policies {
            let mut alone = [None; 2];
            for &n in &threads {
                let mut eliding = None;
                for (way, flushes) in WAYS {
                    let label = format!("{policy}, {way}");
                    progress.at(format!("{n} threads, {label}"));
                    let loops =
                        Loops { profile: &profile, policy: *mechanisms, threads: n, flushes };
                    let seen = loops.run(calls, request.seed)?;
                    progress.step();
                    let mut from = |source, metric, unit, value, published: Option<f64>| {
                        let row = Row::new(&label, WORKLOAD, n, metric, unit, value);
                        let published = published.filter(|_| profile.name == MACHINE);
                        document.push(match published {
                            Some(figure) => row.published(figure, source),
                            None => row,
                        });
                    };
                    let call = per(seen.took, calls);
                    let first = *alone[usize::from(flushes)].get_or_insert(call);
                    let measured = OF_THE_PROFILE.iter().find(|(of, _)| *of == n && flushes);
                    from(MEASURED, CALL, "us", call, measured.map(|(_, us)| *us));
                    let mut row = |metric, unit, value, published| {
                        from(SOURCE, metric, unit, value, published)
                    };
                    if n != 1 {
                        let published = cycles(n, flushes).zip(cycles(1, flushes));
                        row(OVER_ALONE, "times", call / first, published.map(|(n, one)| n / one));
                    }
                    let least = *eliding.get_or_insert(call);
                    if flushes {
                        let published = cycles(n, true).zip(cycles(n, false));
                        let published = published.map(|(with, without)| with / without);
                        row(OVER_ELIDING, "times", call / least, published);
                    }
                    row("interrupts", "per call", count(seen.sent) / count(calls), None);
                    if n != 1 {
                        let responder = per(seen.responder, calls * u64::from(n - 1));
                        row("taken from each other thread", "us per call", responder, None);
                    }
                }
            }
        }
        let mut findings = Findings::default();
        if request.is_own() {
            findings.targets = targets(&document);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

/// What was published for so many threads.
fn cycles(threads: u32, flushes: bool) -> Option<f64> {
    let (_, with, without) = PUBLISHED.into_iter().find(|(n, ..)| *n == threads)?;
    Some(if flushes { with } else { without })
}

fn targets(document: &Document) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in &document.rows {
        let eliding = row.policy.ends_with("eliding");
        if row.metric == OVER_ALONE && eliding {
            targets.push(Target {
                what: format!("{}: {} threads as one, within 1 %", row.policy, row.cpus),
                seen: format!("{:.3} times", row.value),
                passed: (row.value - 1.0).abs() <= 0.01,
            });
        } else if row.metric == "interrupts" && eliding {
            targets.push(Target {
                what: format!("{}: nobody is interrupted, of {}", row.policy, row.cpus),
                seen: format!("{} interrupts a call", row.value),
                passed: row.value <= 0.0,
            });
        }
    }
    targets
}

/// What the calls that make the page writable took.
#[derive(Clone, Copy, Default)]
struct Seen {
    took: Time,
    sent: u64,
    /// From all other threads.
    responder: Time,
}

struct Loops<'a> {
    profile: &'a Profile,
    policy: Policy,
    threads: u32,
    flushes: bool,
}

impl Loops<'_> {
    fn run(&self, calls: u64, seed: u64) -> Result<Seen, LabError> {
        let mut machine = Setup::new(self.profile, self.policy, seed).cpus(self.threads).build()?;
        let space = machine.new_space();
        let (over, seen) = (Note::new(false), Note::new(Seen::default()));
        for cpu in 1..self.threads {
            let over = over.clone();
            spawn(&mut machine, cpu, move |c| {
                c.kernel(|k| k.switch_to(Some(space)));
                c.idle_until(Time::from_us(500));
                while !over.get() {
                    c.read(PAGE);
                    c.compute(Time::from_ns(500));
                }
            })?;
        }
        let (flushes, said) = (self.flushes, seen.clone());
        spawn(&mut machine, 0, move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(PAGE, 1, Stride::Page4K);
            });
            c.write(PAGE);
            c.idle_until(Time::from_us(1_000));
            for call in 0..calls {
                c.write(PAGE);
                c.syscall(|k| k.protect(PAGE, 1, false));
                // At any moment of the others' loops; they have what they were made to forget by
                // then.
                c.compute(Time::from_ns(5_000 + chance(seed, call) % 1_000));
                c.read(PAGE);
                let (begun, before) = (c.now(), c.outcome_so_far());
                c.syscall(|k| {
                    k.protect(PAGE, 1, true);
                    if flushes {
                        k.flush(PAGE, 1, false);
                    }
                });
                let took = c.now() - begun;
                // The others' handlers are over, too.
                c.compute(Time::from_us(20));
                let since = c.outcome_so_far().since(&before);
                let so_far = said.get();
                said.set(Seen {
                    took: so_far.took + took,
                    sent: so_far.sent + since.total().interrupts.sent,
                    responder: so_far.responder
                        + since.cpus[1..].iter().map(|c| c.time.responder).sum(),
                });
            }
            over.set(true);
        })?;
        finish(machine)?;
        Ok(seen.get())
    }
}

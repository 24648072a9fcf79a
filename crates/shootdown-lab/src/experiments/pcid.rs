//! Context switches with and without tags: the ping-pong of the commit that gave Linux PCID.
//!
//! Two processes hand a token to each other over an eventfd on one CPU; an iteration is a round
//! trip of two system calls and two switches, in which one side touches 0 or 512 pages (all of them
//! the zero page, so that only translations matter, not data).
//!
//! Calibrated from the same table, and named so in the profile: the cost of a switch
//! (`kernel.switch`), the difference between a root load that drops entries and one that keeps them
//! (0.11 us per round trip), the refill of 8.6 ns a page, and the 1 ns of an overlapped access.
//! What the machine predicts is *that* the tagged side pays the first two figures and the untagged
//! side the last two: which entries survive which load, and how many walks follow.

use shootdown::policy::Policy;
use shootdown_machine::{Outcome, Profile, Stride, Time};

use super::run::{Note, Setup, count, finish, per, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Pcid;

const SOURCE: &str = "Lutomirski 2017, commit 10af6235e0d3, Skylake laptop, KVM guest, idle=poll";
const MACHINE: &str = "skylake-laptop";

struct Variant {
    label: &'static str,
    policy: Policy,
    tags: bool,
    published: Option<[f64; 2]>,
}

struct Measured {
    us: f64,
    misses: f64,
}

impl Experiment for Pcid {
    fn name(&self) -> &'static str {
        "pcid"
    }

    fn line(&self) -> &'static str {
        "two processes ping-pong on one CPU, with and without tags, touching 0 or 512 pages"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies])?;
        let name = request.machine.as_deref().unwrap_or(MACHINE);
        let profile = machines::find(name)?;
        let own = request.is_own();
        let iterations = if request.quick { 200 } else { 2_000 };
        let variants = variants(request)?;
        let progress = Progress::new("pcid", variants.len() as u64 * 2);

        let mut document = Document::new("pcid", &profile.name, request.seed);
        let mut results = Vec::new();
        for pages in [0, 512] {
            let workload = workload(pages);
            for variant in &variants {
                progress.at(format!("{workload}, {}", variant.label));
                let measured = measure(&profile, variant, pages, iterations, request.seed)?;
                progress.step();
                let row = Row::new(variant.label, &workload, 1, "round trip", "us", measured.us);
                document.push(match variant.published.filter(|_| own) {
                    Some(figures) => row.published(figures[usize::from(pages != 0)], SOURCE),
                    None => row,
                });
                document.push(Row::new(
                    variant.label,
                    &workload,
                    1,
                    "TLB misses per round trip",
                    "misses",
                    measured.misses,
                ));
                results.push((pages, variant.label, measured.misses));
            }
        }
        let mut findings = Findings::default();
        if own {
            let misses = |label| {
                results
                    .iter()
                    .find(|(p, l, _)| *p == 512 && *l == label)
                    .map_or(0.0, |(_, _, m)| *m)
            };
            let ratio = misses(UNTAGGED) / misses(TAGGED);
            document.push(
                Row::new(
                    TAGGED,
                    &workload(512),
                    1,
                    "TLB misses, untagged over tagged",
                    "ratio",
                    ratio,
                )
                .published(207.0 / 11.0, SOURCE),
            );
            findings.targets = targets(&document, ratio);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

const TAGGED: &str = "linux-4.14";
const UNTAGGED: &str = "linux-4.14 nopcid";

fn workload(pages: u64) -> String {
    format!("ping-pong, {pages} pages touched")
}

fn variants(request: &Request) -> Result<Vec<Variant>, LabError> {
    if let Some(policies) = request.runnable("pcid")? {
        let chosen = policies.into_iter();
        return Ok(chosen
            .map(|(label, policy)| Variant { label, policy, tags: true, published: None })
            .collect());
    }
    let old = Policy::LINUX_4_14;
    Ok(vec![
        Variant { label: TAGGED, policy: old, tags: true, published: Some([1.22, 1.8]) },
        Variant { label: UNTAGGED, policy: old, tags: false, published: Some([1.33, 6.2]) },
        Variant {
            label: "linux-4.13",
            policy: Policy::LINUX_4_13,
            tags: true,
            published: Some([1.34, 6.1]),
        },
        Variant { label: "shootdown", policy: Policy::SHOOTDOWN, tags: true, published: None },
    ])
}

fn measure(
    profile: &Profile,
    variant: &Variant,
    pages: u64,
    iterations: u64,
    seed: u64,
) -> Result<Measured, LabError> {
    let mut setup = Setup::new(profile, variant.policy, seed).cpus(1);
    setup.config.tags = variant.tags;
    let mut machine = setup.build()?;
    let (ping, pong) = (machine.new_space(), machine.new_space());
    let elapsed = Note::new(Time::ZERO);
    let said = elapsed.clone();
    spawn(&mut machine, 0, move |cpu| {
        let mut array = 0;
        for space in [pong, ping] {
            cpu.kernel(|k| {
                k.switch_to(Some(space));
                array = k.map(512, Stride::Page4K);
            });
            cpu.touch(array, 512, false);
        }
        let start = cpu.now();
        for _ in 0..iterations {
            cpu.touch(array, pages, false);
            cpu.syscall(|k| k.switch_to(Some(pong)));
            cpu.syscall(|k| k.switch_to(Some(ping)));
        }
        said.set(cpu.now() - start);
    })?;
    let outcome: Outcome = finish(machine)?;
    let misses = outcome.total().tlb.walks;
    Ok(Measured { us: per(elapsed.get(), iterations), misses: count(misses) / count(iterations) })
}

fn targets(document: &Document, ratio: f64) -> Vec<Target> {
    let mut targets: Vec<Target> = document
        .rows
        .iter()
        .filter(|r| r.metric == "round trip")
        .filter_map(|r| r.deviation().map(|d| (r, d)))
        .map(|(r, d)| Target {
            what: format!("{}, {}: within 10 % of the published time", r.policy, r.workload),
            seen: format!("{d:+.1} %"),
            passed: d.abs() <= 10.0,
        })
        .collect();
    targets.push(Target {
        what: "untagged misses at least 15 times tagged ones".to_owned(),
        seen: format!("{ratio:.0} times"),
        passed: ratio >= 15.0,
    });
    targets
}

//! Requests and responses over one network card behind an IOMMU, and reads from drives behind one,
//! from 1 to 64 CPUs.
//!
//! 200 connections, each with one small request under way at a time. A request costs the driver a
//! buffer unmapped and another one mapped and posted, the answer a page mapped and, when it has
//! left, unmapped: two of each. So the rate of transactions shows what mapping costs, and whether
//! it scales. It is compared with the same machine without an IOMMU (`off`).
//!
//! - `one lock`: mapping as it was in 2015 ([`stock`]): a node for each mapping in one tree, one
//!   lock, held while the IOMMU works.
//! - `magazines`, `identity`: the library's domain, under *strict*, *strict-ish* and *lazy*; the
//!   rings of all CPUs lie in one page of 2 MiB, which is mapped once.
//! - `rings apart`: the same under *strict-ish*, with each ring in a page of its own, as in all
//!   designs besides. Two for each CPU are more than an IOTLB has entries, if there are many.
//! - `static 1:1`: all of memory is mapped once, in leaves of 4 KiB, 2 MiB or 1 GiB, and there is
//!   no protection.
//!
//! With one connection, where nothing overlaps, it is the length of a transaction that is compared.
//! Drives are read at random places, 4 and 128 KiB at a time, by each CPU as many as its queue
//! takes ([`reads`]); a read costs one mapping.
//!
//! Two more tables: what an invalidation takes alone, and what a device gets to if it goes on using
//! addresses that it was given once, every 200 ns one of them (the oracle stops the run if that is
//! more than the policy allows).
//!
//! The library's code runs on the machine's CPUs; page tables, queue and references are in its
//! memory, and the IOMMU reads them there ([`shootdown_machine::io`]). Costs are the profile's;
//! only what an invalidation takes alone is fitted to a figure (`iommu.pages`), which is the row of
//! that name. All others are predictions.

mod design;
mod drive;
mod net;
mod reads;
mod stock;
mod tree;
mod work;

use shootdown_machine::profile::DeviceCosts;
use shootdown_machine::shootdown_dma::Policy;
use shootdown_machine::shootdown_dma::iova::identity::LeafSize;
use shootdown_machine::{Profile, Time};

use self::design::{Contestant, Design};
use self::work::{Job, Ran, Run};
use super::run::count;
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Rr;

const MACHINE: &str = "haswell-4s-96";
const WORKLOAD: &str = "request and response";
const CPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const RATE: &str = "transactions";
const SHARE: &str = "of off";
const ONE: &str = "one connection";
const ALONE: &str = "one page after the other";
const HOSTILE: &str = "hostile card";
const HOSTILE_DRIVE: &str = "hostile drive";
const UNMAPPED: &str = "to what was unmapped";
const RECYCLED: &str = "to what was recycled";
const LONGEST: &str = "longest after unmapping";
/// Nanoseconds from one try of the hostile device to the next.
const TRY_NS: u64 = 200;
/// The busy card.
const NET: Job = Job::Net { connections: 200 };
/// Transactions of each CPU before the clock starts. Until magazines are full all CPUs take
/// addresses from the tree one by one; with 64 of them that is most of what a quick run measures.
const fn warm(quick: bool) -> u64 {
    if quick { 600 } else { 2500 }
}

impl Experiment for Rr {
    fn name(&self) -> &'static str {
        "rr"
    }

    fn line(&self) -> &'static str {
        "200 connections over one network card, and reads from drives, 1 to 64 CPUs: mapping designs and policies against no IOMMU"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Cpus])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let costs = profile.devices().ok_or_else(|| {
            LabError::bad(format!("`{}` states no devices; try {MACHINE}", profile.name))
        })?;
        let mut cpus = CPUS.to_vec();
        if let Some(most) = request.cpus {
            let most = machines::check_cpus(most, 1)?;
            cpus.retain(|n| *n < most);
            cpus.push(most);
        }
        if request.quick {
            cpus.retain(|n| [1, 8].contains(n) || request.cpus == Some(*n));
        }
        let progress = Progress::new("rr", (cpus.len() * contestants().len()) as u64);
        let mut document = Document::new("rr", &profile.name, request.seed);
        for n in cpus.iter().copied() {
            let mut off = None;
            for contestant in contestants() {
                progress.at(format!("{n} CPUs, {}", contestant.name()));
                let ran = run(&profile, costs, contestant, n, request)?;
                let off = *off.get_or_insert(ran.rate);
                rows(&mut document, contestant, n, &ran, off);
                progress.step();
            }
        }
        one_connection(&profile, costs, request, &mut document)?;
        alone(&profile, costs, request.seed, &mut document)?;
        for (workload, job) in [(HOSTILE, NET), (HOSTILE_DRIVE, Job::Drive { pages: 1 })] {
            turned(&profile, costs, request, (workload, job), &mut document)?;
        }
        reads::table(&profile, costs, request, &cpus, &mut document)?;
        let targets = if request.is_own() { targets(&document, &cpus) } else { Vec::new() };
        Ok(Findings { documents: vec![document], targets })
    }
}

/// All that are compared; without an IOMMU first.
fn contestants() -> Vec<Contestant> {
    let mut all = vec![Contestant::new(Design::Off, Policy::Lazy)];
    for policy in [Policy::Strict, Policy::Lazy] {
        all.push(Contestant::new(Design::OneLock, policy));
    }
    for design in GOOD {
        for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
            all.push(Contestant::new(design, policy));
        }
    }
    all.extend(GOOD.map(apart));
    for leaves in LeafSize::ALL {
        all.push(Contestant::new(Design::Window(leaves), Policy::Bypass));
    }
    all
}

/// The library's designs.
const GOOD: [Design; 2] = [Design::Magazines, Design::Identity];

/// A design under strict-ish, with each ring in a page of its own.
fn apart(design: Design) -> Contestant {
    Contestant { apart: true, ..Contestant::new(design, Policy::Deferred) }
}

fn run(
    profile: &Profile,
    costs: DeviceCosts,
    contestant: Contestant,
    cpus: u32,
    request: &Request,
) -> Result<Ran, LabError> {
    let warm = u64::from(cpus) * warm(request.quick);
    let counted = u64::from(cpus) * if request.quick { 100 } else { 500 };
    let transactions = [warm, counted.max(if request.quick { 500 } else { 4000 })];
    let hostile = None;
    let seed = request.seed;
    Run { profile, costs, contestant, cpus, job: NET, transactions, hostile, seed }.run()
}

fn rows(document: &mut Document, contestant: Contestant, cpus: u32, ran: &Ran, off: f64) {
    let name = contestant.name();
    let row = |metric, unit, value| Row::new(&name, WORKLOAD, cpus, metric, unit, value);
    document.push(row(RATE, "1/s", ran.rate));
    document.push(row("idle", "% of time", 100.0 * ran.idle));
    if contestant.design == Design::Off {
        return;
    }
    let share = row(SHARE, "%", 100.0 * ran.rate / off);
    let is_published = cpus == 16
        && contestant.policy == Policy::Lazy
        && matches!(contestant.design, Design::Magazines | Design::Identity);
    document.push(if is_published {
        share.published(88.5, "Peleg and others, ATC 2015: 88.5 to 100 % on 16 cores, deferred")
    } else {
        share
    });
    let packets = count(ran.nic.received + ran.nic.sent);
    document.push(row("IOTLB misses", "per packet", count(ran.iommu.misses) / packets));
    document.push(row("commands", "per packet", count(ran.iommu.commands) / packets));
    if contestant.design == Design::OneLock {
        document.push(row("nodes of the tree", "nodes", count(ran.nodes as u64)));
    }
}

/// One CPU and one connection, where nothing overlaps: what each design makes a transaction longer
/// by.
fn one_connection(
    profile: &Profile,
    costs: DeviceCosts,
    request: &Request,
    document: &mut Document,
) -> Result<(), LabError> {
    let mut off = None;
    for contestant in contestants() {
        let transactions = [warm(request.quick), if request.quick { 500 } else { 4000 }];
        let (cpus, job) = (1, Job::Net { connections: 1 });
        let (hostile, seed) = (None, request.seed);
        let run = Run { profile, costs, contestant, cpus, job, transactions, hostile, seed };
        let ran = run.run()?;
        let off = *off.get_or_insert(ran.rate);
        let name = contestant.name();
        let row = |metric, unit, value| Row::new(&name, ONE, 1, metric, unit, value);
        document.push(row("transaction", "us", 1e6 / ran.rate));
        if contestant.design != Design::Off {
            document.push(row("longer than off", "%", 100.0 * (off / ran.rate - 1.0)));
            let packets = count(ran.nic.received + ran.nic.sent);
            document.push(row("IOTLB misses", "per packet", count(ran.iommu.misses) / packets));
        }
    }
    Ok(())
}

/// One CPU unmaps page after page, each waited for: what an invalidation takes when nobody is in
/// its way.
fn alone(
    profile: &Profile,
    costs: DeviceCosts,
    seed: u64,
    document: &mut Document,
) -> Result<(), LabError> {
    let ns = net::invalidation(profile, costs, seed)?;
    let row = Row::new("magazines, strict", ALONE, 1, "invalidation", "ns", ns);
    document.push(row.published(686.0, "rIOMMU, ASPLOS 2015, table 1: 2127 cycles at 3.1 GHz"));
    Ok(())
}

/// The device turned hostile: what it gets to under each policy.
fn turned(
    profile: &Profile,
    costs: DeviceCosts,
    request: &Request,
    (workload, job): (&'static str, Job),
    document: &mut Document,
) -> Result<(), LabError> {
    let cpus = 4;
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        for design in GOOD {
            let contestant = Contestant::new(design, policy);
            let counted = if request.quick { 1_000 } else { 20_000 };
            let transactions = [u64::from(cpus) * warm(request.quick), counted];
            let hostile = Some(Time::from_ns(TRY_NS));
            let seed = request.seed;
            let run = Run { profile, costs, contestant, cpus, job, transactions, hostile, seed };
            let ran = run.run()?;
            let name = contestant.name();
            let all = count(ran.hostile.tries);
            let longest = ran.hostile.longest.map_or(0.0, Time::us);
            for (metric, unit, value) in [
                ("tries", "tries", all),
                ("refused", "% of tries", 100.0 * count(ran.hostile.refused) / all),
                ("to what was mapped", "% of tries", 100.0 * count(ran.hostile.mapped) / all),
                (UNMAPPED, "tries", count(ran.hostile.unmapped)),
                (RECYCLED, "tries", count(ran.hostile.recycled)),
                (LONGEST, "us", longest),
            ] {
                document.push(Row::new(&name, workload, cpus, metric, unit, value));
            }
        }
    }
    Ok(())
}

fn target(what: &str, seen: String, passed: bool) -> Target {
    Target { what: what.to_owned(), seen, passed }
}

/// The least share over all CPU counts, and where.
fn least(document: &Document, name: &str, cpus: &[u32]) -> (f64, u32) {
    let shares = cpus.iter().filter_map(|n| Some((document.value(name, WORKLOAD, *n, SHARE)?, *n)));
    shares.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0))
}

fn targets(document: &Document, cpus: &[u32]) -> Vec<Target> {
    let name = |design, policy| Contestant::new(design, policy).name();
    let mut all = Vec::new();
    for contestant in GOOD.map(|design| Contestant::new(design, Policy::Deferred)) {
        let name = contestant.name();
        let (share, at) = least(document, &name, cpus);
        let what = format!("{name}: at least 95 % of off with any number of CPUs");
        all.push(target(&what, format!("{share:.1} % with {at}"), share >= 95.0));
    }
    for leaves in [LeafSize::Large, LeafSize::Huge] {
        let name = name(Design::Window(leaves), Policy::Bypass);
        let (share, at) = least(document, &name, cpus);
        let what = format!("{name}: within 1 % of off");
        all.push(target(&what, format!("{share:.1} % with {at}"), share >= 99.0));
    }
    // With a few CPUs nothing waits for the card, so that what follows is not to be seen.
    if let Some(most) = cpus.last().filter(|most| **most >= 32) {
        let [small, large] = [LeafSize::Page, LeafSize::Large]
            .map(|leaves| least(document, &name(Design::Window(leaves), Policy::Bypass), cpus).0);
        all.push(target(
            "static 1:1: leaves of 4K are slower than those of 2M somewhere, by 2 % or more",
            format!("{small:.1} against {large:.1} %"),
            small <= large - 2.0,
        ));
        let stock = name(Design::OneLock, Policy::Lazy);
        let rates = |n: u32| document.value(&stock, WORKLOAD, n, RATE).unwrap_or(0.0);
        let (few, most) = (rates(8), rates(*most));
        all.push(target(
            "one lock, lazy: no more transactions with all CPUs than with eight",
            format!("{most:.0} against {few:.0} a second"),
            most <= few,
        ));
    }
    let got = |policy, metric| -> f64 {
        let all = GOOD.iter().flat_map(|d| [HOSTILE, HOSTILE_DRIVE].map(|w| (name(*d, policy), w)));
        all.filter_map(|(name, workload)| document.value(&name, workload, 4, metric)).sum()
    };
    let strict = got(Policy::Strict, UNMAPPED) + got(Policy::Strict, RECYCLED);
    all.push(target(
        "strict: a hostile device gets to nothing that was unmapped",
        format!("{strict} times"),
        strict == 0.0,
    ));
    let held = got(Policy::Deferred, RECYCLED);
    all.push(target(
        "strict-ish: a hostile device gets to nothing that was recycled",
        format!("{held} times, and {} times to what was held", got(Policy::Deferred, UNMAPPED)),
        held == 0.0,
    ));
    all
}

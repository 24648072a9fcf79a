//! Reclaim of mapped pages on four sockets: interrupts for each page, by the size of a batch.
//!
//! Four processes map the same file, each with a thread on a quarter of the CPUs of every socket,
//! and read its pages in an order of chance. One CPU of each socket reclaims: page after page of
//! its quarter of the file, it clears the entries of all four processes, and has the CPUs told that
//! may have cached them: for every entry by itself, or once in so many pages. What is read again is
//! mapped again.
//!
//! Published is a ratio: with 900 thousand interrupts a second before batches and 60 thousand with
//! them (Gorman 2015, four sockets; reclaim there frees up to 32 pages at a time, and not every
//! batch is full). Nothing here is fitted to it, and the rows are predictions; a rate depends on
//! how fast pages come in and go out, which is not that machine's here. The ratio of interrupts for
//! each page is what can be compared.
//!
//! Not in the model: the list of pages, reverse mappings and their locks, reading and writing
//! files; each process has a frame of its own for each page, where in the real thing they share
//! one, so that what a page costs besides is overstated.

use shootdown::policy::Policy;
use shootdown_machine::{Cpu, Profile, Space, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Reclaim;

const MACHINE: &str = "haswell-4s-96";
const WORKLOAD: &str = "four processes read a file";
const SOURCE: &str = "Gorman 2015, lkml 1504.3/00355";
/// 900 thousand interrupts a second to 60 thousand.
const PUBLISHED_RATIO: f64 = 900.0 / 60.0;
/// Pages that reclaim takes at a time in the published kernel, at most (SWAP_CLUSTER_MAX).
const CLUSTER: usize = 32;

const PROCESSES: u32 = 4;
/// Reclaiming CPUs, and parts of the file.
const RECLAIMERS: u32 = 4;
/// Pages of a part: the largest batch, twice.
const PART: u64 = 1024;
const PAGE: u64 = 4096;
const BASE: u64 = 1 << 30;
/// User code between two reads, up to this.
const THINK_NS: u64 = 400;
/// What reclaim does besides for each entry that it clears, *assumed*: looking at the page, and who
/// maps it.
const LOOK: Time = Time::from_ns(125);
/// Measuring begins here.
const START: Time = Time::from_us(2_000);

/// How the CPUs are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Of every entry by itself.
    Singly,
    /// Once in so many pages.
    Batch(usize),
}

impl Told {
    fn workload(self) -> String {
        match self {
            Self::Singly => format!("{WORKLOAD}, each entry by itself"),
            Self::Batch(1) => format!("{WORKLOAD}, batches of 1 page"),
            Self::Batch(pages) => format!("{WORKLOAD}, batches of {pages} pages"),
        }
    }
}

impl Experiment for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn line(&self) -> &'static str {
        "reclaim of pages that four processes map: interrupts for each page, batches of 1 to 512"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let cpus = profile.topology.cpus.count();
        if cpus < RECLAIMERS + PROCESSES {
            let name = &profile.name;
            return Err(LabError::bad(format!("`{name}` has {cpus} CPUs; `reclaim` needs eight")));
        }
        let variants = match request.runnable(self.name())? {
            Some(chosen) => chosen,
            None => vec![("linux-5.13", Policy::LINUX_5_13), ("shootdown", Policy::SHOOTDOWN)],
        };
        let mut ways = vec![Told::Singly];
        ways.extend((0..10).map(|log| Told::Batch(1 << log)));
        if request.quick {
            ways.retain(|way| [Told::Singly, Told::Batch(1), Told::Batch(CLUSTER)].contains(way));
        }
        let window = Time::from_us(if request.quick { 1_000 } else { 4_000 });
        let progress = Progress::new("reclaim", (ways.len() * variants.len()) as u64);
        let mut document = Document::new("reclaim", &profile.name, request.seed);
        let mut targets = Vec::new();
        for (label, policy) in &variants {
            let mut singly = None;
            for told in &ways {
                progress.at(format!("{label}, {}", told.workload()));
                let run = Run { profile: &profile, policy: *policy, cpus, told: *told, window };
                let interrupts = run.rows(request.seed, label, &mut document)?;
                let before = *singly.get_or_insert(interrupts);
                let ratio = run.row(label, "interrupts saved", "times", before / interrupts);
                let ratio = match told {
                    Told::Batch(CLUSTER) => ratio.published(PUBLISHED_RATIO, SOURCE),
                    _ => ratio,
                };
                document.push(ratio);
                if *told == Told::Batch(CLUSTER) && request.is_own() {
                    targets.push(Target {
                        what: format!(
                            "{label}: batches of {CLUSTER} save at least the published 15 times"
                        ),
                        seen: format!("{:.1} times", before / interrupts),
                        passed: before / interrupts >= PUBLISHED_RATIO,
                    });
                }
                progress.step();
            }
        }
        Ok(Findings { documents: vec![document], targets })
    }
}

struct Run<'a> {
    profile: &'a Profile,
    policy: Policy,
    cpus: u32,
    told: Told,
    window: Time,
}

/// What the reclaiming CPUs did.
#[derive(Clone, Copy, Default)]
struct Ran {
    /// Entries that they cleared.
    cleared: u64,
    /// Pages that they took.
    pages: u64,
    /// Interrupts that they sent.
    sent: u64,
    /// The time that all of them took together.
    took: Time,
    /// How many are at it.
    busy: u32,
}

impl Run<'_> {
    fn row(&self, label: &str, metric: &'static str, unit: &'static str, value: f64) -> Row {
        Row::new(label, &self.told.workload(), self.cpus, metric, unit, value)
    }

    /// Interrupts for each reclaimed page.
    fn rows(&self, seed: u64, label: &str, document: &mut Document) -> Result<f64, LabError> {
        let Ran { cleared, pages, sent, took, .. } = self.run(seed)?;
        let (pages, sent) = (count(pages), count(sent));
        let seconds = took.us() / 1e6 / f64::from(RECLAIMERS);
        document.push(self.row(label, "interrupts", "per page", sent / pages));
        document.push(self.row(label, "interrupts", "1/s", sent / seconds));
        document.push(self.row(label, "reclaimed pages", "1/s", pages / seconds));
        document.push(self.row(label, "entries cleared", "per page", count(cleared) / pages));
        Ok(sent / pages)
    }

    fn run(&self, seed: u64) -> Result<Ran, LabError> {
        let mut machine = Setup::new(self.profile, self.policy, seed).build()?;
        let spaces: Vec<Space> = (0..PROCESSES).map(|_| machine.new_space()).collect();
        let ran = Note::new(Ran { busy: RECLAIMERS, ..Ran::default() });
        let end = START + self.window;
        let per_reclaimer = self.cpus / RECLAIMERS;
        let mut threads = 0;
        for cpu in 0..self.cpus {
            let ran = ran.clone();
            if cpu % per_reclaimer == 0 && cpu / per_reclaimer < RECLAIMERS {
                let (spaces, told, part) = (spaces.clone(), self.told, cpu / per_reclaimer);
                spawn(&mut machine, cpu, move |c| {
                    c.idle_until(START);
                    let sent = |c: &Cpu| c.outcome_so_far().cpus[cpu as usize].interrupts.sent;
                    let before = sent(c);
                    let (cleared, pages) = reclaims(c, &spaces, told, part, end);
                    let all = ran.get();
                    ran.set(Ran {
                        cleared: all.cleared + cleared,
                        pages: all.pages + pages,
                        sent: all.sent + sent(c) - before,
                        took: all.took + (c.now() - START),
                        busy: all.busy - 1,
                    });
                })?;
            } else {
                let space = spaces[(threads % PROCESSES) as usize];
                let maps = threads < PROCESSES;
                threads += 1;
                spawn(&mut machine, cpu, move |c| reads(c, space, maps, seed, &ran))?;
            }
        }
        finish(machine)?;
        Ok(ran.get())
    }
}

/// A thread reads pages of the file, for as long as any are reclaimed.
fn reads(c: &mut Cpu, space: Space, maps: bool, seed: u64, ran: &Note<Ran>) {
    let all = PART * u64::from(RECLAIMERS);
    c.kernel(|k| k.switch_to(Some(space)));
    if maps {
        c.syscall(|k| k.map_at(BASE, all, Stride::Page4K));
    }
    c.idle_until(Time::from_us(500));
    let stream = seed ^ u64::from(c.id().0) << 32;
    let mut turn = 0;
    while ran.get().busy > 0 {
        let chance = chance(stream, turn);
        turn += 1;
        c.compute(Time::from_ns(chance % THINK_NS));
        c.read(BASE + (chance >> 32) % all * PAGE);
    }
}

/// A CPU reclaims pages of its part of the file, until it is time; says how many entries and pages
/// that were.
fn reclaims(c: &mut Cpu, spaces: &[Space], told: Told, part: u32, end: Time) -> (u64, u64) {
    let first = BASE + u64::from(part) * PART * PAGE;
    let batch = match told {
        Told::Singly => 1,
        Told::Batch(pages) => pages as u64,
    };
    let (mut cleared, mut pages) = (0, 0);
    while c.now() < end {
        let mappings: Vec<(Space, u64)> = (pages..pages + batch)
            .map(|page| first + page % PART * PAGE)
            .flat_map(|page| spaces.iter().map(move |space| (*space, page)))
            .collect();
        let together = if told == Told::Singly { 1 } else { mappings.len() };
        cleared +=
            c.kernel(|k| mappings.chunks(together).map(|part| k.reclaim(part, LOOK)).sum::<u64>());
        pages += batch;
    }
    (cleared, pages)
}

//! What a replay prints.

use shootdown_machine::{Outcome, Profile, Time};

use super::{Recorded, Replayed};
use crate::bound;
use crate::names::{Named, POLICIES};
use crate::output::{Document, Row};
use crate::recording::model::Extent;
use crate::recording::timeline::{Act, Runs, Timeline};

/// The policy a recording of today's Linux is held against.
pub const NEAREST: &str = "linux-5.13";
/// Metric of the prediction.
pub const PREDICTED: &str = "remote flushes, predicted";
/// Where its other column comes from.
pub const SOURCE: &str = "the recording itself: CPUs the recorded kernel asked to flush, each time";

/// The same, compared with what was not asked in vain.
pub const PREDICTED_WITHOUT_VAIN: &str = "the same, in-vain requests left out";
/// Where its other column comes from.
pub const SOURCE_WITHOUT_VAIN: &str = "as [1], less those that found a CPU without the space (Linux clears its CPU sets lazily since 6.14)";

/// The policies replayed when none is named.
pub const DEFAULT: [&str; 4] = ["naive", "linux-4.14", NEAREST, "shootdown"];

/// The policy [`NEAREST`] names.
///
/// # Panics
/// Never: it is one of [`POLICIES`].
#[must_use]
pub fn nearest() -> Named {
    *POLICIES.iter().find(|named| named.name == NEAREST).expect("it is listed")
}

/// A document being filled.
#[derive(Debug)]
pub struct Report {
    /// The rows so far.
    pub document: Document,
    workload: String,
    cpus: u32,
}

#[expect(clippy::cast_precision_loss, reason = "figures are far below 2^52")]
const fn figure(count: u64) -> f64 {
    count as f64
}

impl Report {
    /// For this workload on this machine.
    #[must_use]
    pub fn new(machine: &str, workload: &str, cpus: u32, seed: u64) -> Self {
        let document = Document::new("replay", machine, seed);
        Self { document, workload: workload.to_owned(), cpus }
    }

    fn push(&mut self, policy: &str, metric: &str, unit: &str, value: f64) {
        self.document.push(Row::new(policy, &self.workload, self.cpus, metric, unit, value));
    }

    /// What a policy did.
    pub fn policy(&mut self, name: &str, replayed: &Replayed) {
        let total = replayed.outcome.total();
        let kinds = total.invalidations;
        let counts = [
            ("interrupts for flushes", "interrupts", replayed.interrupts()),
            ("invalidations of pages", "operations", kinds.pages + kinds.pages_other_tag),
            ("invalidations of tags", "operations", kinds.tags),
            ("invalidations of everything", "operations", kinds.everything),
            ("switches that flushed", "loads", kinds.loads_flushed),
            ("switches that kept", "loads", kinds.loads_kept),
            ("TLB misses", "walks", total.tlb.walks),
        ];
        for (metric, unit, value) in counts {
            self.push(name, metric, unit, figure(value));
        }
        self.times(name, total.time.waiting, total.time.stolen);
        self.push(name, "total", "us", replayed.spent().us());
    }

    fn times(&mut self, name: &str, wait: Time, stolen: Time) {
        self.push(name, "initiator wait", "us", wait.us());
        self.push(name, "stolen from responders", "us", stolen.us());
    }

    /// What the bound gives for the same flushes in the same schedule.
    pub fn omniscient(&mut self, timeline: &Timeline, profile: &Profile) {
        let (costs, topology) = (profile.costs(false), profile.topology(self.cpus));
        let ceiling = u64::from(profile.facts.ceiling.count());
        let mut runs = vec![Runs::Idle; self.cpus as usize];
        let (mut interrupts, mut wait, mut stolen) = (0, Time::ZERO, Time::ZERO);
        for step in &timeline.steps {
            match step.act {
                Act::Run(what) => runs[usize::from(step.cpu.0)] = what,
                Act::Flush { space, extent, .. } => {
                    let own = u32::from(step.cpu.0);
                    let targets: Vec<u32> = (0..)
                        .zip(&runs)
                        .filter(|(cpu, runs)| *cpu != own && runs.space() == Some(space))
                        .map(|(cpu, _)| cpu)
                        .collect();
                    let pages = match extent {
                        Extent::Pages(pages) => pages,
                        Extent::Everything => ceiling + 1,
                    };
                    interrupts += targets.len() as u64;
                    let bound = bound::flush(&costs, &topology, own, targets, pages, ceiling);
                    wait += bound.latency - bound::invalidation(&costs, pages, ceiling);
                    stolen += bound.stolen;
                }
                _ => {}
            }
        }
        self.push("omniscient", "interrupts for flushes", "interrupts", figure(interrupts));
        self.times("omniscient", wait, stolen);
    }

    /// How far the prediction is from the recording. What the recorded kernel asked in vain is a property
    /// of that kernel, not of the program, so the comparison is made with and without it.
    pub fn prediction(&mut self, recorded: &Recorded, outcome: &Outcome) {
        let predicted = figure(outcome.total().library.kicks_sent);
        let truth = recorded.timeline.truth;
        let mut push = |metric: &str, count: u64, source: &str| {
            let row = Row::new(NEAREST, &self.workload, self.cpus, metric, "requests", predicted);
            self.document.push(row.published(figure(count), source));
        };
        push(PREDICTED, truth.remote_flushes, SOURCE);
        if truth.in_vain > 0 {
            let count = truth.remote_flushes - truth.in_vain;
            push(PREDICTED_WITHOUT_VAIN, count, SOURCE_WITHOUT_VAIN);
        }
    }
}

//! What a replay prints.

use shootdown_machine::{Outcome, Profile, Time};

use super::{Recorded, Replayed};
use crate::bound;
use crate::names::{Named, POLICIES};
use crate::output::{Document, Row};
use crate::recording::model::Extent;
use crate::recording::timeline::{Act, Runs, Timeline};

/// The policy a recording of today's Linux is held against.
pub const NEAREST: &str = "linux-6.15";
/// Metric of the prediction.
pub const PREDICTED: &str = "remote flushes, predicted";
/// Where its other column comes from.
pub const SOURCE: &str = "the recording itself: CPUs the recorded kernel asked to flush, each time";

/// The first, and what the schedule says that tracing adds by making switches longer.
pub const WITH_TRACER: &str = "predicted, and switches traced";

/// Metric of all the time that keeping TLBs coherent took.
const TOTAL: &str = "total";

/// What decides between policies; the rest explains it.
const LEADS: &[&str] = &[
    "interrupts for flushes",
    "TLB misses",
    "initiator wait",
    "responder CPU time",
    "flushes that were broadcast",
    "taken from bystanders",
    TOTAL,
    PREDICTED,
];

/// The policies replayed when none is named.
pub const DEFAULT: [&str; 4] = ["naive", "linux-4.14", NEAREST, "shootdown"];

/// The same, on a machine whose hardware broadcasts by machine-wide tags.
pub const DEFAULT_BROADCAST: [&str; 4] = ["arm64-mainline", "sticky", "active", "trim"];

/// The policies replayed on this machine when none is named.
#[must_use]
pub fn default_for(profile: &Profile) -> [&'static str; 4] {
    if broadcasts(profile) { DEFAULT_BROADCAST } else { DEFAULT }
}

fn broadcasts(profile: &Profile) -> bool {
    profile.broadcast.is_some() && profile.has_system_tags()
}

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
    /// The machine has hardware that broadcasts by machine-wide tags.
    broadcasts: bool,
}

#[expect(clippy::cast_precision_loss, reason = "figures are far below 2^52")]
const fn figure(count: u64) -> f64 {
    count as f64
}

impl Report {
    /// For this workload on this machine.
    #[must_use]
    pub fn new(profile: &Profile, workload: &str, cpus: u32, seed: u64) -> Self {
        let mut document = Document::new("replay", &profile.name, seed);
        document.lead(LEADS);
        let broadcasts = broadcasts(profile);
        Self { document, workload: workload.to_owned(), cpus, broadcasts }
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
        if self.broadcasts {
            let library = total.library;
            for (metric, value) in [
                ("flushes that needed nothing", library.invalidations_none),
                ("flushes that stayed local", library.invalidations_local),
                ("flushes that were broadcast", library.invalidations_broadcast),
            ] {
                self.push(name, metric, "flushes", figure(value));
            }
            self.push(name, "broadcast operations", "operations", figure(kinds.broadcast));
            self.push(name, "taken from bystanders", "us", total.fabric.taxed.us());
        }
        self.times(name, total.time.waiting, total.time.responder);
        self.push(name, TOTAL, "us", replayed.spent().us());
    }

    fn times(&mut self, name: &str, wait: Time, responder: Time) {
        self.push(name, "initiator wait", "us", wait.us());
        self.push(name, "responder CPU time", "us", responder.us());
    }

    /// The result in a sentence: what the best policy saves, and how well the recording was
    /// reproduced. None where only one policy was replayed and nothing is known of the recording.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let rows = || self.document.rows.iter();
        let totals: Vec<(&str, f64)> = rows()
            .filter(|row| row.metric == TOTAL)
            .map(|row| (row.policy.as_str(), row.value))
            .collect();
        let mut words = Vec::new();
        if let Some((best, least)) = totals.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)) {
            let others = totals.iter().filter(|(name, total)| *name != best && *total > 0.0);
            let saved: Vec<String> = others
                .map(|(name, total)| {
                    format!("{:.0} % less than {name}", (1.0 - least / total) * 100.0)
                })
                .collect();
            if !saved.is_empty() {
                words.push(format!("{best} takes the least time: {}", saved.join(", ")));
            }
        }
        if let Some(off) = rows().find(|row| row.metric == PREDICTED).and_then(Row::deviation) {
            words.push(format!(
                "under {NEAREST} the recorded number of remote flushes is reproduced to {off:+.1} %"
            ));
        }
        (!words.is_empty()).then(|| format!("{}.", words.join("; ")))
    }

    /// What the bound gives for the same flushes in the same schedule.
    pub fn omniscient(&mut self, timeline: &Timeline, profile: &Profile) {
        let (costs, topology) = (profile.costs(false), profile.topology(self.cpus));
        let ceiling = u64::from(profile.facts.ceiling.count());
        let mut runs = vec![Runs::Idle; self.cpus as usize];
        let (mut interrupts, mut wait, mut responder) = (0, Time::ZERO, Time::ZERO);
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
                    let told = !targets.is_empty();
                    let bound = bound::flush(&costs, &topology, own, targets, pages, ceiling);
                    if told {
                        // As the machine counts it: what is left when the interrupt is sent and the
                        // own invalidation done.
                        let busy = costs.ipi_send + bound::invalidation(&costs, pages, ceiling);
                        wait += bound.latency.max(busy) - busy;
                    }
                    responder += bound.responder;
                }
                _ => {}
            }
        }
        self.push("omniscient", "interrupts for flushes", "interrupts", figure(interrupts));
        self.times("omniscient", wait, responder);
    }

    /// How far the prediction is from the recording. What the recorded kernel asked in the middle
    /// of a switch belongs mostly to the tracer, not to the program; so the comparison is made
    /// with and without it.
    pub fn prediction(&mut self, recorded: &Recorded, outcome: &Outcome) {
        let timeline = &recorded.timeline;
        let predicted = outcome.total().library.kicks_sent;
        let recorded = figure(timeline.truth.remote_flushes);
        let traced = predicted + timeline.asked_while_switching();
        for (metric, value) in [(PREDICTED, predicted), (WITH_TRACER, traced)] {
            let row =
                Row::new(NEAREST, &self.workload, self.cpus, metric, "requests", figure(value));
            self.document.push(row.published(recorded, SOURCE));
        }
    }
}

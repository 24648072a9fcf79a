//! I/O addresses: what a pair of allocation and free costs on this host, with each of this
//! project's allocators and its peers, fresh and aged; and how many records a network card's
//! start-up leaves.
//!
//! Times depend on the host ([`crate::iova`]).

use std::time::Duration;

use shootdown_dma::iova::{Allocate, Want};

use super::run::count;
use super::{Experiment, Findings, Knob, Request, Target};
use crate::LabError;
use crate::hot::Timing;
use crate::iova::contestants::{self, Contestant, Ours};
use crate::iova::{Aged, Effort, LIVE, Workload, in_batches, measure, two_locks};
use crate::output::{Document, Row};
use crate::progress::Progress;

/// See the module.
pub struct Iova;

const MIN: &str = "time of a pair, min";
const MEDIAN: &str = "time of a pair, median";

/// Pages that a card maps at start-up: ten rings of 4096 buffers.
const START_UP: usize = 40_960;

impl Experiment for Iova {
    fn name(&self) -> &'static str {
        "iova"
    }

    fn line(&self) -> &'static str {
        "I/O addresses: native nanoseconds of allocation and free on this host, against other crates"
    }

    fn machine(&self) -> &'static str {
        "native"
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Cpus])?;
        let most = request.cpus.map_or(Ok(2), |n| {
            usize::try_from(n).ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| {
                LabError::bad(format!("--cpus {n}: threads of this host, from 1 to 64"))
            })
        })?;
        let effort = if request.quick {
            Effort {
                batches: 8,
                pairs: 20_000,
                aging: 1 << 20,
                patience: Duration::from_millis(500),
            }
        } else {
            Effort {
                batches: 180,
                pairs: 1 << 16,
                aging: 100_000_000,
                patience: Duration::from_secs(10),
            }
        };
        let mut document = Document::new("iova", "native", request.seed);
        let names = contestants::all(most).len();
        let progress = Progress::new("iova", names as u64 + 2);
        progress.at("two locks");
        let floor = two_locks(effort.batches, effort.pairs);
        times(&mut document, "two locked operations", "one page, fresh", 1, floor);
        let batches = in_batches(effort.batches, effort.pairs);
        times(
            &mut document,
            "magazines (no promise), batches of 64",
            "one page, fresh",
            1,
            batches,
        );
        harness(&mut document, &effort, request.seed);
        for n in 0..names {
            // One at a time, so that no other's records are in this one's cache.
            let Some(contestant) = contestants::all(most).into_iter().nth(n) else { continue };
            progress.at(contestant.name());
            let live = if request.quick { &LIVE[..1] } else { &LIVE };
            one(&mut document, &*contestant, live, most, &effort, request.seed);
            progress.step();
        }
        progress.at("magazines, aging");
        drift(&mut document, &effort, request.seed);
        progress.step();
        progress.at("start-up of a network card");
        start_up(&mut document);
        progress.step();
        let targets = if request.is_own() { targets(&document) } else { Vec::new() };
        Ok(Findings { targets, documents: vec![document] })
    }
}

fn times(document: &mut Document, name: &str, workload: &str, threads: usize, timing: Timing) {
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    for (metric, value) in [(MIN, timing.min), (MEDIAN, timing.median)] {
        document.push(Row::new(name, workload, threads, metric, "ns", value));
    }
}

/// What measuring costs: loops, a look at the live range that is replaced, and two calls. It is in
/// every other row.
fn harness(document: &mut Document, effort: &Effort, seed: u64) {
    for live in LIVE {
        let mut state = Aged::new(&contestants::Nobody, live, 1, seed);
        for workload in Workload::ALL {
            if workload == Workload::OnePage && live != LIVE[0] {
                continue;
            }
            let timing = measure(&contestants::Nobody, workload, &mut state, 1, effort);
            times(document, HARNESS, &label(workload, live, "fresh"), 1, timing);
        }
    }
}

const HARNESS: &str = "nobody (what measuring costs)";

/// All workloads of one contestant.
fn one(
    document: &mut Document,
    contestant: &dyn Contestant,
    lives: &[usize],
    most: usize,
    effort: &Effort,
    seed: u64,
) {
    let name = contestant.name();
    for &live in lives {
        let all = |document: &mut Document, state: &mut Aged, age: &str| {
            for workload in Workload::ALL {
                // A page's pair does not look at the others much: once is enough.
                if workload == Workload::OnePage && live != LIVE[0] {
                    continue;
                }
                for threads in if most == 1 { vec![1] } else { vec![1, most] } {
                    let timing = measure(contestant, workload, state, threads, effort);
                    times(document, name, &label(workload, live, age), threads, timing);
                }
            }
        };
        let mut state = Aged::new(contestant, live, most, seed);
        all(document, &mut state, "fresh");
        let operations = if contestant.is_ours() { effort.aging } else { effort.aging / 10 };
        state.age(contestant, operations, effort.patience, || ());
        let (aging, aged) = (format!("aging, {live} live"), count(state.operations));
        document.push(Row::new(name, &aging, 1, "operations", "operations", aged));
        all(document, &mut state, "aged");
        state.end(contestant);
    }
}

/// A workload's name in rows.
fn label(workload: Workload, live: usize, age: &str) -> String {
    match workload {
        Workload::OnePage => format!("one page, {age}"),
        Workload::Mixed => format!("mixed, {live} live, {age}"),
    }
}

/// Does the cost of magazines grow with the number of operations?
fn drift(document: &mut Document, effort: &Effort, seed: u64) {
    let ours = Ours("magazines", contestants::pinned_magazines(4));
    let mut state = Aged::new(&ours, LIVE[0], 4, seed);
    let mut row = |workload: &str, metric: &str, unit: &str, value: f64| {
        document.push(Row::new("magazines", workload, 4, metric, unit, value));
    };
    // Until caches have filled.
    let patience = Duration::from_secs(600);
    state.age(&ours, effort.aging / 20, patience, || ());
    let part = Effort { batches: effort.batches * 2, ..*effort };
    let mut sample = |state: &mut Aged, age: &str| {
        let timing = measure(&ours, Workload::Mixed, state, 1, &part);
        row(age, MIN, "ns", timing.min);
        row(age, MEDIAN, "ns", timing.median);
        row(age, "nodes", "nodes", count(ours.1.inner().nodes() as u64));
        row(age, "cached", "pages", count(ours.1.cached_pages()));
        row(age, "operations", "operations", count(state.operations));
    };
    sample(&mut state, START);
    state.age(&ours, effort.aging, patience, || ());
    sample(&mut state, END);
}

const START: &str = "drift, start";
const END: &str = "drift, end";

/// A network card maps its buffers, page by page.
fn start_up(document: &mut Document) {
    let (tree, want) = (contestants::tree(), Want::pages(1));
    let before = tree.nodes();
    let mut live = Vec::with_capacity(START_UP);
    for _ in 0..START_UP {
        live.extend(want.and_then(|want| tree.alloc(0, &want).ok()));
    }
    let mut row = |workload: &str, name: &str, nodes: usize| {
        document.push(Row::new(name, workload, 1, "nodes", "nodes", count(nodes as u64)));
    };
    row("start-up of a network card", "one node per mapping", live.len() + before);
    row("start-up of a network card", "tree", tree.nodes());
    // Traffic: buffers come and go in the order of the rings, each ring at its own place.
    for n in 0..4 * START_UP {
        let (ring, at) = (n % 10, n / 10 % 4096);
        let slot = ring * 4096 + at;
        if let Some(range) = live.get_mut(slot) {
            let free = tree.free(0, *range);
            if let (Ok(()), Some(Ok(new))) = (free, want.map(|want| tree.alloc(0, &want))) {
                *range = new;
            }
        }
    }
    row("a network card after traffic", "tree", tree.nodes());
}

fn targets(document: &Document) -> Vec<Target> {
    let time =
        |who: &str, workload: &str| document.value(who, workload, 1, MIN).unwrap_or(f64::NAN);
    let mut targets = Vec::new();
    let (pair, floor) =
        (time("magazines", "one page, fresh"), time("two locked operations", "one page, fresh"));
    targets.push(Target {
        what: "a pair from magazines takes at most 12 ns".to_owned(),
        seen: format!("{pair:.1} ns, of which two locked operations are {floor:.1} ns"),
        passed: pair <= 12.0,
    });
    let peers = contestants::all(1);
    let peers = || peers.iter().filter(|c| c.is_peer()).map(|c| c.name());
    for live in LIVE {
        let mixed = label(Workload::Mixed, live, "aged");
        let ours = time("magazines", &mixed);
        if ours.is_nan() {
            continue; // not in the quick form
        }
        let best =
            peers().map(|name| (time(name, &mixed), name)).min_by(|a, b| a.0.total_cmp(&b.0));
        let harness = time(HARNESS, &label(Workload::Mixed, live, "fresh"));
        if let Some((peer, name)) = best {
            targets.push(Target {
                what: format!(
                    "aged, with {live} live ranges of mixed sizes, magazines are 20 times as fast as the best peer crate"
                ),
                seen: format!(
                    "{:.1} times: {ours:.1} ns against {peer:.1} ns of {name}, of each of which measuring costs {harness:.1} ns",
                    peer / ours
                ),
                passed: peer / ours >= 20.0,
            });
        }
    }
    let of =
        |age: &str, metric: &str| document.value("magazines", age, 4, metric).unwrap_or(f64::NAN);
    let (start, end) = (of(START, MIN), of(END, MIN));
    targets.push(Target {
        what: "magazines do not slow down with age by more than a tenth".to_owned(),
        seen: format!(
            "{end:.1} ns after {:.0} operations, {start:.1} ns at first",
            of(END, "operations")
        ),
        passed: end <= start * 1.1,
    });
    let nodes =
        document.value("tree", "start-up of a network card", 1, "nodes").unwrap_or(f64::NAN);
    targets.push(Target {
        what: "a network card's start-up leaves tens of nodes".to_owned(),
        seen: format!("{nodes:.0} nodes for {START_UP} mappings"),
        passed: nodes < 100.0,
    });
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_up_is_counted() {
        let mut document = Document::new("iova", "native", 1);
        start_up(&mut document);
        let of = |who, workload| document.value(who, workload, 1, "nodes").unwrap();
        assert!(of("tree", "start-up of a network card") < 10.0);
        assert!(of("one node per mapping", "start-up of a network card") > count(START_UP as u64));
        assert!(of("tree", "a network card after traffic") < 10.0);
    }

    #[test]
    fn drift_is_sampled_twice() {
        let mut document = Document::new("iova", "native", 1);
        let effort = Effort { batches: 1, pairs: 50, aging: 30_000, patience: Duration::ZERO };
        drift(&mut document, &effort, 1);
        let of = |age| document.value("magazines", age, 4, "operations").unwrap();
        assert!(of(END) >= of(START) + 30_000.0);
        assert!(targets(&document).iter().all(|t| !t.what.is_empty()));
    }
}

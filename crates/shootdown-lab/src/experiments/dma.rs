//! Mapping for devices: what a pair of map and unmap costs on this host, under each policy and with
//! each allocator, and how many pages of tables are left after a time.
//!
//! Times depend on the host ([`crate::dma`]), and hold the library alone: the IOMMU is done at
//! once.

use shootdown_dma::Policy;

use super::run::count;
use super::{Experiment, Findings, Request, Target};
use crate::LabError;
use crate::dma::Shape;
use crate::dma::sources::From;
use crate::hot::Timing;
use crate::output::{Document, Row};
use crate::progress::Progress;

/// See the module.
pub struct Dma;

const MIN: &str = "time, min";
const MEDIAN: &str = "time, median";
const TABLES: &str = "pages of tables after churn, of what is needed";

/// How long to measure.
#[derive(Clone, Copy)]
struct Effort {
    batches: usize,
    pairs: u32,
    churn: usize,
}

/// Pages that are mapped at a time in the churn.
const LIVE: usize = 16 << 10;

impl Experiment for Dma {
    fn name(&self) -> &'static str {
        "dma"
    }

    fn line(&self) -> &'static str {
        "mapping for devices: native nanoseconds of map and unmap, by policy and allocator"
    }

    fn machine(&self) -> &'static str {
        "native"
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[])?;
        let effort = if request.quick {
            Effort { batches: 8, pairs: 2_000, churn: 1 << 17 }
        } else {
            Effort { batches: 60, pairs: 20_000, churn: 1 << 22 }
        };
        let mut document = Document::new("dma", "native", request.seed);
        let progress = Progress::new("dma", From::cases().count() as u64 + 1);
        for (from, policy) in From::cases() {
            let label = from.label(policy);
            progress.at(&label);
            for threads in [1, 2] {
                let bench = from.bench(policy, threads);
                for shape in shapes(threads) {
                    let before = (bench.commands(), bench.domain().counts());
                    let timing = bench.measure(shape, threads, effort.batches, effort.pairs);
                    times(&mut document, &label, shape, threads, timing);
                    let commands = bench.commands() - before.0;
                    let unmaps = bench.domain().counts().unmaps - before.1.unmaps;
                    let each = count(commands) / count(unmaps);
                    let workload = shape.name();
                    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
                    let row =
                        Row::new(&label, &workload, threads, "commands", "for each unmap", each);
                    document.push(row);
                }
                bench.end();
            }
            progress.step();
        }
        progress.at("churn");
        let bench = From::Magazines.bench(Policy::Deferred, 1);
        let timing = bench.measure(Shape::Nothing, 1, effort.batches, effort.pairs);
        times(&mut document, "nobody", Shape::Nothing, 1, timing);
        bench.end();
        let bench = From::Magazines.bench(Policy::Deferred, 1);
        let (pages, needed) = bench.churn(request.seed, LIVE, effort.churn);
        bench.end();
        let label = From::Magazines.label(Policy::Deferred);
        for (metric, value) in [
            ("pages of tables after churn", count(pages as u64)),
            ("pages of tables needed", count(needed as u64)),
        ] {
            document.push(Row::new(&label, "churn", 1, metric, "pages", value));
        }
        let ratio = count(pages as u64) / count(needed as u64);
        document.push(Row::new(&label, "churn", 1, TABLES, "times", ratio));
        progress.step();
        let targets = if request.is_own() { targets(&document) } else { Vec::new() };
        Ok(Findings { targets, documents: vec![document] })
    }
}

fn shapes(threads: usize) -> Vec<Shape> {
    let mut shapes = vec![Shape::Page, Shape::Ring(256)];
    if threads == 1 {
        shapes.extend([Shape::Again, Shape::Chance, Shape::Range(256), Shape::Linked(64)]);
    }
    shapes
}

fn times(document: &mut Document, label: &str, shape: Shape, threads: usize, timing: Timing) {
    let (workload, threads) = (shape.name(), u32::try_from(threads).unwrap_or(u32::MAX));
    for (metric, value) in [(MIN, timing.min), (MEDIAN, timing.median)] {
        document.push(Row::new(label, &workload, threads, metric, "ns", value));
    }
}

fn targets(document: &Document) -> Vec<Target> {
    let mut targets = Vec::new();
    for (from, policy, shape, most) in [
        (From::Magazines, Policy::Deferred, Shape::Page, 40.0),
        (From::Magazines, Policy::Lazy, Shape::Page, 40.0),
        (From::Identity, Policy::Deferred, Shape::Page, 15.0),
        (From::Magazines, Policy::Lazy, Shape::Range(256), 2.0),
        (From::Together, Policy::Deferred, Shape::Range(256), 2.0),
    ] {
        let label = from.label(policy);
        if let Some(ns) = document.value(&label, &shape.name(), 1, MIN) {
            targets.push(Target {
                what: format!("{label}, {}: at most {most} ns", shape.name()),
                seen: format!("{ns:.1} ns"),
                passed: ns <= most,
            });
        }
    }
    if let Some(ratio) =
        document.value(&From::Magazines.label(Policy::Deferred), "churn", 1, TABLES)
    {
        targets.push(Target {
            what: "after churn at most 1.2 times the pages of tables that are needed".to_owned(),
            seen: format!("{ratio:.2}"),
            passed: ratio <= 1.2,
        });
    }
    targets
}

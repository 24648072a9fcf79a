//! What the hot paths cost: native nanoseconds on this host, and the loads, stores and fences each
//! needs.
//!
//! Times are those of the library compiled as a kernel would compile it, on hardware that does
//! nothing ([`crate::hot`]). Counts are those of the same source with traced atomics on the
//! software machine. Times depend on the host; so do those of `iova`, and no other figures of the
//! laboratory.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown_machine::{Footprint, Stride};

use super::run::{Setup, count, finish, spawn};
use super::{Experiment, Findings, Request, Target};
use crate::hot::{GATHERED, Hot as Paths, Path};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Hot;

impl Experiment for Hot {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn line(&self) -> &'static str {
        "native nanoseconds of the hot paths on this host, and the accesses and fences each needs"
    }

    fn machine(&self) -> &'static str {
        "native"
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[])?;
        let (batches, calls) = if request.quick { (20, 2_000) } else { (200, 10_000) };
        let progress = Progress::new("hot", Path::ALL.len() as u64);
        let mut document = Document::new("hot", "native", request.seed);
        let footprints = footprints(request.seed)?;
        let paths = Paths::new();
        for (path, footprint) in Path::ALL.into_iter().zip(&footprints) {
            progress.at(path.name());
            let timing = paths.measure(path, batches, calls);
            progress.step();
            let mut row = |metric, unit, value| {
                document.push(Row::new("shootdown", path.name(), 1, metric, unit, value));
            };
            row("time, min", "ns", timing.min);
            row("time, median", "ns", timing.median);
            row(LINES, "lines", count(footprint.lines as u64));
            row("lines written", "lines", count(footprint.written as u64));
            row("loads", "accesses", count(footprint.loads));
            row("stores", "accesses", count(footprint.stores));
            row("read-modify-writes", "accesses", count(footprint.rmws));
            row(FENCES, "fences", count(footprint.fences));
        }
        Ok(Findings { targets: targets(&footprints), documents: vec![document] })
    }
}

const LINES: &str = "lines touched";
const FENCES: &str = "full fences";

/// The accesses of each of [`Path::ALL`], in that order, on a machine whose CPU has done the same
/// before.
fn footprints(seed: u64) -> Result<Vec<Footprint>, LabError> {
    let profile = machines::find("skylake-laptop")?;
    let mut machine = Setup::new(&profile, Policy::SHOOTDOWN, seed).build()?;
    let (a, b) = (machine.new_space(), machine.new_space());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let said = Rc::clone(&seen);
    spawn(&mut machine, 0, move |cpu| {
        for last in [false, true] {
            let pages = cpu.kernel(|k| {
                k.switch_to(Some(b));
                k.switch_to(Some(a));
                k.map(GATHERED, Stride::Page4K)
            });
            cpu.touch(pages, GATHERED, true);
            let all = cpu.kernel(|k| {
                let same = k.footprint(|k| k.load(Some(a))).1;
                k.load(Some(b));
                let remembered = k.footprint(|k| k.load(Some(a))).1;
                let flush = k.footprint(|k| k.flush(pages, 1, false)).1;
                let gather = k.footprint(|k| k.unmap(pages, GATHERED)).1;
                [same, remembered, flush, gather]
            });
            if last {
                said.borrow_mut().extend(all);
            }
        }
    })?;
    finish(machine)?;
    Ok(seen.take())
}

fn targets(footprints: &[Footprint]) -> Vec<Target> {
    let index = Path::ALL.iter().position(|p| *p == Path::Remembered);
    let Some(switch) = index.and_then(|i| footprints.get(i)) else { return Vec::new() };
    // A read-modify-write is a full fence on x86.
    let fences = switch.fences + switch.rmws;
    vec![
        Target {
            what: "a switch to a remembered space touches at most three lines".to_owned(),
            seen: format!("{} lines", switch.lines),
            passed: (1..=3).contains(&switch.lines),
        },
        Target {
            what: "a switch to a remembered space makes at most one full fence".to_owned(),
            seen: format!("{fences} fences"),
            passed: fences <= 1,
        },
    ]
}

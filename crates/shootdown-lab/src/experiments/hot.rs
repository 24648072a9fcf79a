//! What the hot paths cost: native nanoseconds on this host, and the loads, stores and fences each needs.
//!
//! Times are those of the library compiled as a kernel would compile it, on hardware that does nothing
//! ([`crate::hot`]). Counts are those of the same source with traced atomics on the software machine.
//! Times depend on the host, and are the only figures of the laboratory that do.

use super::{Experiment, Findings, Request};
use crate::LabError;
use crate::hot::{Hot as Paths, Path};
use crate::output::{Document, Row};
use crate::progress::Progress;

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
        let paths = Paths::new();
        for path in Path::ALL {
            progress.at(path.name());
            let timing = paths.measure(path, batches, calls);
            progress.step();
            let mut row = |metric, unit, value| {
                document.push(Row::new("shootdown", path.name(), 1, metric, unit, value));
            };
            row("time, least batch", "ns", timing.least);
            row("time, middle batch", "ns", timing.middle);
        }
        Ok(Findings { documents: vec![document], targets: Vec::new() })
    }
}

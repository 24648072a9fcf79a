//! Every schedule of a small world.
//!
//! The answer is a pass only when the exploration was complete: no limit reached, no schedule cut, no
//! footprint found wrong, and every witness reached.

use std::time::Duration;

use shootdown_machine::hunt::schedule::{Limits, Reduction, exhaustive};

use super::hunted::{Hunt, Scene, Seen, named};
use super::{Check, CheckResult, Kind, Settings, Verdict};
use crate::progress::Progress;

/// A scene under all of its schedules.
pub struct Exhaustive<S> {
    /// What is hunted.
    pub scene: S,
    /// One line for the list.
    pub line: String,
    /// The bounds under which the answer holds, in words.
    pub bounds: String,
    /// Small enough for the default set.
    pub small: bool,
}

/// The longest an exploration may take: who wants more chooses a smaller world.
const LONGEST: Duration = Duration::from_secs(600);

impl<S: Scene> Check for Exhaustive<S> {
    fn name(&self) -> &str {
        self.scene.name()
    }

    fn kind(&self) -> Kind {
        Kind::Exhaustive
    }

    fn line(&self) -> &str {
        &self.line
    }

    fn by_default(&self) -> bool {
        self.small
    }

    fn scene(&self) -> Option<&dyn Scene> {
        Some(&self.scene)
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        const EXPECTED: &str = "no promise broken in any schedule";
        let hunt = Hunt::new(&self.scene, settings, None);
        let limits = Limits {
            runs: settings.runs.unwrap_or(u64::MAX),
            time: Some(LONGEST),
            ..Limits::default()
        };
        let mut seen = Seen::default();
        let mut steps = 0;
        let report = exhaustive(
            limits,
            Reduction::FULL,
            &mut |chooser| hunt.run(chooser),
            &mut |_, outcome| {
                seen.add(outcome);
                steps += outcome.steps;
            },
        );
        let mut result = if let Some(found) = &report.found {
            let mut result = CheckResult::new(EXPECTED, named(&found.outcome.end), Verdict::Fail);
            result.failure = Some(hunt.failure(&found.outcome));
            result
        } else if report.complete() {
            CheckResult::new(EXPECTED, EXPECTED, Verdict::Pass)
        } else if report.irregular > 0 {
            let observed =
                format!("UNKNOWN: {} steps touched more than they said", report.irregular);
            CheckResult::new(EXPECTED, observed, Verdict::Unknown)
        } else {
            CheckResult::new(EXPECTED, format!("UNKNOWN: {}", report.ended), Verdict::Unknown)
        };
        result.runs = report.runs;
        result.steps = Some(steps);
        result.states = Some(report.states);
        result.depth = Some(report.depth as u64);
        result.bounds = Some(self.bounds.clone());
        result.requiring(seen.of(self.scene.witnesses()))
    }
}

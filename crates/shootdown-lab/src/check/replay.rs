//! `shootdown check --replay CODE`: a failing schedule again, drawn.

use shootdown_machine::hunt::schedule::decode;

use super::adversary::{self, Adversary};
use super::code::ReplayCode;
use super::hunted::{Hunt, named};
use super::report::Entry;
use super::steps::{self, Planted};
use super::{Check, CheckResult, Failure, Settings, Verdict};
use crate::LabError;
use crate::names::unknown;

/// Replays a code.
///
/// # Errors
/// [`LabError::BadInput`] when the code can't be read, or is of a check, policy, mutant or power
/// that there is not.
pub fn replay(all: &[Box<dyn Check>], text: &str) -> Result<Entry, LabError> {
    let code: ReplayCode = text.parse().map_err(LabError::bad)?;
    let check = all
        .iter()
        .find(|c| c.name() == code.check)
        .ok_or_else(|| unknown("check", &code.check, all.iter().map(|c| c.name())))?;
    // The mutant is a step of the check's own kernel, or else one of the library.
    let broken = code.mutant.as_deref().and_then(|step| check.broken(step));
    let scene = broken.or(check.scene()).ok_or_else(|| {
        LabError::bad(format!("the check `{}` has no schedules to replay", code.check))
    })?;
    let choices = decode(&code.schedule).map_err(|e| LabError::bad(e.to_string()))?;
    let settings = Settings {
        policy: code.policy.as_deref().map(steps::policy).transpose()?,
        mutant: match code.mutant.as_deref() {
            Some(name) if broken.is_none() => Some(steps::removed(name)?),
            _ => None,
        },
        adversary: match &code.powers {
            Some(word) => Adversary::exactly(adversary::read(word)?),
            None => Adversary::default(),
        },
        ..Settings::default()
    };
    let _planted = Planted::new(settings.mutant);
    let (end, timeline) = Hunt::new(scene, &settings, code.seed).replay(&choices);
    let verdict = if end.is_failure() { Verdict::Fail } else { Verdict::Pass };
    let mut result = CheckResult::new("no promise broken", named(&end), verdict);
    result.runs = 1;
    result.seed = code.seed;
    result.failure = Some(Failure { timeline, replay: Some(code.to_string()) });
    Ok((code.check, check.kind().name(), result))
}

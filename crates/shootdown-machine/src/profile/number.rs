//! A number that says where it comes from.

use serde::Deserialize;

use crate::time::Time;

/// A figure of a profile: its value, and either the source it was taken from or the reason why it
/// was assumed. A figure with neither, or with both, is refused when the profile is read.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    value: Option<f64>,
    cycles: Option<f64>,
    source: Option<String>,
    assumed: Option<String>,
}

/// Where a figure comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin<'a> {
    /// Measured or published there.
    Source(&'a str),
    /// Nobody published it; this is why it has this value.
    Assumed(&'a str),
}

impl Number {
    /// Checks the figure itself; what is wrong with it otherwise.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match (self.value, self.cycles) {
            (Some(_), Some(_)) => return Err("has both `value` and `cycles`; keep one"),
            (None, None) => return Err("has neither `value` nor `cycles`"),
            (Some(n), None) | (None, Some(n)) if !(n.is_finite() && n >= 0.0) => {
                return Err("is negative or not a number");
            }
            _ => {}
        }
        match (&self.source, &self.assumed) {
            (Some(_), Some(_)) => Err("has both `source` and `assumed`; keep one"),
            (None, None) => Err("says neither its `source` nor why it is `assumed`"),
            _ => Ok(()),
        }
    }

    /// A figure that is assumed, and why; in nanoseconds where it is a length of time.
    #[must_use]
    pub fn assumed(value: f64, why: &str) -> Self {
        Self { value: Some(value), cycles: None, source: None, assumed: Some(why.to_owned()) }
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> Origin<'_> {
        match (&self.source, &self.assumed) {
            (Some(source), _) => Origin::Source(source),
            (None, assumed) => Origin::Assumed(assumed.as_deref().unwrap_or("")),
        }
    }

    /// The figure, in nanoseconds where it is a length of time, given the clock.
    #[must_use]
    pub fn get(&self, ghz: f64) -> f64 {
        match (self.value, self.cycles) {
            (Some(value), _) => value,
            (None, cycles) => cycles.unwrap_or(0.0) / ghz,
        }
    }

    /// The figure as a length of time.
    #[must_use]
    pub fn time(&self, ghz: f64) -> Time {
        Time::from_ns_f64(self.get(ghz))
    }

    /// The figure as a count.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked to be non-negative; saturates
    pub fn count(&self) -> u32 {
        self.value.unwrap_or(0.0).round() as u32
    }

    /// The figure without a unit; 0 where it was given in cycles.
    #[must_use]
    pub fn plain(&self) -> f64 {
        self.value.unwrap_or(0.0)
    }
}

/// A cost with the mitigations of 2018 (page-table isolation, indirect-branch barriers) and
/// without.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Without.
    pub plain: Number,
    /// With.
    pub mitigated: Number,
}

impl Pair {
    /// The one in force.
    #[must_use]
    pub fn pick(&self, mitigations: bool) -> &Number {
        if mitigations { &self.mitigated } else { &self.plain }
    }
}

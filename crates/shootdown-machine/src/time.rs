//! Virtual time: picoseconds since the machine was switched on, and lengths of time.
//!
//! Integers, so that no figure depends on the order of additions or on a host's floating point.
//! 2^64 ps are 213 days of simulated time.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A point in virtual time, or a length of it, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The beginning; no time at all.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// From picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// From nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns * 1_000)
    }

    /// From microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000_000)
    }

    /// From nanoseconds with a fraction, to the nearest picosecond; negative values count as zero.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturating by definition of `as`
    pub fn from_ns_f64(ns: f64) -> Self {
        Self((ns * 1_000.0).round() as u64)
    }

    /// In picoseconds.
    #[must_use]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// In nanoseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // for printing
    pub fn ns(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    /// In microseconds.
    #[must_use]
    pub fn us(self) -> f64 {
        self.ns() / 1_000.0
    }

    /// How long after `earlier`; zero when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Time {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<u64> for Time {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0 * n)
    }
}

impl Sum for Time {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Time {
    /// In the unit that reads best: `640 ns`, `12.90 us`, `3.104 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.ns();
        if ns < 1e3 {
            write!(f, "{ns:.0} ns")
        } else if ns < 1e6 {
            write!(f, "{:.2} us", ns / 1e3)
        } else {
            write!(f, "{:.3} ms", ns / 1e6)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_convert_and_print() {
        assert_eq!(Time::from_ns_f64(1.5).ps(), 1_500);
        assert_eq!(Time::from_us(2), Time::from_ns(2_000));
        assert_eq!(Time::from_ns(5).since(Time::from_ns(7)), Time::ZERO);
        assert_eq!(Time::from_ns(640).to_string(), "640 ns");
        assert_eq!(Time::from_ns(12_900).to_string(), "12.90 us");
        assert_eq!(Time::from_ns_f64(-1.0), Time::ZERO);
    }
}

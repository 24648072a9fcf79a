//! What every experiment on the software machine needs: a machine built as asked, run to its end,
//! and a reproducible source of chance.

use std::cell::Cell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown_machine::{Config, CpuId, Machine, Outcome, Profile, Time};

use crate::LabError;

/// A machine to build.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The profile, the mitigations, the policy and so on.
    pub config: Config,
}

impl Setup {
    /// A machine of this profile under this policy.
    #[must_use]
    pub fn new(profile: &Profile, policy: Policy, seed: u64) -> Self {
        let mut config = Config::new(profile.clone());
        config.policy = policy;
        config.seed = seed;
        Self { config }
    }

    /// With this many CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.config.cpus = Some(cpus);
        self
    }

    /// Builds the machine.
    ///
    /// # Errors
    /// [`LabError::BadInput`] when the configuration is out of range.
    pub fn build(self) -> Result<Machine, LabError> {
        Machine::new(self.config).map_err(|e| LabError::bad(e.to_string()))
    }
}

/// Gives a CPU its program.
///
/// # Errors
/// [`LabError::BadInput`] when there is no such CPU.
pub fn spawn(
    machine: &mut Machine,
    cpu: u32,
    program: impl FnOnce(&mut shootdown_machine::Cpu) + 'static,
) -> Result<(), LabError> {
    machine.spawn(CpuId(cpu), program).map_err(|e| LabError::bad(e.to_string()))
}

/// Runs a machine to its end.
///
/// # Errors
/// [`LabError::Broken`] with the oracle's timeline.
pub fn finish(machine: Machine) -> Result<Outcome, LabError> {
    machine.run().map_err(|violation| LabError::broken(violation.to_string()))
}

/// A value that programs on several CPUs share. It is the laboratory's own notebook: reading and
/// writing it takes no virtual time and touches no simulated line.
pub struct Note<T>(Rc<Cell<T>>);

impl<T> Clone for Note<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T: Copy> Note<T> {
    /// A note that says this.
    pub fn new(value: T) -> Self {
        Self(Rc::new(Cell::new(value)))
    }

    /// What it says.
    pub fn get(&self) -> T {
        self.0.get()
    }

    /// Says something else.
    pub fn set(&self, value: T) {
        self.0.set(value);
    }
}

/// The `index`-th number of the stream named `seed` (splitmix64, Steele and others 2014): a number
/// per event, whichever CPU the event falls to.
#[must_use]
pub const fn chance(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `total / count` in microseconds.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts are far below 2^52
pub fn per(total: Time, count: u64) -> f64 {
    total.us() / count as f64
}

/// A count as a figure.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts are far below 2^52
pub fn count(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::chance;

    #[test]
    fn chance_is_the_published_splitmix64() {
        // First outputs for seed 0, as in the reference implementation.
        assert_eq!(chance(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(chance(0, 1), 0x6e78_9e6a_a1b9_65f4);
    }
}

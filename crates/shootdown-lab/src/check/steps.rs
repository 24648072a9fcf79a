//! What the user asks of the libraries under test: a step that is taken out, a policy.
//!
//! There are two libraries: the core, for CPUs' translations, and that of devices. Their mutants
//! and their policies have names that tell them apart, so that one option serves both; what it asks
//! of the other library has no effect.

use shootdown::mutant::{self as core, Mutant};
use shootdown::policy::Policy;
use shootdown_machine::hunt::dma::{DmaMutant, DmaPolicy, mutant as dma};

use crate::LabError;
use crate::names::{self, Contestant, Named, POLICIES, unknown};

/// A step that one of the libraries has a switch for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// Of the core.
    Core(Mutant),
    /// Of the library of devices.
    Dma(DmaMutant),
}

impl From<Mutant> for Removed {
    fn from(mutant: Mutant) -> Self {
        Self::Core(mutant)
    }
}

impl From<DmaMutant> for Removed {
    fn from(mutant: DmaMutant) -> Self {
        Self::Dma(mutant)
    }
}

impl Removed {
    /// All of both, the core's first.
    pub fn all() -> impl Iterator<Item = Self> {
        let dma = DmaMutant::ALL.iter().copied().map(Self::Dma);
        Mutant::ALL.iter().copied().map(Self::Core).chain(dma)
    }

    /// Its name in print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.name(),
            Self::Dma(mutant) => mutant.name(),
        }
    }

    /// The step of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|step| step.name() == name)
    }

    /// What is missing, as a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.sentence(),
            Self::Dma(mutant) => mutant.sentence(),
        }
    }

    /// Where it is in the library.
    #[must_use]
    pub const fn place(self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.place(),
            Self::Dma(mutant) => mutant.place(),
        }
    }

    /// Why nothing breaks without it, if it is said that nothing does.
    #[must_use]
    pub const fn equivalent(self) -> Option<&'static str> {
        match self {
            Self::Core(mutant) => mutant.equivalent(),
            Self::Dma(mutant) => mutant.equivalent(),
        }
    }

    /// The step that is out in this thread.
    #[must_use]
    pub fn current() -> Option<Self> {
        core::current().map(Self::Core).or(dma::current().map(Self::Dma))
    }

    /// Was it come by in this thread since it was taken out?
    #[must_use]
    pub fn reached() -> bool {
        core::reached() || dma::reached()
    }
}

/// The step of that name.
///
/// # Errors
/// [`LabError::BadInput`] with the nearest names.
pub fn removed(name: &str) -> Result<Removed, LabError> {
    Removed::from_name(name)
        .ok_or_else(|| unknown("mutant", name, Removed::all().map(Removed::name)))
}

/// A step that is out in this thread as long as this lives.
#[derive(Debug)]
pub struct Planted(Option<Removed>);

impl Planted {
    /// Takes the step out, or puts all back.
    #[must_use]
    pub fn new(step: Option<Removed>) -> Self {
        let before = Removed::current();
        Self::set(step);
        Self(before)
    }

    fn set(step: Option<Removed>) {
        core::set(match step {
            Some(Removed::Core(mutant)) => Some(mutant),
            _ => None,
        });
        dma::set(match step {
            Some(Removed::Dma(mutant)) => Some(mutant),
            _ => None,
        });
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}

/// A policy of one of the libraries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// Of the core.
    Core(Named),
    /// Of the library of devices.
    Dma(DmaPolicy),
}

/// Policies of devices that can be hunted. (What bypasses the IOMMU has nothing to promise.)
pub const DMA_POLICIES: [DmaPolicy; 3] = [DmaPolicy::Strict, DmaPolicy::Deferred, DmaPolicy::Lazy];

impl Chosen {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core(named) => named.name,
            Self::Dma(policy) => policy.name(),
        }
    }
}

/// The policy of that name.
///
/// # Errors
/// [`LabError::BadInput`] with the nearest names.
pub fn policy(name: &str) -> Result<Chosen, LabError> {
    if let Some(policy) = DMA_POLICIES.into_iter().find(|p| p.name() == name) {
        return Ok(Chosen::Dma(policy));
    }
    names::policy(name).map(Chosen::Core).map_err(|_| {
        let dma = DMA_POLICIES.iter().map(|p| p.name());
        unknown("policy", name, POLICIES.iter().map(|p| p.name).chain(dma))
    })
}

/// What scenes are to run under, where the user has said it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    /// The core's policy.
    pub core: Option<Policy>,
    /// What unmapping promises of devices.
    pub dma: Option<DmaPolicy>,
}

impl From<Option<Chosen>> for Policies {
    fn from(chosen: Option<Chosen>) -> Self {
        match chosen {
            Some(Chosen::Core(Named { contestant: Contestant::Policy(policy), .. })) => {
                Self { core: Some(policy), dma: None }
            }
            Some(Chosen::Dma(policy)) => Self { core: None, dma: Some(policy) },
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_tell_the_libraries_apart() {
        let mut names = BTreeSet::new();
        for step in Removed::all() {
            assert!(names.insert(step.name()), "there are two of {}", step.name());
            assert_eq!(Removed::from_name(step.name()), Some(step));
        }
        for dma in DMA_POLICIES {
            assert!(names::policy(dma.name()).is_err(), "{dma}");
            assert_eq!(policy(dma.name()).unwrap(), Chosen::Dma(dma));
        }
    }

    #[test]
    fn a_planted_step_is_out_until_the_end() {
        let out = Removed::Dma(DmaMutant::WaitSkipped);
        assert_eq!(Removed::current(), None);
        {
            let _outer = Planted::new(Some(out));
            assert_eq!(Removed::current(), Some(out));
            let _inner = Planted::new(Some(Mutant::NoWait.into()));
            assert_eq!(Removed::current(), Some(Mutant::NoWait.into()), "one at a time");
        }
        assert_eq!(Removed::current(), None);
    }
}

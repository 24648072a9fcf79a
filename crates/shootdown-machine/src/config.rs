//! What to build and how to run it.

use shootdown::policy::Policy;

use crate::MAX_CPUS;
use crate::profile::Profile;

/// A machine and its kernel, as asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// The hardware.
    pub profile: Profile,
    /// CPUs; the profile's own number when `None`. More than the profile has adds sockets.
    pub cpus: Option<u32>,
    /// The mitigations of 2018: dearer entries, and split tables where the profile says so.
    pub mitigations: bool,
    /// Tags, where the profile has them (`false` is `nopcid`).
    pub tags: bool,
    /// Width of a tag, where the machine has them; the profile's own when `None`.
    pub tag_bits: Option<u8>,
    /// The mechanisms in force.
    pub policy: Policy,
    /// Names the run; where a program wants chance it derives it from this.
    pub seed: u64,
    /// Frames of physical memory, 4 KiB each.
    pub frames: u32,
    /// The machine is a guest whose CPUs share physical ones, where the profile has a hypervisor.
    pub host: Option<Host>,
    /// CPUs' own caches hold what the profile says (`line.own`), and the rest comes from the
    /// last-level cache. Otherwise they hold all that the library shares, which is little
    /// beside a cache as long as no devices are served.
    pub own_caches: bool,
}

/// The host of a guest: it is never idle, so that whoever does not use a turn loses it to somebody
/// else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Physical CPUs. Virtual CPU *n* belongs to physical CPU *n* modulo this; those of one take
    /// turns.
    pub physical: u32,
    /// The guest sees which virtual CPUs are preempted (`Platform::preempted`).
    pub marks: bool,
}

impl Config {
    /// The profile's machine with tags, without mitigations, under [`Policy::SHOOTDOWN`], with 1
    /// GiB.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            cpus: None,
            mitigations: false,
            tags: true,
            tag_bits: None,
            policy: Policy::SHOOTDOWN,
            seed: 1,
            frames: 1 << 18,
            host: None,
            own_caches: false,
        }
    }

    /// The number of CPUs this gives.
    ///
    /// # Errors
    /// [`MachineError::Cpus`] when it is 0 or above [`MAX_CPUS`].
    pub fn cpu_count(&self) -> Result<u32, MachineError> {
        match self.cpus.unwrap_or(self.profile.topology.cpus.count()) {
            cpus @ 1..=MAX_CPUS => Ok(cpus),
            cpus => Err(MachineError::Cpus(cpus)),
        }
    }
}

/// Why a machine can't be built, or a program can't be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The number of CPUs.
    #[error("a machine has 1 to {MAX_CPUS} CPUs, not {0}")]
    Cpus(u32),
    /// TLBs that can't be built.
    #[error("the profile's TLBs: {0}")]
    Geometry(crate::mmu::GeometryError),
    /// Facts that contradict each other.
    #[error("the profile's facts: {0}")]
    Facts(shootdown::facts::FactsError),
    /// A policy that the machine can't serve.
    #[error("the policy: {0}")]
    Policy(shootdown::PolicyError),
    /// Tags that can't work so.
    #[error("the machine's tags: {0}")]
    Tags(shootdown::tags::generations::TagsError),
    /// A guest of a profile without a hypervisor.
    #[error("the profile has no hypervisor: its CPUs are real ones, and share nothing")]
    NoHypervisor,
    /// The number of physical CPUs.
    #[error("a guest of {cpus} CPUs runs on 1 to {cpus} physical ones, not {physical}")]
    Physical {
        /// Physical CPUs asked for.
        physical: u32,
        /// Virtual CPUs.
        cpus: u32,
    },
    /// A program for a CPU that is not there.
    #[error("there is no {cpu}: the machine has {cpus} CPUs, numbered from 0")]
    NoSuchCpu {
        /// The CPU asked for.
        cpu: shootdown::ids::CpuId,
        /// How many there are.
        cpus: u32,
    },
    /// A second program for a CPU.
    #[error("{0} has a program already")]
    Occupied(shootdown::ids::CpuId),
}

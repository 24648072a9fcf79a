//! A historical bug as a small world.

use std::fmt;

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::dma::{DmaMutant, DmaProgram, Mistake};
use shootdown_machine::hunt::kernel::{KernelMutant, Program};
use shootdown_machine::hunt::{Memory, Powers, World};
use shootdown_machine::oracle::Invariant;

use crate::check::hunted::Scene;
use crate::check::steps::{Policies, Removed};

/// Everything the manuals allow, with x86's memory model.
pub(super) const TSO: Powers = Powers::HOSTILE.memory(Memory::Tso);

/// The step that was wrong, as ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A step of the kernel or of the port.
    Kernel(KernelMutant),
    /// A step of the library.
    Library(Mutant),
    /// A step of the kernel or of the port, towards the library of devices.
    KernelOfDevices(Mistake),
    /// A step of the library of devices.
    LibraryOfDevices(DmaMutant),
}

impl Step {
    /// Its name, which is also a name of the mutant's own list.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel(mutant) => mutant.name(),
            Self::Library(mutant) => mutant.name(),
            Self::KernelOfDevices(mistake) => mistake.name(),
            Self::LibraryOfDevices(mutant) => mutant.name(),
        }
    }

    /// The step, if it is one of the libraries'.
    #[must_use]
    pub const fn of_library(self) -> Option<Removed> {
        match self {
            Self::Library(mutant) => Some(Removed::Core(mutant)),
            Self::LibraryOfDevices(mutant) => Some(Removed::Dma(mutant)),
            Self::Kernel(_) | Self::KernelOfDevices(_) => None,
        }
    }

    /// Is it one of CPUs' translations? (Else of devices'.)
    #[must_use]
    pub const fn is_of_cpus(self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Library(_))
    }
}

/// What runs in a scenario: a program of the model kernel, or of the one of devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Play {
    /// CPUs' translations.
    Cpus(Program),
    /// Devices'.
    Devices(DmaProgram),
}

impl Play {
    /// Does the kernel everything right?
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        match self {
            Self::Cpus(program) => program.config.mutant.is_none(),
            Self::Devices(program) => program.config.mistake.is_none(),
        }
    }

    /// The same with this step of the kernel broken. (A library's is taken out elsewhere.)
    fn broken(self, step: Step) -> Self {
        match (self, step) {
            (Self::Cpus(program), Step::Kernel(mutant)) => Self::Cpus(program.broken(mutant)),
            (Self::Devices(mut program), Step::KernelOfDevices(mistake)) => {
                program.config.mistake = Some(mistake);
                Self::Devices(program)
            }
            (whole, _) => whole,
        }
    }

    /// The same under the policies that the user has chosen.
    fn under(mut self, policies: Policies) -> Self {
        match &mut self {
            Self::Cpus(program) => {
                program.config.policy = policies.core.unwrap_or(program.config.policy);
            }
            Self::Devices(program) => {
                program.config.policy = policies.dma.unwrap_or(program.config.policy);
            }
        }
        self
    }
}

impl fmt::Display for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(program) => program.fmt(f),
            Self::Devices(program) => program.fmt(f),
        }
    }
}

/// How the whole protocol is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// Every schedule.
    All,
    /// At random and by priorities: at least this many schedules.
    Chance(u64),
}

/// A historical bug.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name, without the kind.
    pub name: &'static str,
    /// Where it is known from: CVE, commit, advisory or issue.
    pub source: &'static str,
    /// When it was mended, or reported; for what was found by reading code, when that was.
    pub year: u16,
    /// What was wrong, in one sentence.
    pub wrong: &'static str,
    /// What keeps it out of kernels that use the library: the library itself, or, after
    /// `contract:`, what it asks of the kernel or of the port.
    pub kept_out: &'static str,
    /// The step that was wrong.
    pub step: Step,
    /// The world ([`Program`]; [`DmaProgram`] if the step is one of devices).
    pub program: &'static str,
    /// The adversary.
    pub powers: Powers,
    /// What breaks: one of these.
    pub breaks: &'static [Invariant],
    /// What some schedule of the whole protocol must have come to.
    pub seen: &'static [&'static str],
    /// How the whole protocol is searched.
    pub whole: Whole,
}

impl Scenario {
    /// A scenario with everything the manuals allow, in which a frame or a table is used after it
    /// was freed, or an old translation after its flush, and in which some CPU must have cached
    /// an entry that another one changed.
    pub(super) const USUAL: Self = Self {
        name: "",
        source: "",
        year: 0,
        wrong: "",
        kept_out: "",
        step: Step::Kernel(KernelMutant::FreeFrameBeforeFlush),
        program: "",
        powers: TSO,
        breaks: &[Invariant::Revocation, Invariant::FrameReuse],
        seen: &["stale-elsewhere"],
        whole: Whole::Chance(5_000),
    };

    /// What runs in it.
    ///
    /// # Errors
    /// A sentence, when the text is no program.
    pub fn play(&self) -> Result<Play, String> {
        self.read(self.program)
    }

    /// A program, as this scenario has one.
    pub(super) fn read(&self, program: &str) -> Result<Play, String> {
        if self.step.is_of_cpus() {
            program.parse().map(Play::Cpus)
        } else {
            program.parse().map(Play::Devices)
        }
    }
}

/// A scenario, with its step broken or not, as something that can be hunted.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    scenario: &'static Scenario,
    check: String,
    broken: bool,
}

impl Stage {
    pub fn new(scenario: &'static Scenario, check: &str, broken: bool) -> Self {
        Self { scenario, check: check.to_owned(), broken }
    }

    fn play(&self, policies: Policies) -> Play {
        let Scenario { name, step, .. } = *self.scenario;
        let play = self.scenario.play().unwrap_or_else(|e| panic!("{name}: {e}")).under(policies);
        if self.broken { play.broken(step) } else { play }
    }
}

impl Scene for Stage {
    fn name(&self) -> &str {
        &self.check
    }

    fn world(&self, _: u64, policies: Policies) -> Box<dyn World> {
        match self.play(policies) {
            Play::Cpus(program) => Box::new(program),
            Play::Devices(program) => Box::new(program),
        }
    }

    fn describe(&self, _: u64, policies: Policies) -> Option<String> {
        Some(self.play(policies).to_string())
    }

    fn powers(&self) -> Powers {
        self.scenario.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.scenario.seen
    }

    fn missing(&self) -> Option<&'static str> {
        match self.scenario.step {
            Step::Kernel(_) | Step::KernelOfDevices(_) if self.broken => {
                Some(self.scenario.step.name())
            }
            _ => None,
        }
    }
}

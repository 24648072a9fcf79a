//! A historical bug as a small world.

use shootdown::mutant::Mutant;
use shootdown::policy::Policy;
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
}

impl Step {
    /// Its name, which is also a name of the mutant's own list.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel(mutant) => mutant.name(),
            Self::Library(mutant) => mutant.name(),
        }
    }

    /// The step, if it is the library's.
    #[must_use]
    pub const fn of_library(self) -> Option<Removed> {
        match self {
            Self::Library(mutant) => Some(Removed::Core(mutant)),
            Self::Kernel(_) => None,
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
    /// What keeps it out of kernels that use the library: the library itself, or, after `contract:`, what
    /// it asks of the kernel or of the port.
    pub kept_out: &'static str,
    /// The step that was wrong.
    pub step: Step,
    /// The world ([`Program`]).
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
    /// A scenario with everything the manuals allow, in which a frame or a table is used after it was
    /// freed, or an old translation after its flush, and in which some CPU must have cached an entry that
    /// another one changed.
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

    /// The world.
    ///
    /// # Errors
    /// A sentence, when the text is no program.
    pub fn world(&self) -> Result<Program, String> {
        self.program.parse()
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

    fn program(&self, policy: Option<Policy>) -> Program {
        let name = self.scenario.name;
        let mut program = self.scenario.world().unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Some(policy) = policy {
            program.config.policy = policy;
        }
        match self.scenario.step {
            Step::Kernel(mutant) if self.broken => program.broken(mutant),
            _ => program,
        }
    }
}

impl Scene for Stage {
    fn name(&self) -> &str {
        &self.check
    }

    fn world(&self, _: u64, policies: Policies) -> Box<dyn World> {
        Box::new(self.program(policies.core))
    }

    fn describe(&self, _: u64, policies: Policies) -> Option<String> {
        Some(self.program(policies.core).to_string())
    }

    fn powers(&self) -> Powers {
        self.scenario.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.scenario.seen
    }

    fn missing(&self) -> Option<&'static str> {
        match self.scenario.step {
            Step::Kernel(mutant) if self.broken => Some(mutant.name()),
            _ => None,
        }
    }
}

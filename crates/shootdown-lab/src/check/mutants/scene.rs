//! A scene: a small world, and the mutants that break a promise in it.

use shootdown::CpuId;
use shootdown::mutant::Mutant;
use shootdown_machine::hunt::{Powers, World};

use super::kit::{self, kit};
use super::port::{self, Rules};
use crate::check::hunted;
use crate::check::steps::Policies;

/// A small world.
pub struct Scene {
    /// Its name.
    pub name: &'static str,
    /// What happens in it.
    pub line: &'static str,
    /// How many CPUs.
    pub cpus: u8,
    /// Machine and port.
    pub rules: Rules,
    /// What the adversary may do.
    pub powers: Powers,
    /// Schedules that are tried before a mutant counts as a survivor.
    pub runs: u64,
    /// Steps after which a run is cut. Where nothing waits asleep this is the only sign of a
    /// deadlock.
    pub steps: u64,
    /// What there is besides the kit, before the programs run.
    pub setup: fn(),
    /// The program of each CPU.
    pub program: fn(u8),
    /// The handler of the kick's interrupt.
    pub interrupt: fn(u8),
    /// Which mutants must break something here.
    pub kills: &'static [Mutant],
}

impl Scene {
    /// A scene with the usual rules and powers.
    pub const fn new(name: &'static str, line: &'static str, cpus: u8, program: fn(u8)) -> Self {
        Self {
            name,
            line,
            cpus,
            rules: Rules::USUAL,
            powers: Powers::HOSTILE,
            runs: 100_000,
            steps: 20_000,
            setup: || {},
            program,
            interrupt: |_| port::answer(),
            kills: &[],
        }
    }

    /// With these mutants to kill.
    pub const fn kills(self, kills: &'static [Mutant]) -> Self {
        Self { kills, ..self }
    }

    /// With other rules.
    pub const fn rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// With other powers.
    pub const fn powers(self, powers: Powers) -> Self {
        Self { powers, ..self }
    }

    /// With more than the kit.
    pub const fn setup(self, setup: fn()) -> Self {
        Self { setup, ..self }
    }

    /// With another handler.
    pub const fn interrupt(self, interrupt: fn(u8)) -> Self {
        Self { interrupt, ..self }
    }

    /// With another number of schedules.
    pub const fn runs(self, runs: u64) -> Self {
        Self { runs, ..self }
    }

    /// With another bound on steps.
    pub const fn steps(self, steps: u64) -> Self {
        Self { steps, ..self }
    }
}

/// A scene as a world, for the check of this name.
#[derive(Clone)]
pub struct Stage {
    /// The scene.
    pub scene: &'static Scene,
    check: String,
}

impl Stage {
    /// The scene on the stage of this check.
    #[must_use]
    pub fn new(scene: &'static Scene, check: &str) -> Self {
        Self { scene, check: check.to_owned() }
    }
}

impl hunted::Scene for Stage {
    fn name(&self) -> &str {
        &self.check
    }

    fn world(&self, _: u64, _: Policies) -> Box<dyn World> {
        Box::new(self.clone())
    }

    fn describe(&self, _: u64, _: Policies) -> Option<String> {
        Some(self.scene.line.to_owned())
    }

    fn powers(&self) -> Powers {
        self.scene.powers
    }

    fn steps(&self) -> u64 {
        self.scene.steps
    }
}

#[allow(clippy::cast_possible_truncation)] // at most eight
fn at(cpu: CpuId) -> u8 {
    cpu.0 as u8
}

impl World for Stage {
    fn cpus(&self) -> u8 {
        self.scene.cpus
    }

    fn boot(&self) {
        kit::boot(self.scene.cpus, self.scene.rules);
        (self.scene.setup)();
    }

    fn program(&self, cpu: CpuId) {
        (self.scene.program)(at(cpu));
        port::catch_up();
    }

    fn interrupt(&self, cpu: CpuId) {
        if !kit().gone[cpu.index()].get() {
            (self.scene.interrupt)(at(cpu));
        }
    }
}

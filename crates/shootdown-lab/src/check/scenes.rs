//! What is hunted by default: the scenes of the random and the exhaustive checks.
//!
//! Both run the library's own code under the model kernel ([`shootdown_machine::hunt::kernel`]). A random
//! scene makes its programs from the seed; an exhaustive one has a program, written as one line.

use shootdown::policy::Policy;
use shootdown::presence::Strategy;
use shootdown_machine::hunt::hw::Architecture;
use shootdown_machine::hunt::kernel::{Op, Program, Split};
use shootdown_machine::hunt::{Memory, Power, Powers, World};

use super::Checks;
use super::exhaustive::Exhaustive;
use super::hunted::Scene;
use super::random::Random;
use super::soak::Soak;

/// Programs by chance.
#[derive(Clone, Debug)]
pub struct Chance {
    name: &'static str,
    /// Whose rules the MMUs follow.
    architecture: Architecture,
    /// The hardware has defects, and the port works around them.
    defects: bool,
    /// Tags mean the same on every CPU, and hardware invalidates on every CPU by them, or not.
    wide: Option<Option<Strategy>>,
    powers: Powers,
    witnesses: &'static [&'static str],
}

/// Operations of each CPU. Short programs: what is rare in a long one is found sooner in many short ones.
const SIZE: usize = 6;

impl Chance {
    fn program(&self, seed: u64, policy: Option<Policy>) -> Program {
        let mut program = Program::random(seed, SIZE);
        let cpus = program.cpus();
        let config = &mut program.config;
        config.architecture = self.architecture;
        config.defects = self.defects;
        if self.architecture != Architecture::X86_64 {
            // Split tables with tags of their own are x86's.
            config.split = Split::Off;
        }
        config.policy = policy.unwrap_or(config.policy);
        if let Some(strategy) = self.wide {
            // As few tags as the CPUs allow: they run out all the time.
            config.wide = if cpus < 3 { 2 } else { 3 };
            config.policy.tags = true;
            config.broadcast = strategy.is_some();
            config.policy.broadcast = strategy;
            config.spaces = 4;
            for (cpu, script) in program.cpus.iter_mut().enumerate() {
                for (at, op) in script.run.iter_mut().enumerate().step_by(3) {
                    #[allow(clippy::cast_possible_truncation)] // below 4
                    let space = ((2 * cpu + at / 3) % 4) as u8;
                    *op = Op::Switch(space);
                }
            }
        }
        program
    }
}

impl Scene for Chance {
    fn name(&self) -> &str {
        self.name
    }

    fn world(&self, seed: u64, policy: Option<Policy>) -> Box<dyn World> {
        Box::new(self.program(seed, policy))
    }

    fn describe(&self, seed: u64, policy: Option<Policy>) -> Option<String> {
        Some(self.program(seed, policy).to_string())
    }

    fn powers(&self) -> Powers {
        self.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.witnesses
    }
}

/// One program.
#[derive(Clone, Debug)]
pub struct Fixed {
    name: &'static str,
    text: &'static str,
    powers: Powers,
    witnesses: &'static [&'static str],
}

impl Fixed {
    fn program(&self, policy: Option<Policy>) -> Program {
        let mut program: Program =
            self.text.parse().unwrap_or_else(|e| panic!("the program of {}: {e}", self.name));
        if let Some(policy) = policy {
            program.config.policy = policy;
        }
        program
    }
}

impl Scene for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn world(&self, _: u64, policy: Option<Policy>) -> Box<dyn World> {
        Box::new(self.program(policy))
    }

    fn describe(&self, _: u64, policy: Option<Policy>) -> Option<String> {
        Some(self.program(policy).to_string())
    }

    fn powers(&self) -> Powers {
        self.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.witnesses
    }
}

/// What every hunt by chance must have seen.
const USUAL: &[&str] = &["table-page-freed", "spurious-fault"];

/// What every hunt of a strategy must have seen.
const SAVING: &[&str] =
    &["invalidation-none", "invalidation-local", "invalidation-broadcast", "rollover"];

/// As [`SAVING`], where tags may be stale.
const ACTIVE: &[&str] = &[
    "invalidation-none",
    "invalidation-local",
    "invalidation-broadcast",
    "stale-tag-flushed",
    "rollover",
];

/// The scenes in which programs are made by chance.
fn by_chance() -> Vec<(Chance, &'static str)> {
    let x86 = |name, powers| Chance {
        name,
        architecture: Architecture::X86_64,
        defects: false,
        wide: None,
        powers,
        witnesses: USUAL,
    };
    let arm = |name, strategy, witnesses| Chance {
        name,
        architecture: Architecture::Aarch64,
        defects: false,
        wide: Some(Some(strategy)),
        powers: Powers::HOSTILE,
        witnesses,
    };
    let hostile = Powers::HOSTILE;
    let tso = hostile.memory(Memory::Tso);
    let moody = tso.with(Power::FailingKicks).with(Power::Preemption);
    // An entry that survives, on hardware that syncs early, would need three removals: no processor is
    // known to have both, and ports do everything twice.
    let survivors = tso.with(Power::SurvivesOnce).with(Power::PageSparesGlobals);
    let early = tso.with(Power::EarlySync);
    vec![
        (x86("random/sc", hostile.memory(Memory::Sc)), "x86-64, stores seen at once"),
        (x86("random/tso", tso), "x86-64 with store buffers"),
        (
            x86("random/weak", hostile),
            "x86-64's MMU under the language's memory model: unfenced stores in any order",
        ),
        (
            Chance { architecture: Architecture::Aarch64, ..x86("random/arm", hostile) },
            "AArch64's MMU, weak memory",
        ),
        (
            Chance { architecture: Architecture::RiscV64, ..x86("random/riscv", hostile) },
            "RISC-V's MMU, weak memory",
        ),
        (
            Chance {
                architecture: Architecture::RiscV64,
                wide: Some(None),
                witnesses: &["table-page-freed", "rollover"],
                ..x86("random/riscv-tags", hostile)
            },
            "RISC-V's MMU, machine-wide tags that run out, interrupts",
        ),
        (
            arm("random/arm-always", Strategy::Always, &["invalidation-broadcast", "rollover"]),
            "AArch64's MMU and broadcasts, all invalidations broadcast",
        ),
        (
            arm("random/arm-sticky", Strategy::Sticky, SAVING),
            "the same, local for the only CPU that ever ran a space",
        ),
        (
            arm("random/arm-active", Strategy::Active, ACTIVE),
            "the same, local for the only CPU that runs a space now",
        ),
        (
            arm("random/arm-trim", Strategy::Trim, SAVING),
            "the same, local for the only CPU that may hold entries of a space",
        ),
        (
            x86("random/unreliable", moody),
            "interrupts that can't be raised, virtual CPUs that stand still",
        ),
        (
            Chance { defects: true, ..x86("random/survivors", survivors) },
            "entries that survive a removal, globals that survive a page's; the port works around both",
        ),
        (
            Chance { defects: true, ..x86("random/early-sync", early) },
            "removals that are not over when hardware says so; the port works around it",
        ),
    ]
}

/// Runs of a random check in the default set: some seconds each.
const RUNS: u64 = 20_000;

/// A world, all schedules of which are explored.
struct Small {
    name: &'static str,
    line: &'static str,
    text: &'static str,
    memory: Memory,
    witnesses: &'static [&'static str],
    /// Takes seconds: in the default set.
    quick: bool,
}

/// Small worlds. The same program may come twice: under a memory model that takes seconds, and under a
/// weaker one that takes minutes.
const SMALL: &[Small] = &[
    Small {
        name: "exhaustive/unmap",
        line: "a page is unmapped while another CPU uses it",
        text: "; switch a | unmap a0; switch a | user",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere"],
        quick: true,
    },
    Small {
        name: "exhaustive/switch",
        line: "a page is unmapped while another CPU comes to its space (D1)",
        text: "tags=on; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Sc,
        witnesses: &[
            "stale-elsewhere",
            "switch-kept",
            "switch-replayed",
            "interrupt-crosses-switch",
        ],
        quick: true,
    },
    Small {
        name: "exhaustive/switch-weak",
        line: "the same under weak memory",
        text: "tags=on; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &[
            "stale-elsewhere",
            "switch-kept",
            "switch-replayed",
            "interrupt-crosses-switch",
        ],
        quick: false,
    },
    Small {
        name: "exhaustive/always",
        line: "a page is unmapped by broadcast while another CPU comes to its space",
        text: "arch=arm wide=2 broadcast=always; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/sticky",
        line: "the same, local while one CPU owns the space",
        text: "arch=arm wide=2 broadcast=sticky; switch a | unmap a0; | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/active",
        line: "the same, local while one CPU is active in it",
        text: "arch=arm wide=2 broadcast=active; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast", "stale-tag-flushed"],
        quick: true,
    },
    Small {
        name: "exhaustive/trim",
        line: "the same, local while one CPU is in its set",
        text: "arch=arm wide=2 broadcast=trim; switch a | unmap a0; | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/active-freed",
        line: "a table is freed while another CPU comes to its space, local while one CPU is active in it",
        text: "arch=arm wide=2 broadcast=active; switch a | free-table a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-broadcast", "table-page-freed"],
        quick: true,
    },
    Small {
        name: "exhaustive/rollover",
        line: "tags run out while another CPU comes to a space and a page of it is unmapped",
        text: "arch=arm wide=2 spaces=4 broadcast=sticky; switch a, switch b, switch c | unmap c0; | switch d, switch c, user",
        memory: Memory::Weak,
        witnesses: &["rollover", "invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/lazy",
        line: "a page is unmapped while another CPU wakes from lazy mode (D2)",
        text: "; switch a | unmap a0; switch a, lazy | switch a, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "switch-same", "lazy-caught-up"],
        quick: true,
    },
    Small {
        name: "exhaustive/lazy-weak",
        line: "the same under weak memory",
        text: "; switch a | unmap a0; switch a, lazy | switch a, user",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere", "switch-same", "lazy-caught-up"],
        quick: false,
    },
    Small {
        name: "exhaustive/freed",
        line: "a table is freed while another CPU wakes from lazy mode",
        text: "; switch a | free-table a0; switch a, lazy | switch a, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "lazy-caught-up", "table-page-freed"],
        quick: true,
    },
    Small {
        name: "exhaustive/evicted",
        line: "a slot changes its space while the old one is flushed",
        text: "tags=on spaces=2 slots=1; switch a | unmap b0; switch b | switch a, switch b, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "switch-flushed"],
        quick: false,
    },
    Small {
        name: "exhaustive/three",
        line: "a page is unmapped while two CPUs have its space",
        text: "; switch a | unmap a0; switch a |; switch a |",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere"],
        quick: false,
    },
];

/// The random checks.
#[must_use]
pub fn random() -> Checks {
    by_chance()
        .into_iter()
        .map(|(scene, line)| -> Box<dyn super::Check> {
            Box::new(Random { scene, line: line.to_owned(), runs: RUNS })
        })
        .collect()
}

/// The exhaustive checks.
#[must_use]
pub fn exhaustive() -> Checks {
    SMALL
        .iter()
        .map(|small| -> Box<dyn super::Check> {
            let Small { name, line, text, memory, witnesses, quick } = *small;
            let powers = Powers::HOSTILE.memory(memory);
            let bounds = format!("{text} ({})", super::adversary::write(powers));
            let scene = Fixed { name, text, powers, witnesses };
            Box::new(Exhaustive { scene, line: line.to_owned(), bounds, small: quick })
        })
        .collect()
}

/// The soak over all random scenes.
#[must_use]
pub fn soak() -> Checks {
    let scenes =
        by_chance().into_iter().map(|(scene, _)| -> Box<dyn Scene> { Box::new(scene) }).collect();
    vec![Box::new(Soak { scenes })]
}

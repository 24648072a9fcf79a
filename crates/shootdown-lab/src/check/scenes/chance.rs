//! Programs that follow from a seed: the scenes of the random checks and of the soak.

use shootdown::policy::{Delivery, Policy};
use shootdown::residency::Strategy;
use shootdown_machine::hunt::hw::Architecture;
use shootdown_machine::hunt::kernel::{At, Config, Guest, Op, Program, Split};
use shootdown_machine::hunt::{Memory, Power, Powers, World};

use super::devices;
use crate::check::hunted::Scene;
use crate::check::random::Random;
use crate::check::soak::Soak;
use crate::check::steps::Policies;
use crate::check::{Check, Checks};

/// Programs by chance.
#[derive(Clone, Debug)]
pub struct Chance {
    name: &'static str,
    /// Whose rules the MMUs follow.
    architecture: Architecture,
    /// The hardware has defects, and the port works around them.
    defects: bool,
    tags: Tags,
    /// The CPUs are virtual, and the hypervisor does its part of flushes: any way.
    guests: bool,
    /// Pages are unmapped lazily.
    lazy: bool,
    /// Every other operation concerns all CPUs, which are called as a tree.
    trees: bool,
    powers: Powers,
    witnesses: &'static [&'static str],
}

/// Which tags there are.
#[derive(Clone, Copy, Debug)]
enum Tags {
    /// As the program says.
    Any,
    /// As few as the CPUs allow, the same on every CPU: they run out all the time. Hardware
    /// invalidates on every CPU by them, or not.
    Wide(Option<Strategy>),
    /// Each CPU's own, and one or two for all CPUs beside them, by which hardware invalidates on
    /// every CPU.
    Beside,
}

/// Operations of each CPU. Short programs: what is rare in a long one is found sooner in many short
/// ones.
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
        if self.guests {
            let ways = [Guest::Marks, Guest::Calls, Guest::Both];
            config.guest = ways[(seed >> 10) as usize % ways.len()];
        }
        if self.lazy {
            config.policy.lazy_unmap = Some(Config::LAZY);
            unmap_lazily(&mut program, seed);
            return program;
        }
        if self.trees {
            config.policy.tree_above = 1;
            // Mostly of one word, where what groups count comes together.
            let apart = [0, 1, 0, 1, 0, 1, 2, 3];
            config.numbers = Config::APART[apart[(seed >> 10) as usize % apart.len()]];
            call_often(&mut program);
            return program;
        }
        match self.tags {
            Tags::Any => {}
            Tags::Wide(strategy) => {
                config.wide = if cpus < 3 { 2 } else { 3 };
                // Tags are for CPUs that are numbered from 0.
                config.numbers = Config::NEAR;
                config.policy.tags = true;
                config.broadcast = strategy.is_some();
                config.policy.broadcast = strategy;
                // Not with posted requests, which are older than such machines: there a CPU waits
                // for ever sometimes.
                let pulls = config.policy.delivery == Delivery::Pull;
                config.completes_early = strategy.is_some() && pulls && seed >> 11 & 1 == 1;
                config.spaces = 4;
                switch_often(&mut program, |cpu, nth| (2 * cpu + nth) % 4);
            }
            Tags::Beside => {
                // With split tables there are none.
                config.split = Split::Off;
                config.tags = true;
                config.policy.tags = true;
                config.invlpgb = 1 + (seed >> 8 & 1) as u8;
                config.policy.shared = Config::looks_always((seed >> 9 & 1) as u32);
                config.spaces = 3;
                // Most of the time in one space, which many then run.
                switch_often(
                    &mut program,
                    |cpu, nth| if nth % 2 == 0 { 0 } else { (cpu + nth) % 3 },
                );
            }
        }
        program
    }
}

/// Every third operation is a switch: `to` says where, by the CPU and the how manieth it is.
fn switch_often(program: &mut Program, to: impl Fn(usize, usize) -> usize) {
    for (cpu, script) in program.cpus.iter_mut().enumerate() {
        for (at, op) in script.run.iter_mut().enumerate().step_by(3) {
            #[allow(clippy::cast_possible_truncation)] // a space
            let space = to(cpu, at / 3) as u8;
            *op = Op::Switch(space);
        }
    }
}

/// Every other operation is a call to all CPUs, or a flush of all.
fn call_often(program: &mut Program) {
    let concerned = [Op::Call, Op::KernelPage(0), Op::Call, Op::KernelTable];
    for (cpu, script) in program.cpus.iter_mut().enumerate() {
        for (at, op) in script.run.iter_mut().enumerate().step_by(2) {
            // Offline, it would be nothing.
            if !matches!(op, Op::Offline | Op::Online) {
                *op = concerned[(cpu + at / 2) % concerned.len()];
            }
        }
    }
}

/// Half of the operations unmap lazily, or have to do with that.
fn unmap_lazily(program: &mut Program, seed: u64) {
    let (spaces, pages) = (program.config.spaces, program.config.pages.max(1));
    let mut numbers = seed;
    let mut below = |n: u8| {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); // Knuth's, MMIX
        #[allow(clippy::cast_possible_truncation)] // a small number
        let chosen = (numbers >> 33) as u8 % n;
        chosen
    };
    for script in &mut program.cpus {
        for op in script.run.iter_mut().step_by(2) {
            let space = below(spaces);
            let at = At { space, page: below(pages) };
            *op = match below(10) {
                0..4 => Op::LazyUnmap(at),
                4 => Op::Redeem(space),
                5 => Op::Expire(space),
                6 | 7 => Op::Map(at),
                8 => Op::Tick,
                _ => Op::User,
            };
        }
    }
}

impl Scene for Chance {
    fn name(&self) -> &str {
        self.name
    }

    fn world(&self, seed: u64, policies: Policies) -> Box<dyn World> {
        Box::new(self.program(seed, policies.core))
    }

    fn describe(&self, seed: u64, policies: Policies) -> Option<String> {
        Some(self.program(seed, policies.core).to_string())
    }

    fn powers(&self) -> Powers {
        self.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.witnesses
    }
}

/// What every hunt by chance must have seen.
const USUAL: &[&str] = &[
    "table-page-freed",
    "spurious-fault",
    "ticket-answered",
    "ticket-waited-for",
    "user-half-flushed",
    "space-reborn",
    "batch-flushed",
];

/// As [`USUAL`], where tables are not split. (RISC-V and Arm.)
const UNSPLIT: &[&str] = &[
    "table-page-freed",
    "spurious-fault",
    "ticket-answered",
    "ticket-waited-for",
    "space-reborn",
    "batch-flushed",
];

/// What every hunt of a strategy must have seen.
const SAVING: &[&str] = &[
    "invalidation-none",
    "invalidation-local",
    "invalidation-broadcast",
    "rollover",
    "tag-pinned",
];

/// As [`SAVING`], where tags may be stale.
const ACTIVE: &[&str] = &[
    "invalidation-none",
    "invalidation-local",
    "invalidation-broadcast",
    "stale-tag-flushed",
    "rollover",
    "tag-pinned",
];

/// What a hunt of tags for all CPUs beside slots must have seen.
const MOVING: &[&str] = &[
    "tag-for-all-cpus",
    "invalidation-broadcast",
    "broadcast-of-everything",
    "table-page-freed",
    "space-reborn",
];

/// What a hunt of lazy unmapping must have seen.
const LAZY: &[&str] = &[
    "unmapped-lazily",
    "lazily-flushed",
    "address-needed",
    "isolated-left-pending",
    "pending-flush-seen",
    "space-reborn",
];

/// The same of guests.
const LAZY_GUESTS: &[&str] =
    &["unmapped-lazily", "lazily-flushed", "address-needed", "hypercall", "forgets-before-it-runs"];

/// What a hunt of large calls must have seen.
const TREES: &[&str] =
    &["call-returned", "kernel-page-flushed", "went-offline", "came-back-online"];

/// What a hunt of a hypervisor's guests must have seen.
const GUESTS: &[&str] =
    &["table-page-freed", "hypercall", "hypercall-fails", "forgets-before-it-runs"];

/// The scenes in which programs are made by chance.
fn by_chance() -> Vec<(Chance, &'static str)> {
    let x86 = |name, powers| Chance {
        name,
        architecture: Architecture::X86_64,
        defects: false,
        tags: Tags::Any,
        guests: false,
        lazy: false,
        trees: false,
        powers,
        witnesses: USUAL,
    };
    let arm = |name, strategy, witnesses| Chance {
        name,
        architecture: Architecture::Aarch64,
        defects: false,
        tags: Tags::Wide(Some(strategy)),
        guests: false,
        lazy: false,
        trees: false,
        powers: Powers::HOSTILE,
        witnesses,
    };
    let hostile = Powers::HOSTILE;
    let tso = hostile.memory(Memory::Tso);
    let moody = tso.with(Power::FailingKicks).with(Power::Preemption);
    // An entry that survives, on hardware that syncs early, would need three removals: no processor
    // is known to have both, and ports do everything twice.
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
            Chance {
                architecture: Architecture::Aarch64,
                witnesses: UNSPLIT,
                ..x86("random/arm", hostile)
            },
            "AArch64's MMU, weak memory",
        ),
        (
            Chance {
                architecture: Architecture::RiscV64,
                witnesses: UNSPLIT,
                ..x86("random/riscv", hostile)
            },
            "RISC-V's MMU, weak memory",
        ),
        (
            Chance {
                architecture: Architecture::RiscV64,
                tags: Tags::Wide(None),
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
            Chance { tags: Tags::Beside, witnesses: MOVING, ..x86("random/invlpgb", tso) },
            "x86-64 with INVLPGB, tags for all CPUs beside slots, which run out",
        ),
        (
            Chance { tags: Tags::Beside, witnesses: MOVING, ..x86("random/invlpgb-weak", hostile) },
            "the same under the language's memory model",
        ),
        (
            Chance { guests: true, witnesses: GUESTS, ..x86("random/guest", tso) },
            "x86-64's virtual CPUs, which are taken away; those are left marks, others go by hypercall",
        ),
        (
            Chance { guests: true, witnesses: GUESTS, ..x86("random/guest-weak", hostile) },
            "the same under the language's memory model",
        ),
        (
            Chance { lazy: true, witnesses: LAZY, ..x86("random/lazy", tso) },
            "x86-64, pages unmapped lazily: flushed when they are needed, when it is time, or by whoever comes by",
        ),
        (
            Chance { lazy: true, witnesses: LAZY, ..x86("random/lazy-weak", hostile) },
            "the same under the language's memory model",
        ),
        (
            Chance {
                lazy: true,
                guests: true,
                witnesses: LAZY_GUESTS,
                ..x86("random/lazy-guest", tso)
            },
            "virtual CPUs, pages unmapped lazily: what is flushed may be marked, or go by hypercall",
        ),
        (
            Chance { trees: true, witnesses: TREES, ..x86("random/trees", hostile) },
            "calls and kernel flushes as trees, to CPUs of several groups and words; weak memory",
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

/// The random checks.
#[must_use]
pub fn random() -> Checks {
    by_chance()
        .into_iter()
        .map(|(scene, line)| -> Box<dyn Check> {
            Box::new(Random { scene, line: line.to_owned(), runs: RUNS })
        })
        .chain(devices::by_chance().into_iter().map(|(scene, line)| -> Box<dyn Check> {
            Box::new(Random { scene, line: line.to_owned(), runs: RUNS })
        }))
        .collect()
}

/// The soak over all random scenes.
#[must_use]
pub fn soak() -> Checks {
    let cpus = by_chance().into_iter().map(|(scene, _)| -> Box<dyn Scene> { Box::new(scene) });
    let devices = devices::by_chance();
    let devices = devices.into_iter().map(|(scene, _)| -> Box<dyn Scene> { Box::new(scene) });
    vec![Box::new(Soak { scenes: cpus.chain(devices).collect() })]
}

//! The command line: words of the form `name` or `name=value`.
//!
//! | word | meaning |
//! |---|---|
//! | `cpus=N` | start no more than N CPUs |
//! | `seed=N` | the seed of everything random |
//! | `steps=N` | steps of the randomized stress, per CPU |
//! | `suite=NAME` | `cpu`: the CPUs' translations; `dma`: a device behind an IOMMU; `virt`: the instructions of virtual machines (x86-64); `bench`: no cases, but what the hot paths cost |
//! | `only=TEXT` | run only the cases whose name contains TEXT |
//! | `tags=off` | do without tags where the hardware has them |
//! | `policy=NAME` | the library's policy: `shootdown`, `naive`, `linux-4.13`, `linux-4.14`, `linux-5.13`, `arm64-mainline`, or the library's own with one thing changed: another way to decide what is broadcast (`sticky`, `trim`), no broadcast (`interrupts`), nor work while others work (`serial`) |
//! | `crash=WAY` | end badly: `panic`, `fault`, `double-fault`, `reset`, `hang` |
//! | `sabotage=invalidate` | the hardware's invalidations are left out below the library: the suite must fail |
//! | `sabotage=last-cpu` | the same on the last CPU alone: every case must fail in which others look |
//! | `sabotage=host-bits` | of `virt`: the guest decides about CR4.MCE, as if there were no `HostBits`; a machine check then resets the machine |
//!
//! A word that means nothing is reported, and the rest is heeded.

use shootdown::{Policy, Strategy};

use crate::crash::Way;

/// Which cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// Those of the CPUs.
    Cpu,
    /// Those of a device behind an IOMMU.
    Dma,
    /// Those of virtual machines.
    Virt,
    /// None: the costs.
    Bench,
}

/// Where the hardware's invalidations are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// On every CPU, and in the queue of an IOMMU.
    Everywhere,
    /// On the last CPU: what it should do itself is not done. What another has the hardware
    /// broadcast is.
    LastCpu,
    /// Nowhere; a guest runs with what it wrote to CR4.
    HostBits,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// No more CPUs than this.
    pub cpus: u32,
    /// The seed of everything random.
    pub seed: u64,
    /// Steps of the stress, per CPU.
    pub steps: u64,
    /// Which cases.
    pub suite: Suite,
    /// Part of the names of the cases to run.
    pub only: Option<&'static str>,
    /// Use tags where there are any.
    pub tags: bool,
    /// Leave the hardware's invalidations out.
    pub sabotage: Option<Sabotage>,
    /// End badly.
    pub crash: Option<Way>,
    /// The policy, with its name.
    pub policy: (&'static str, &'static Policy),
}

/// The library's own, but CPUs are interrupted where hardware could invalidate on them.
const INTERRUPTS: Policy = Policy { broadcast: None, ..Policy::SHOOTDOWN };

/// The same, one after the other: this CPU's own work comes before others are asked.
const SERIAL: Policy = Policy { overlap: false, tree_above: 0, ..INTERRUPTS };

/// The library's own, with this strategy.
const fn strategy(strategy: Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}

const POLICIES: [(&str, &Policy); 10] = [
    ("shootdown", &Policy::SHOOTDOWN),
    ("interrupts", &INTERRUPTS),
    ("serial", &SERIAL),
    ("naive", &Policy::NAIVE),
    ("linux-4.13", &Policy::LINUX_4_13),
    ("linux-4.14", &Policy::LINUX_4_14),
    ("linux-5.13", &Policy::LINUX_5_13),
    ("arm64-mainline", &Policy::ARM64_MAINLINE),
    ("sticky", &strategy(Strategy::Sticky)),
    ("trim", &strategy(Strategy::Trim)),
];

impl Options {
    /// What holds unless something else is asked for.
    pub const DEFAULT: Self = Self {
        cpus: crate::MAX_CPUS,
        seed: 1,
        steps: 400,
        suite: Suite::Cpu,
        only: None,
        tags: true,
        sabotage: None,
        crash: None,
        policy: POLICIES[0],
    };

    /// Reads a command line; `unknown` hears of each word that was not understood.
    pub fn parse(line: &'static [u8], mut unknown: impl FnMut(&str)) -> Self {
        let mut options = Self::DEFAULT;
        let Ok(line) = core::str::from_utf8(line) else {
            unknown("(the whole command line, which is not UTF-8)");
            return options;
        };
        for word in line.split_ascii_whitespace() {
            if options.word(word).is_none() {
                unknown(word);
            }
        }
        options
    }

    /// Heeds one word; `None` if it means nothing.
    fn word(&mut self, word: &'static str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        match name {
            "cpus" => self.cpus = value.parse().ok().filter(|n| *n > 0)?,
            "seed" => self.seed = value.parse().ok()?,
            "steps" => self.steps = value.parse().ok()?,
            "suite" if value == "cpu" => self.suite = Suite::Cpu,
            "suite" if value == "bench" => self.suite = Suite::Bench,
            "suite" if value == "dma" => self.suite = Suite::Dma,
            "suite" if value == "virt" => self.suite = Suite::Virt,
            "only" => self.only = Some(value).filter(|v| !v.is_empty()),
            "tags" if value == "off" => self.tags = false,
            "tags" if value == "on" => self.tags = true,
            "sabotage" if value == "invalidate" => self.sabotage = Some(Sabotage::Everywhere),
            "sabotage" if value == "last-cpu" => self.sabotage = Some(Sabotage::LastCpu),
            "sabotage" if value == "host-bits" => self.sabotage = Some(Sabotage::HostBits),
            "crash" => self.crash = Some(Way::named(value)?),
            "policy" => self.policy = *POLICIES.iter().find(|(name, _)| *name == value)?,
            _ => return None,
        }
        Some(())
    }
}

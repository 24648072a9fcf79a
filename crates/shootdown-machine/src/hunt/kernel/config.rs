//! What a hunted kernel is built for: hardware, facts, policy, and what is mapped when it starts.

use std::fmt;
use std::fmt::Write as _;

use shootdown::Tag;
use shootdown::accessed::{Accessed, AccessedPolicy};
use shootdown::facts::{Broadcast, Errata, Facts, SplitTables, TagScope};
use shootdown::lazy_unmap::LazyUnmap;
use shootdown::policy::Policy;
use shootdown::residency::Strategy;
use shootdown::tags::shared::Threshold;

use super::KernelMutant;
use crate::hostile::{Descriptor, Frame};
use crate::hunt::MAX_CPUS;
use crate::hunt::hw::{Architecture, Setup};

/// The configuration of a world. Its text is a list of `word=value`; what is not said is as in
/// [`Config::default`].
///
/// | word | means | values |
/// |---|---|---|
/// | `arch` | whose rules the MMU follows | `x86`, `arm`, `riscv` |
/// | `levels` | levels of a table tree | 2, 3 |
/// | `bits` | entries of a table, log2 | 1 to 3 |
/// | `spaces` | address spaces | 1 to 4 |
/// | `pages` | pages of each space that are mapped at the start | up to a table's |
/// | `kernel` | kernel pages that are mapped | 0 to a table's |
/// | `large` | the second table's span is one large page | `on`, `off` |
/// | `shared` | the second table is shared by all spaces | `on`, `off` |
/// | `policy` | mechanisms | `shootdown`, `naive`, `linux-4.13`, `linux-4.14`, `linux-5.13`, `linux-6.15` |
/// | `tags` | hardware tags | `on`, `off` |
/// | `wide` | hardware tags of so many bits that mean the same on every CPU | 2 to 8; 0: no |
/// | `broadcast` | hardware invalidates on every CPU; how it is decided that it need not | `always`, `sticky`, `active`, `trim` |
/// | `split` | separate user and kernel tables | `off`, `on`, `pending` (other tags' pages can't be invalidated) |
/// | `slots` | tag slots in use | 1 to 6 |
/// | `invlpgb` | hardware invalidates on every CPU by a tag, and beside the slots so many tags are for all CPUs | 1 to 8; 0: no |
/// | `above` | a space that is active on more CPUs than this gets such a tag | 0 to 8 |
/// | `ceiling` | pages beyond which a flush is full | from 1 |
/// | `tree` | larger sets of CPUs are told as a tree | from 1; 0 never |
/// | `log`, `early` | range log, early acknowledgement | `on`, `off` |
/// | `accessed` | when entries go whose accessed bits were cleared | `immediate`, `switch`, `generation`, `never` |
/// | `lazy` | pages may be unmapped lazily, and are read-only until they are granted | `on`, `off` |
/// | `isolated` | CPUs are isolated in user mode | `on`, `off` |
/// | `serializes` | invalidations order later translations | `on`, `off` |
/// | `guest` | virtual CPUs that a hypervisor takes away; flushes may mark those that are away, or go by hypercall | `off`, `marks`, `calls`, `both` |
/// | `nmi` | non-maskable handlers that read user memory come during invalidations and loads | `on`, `off` |
/// | `numbers` | the library's numbers of the CPUs | up to 8 different ones below 4096, after commas |
/// | `completes` | hardware that broadcasts is said to complete early: CPUs are interrupted too | `early`, `late` |
/// | `keeps` | what is cached of the kernel's own tables stays when they are loaded again | `on`, `off` |
/// | `defects` | the port works around the defects of the hardware ([`Power::is_defect`](crate::hunt::Power::is_defect)) | `on`, `off` |
/// | `mutant` | the kernel's broken step | see [`KernelMutant::name`] |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whose rules the MMU follows.
    pub architecture: Architecture,
    /// Levels of a table tree.
    pub levels: u8,
    /// Entries of a table, log2.
    pub bits: u8,
    /// Address spaces.
    pub spaces: u8,
    /// Pages of each space that are mapped at the start.
    pub pages: u8,
    /// Kernel pages that are mapped.
    pub kernel_pages: u8,
    /// The second table's span is one large page.
    pub large: bool,
    /// The second table is shared by all spaces.
    pub shared: bool,
    /// Mechanisms.
    pub policy: Policy,
    /// Hardware tags.
    pub tags: bool,
    /// Bits of machine-wide tags; 0: tags are each CPU's own.
    pub wide: u8,
    /// Hardware invalidates on every CPU (by the policy's strategy).
    pub broadcast: bool,
    /// Tags for all CPUs beside the slots, by which hardware invalidates on every CPU; 0: it does
    /// not.
    pub invlpgb: u8,
    /// Separate user and kernel tables.
    pub split: Split,
    /// Pages beyond which a flush is full.
    pub ceiling: u32,
    /// CPUs are isolated in user mode.
    pub isolated: bool,
    /// Invalidations order later translations.
    pub serializes: bool,
    /// Virtual CPUs.
    pub guest: Guest,
    /// Non-maskable handlers.
    pub nmi: bool,
    /// The library's numbers of the CPUs.
    pub numbers: [u16; MAX_CPUS],
    /// Broadcasts are declared to complete early.
    pub completes_early: bool,
    /// Loading the kernel's own tables keeps what is cached of them.
    pub keeps: bool,
    /// The port works around defects of the hardware.
    pub defects: bool,
    /// The kernel's broken step.
    pub mutant: Option<KernelMutant>,
}

/// Are there separate user and kernel tables?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Split {
    /// No.
    #[default]
    Off,
    /// Yes, and pages can be invalidated under both tags.
    On,
    /// Yes, and the user half can only be invalidated whole, on the way to user mode.
    Pending,
}

/// Are the CPUs virtual ones, and what does the hypervisor offer?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guest {
    /// They are real ones.
    #[default]
    Off,
    /// It honours marks.
    Marks,
    /// It flushes by hypercall, when it does not fail.
    Calls,
    /// Both.
    Both,
}

impl Guest {
    /// May CPUs that are away be marked?
    #[must_use]
    pub const fn marks(self) -> bool {
        matches!(self, Self::Marks | Self::Both)
    }

    /// Are there hypercalls?
    #[must_use]
    pub const fn calls(self) -> bool {
        matches!(self, Self::Calls | Self::Both)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Marks => "marks",
            Self::Calls => "calls",
            Self::Both => "both",
        }
    }
}

impl Default for Config {
    /// Two levels of two entries, one space with one page, x86-64 without tags, the default policy.
    fn default() -> Self {
        Self {
            architecture: Architecture::X86_64,
            levels: 2,
            bits: 1,
            spaces: 1,
            pages: 1,
            kernel_pages: 0,
            large: false,
            shared: false,
            policy: Policy::SHOOTDOWN,
            tags: false,
            wide: 0,
            broadcast: false,
            invlpgb: 0,
            split: Split::Off,
            ceiling: 4,
            isolated: false,
            serializes: true,
            guest: Guest::Off,
            nmi: false,
            numbers: Self::NEAR,
            completes_early: false,
            keeps: false,
            defects: false,
            mutant: None,
        }
    }
}

const ACCESSED: [(&str, Accessed); 4] = [
    ("immediate", Accessed::Immediate),
    ("switch", Accessed::AtSwitch),
    ("generation", Accessed::Generation),
    ("never", Accessed::Never),
];

const POLICIES: [(&str, Policy); 6] = [
    ("shootdown", Policy::SHOOTDOWN),
    ("naive", Policy::NAIVE),
    ("linux-4.13", Policy::LINUX_4_13),
    ("linux-4.14", Policy::LINUX_4_14),
    ("linux-5.13", Policy::LINUX_5_13),
    ("linux-6.15", Policy::LINUX_6_15),
];

const STRATEGIES: [(&str, Strategy); 4] = [
    ("always", Strategy::Always),
    ("sticky", Strategy::Sticky),
    ("active", Strategy::Active),
    ("trim", Strategy::Trim),
];

impl Config {
    /// The most address spaces.
    pub const MAX_SPACES: usize = 4;

    /// Two pages at most, and what [`Op::Expire`](super::Op::Expire) finds is old.
    pub const LAZY: LazyUnmap = LazyUnmap { max_age: 1, max_pages: 2 };

    /// The first of the tags for all CPUs: above those of the slots.
    pub const FIRST_SHARED: Tag = Tag(7);

    /// The numbers of CPUs, if nothing else is said: all in one group.
    pub const NEAR: [u16; MAX_CPUS] = [0, 1, 2, 3, 4, 5, 6, 7];

    /// In several groups of one word, in two words, and far apart; at the edges of all of these.
    pub const APART: [[u16; MAX_CPUS]; 4] = [
        [0, 1, 17, 2, 18, 3, 19, 4],
        [16, 48, 63, 49, 1, 17, 47, 0],
        [0, 64, 65, 1, 63, 17, 127, 16],
        [1, 4094, 64, 4095, 63, 65, 0, 16],
    ];

    /// Spaces that are active on more CPUs than `above` get a tag for all CPUs; every flush looks.
    #[must_use]
    pub const fn looks_always(above: u32) -> Threshold {
        Threshold { above, every: 1, alone: 0 }
    }

    /// A page of a program as it is mapped at first.
    pub(super) const fn page(&self, frame: Frame) -> Descriptor {
        match self.policy.lazy_unmap {
            Some(_) => Descriptor::user_ro(frame),
            None => Descriptor::user_rw(frame),
        }
    }

    /// The port's facts.
    #[must_use]
    pub const fn facts(&self) -> Facts {
        Facts {
            tag_scope: match (self.wide, self.tags) {
                (0, true) => TagScope::PerCpu,
                (0, false) => TagScope::None,
                _ => TagScope::System,
            },
            tag_bits: match (self.wide, self.tags) {
                (0, true) => 5,
                (bits, _) => bits,
            },
            broadcast: match (self.broadcast, self.invlpgb) {
                (true, _) => Broadcast::Tlbi { ranges: true },
                (false, 0) => Broadcast::None,
                (false, _) => Broadcast::Invlpgb { max_pages: 8 },
            },
            invalidate_serializes: self.serializes,
            fault_forgets: matches!(self.architecture, Architecture::X86_64),
            split_tables: match self.split {
                Split::Off => SplitTables::No,
                Split::On => SplitTables::Yes { invalidate_other_tag: true },
                Split::Pending => SplitTables::Yes { invalidate_other_tag: false },
            },
            ceiling: self.ceiling,
            errata: Errata {
                repeat_sync: false,
                survives_once: false,
                completes_early: self.completes_early,
                page_spares_globals: false,
            },
            ..Facts::X86_64_MINIMUM
        }
    }

    /// The hardware.
    #[must_use]
    pub const fn setup(&self) -> Setup {
        Setup {
            levels: self.levels,
            index_bits: self.bits,
            tables: if self.spaces > 3 { 32 } else { 24 },
            frames: if self.frames_at_boot() > 24 { 96 } else { 48 },
            architecture: self.architecture,
        }
    }

    /// Frames that are mapped before the CPUs run.
    const fn frames_at_boot(&self) -> u8 {
        let large = if self.large { self.entries() } else { 0 };
        let shared = if self.shared { self.entries() } else { 0 };
        self.kernel_pages + shared + self.spaces * (self.pages + large)
    }

    /// Entries of a table.
    #[must_use]
    pub const fn entries(&self) -> u8 {
        1 << self.bits
    }

    /// Words of a set with all of the numbers: 1 or 64.
    #[must_use]
    pub fn words(&self) -> usize {
        match self.numbers.iter().max() {
            None | Some(..64) => 1,
            Some(_) => 64,
        }
    }

    /// Is this step of the kernel broken?
    #[must_use]
    pub fn breaks(&self, mutant: KernelMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Reads one `word=value`.
    pub(super) fn set(&mut self, word: &str) -> Result<(), String> {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("`{word}` is not word=value"))?;
        let number =
            |low: u32, high: u32| {
                value.parse::<u32>().ok().filter(|n| (low..=high).contains(n)).ok_or_else(|| {
                    format!("`{key}` is a number from {low} to {high}, not `{value}`")
                })
            };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(format!("`{key}` is on or off, not `{value}`")),
        };
        #[allow(clippy::cast_possible_truncation)] // the bounds above
        match key {
            "arch" => {
                self.architecture = match value {
                    "x86" => Architecture::X86_64,
                    "arm" => Architecture::Aarch64,
                    "riscv" => Architecture::RiscV64,
                    _ => return Err(format!("there is no architecture `{value}` here")),
                }
            }
            "levels" => self.levels = number(2, 3)? as u8,
            "bits" => self.bits = number(1, 3)? as u8,
            "spaces" => self.spaces = number(1, Self::MAX_SPACES as u32)? as u8,
            "pages" => self.pages = number(0, 8)? as u8,
            "kernel" => self.kernel_pages = number(0, 8)? as u8,
            "large" => self.large = switch()?,
            "shared" => self.shared = switch()?,
            "policy" => {
                let known = POLICIES.iter().find(|(name, _)| *name == value);
                self.policy = known.ok_or_else(|| format!("there is no policy `{value}`"))?.1;
            }
            "tags" => self.tags = switch()?,
            "wide" => self.wide = number(0, 8)? as u8,
            "broadcast" => {
                let known = STRATEGIES.iter().find(|(name, _)| *name == value);
                let strategy = known.ok_or_else(|| format!("there is no strategy `{value}`"))?.1;
                (self.broadcast, self.policy.broadcast) = (true, Some(strategy));
            }
            "invlpgb" => {
                self.invlpgb = number(0, 8)? as u8;
                self.policy.shared = Self::looks_always(1);
            }
            "above" => self.policy.shared = Self::looks_always(number(0, 8)?),
            "accessed" => {
                let known = ACCESSED.iter().find(|(name, _)| *name == value);
                let accessed = known.ok_or_else(|| {
                    format!("`accessed` is immediate, switch, generation or never, not `{value}`")
                })?;
                self.policy.accessed = AccessedPolicy::all(accessed.1);
            }
            "lazy" => self.policy.lazy_unmap = switch()?.then_some(Self::LAZY),
            "split" => {
                self.split = match value {
                    "off" => Split::Off,
                    "on" => Split::On,
                    "pending" => Split::Pending,
                    _ => return Err(format!("`split` is off, on or pending, not `{value}`")),
                }
            }
            "slots" => self.policy.slots = number(1, 6)? as u8,
            "ceiling" => self.ceiling = number(1, 64)?,
            "tree" => self.policy.tree_above = number(0, 64)? as u16,
            "log" => self.policy.range_log = switch()?,
            "early" => self.policy.early_ack = switch()?,
            "isolated" => self.isolated = switch()?,
            "serializes" => self.serializes = switch()?,
            "guest" => {
                let all = [Guest::Off, Guest::Marks, Guest::Calls, Guest::Both];
                let known = all.into_iter().find(|guest| guest.name() == value);
                self.guest = known.ok_or_else(|| {
                    format!("`guest` is off, marks, calls or both, not `{value}`")
                })?;
            }
            "nmi" => self.nmi = switch()?,
            "numbers" => self.numbers = numbers(value)?,
            "completes" => {
                self.completes_early = match value {
                    "early" => true,
                    "late" => false,
                    _ => return Err(format!("`completes` is early or late, not `{value}`")),
                }
            }
            "keeps" => self.keeps = switch()?,
            "defects" => self.defects = switch()?,
            "mutant" => {
                let mutant = KernelMutant::from_name(value);
                self.mutant = Some(mutant.ok_or_else(|| format!("there is no mutant `{value}`"))?);
            }
            _ => return Err(format!("a configuration has no `{key}`")),
        }
        Ok(())
    }

    /// Can it be built?
    pub(super) fn check(&self) -> Result<(), String> {
        let entries = self.entries();
        if self.pages > entries || self.kernel_pages > entries {
            return Err(format!("a table has {entries} entries: at most as many pages are mapped"));
        }
        if (self.large || self.shared) && self.bits < 2 {
            return Err("a second table needs bits=2".to_owned());
        }
        if self.large && self.shared {
            return Err("the second table is large or shared, not both".to_owned());
        }
        if self.invlpgb != 0 && (self.broadcast || !self.tags) {
            return Err("`invlpgb` needs tags=on, and no other broadcast".to_owned());
        }
        if self.keeps && self.wide == 0 && !self.tags {
            return Err("`keeps` needs tags".to_owned());
        }
        if self.wide != 0 && self.numbers != Self::NEAR {
            return Err("`wide` tags are for CPUs that are numbered from 0".to_owned());
        }
        self.facts().check().map_err(|e| e.to_string())?;
        self.policy.check(&self.facts()).map_err(|e| e.to_string())
    }
}

/// Reads the numbers of CPUs. Those that are not said are the smallest that are left.
fn numbers(text: &str) -> Result<[u16; MAX_CPUS], String> {
    let mut numbers = Vec::new();
    for word in text.split(',') {
        let number = word.parse::<u16>().ok().filter(|n| *n < 4096 && !numbers.contains(n));
        numbers.push(number.ok_or("`numbers` are different ones below 4096, after commas")?);
    }
    let rest = (0..).filter(|n| !numbers.contains(n)).take(MAX_CPUS).collect::<Vec<u16>>();
    numbers.extend(rest);
    numbers.truncate(MAX_CPUS);
    Ok(numbers.try_into().expect("as many as there are CPUs"))
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::default();
        let mut text = String::new();
        let switch = |on: bool| if on { "on" } else { "off" };
        let mut say = |differs: bool, key: &str, value: &dyn fmt::Display| {
            if differs {
                let space = if text.is_empty() { "" } else { " " };
                write!(text, "{space}{key}={value}")
            } else {
                Ok(())
            }
        };
        let arch = match self.architecture {
            Architecture::X86_64 => "x86",
            Architecture::Aarch64 => "arm",
            Architecture::RiscV64 => "riscv",
        };
        say(self.architecture != plain.architecture, "arch", &arch)?;
        say(self.levels != plain.levels, "levels", &self.levels)?;
        say(self.bits != plain.bits, "bits", &self.bits)?;
        say(self.spaces != plain.spaces, "spaces", &self.spaces)?;
        say(self.pages != plain.pages, "pages", &self.pages)?;
        say(self.kernel_pages != plain.kernel_pages, "kernel", &self.kernel_pages)?;
        say(self.large, "large", &"on")?;
        say(self.shared, "shared", &"on")?;
        // The policy is one of the named ones, with a few things changed.
        let same = |p: &Policy| {
            let Policy {
                slots,
                tree_above,
                range_log,
                early_ack,
                broadcast,
                shared,
                accessed,
                lazy_unmap,
                ..
            } = self.policy;
            let chosen = Policy { slots, tree_above, range_log, early_ack, broadcast, ..*p };
            Policy { shared, accessed, lazy_unmap, ..chosen } == self.policy
        };
        let (name, base) = POLICIES.iter().find(|(_, p)| same(p)).unwrap_or(&POLICIES[0]);
        say(*base != plain.policy, "policy", name)?;
        say(self.tags, "tags", &"on")?;
        say(self.wide != 0, "wide", &self.wide)?;
        let strategy = STRATEGIES.iter().find(|(_, s)| Some(*s) == self.policy.broadcast);
        if let Some((name, _)) = strategy {
            say(self.broadcast, "broadcast", name)?;
        }
        let known = ACCESSED.iter().find(|(_, a)| AccessedPolicy::all(*a) == self.policy.accessed);
        if let Some((name, _)) = known {
            say(self.policy.accessed != base.accessed, "accessed", name)?;
        }
        say(self.policy.lazy_unmap.is_some(), "lazy", &"on")?;
        let split = if self.split == Split::On { "on" } else { "pending" };
        say(self.split != Split::Off, "split", &split)?;
        say(self.policy.slots != base.slots, "slots", &self.policy.slots)?;
        say(self.invlpgb != 0, "invlpgb", &self.invlpgb)?;
        let above = self.policy.shared.above;
        say(self.invlpgb != 0 && above != 1, "above", &above)?;
        say(self.ceiling != plain.ceiling, "ceiling", &self.ceiling)?;
        say(self.policy.tree_above != base.tree_above, "tree", &self.policy.tree_above)?;
        say(self.policy.range_log != base.range_log, "log", &switch(self.policy.range_log))?;
        say(self.policy.early_ack != base.early_ack, "early", &switch(self.policy.early_ack))?;
        say(self.isolated, "isolated", &"on")?;
        say(!self.serializes, "serializes", &"off")?;
        say(self.guest != Guest::Off, "guest", &self.guest.name())?;
        say(self.nmi, "nmi", &"on")?;
        let numbers = self.numbers.map(|n| n.to_string()).join(",");
        say(self.numbers != plain.numbers, "numbers", &numbers)?;
        say(self.completes_early, "completes", &"early")?;
        say(self.keeps, "keeps", &"on")?;
        say(self.defects, "defects", &"on")?;
        if let Some(mutant) = self.mutant {
            say(true, "mutant", &mutant.name())?;
        }
        f.write_str(&text)
    }
}

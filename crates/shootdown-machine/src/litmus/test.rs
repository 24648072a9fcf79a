//! A litmus test: tables, programs, and a question about how it may end.

use std::fmt;

use super::condition::Condition;
use super::device::{Device, Iommu};
use super::program::Instruction;
use super::value::Value;

/// Whose rules the test is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arch {
    /// Intel 64 and AMD64.
    X86_64,
    /// Armv8-A and later, stage 1.
    Aarch64,
    /// RISC-V with Sv39 or larger.
    Riscv64,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86_64, Self::Aarch64, Self::Riscv64];

    /// Its name in test files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
            Self::Riscv64 => "riscv64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the outcome in question may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Expectation {
    /// Some run ends so.
    Allowed,
    /// No run ends so.
    Forbidden,
    /// Every run ends so.
    Required,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "allowed",
            Self::Forbidden => "forbidden",
            Self::Required => "required",
        })
    }
}

/// Optional parts of an architecture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// FEAT_ETS2 (AArch64): a fault never comes from a walk older than the accesses before it.
    pub ets2: bool,
    /// Hardware sets the accessed flag (AArch64 HA, RISC-V Svadu; always on x86-64).
    pub ha: bool,
    /// Hardware manages dirty state (AArch64 HD, RISC-V Svadu; always on x86-64).
    pub hd: bool,
    /// Svvptc (RISC-V): no lasting memory of absent entries.
    pub svvptc: bool,
}

impl Features {
    /// Their names in test files.
    pub const NAMES: [&'static str; 4] = ["ets2", "ha", "hd", "svvptc"];

    pub(super) fn named(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "ets2" => Some(&mut self.ets2),
            "ha" => Some(&mut self.ha),
            "hd" => Some(&mut self.hd),
            "svvptc" => Some(&mut self.svvptc),
            _ => None,
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = [self.ets2, self.ha, self.hd, self.svvptc];
        let mut separator = "";
        for (name, _) in Self::NAMES.iter().zip(on).filter(|(_, on)| *on) {
            write!(f, "{separator}{name}")?;
            separator = " ";
        }
        Ok(())
    }
}

/// A verdict for one machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The machine.
    pub features: Features,
    /// The published or derived verdict for it.
    pub expected: Expectation,
}

/// What a fault does to its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Faults {
    /// Ends it.
    #[default]
    Stop,
    /// Skips the instruction; what follows is fetched after the exception.
    Skip,
}

/// A word of memory with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Word {
    pub name: String,
    pub initial: Value,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    pub name: String,
    pub entries: Vec<Value>,
}

/// A virtual page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Page {
    pub name: String,
    /// Its number.
    pub page: u32,
}

/// Hardware updates of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Managed {
    pub ha: bool,
    pub hd: bool,
}

/// A CPU's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Program {
    /// The root it starts with: a table's number.
    pub root: usize,
    /// The tag it starts with.
    pub tag: u16,
    pub code: Vec<Instruction>,
    /// It runs in user mode.
    pub user: bool,
    /// Which hardware updates are on (AArch64 TCR_EL1.HA, HD); `None`: as the features say.
    pub managed: Option<Managed>,
    /// Registers that are not 0 at the start.
    pub registers: Vec<(u8, Value)>,
}

/// A litmus test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Test {
    pub(super) name: String,
    pub(super) arch: Arch,
    pub(super) source: String,
    pub(super) cases: Vec<Case>,
    pub(super) unsupported: Option<String>,
    pub(super) uncertain: Option<String>,
    pub(super) faults: Faults,
    pub(super) levels: u8,
    /// Words that every CPU reaches without translation.
    pub(super) vars: Vec<Word>,
    /// Frames, one word each.
    pub(super) frames: Vec<Word>,
    pub(super) tables: Vec<Table>,
    pub(super) pages: Vec<Page>,
    pub(super) cpus: Vec<Program>,
    pub(super) iommu: Iommu,
    pub(super) devices: Vec<Device>,
    pub(super) goal: Condition,
    pub(super) witnesses: Vec<Condition>,
}

impl Test {
    /// The entries of every table: 2^2.
    pub(super) const INDEX_BITS: u8 = 2;

    /// Its name, unique among the tests of its architecture.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its architecture.
    #[must_use]
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// Where the verdict comes from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The verdicts, one per machine.
    #[must_use]
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Why our machine cannot decide it, if so.
    #[must_use]
    pub fn unsupported(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// Why the verdict itself is in doubt, if so.
    #[must_use]
    pub fn uncertain(&self) -> Option<&str> {
        self.uncertain.as_deref()
    }
}

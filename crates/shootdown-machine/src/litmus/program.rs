//! Instructions: what a program of a test is made of.

use super::device::Command;
use super::value::Value;

/// A register of one CPU.
pub(super) type Reg = u8;

/// A word that an access names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Place {
    /// A variable: reached without translation.
    Var(u8),
    /// A table's entry: reached without translation, as through a kernel's linear map.
    Entry { table: u8, index: u8 },
    /// The word of a virtual page: translated.
    Page(u8),
}

/// A source operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Operand {
    Reg(Reg),
    Value(Value),
}

/// How an access is ordered by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Order {
    pub acquire: bool,
    pub release: bool,
    /// An acquire that does not wait for earlier releases (AArch64 LDAPR).
    pub pc: bool,
}

impl Order {
    pub const fn new(acquire: bool, release: bool) -> Self {
        Self { acquire, release, pc: false }
    }
}

/// What a read-modify-write makes of the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Modify {
    /// The operand.
    Exchange,
    Add,
    /// The word with the operand's bits set.
    Set,
    /// The word without the operand's bits.
    Clear,
    /// The operand, if the word is this.
    Compare(Operand),
}

/// Reads, writes or both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Class {
    pub reads: bool,
    pub writes: bool,
}

impl Class {
    pub const READS: Self = Self { reads: true, writes: false };
    pub const WRITES: Self = Self { reads: false, writes: true };
    pub const BOTH: Self = Self { reads: true, writes: true };

    pub const fn meets(self, other: Self) -> bool {
        self.reads && other.reads || self.writes && other.writes
    }
}

/// An instruction that makes others wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Barrier {
    /// Accesses of the second class wait for earlier ones of the first (MFENCE, DMB, FENCE).
    Memory { before: Class, after: Class },
    /// Everything but walks waits for earlier accesses of the class (DSB); with `both`, for the
    /// invalidations issued before it too.
    Sync { before: Class },
    /// What follows is fetched anew after what went before is certain (ISB).
    Context,
    /// SFENCE.W.INVAL: later SINVAL.VMA wait for earlier stores.
    BeforeInvalidations,
    /// SFENCE.INVAL.IR: later walks wait for earlier SINVAL.VMA.
    AfterInvalidations,
}

/// What an invalidation names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Scope {
    /// One page under one tag.
    Page { page: u8, tag: u16 },
    /// One page under any tag.
    PageAnyTag { page: u8 },
    /// One page's leaf only, under one tag or any.
    LastLevel { page: u8, tag: Option<u16> },
    /// What INVLPG removes: one page under the tag in force, its global entries, and every
    /// walk-cache entry of the tag.
    PageHere { page: u8 },
    /// One tag.
    Tag(u16),
    /// Everything but global entries.
    NonGlobal,
    /// Everything.
    All,
}

/// Which instruction invalidates: decides what it waits for and what waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Invalidator {
    /// x86: serializing.
    Serializing,
    /// AArch64 TLBI: needs a DSB before and after.
    Tlbi,
    /// RISC-V SFENCE.VMA: waits for earlier stores, later walks wait for it.
    SfenceVma,
    /// RISC-V SINVAL.VMA: needs its two fences.
    SinvalVma,
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Op {
    Load {
        to: Reg,
        place: Place,
        address: Option<Reg>,
        order: Order,
        exclusive: bool,
    },
    Store {
        place: Place,
        value: Operand,
        address: Option<Reg>,
        order: Order,
    },
    /// A store that fails (register 1) or finds the word as the last exclusive load saw it (0).
    StoreExclusive {
        status: Reg,
        place: Place,
        value: Operand,
    },
    /// Reads and writes at one moment.
    Swap {
        /// `None`: nothing is kept of what was read (AArch64 STCLR).
        to: Option<Reg>,
        place: Place,
        with: Modify,
        value: Operand,
        address: Option<Reg>,
        order: Order,
    },
    /// Loads again and again until the value is there.
    Wait {
        place: Place,
        value: Value,
    },
    Set {
        to: Reg,
        left: Operand,
        with: Arithmetic,
        right: Operand,
    },
    /// The left operand if the register is (or is not) zero, else the right (AArch64 CSEL).
    Select {
        to: Reg,
        reg: Reg,
        zero: bool,
        left: Operand,
        right: Operand,
    },
    /// Goes on at `target` if the register is (or is not) the value; with [`NOWHERE`] such a run is
    /// not looked at.
    Branch {
        reg: Operand,
        equal: bool,
        value: Value,
        target: usize,
    },
    Barrier(Barrier),
    Invalidate {
        by: Invalidator,
        scope: Scope,
        broadcast: bool,
    },
    /// Loads a root. `keep`: entries of the tag stay.
    Root {
        table: u8,
        tag: u16,
        keep: bool,
    },
    /// Interrupts another CPU.
    Interrupt {
        cpu: u8,
    },
    /// Waits for an interrupt and takes it.
    TakeInterrupt,
    /// Puts a command into the queue of the IOMMU.
    Command(Command),
    /// Writes the line of a table's entry back to memory.
    WriteBack {
        place: Place,
    },
}

/// What [`Op::Set`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Arithmetic {
    /// The left operand.
    Move,
    Add,
    Subtract,
    Shift,
    Xor,
    And,
    Or,
    /// The left operand without the bits of the right.
    Clear,
}

/// The target of a branch back to loads: a run that loads again ends like one that loaded once, and
/// later.
pub(super) const NOWHERE: usize = usize::MAX;

/// What a fault of an instruction does to the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum OnFault {
    /// What the test says of faults.
    #[default]
    AsTest,
    /// The program goes on here: a handler, or the instruction once more.
    GoTo(usize),
    /// Such a run is not looked at (a handler that faults, a second retry).
    Discard,
}

/// An instruction of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Instruction {
    pub op: Op,
    pub label: Option<String>,
    /// Where the program goes on after it, if not below.
    pub next: Option<usize>,
    /// What a fault of it does.
    pub on_fault: OnFault,
    /// The line it stands in.
    pub line: usize,
}

impl Instruction {
    pub const fn new(op: Op, label: Option<String>, line: usize) -> Self {
        Self { op, label, next: None, on_fault: OnFault::AsTest, line }
    }
}

impl Op {
    /// How it accesses memory, if it does.
    pub fn class(&self) -> Option<Class> {
        match self {
            Self::Load { .. } | Self::Wait { .. } => Some(Class::READS),
            Self::Store { .. } | Self::StoreExclusive { .. } => Some(Class::WRITES),
            Self::Command(_) | Self::WriteBack { .. } => Some(Class::WRITES),
            // What is read and not kept is ordered by no barrier for loads (Arm ARM B2.3, `NoRet`).
            Self::Swap { to: None, .. } => Some(Class::WRITES),
            Self::Swap { .. } => Some(Class::BOTH),
            _ => None,
        }
    }

    /// Which word.
    pub fn place(&self) -> Option<Place> {
        match *self {
            Self::Load { place, .. }
            | Self::Wait { place, .. }
            | Self::Store { place, .. }
            | Self::StoreExclusive { place, .. }
            | Self::Swap { place, .. }
            | Self::WriteBack { place } => Some(place),
            _ => None,
        }
    }

    /// How it is ordered by itself.
    pub fn order(&self) -> Order {
        match *self {
            Self::Load { order, .. } | Self::Store { order, .. } | Self::Swap { order, .. } => {
                order
            }
            _ => Order::default(),
        }
    }

    /// The register it writes.
    pub fn target(&self) -> Option<Reg> {
        match *self {
            Self::Swap { to, .. } => to,
            Self::Load { to, .. } | Self::Set { to, .. } | Self::Select { to, .. } => Some(to),
            Self::StoreExclusive { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The register that its address is computed from.
    pub fn address(&self) -> Option<Reg> {
        match *self {
            Self::Load { address, .. }
            | Self::Store { address, .. }
            | Self::Swap { address, .. } => address,
            _ => None,
        }
    }

    /// The registers that its result or its data come from.
    pub fn operands(&self) -> [Option<Operand>; 3] {
        match *self {
            Self::Set { left, right, .. } => [Some(left), Some(right), None],
            Self::Select { reg, left, right, .. } => {
                [Some(Operand::Reg(reg)), Some(left), Some(right)]
            }
            Self::Branch { reg, .. } => [Some(reg), None, None],
            Self::Swap { with: Modify::Compare(old), value, .. } => [Some(old), Some(value), None],
            Self::Store { value, .. }
            | Self::StoreExclusive { value, .. }
            | Self::Swap { value, .. } => [Some(value), None, None],
            _ => [None; 3],
        }
    }

    /// Does what follows depend on whether (or where to) it goes on?
    pub fn steers(&self) -> bool {
        matches!(self, Self::Branch { .. } | Self::Wait { .. } | Self::TakeInterrupt)
    }
}

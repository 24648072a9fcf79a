//! What is asked of an MMU and what it answers.

use shootdown::CpuId;

use crate::mmu::Frame;
use crate::mmu::array::rights;
pub use crate::mmu::lines::Distance;
use crate::oracle::Violation;

/// A kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load in user mode.
    UserRead,
    /// A store in user mode.
    UserWrite,
    /// A load in kernel mode.
    KernelRead,
    /// A store in kernel mode.
    KernelWrite,
}

impl Access {
    /// The rights it needs.
    #[inline]
    pub(crate) const fn need(self) -> u32 {
        match self {
            Self::UserRead => rights::USER,
            Self::UserWrite => rights::USER | rights::WRITE | rights::DIRTY,
            Self::KernelRead => 0,
            Self::KernelWrite => rights::WRITE | rights::DIRTY,
        }
    }
}

/// What a walk read: the price is the engine's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walk {
    /// Table entries read, by the distance their lines were found at.
    pub reads: [u8; 3],
    /// Where the line of the last entry read was.
    pub last: Distance,
}

impl Walk {
    pub(crate) fn read(&mut self, distance: Distance) {
        self.reads[distance as usize] += 1;
        self.last = distance;
    }

    /// The greatest distance that was read from.
    #[must_use]
    pub fn worst(&self) -> Distance {
        let [_, typical, far] = self.reads;
        match (typical, far) {
            (0, 0) => Distance::Near,
            (_, 0) => Distance::Typical,
            _ => Distance::Far,
        }
    }
}

/// Where a translation was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// In the first level: free of charge.
    First,
    /// In the second level.
    Second,
    /// By a walk.
    Walk(Walk),
}

/// A translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The 4 KiB unit that the address is in.
    pub frame: Frame,
    /// Where it was found.
    pub found: Found,
}

/// Why the tables don't allow an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// Nothing is mapped there.
    NotPresent,
    /// A store to a page that may only be read.
    ReadOnly,
    /// User mode has no right to the page.
    Supervisor,
    /// No address that 48-bit hardware accepts.
    NotCanonical,
}

/// A page fault. The CPU has forgotten what it had cached for the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Who.
    pub cpu: CpuId,
    /// Where.
    pub va: u64,
    /// Why.
    pub kind: FaultKind,
    /// What was read before it was known.
    pub walk: Walk,
}

/// An access that did not take place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trap {
    /// For the kernel to handle.
    Fault(Fault),
    /// A broken promise: the run is over.
    Violation(Box<Violation>),
}

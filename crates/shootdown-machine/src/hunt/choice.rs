//! Choices: everything that is not determined is asked of a [`Chooser`].
//!
//! A schedule *is* the list of its choices: the same world, powers and choices give the same run,
//! always. Option 0 is the one in which nothing special happens (the same CPU goes on, a load
//! returns the newest value, no fault is injected), so that a short schedule is one with few
//! deviations from 0. A point with one option only is not asked, and not recorded.

use super::powers::Power;

/// Who can take a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Actor {
    /// A CPU goes on with what it runs.
    Cpu(u8),
    /// A CPU takes its pending interrupt.
    Interrupt(u8),
    /// The oldest store in a CPU's buffer becomes visible.
    Drain(u8),
}

impl Actor {
    /// The CPU whose step it is.
    #[must_use]
    pub const fn cpu(self) -> u8 {
        match self {
            Self::Cpu(cpu) | Self::Interrupt(cpu) | Self::Drain(cpu) => cpu,
        }
    }
}

/// What a step touches: two steps that touch nothing in common may be exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Whose step it is. Steps of one CPU are never exchanged.
    pub cpu: u8,
    /// The memory location, numbered from 1; 0 for none.
    pub location: u32,
    /// It changes the location.
    pub write: bool,
    /// It touches things that have no number (TLBs, page tables, interrupts).
    pub everything: bool,
}

impl Footprint {
    /// A step that may not be exchanged with any other.
    #[must_use]
    pub const fn everything(cpu: u8) -> Self {
        Self { cpu, location: 0, write: true, everything: true }
    }

    /// Does the order of the two steps matter?
    #[must_use]
    pub const fn depends_on(&self, other: &Self) -> bool {
        self.cpu == other.cpu
            || self.everything
            || other.everything
            || (self.location != 0
                && self.location == other.location
                && (self.write || other.write))
    }
}

/// An actor that could go next, and what its step would touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Who.
    pub actor: Actor,
    /// What the step touches.
    pub footprint: Footprint,
}

/// A point at which more than one thing can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point<'a> {
    /// Who goes next. Candidate 0 is the CPU that went last, if it can go on.
    Next {
        /// Two or more.
        candidates: &'a [Candidate],
        /// A hash of the whole state, where [`Chooser::wants_state`]; otherwise 0.
        state: u64,
    },
    /// Which of several values a load returns; 0 is the newest, then older ones.
    Value {
        /// Who loads.
        cpu: u8,
        /// How many; at least 2.
        count: usize,
    },
    /// Does this go wrong? 0 no, 1 yes.
    Fault {
        /// What would go wrong.
        power: Power,
    },
}

impl Point<'_> {
    /// How many options there are.
    #[must_use]
    pub const fn options(&self) -> usize {
        match self {
            Self::Next { candidates, .. } => candidates.len(),
            Self::Value { count, .. } => *count,
            Self::Fault { .. } => 2,
        }
    }
}

/// What is to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// This option.
    Take(usize),
    /// Nothing more: this schedule need not be finished.
    Abandon,
}

/// Decides.
pub trait Chooser {
    /// What happens at this point.
    fn choose(&mut self, point: &Point<'_>) -> Decision;

    /// Is the hash of the state needed? It costs time at every step.
    fn wants_state(&self) -> bool {
        false
    }
}

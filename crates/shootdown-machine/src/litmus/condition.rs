//! Questions about how a run ended.

use super::program::Place;
use super::value::Value;
use crate::hostile::FaultKind;

/// A formula over final registers, memory and faults.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Condition {
    Always,
    Register {
        cpu: usize,
        reg: u8,
        value: Value,
    },
    /// A variable or a table's entry.
    Memory {
        place: Place,
        value: Value,
    },
    /// A frame's word.
    Frame {
        frame: usize,
        value: Value,
    },
    /// The instruction at this index took a fault.
    Fault {
        cpu: usize,
        at: usize,
        /// For this reason; `None` for any.
        kind: Option<FaultKind>,
    },
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

/// How a run ended, as far as conditions ask.
pub(super) trait Ending {
    fn register(&self, cpu: usize, reg: u8) -> Value;
    fn memory(&self, place: Place) -> Value;
    fn frame(&self, frame: usize) -> Value;
    /// Why the instruction faulted, if it did.
    fn faulted(&self, cpu: usize, at: usize) -> Option<FaultKind>;
}

impl Condition {
    /// Does it hold of this ending?
    pub fn holds(&self, end: &impl Ending) -> bool {
        match self {
            Self::Always => true,
            Self::Register { cpu, reg, value } => end.register(*cpu, *reg) == *value,
            Self::Memory { place, value } => end.memory(*place) == *value,
            Self::Frame { frame, value } => end.frame(*frame) == *value,
            Self::Fault { cpu, at, kind } => {
                end.faulted(*cpu, *at).is_some_and(|why| kind.is_none_or(|kind| kind == why))
            }
            Self::Not(inner) => !inner.holds(end),
            Self::And(left, right) => left.holds(end) && right.holds(end),
            Self::Or(left, right) => left.holds(end) || right.holds(end),
        }
    }
}

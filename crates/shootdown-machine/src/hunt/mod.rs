//! Hunt mode: the library's own code on a machine that is as hostile as the manuals allow.
//!
//! A [`World`] says what each CPU executes. [`run`] executes one *schedule* of it: the code runs in
//! coroutines, one per CPU, and every access to shared memory, every page-table write and every
//! operation of the hardware is a *step*. Between two steps anything may happen that the
//! adversary's [`Powers`] allow: another CPU goes on, an interrupt is taken, a store leaves a
//! buffer, a load returns an older value. All of that is asked of a [`Chooser`], so that a schedule
//! can be random, systematic, or replayed.
//!
//! Translations are not a matter of choice: the machine keeps, for each CPU, *everything* that its
//! TLB and walk caches could hold ([`crate::hostile`]), and a promise is broken when any of it
//! could be used against it.
//!
//! ```text
//! World (programs) --> library under test --> atomics (hooks), Platform, Regime
//!                                                |                  |
//!                                            memory.rs            hw.rs --> hostile (TLBs, walkers)
//!                                                \                  /
//!                                                 machine.rs: one step; who is next? --> Chooser
//! ```
//!
//! What the adversary can't see: state that a world shares between CPUs outside of atomics and page
//! tables. It takes part in no step. An exhaustive search takes two states for one that differ in
//! it only, unless the world tells of it ([`World::state`]); what lies in cells of the library of
//! devices, it knows by who was there, in which order.

mod arena;
pub mod barrier;
mod cells;
mod choice;
pub mod dma;
pub mod guest;
pub mod hooks;
pub mod hw;
pub mod io;
mod iommu;
pub mod kernel;
mod machine;
mod memory;
mod mmu;
mod powers;
mod promises;
pub mod schedule;
mod setup;
mod sharing;
#[cfg(test)]
mod tests;
mod work;

pub use choice::{Actor, Candidate, Chooser, Decision, Footprint, Point};
pub use machine::{run, run_sharing};
pub use memory::MAX_CPUS;
pub use powers::{Memory, Power, Powers};
pub use sharing::Sharing;
pub use work::Work;

use shootdown::CpuId;

use crate::oracle::Violation;

/// What the CPUs of a hunted machine execute.
pub trait World {
    /// How many CPUs there are; at most [`MAX_CPUS`].
    fn cpus(&self) -> u8;

    /// Builds what the CPUs share. No CPU runs yet: nothing here is a step. Called once per
    /// schedule, so it must build the same things every time.
    fn boot(&self);

    /// The program of a CPU. Starts with interrupts on.
    fn program(&self, cpu: CpuId);

    /// The handler of the interrupt that [`hw::kick`] raises. Starts, and must end, with interrupts
    /// off.
    fn interrupt(&self, cpu: CpuId);

    /// The hypervisor takes the CPU away and brings it back ([`hw::virtual_cpus`]).
    fn absent(&self, _cpu: CpuId) {}

    /// A hash of what the world's CPUs share outside of atomics, page tables and cells of the
    /// library. What a CPU reads of it is to be [told](hw::saw).
    fn state(&self) -> u64 {
        0
    }

    /// Looks at the state after all programs have ended. May use [`hw::violation`].
    fn finish(&self) {}
}

/// Bounds of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Steps after which a run is cut.
    pub steps: u64,
    /// Keep the story of the run.
    pub record: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { steps: 20_000, record: false }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// All programs ended, and no promise was broken.
    Finished,
    /// A promise was broken.
    Violation(Box<Violation>),
    /// The code under test panicked.
    Panic(String),
    /// The chooser had seen enough.
    Abandoned,
    /// The bound on steps was reached.
    Limit,
}

impl End {
    /// Something is wrong with the code under test.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Violation(_) | Self::Panic(_))
    }
}

/// Something that happened, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// After how many steps.
    pub step: u64,
    /// On which CPU.
    pub cpu: u8,
    /// What.
    pub text: String,
}

/// A run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// How many steps were taken.
    pub steps: u64,
    /// What was chosen, in order.
    pub choices: Vec<u16>,
    /// Which witnesses were reached, sorted.
    pub witnesses: Vec<&'static str>,
    /// Hash of the final state, where the chooser wants states; otherwise 0.
    pub state: u64,
    /// How much the machine had to do.
    pub work: Work,
    /// What happened, if it was recorded.
    pub events: Vec<Event>,
}

//! A software machine in virtual time: CPUs, TLBs, walkers, cache lines, interrupts, and an oracle.
//!
//! The machine runs the very source of the `shootdown` library (compiled with traced atomics) under
//! a small kernel, on as many CPUs as asked for, and says how long everything took, which lines
//! moved, who interrupted whom, and whether a promise of the coherence contract was broken. It
//! knows nothing of experiments: programs are closures that run on a CPU.
//!
//! The same configuration gives the same figures in every run, on every host, in debug and release
//! builds: time is counted in integers ([`Time`]), CPUs run in the order of their time, and nothing
//! depends on host addresses or on the host's allocator.

pub mod casemate;
mod config;
mod cpu;
mod engine;
#[cfg(feature = "harness")]
pub mod harness;
pub mod hostile;
pub mod hunt;
pub mod io;
mod kernel;
pub mod litmus;
mod machine;
pub mod mmu;
mod names;
pub mod oracle;
mod outcome;
pub mod profile;
mod time;
mod violation;

pub use config::{Config, Host, MachineError};
pub use cpu::Cpu;
pub use engine::Footprint;
pub use kernel::{Kernel, Space};
pub use machine::Machine;
pub use outcome::{
    CpuOutcome, FabricUse, Interrupts, Invalidations, LineCounts, Outcome, TimeSplit, TlbCounts,
};
pub use profile::{Number, Profile, ProfileError};
pub use shootdown;
pub use shootdown::ids::{CpuId, Stride};
pub use shootdown::policy::Policy;
pub use shootdown_dma;
pub use time::Time;
pub use violation::Violation;

/// The most CPUs a machine can have.
pub const MAX_CPUS: u32 = 4096;

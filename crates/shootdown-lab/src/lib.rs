//! The laboratory: everything the `shootdown` command can do, as a library.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the command line: subcommands, shared options, exit codes |
//! | [`names`] | names users type (policies, experiments), and the nearest ones when they mistype |
//! | [`output`] | rows of results, as tables and as JSON |
//! | [`machines`] | machine profiles by name or by file |
//! | [`hot`] | the library's hot paths at full speed on this host |
//! | [`bound`] | the `omniscient` bound |
//! | [`progress`] | progress bars on a terminal, silence in a pipe |
//! | [`recording`] | recordings of real programs: making, keeping and reading them |
//! | [`replay`] | doing on the machine what a recording says |
//! | [`experiments`] | what `shootdown bench` runs |
//! | [`check`] | what `shootdown check` runs |
//!
//! The laboratory drives the software machine through its public interface and knows nothing of its
//! insides: an experiment is a workload, a set of policies and the published figures it is held
//! against.

pub mod bound;
pub mod check;
pub mod cli;
pub mod dma;
pub mod error;
pub mod experiments;
pub mod hot;
pub mod iova;
pub mod machines;
pub mod names;
pub mod output;
pub mod pinned;
pub mod progress;
pub mod recording;
pub mod replay;

pub use error::LabError;

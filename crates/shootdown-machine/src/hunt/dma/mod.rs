//! A model kernel of devices, for hunts of [`shootdown_dma::Domain`].
//!
//! # What is hunted
//! CPUs map, use and unmap buffers in one domain; a hostile IOMMU ([`io`](super::io)) caches every translation
//! and every path that is reachable at any time, until a command that covers it takes effect. All atomics of the domain
//! (page table, seats, cells, lanes, the allocator's lock) are steps.
//!
//! # What is promised
//! | when | nobody | invariant |
//! |---|---|---|
//! | a strict unmapping returns | reaches the memory by these addresses | [`Revocation`](Invariant::Revocation) |
//! | a frame is recycled: its owner has freed it, and no reference is left (not if the policy is lazy) | reaches the frame | [`FrameReuse`](Invariant::FrameReuse) |
//! | a mapping returns, under any policy | reaches anything else by its addresses | [`RangeReuse`](Invariant::RangeReuse) |
//! | a page of the page table is given back, under any policy | can walk to it | [`TableReuse`](Invariant::TableReuse) |
//! | all is flushed at the end | reaches what is unmapped, or holds it | [`LazyBound`](Invariant::LazyBound) |
//! | a request is right | is refused | [`ErrorsTotal`](Invariant::ErrorsTotal) |
//!
//! # Worlds
//! A [`DmaProgram`] is a line: a configuration, then the operations of each CPU.
//!
//! | file | has |
//! |---|---|
//! | `config.rs` | what the domain is made for |
//! | `op.rs` | what a CPU does |
//! | `program.rs` | the world |
//! | `driver.rs` | operations, as a driver does them |
//! | `frames.rs` | memory that drivers own and the domain holds |
//! | `host.rs` | the kernel's half of the domain: references, table pages, the unit |
//! | `random.rs` | programs by chance |

mod config;
mod driver;
mod frames;
mod host;
mod op;
mod program;
mod random;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use op::{Buffer, Op};
pub use program::DmaProgram;

pub use shootdown_dma::Policy as DmaPolicy;
/// Steps of the library of devices that can be taken out, as this machine runs it.
pub use shootdown_dma::mutant;
pub use shootdown_dma::mutant::Mutant as DmaMutant;

#[cfg(doc)]
use crate::oracle::Invariant;

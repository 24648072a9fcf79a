//! A model kernel of devices, for hunts of [`shootdown_dma::Domain`].
//!
//! # What is hunted
//! CPUs map, use and unmap buffers in one or two domains, with any of the formats and allocators of
//! the library, behind one or two hostile IOMMUs ([`io`](super::io)), which cache every translation
//! and every path that is reachable at any time, until a command that covers it takes effect; a
//! device comes and goes. All atomics of the domains (page tables, epoch slots, cells,
//! lanes, allocators' locks) are steps.
//!
//! # What is promised
//! | when | nobody | invariant |
//! |---|---|---|
//! | a strict unmapping returns | reaches the memory by these addresses | [`Revocation`](Invariant::Revocation) |
//! | a frame is recycled: its owner has freed it, and no reference is left (not if the policy is lazy) | reaches the frame | [`FrameReuse`](Invariant::FrameReuse) |
//! | a mapping returns, under any policy | reaches anything else by its addresses | [`RangeReuse`](Invariant::RangeReuse) |
//! | | has more rights than were asked for | [`Revocation`](Invariant::Revocation) |
//! | | finds nothing there, or reads entries that are not written back | [`UpgradeSoundness`](Invariant::UpgradeSoundness) |
//! | | has it cached in two sizes | [`OneSize`](Invariant::OneSize) |
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
//! | `world.rs` | what CPUs share, and how it begins |
//! | `driver.rs` | operations, as a driver does them |
//! | `bouncer.rs` | buffers of bytes, with pages of the pool |
//! | `large.rs` | large pages |
//! | `map_at.rs` | addresses that a driver brings |
//! | `ending.rs` | a domain that ends, and begins again |
//! | `devices.rs` | a device that comes and goes |
//! | `failures.rs` | what they do when hardware fails |
//! | `frames.rs` | memory that drivers own and the domain holds |
//! | `host.rs` | the kernel's half of the domain: references, table pages, the unit |
//! | `pools.rs` | pages for the edges of buffers |
//! | `domains.rs`, `sources.rs`, `decode.rs` | formats and allocators, behind one face each; formats as hardware reads them |
//! | `mistake.rs` | steps of the kernel that can be wrong |
//! | `random.rs` | programs by chance |

mod bouncer;
mod config;
mod decode;
mod devices;
mod domains;
mod driver;
mod ending;
mod failures;
mod frames;
mod given;
mod host;
mod large;
mod mistake;
mod op;
mod pools;
mod program;
mod random;
mod sources;
#[cfg(test)]
mod tests;
mod world;

pub use config::{Config, Source, Tables};
pub use mistake::Mistake;
pub use op::{Buffer, Op};
pub use program::DmaProgram;

pub use shootdown_dma::Policy as DmaPolicy;
/// Steps of the library of devices that can be taken out, as this machine runs it.
pub use shootdown_dma::mutant;
pub use shootdown_dma::mutant::Mutant as DmaMutant;

#[cfg(doc)]
use crate::oracle::Invariant;

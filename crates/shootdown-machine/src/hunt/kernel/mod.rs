//! A small model kernel to hunt with: the code that calls the library, on the code that the library
//! calls.
//!
//! # The problem
//! The library's promises hold only together with a kernel that does its part: changes tables
//! before it flushes, frees after, holds locks that are served while they are waited for, asks
//! again when a flush fails. Most historical bugs are in that part. So the hunt has a kernel of its
//! own, small enough to be explored, that does every thing a real one does with translations,
//! *correctly*; and, for the bug zoo, a switch for each of the things that real ones did wrong
//! ([`KernelMutant`]).
//!
//! # A world
//! A [`Program`] is a [`Config`] and a list of [`Op`]erations for each CPU; its text is one line.
//! It is a [`World`](super::World) on the default port ([`HuntPort`]), and on any other by
//! [`Program::on`].
//!
//! # Invariants of the kernel
//! - K1: page-table entries are changed under the space's lock (but walked without it by
//!   [`Op::Walk`]).
//! - K2: frames and tables are freed after a flush that covers them has returned `Ok`. What a
//!   failed flush covers stays out of use until another one has succeeded.
//! - K3: where the lock is free before the flush, a gather is open from before that; whoever relies
//!   on a page that it finds unmapped or read-only calls `complete_pending`.
//! - K4: whoever waits for a lock serves others.
//! - K5: a space is retired when nobody uses it (`users`), and its tables are freed after.
//! - K6: what CPUs share is traced, or used under a traced lock; all else is one CPU's own or
//!   constant after boot.
//! - K7: an address is mapped after `make_way`.

mod aging;
mod config;
mod contents;
mod cpu;
mod elide;
mod epoch;
mod kernel_pages;
mod lazy_unmap;
mod library;
mod memory;
mod mutant;
mod op;
mod pinned;
mod port;
mod program;
mod random;
mod reclaim;
mod retire;
mod state;
mod tables;
#[cfg(test)]
mod tests;
mod trees;

pub use config::{Config, Guest, Split};
pub use library::Library;
pub use mutant::KernelMutant;
pub use op::{At, Op};
pub use port::{HuntPin, HuntPort, HuntRegime, Port};
pub use program::{On, Program, Script};

//! Hostile hardware: everything that TLBs and walk caches may hold under the manuals' rules.
//!
//! # The problem
//! A real CPU caches translations when it likes and forgets them when it likes. A test that caches
//! at some moments and not at others finds a bug only if it guesses the moment. This module guesses
//! nothing: each CPU's cached entries are the *set* of everything that could have been cached since
//! the last invalidation that covers it, and an access may go by any of them, or by a walk made
//! now. The set contains all histories of speculation and eviction at once.
//!
//! # The protocol
//! The state is plain data: [`Clone`], [`Eq`], [`Hash`](std::hash::Hash), deterministic. It owns no
//! memory; words are read through the caller's [`TableMemory`]. The caller reports every event:
//!
//! | event | call | instruction |
//! |---|---|---|
//! | a word becomes visible with a new value | [`Hostile::changed`] | a store, at the moment walkers may see it |
//! | a root is loaded | [`Hostile::load`] | MOV CR3; MSR TTBR0 and ISB; CSRW satp |
//! | the upper half's root is loaded | [`Hostile::load_upper`] | MSR TTBR1 and ISB |
//! | entries are invalidated | [`Hostile::invalidate`] | INVLPG, INVPCID, TLBI, SFENCE.VMA, INVLPGB |
//! | the CPU waits for its invalidations | [`Hostile::sync`] | DSB, TLBSYNC, SFENCE.INVAL.IR |
//! | the CPU drops what it translated ahead | [`Hostile::context_sync`] | ISB, exception entry and return |
//! | an access faults | [`Hostile::faulted`] | |
//! | an access goes through | [`Hostile::used`] | only where caching is on access |
//!
//! and asks: [`Hostile::outcomes`] (what may this access do?), [`Hostile::walkers_reach`] (may this
//! table page be freed?), [`Hostile::usable`], [`Hostile::unbroken`] (break-before-make), and
//! others. What the architectures differ in is in [`Rules`], a table with the manuals' sections;
//! what their instructions remove is in [`Invalidation`]. Stores, store buffers, barriers between
//! stores and walks are the caller's: a walker that may read stale words is a [`TableMemory`] that
//! tells several values.
//!
//! ```
//! use shootdown::{Reach, Tag};
//! use shootdown_machine::hostile::{
//!     Access, Descriptor, Frame, Hostile, Invalidation, Outcome, Rules, Shape, TableId, TableMemory, Word,
//! };
//!
//! /// Two levels of two entries each: table 0 is the root, table 1 maps pages 0 and 1.
//! struct Tables([[Descriptor; 2]; 2]);
//! impl TableMemory for Tables {
//!     fn read(&self, _cpu: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32)) {
//!         see(self.0[usize::from(word.table.0)][usize::from(word.index)], 0);
//!     }
//! }
//!
//! let mut mem = Tables([
//!     [Descriptor::table(TableId(1)), Descriptor::ABSENT],
//!     [Descriptor::user_rw(Frame(7)), Descriptor::ABSENT],
//! ]);
//! let mut hw = Hostile::new(Rules::x86_64(Shape::new(2, 1)?), 2)?;
//! hw.load(&mem, 1, Some(TableId(0)), Tag(1), false)?;
//!
//! // CPU 0 unmaps page 0 without telling CPU 1, which has never made an access: it may have cached it.
//! mem.0[1][0] = Descriptor::ABSENT;
//! hw.changed(&mem, Word::new(TableId(1), 0))?;
//! let mut outcomes = Vec::new();
//! hw.outcomes(&mem, 1, 0, Access::USER_WRITE, &mut outcomes);
//! assert!(matches!(outcomes[0], Outcome::Fault { .. }));
//! assert!(matches!(outcomes[1], Outcome::Hit { stale: true, .. }));
//!
//! hw.invalidate(&mem, 1, Invalidation::invlpg(0, Tag(1)), Reach::Local)?;
//! hw.outcomes(&mem, 1, 0, Access::USER_WRITE, &mut outcomes);
//! assert!(matches!(outcomes[..], [Outcome::Fault { .. }]));
//! # Ok::<(), shootdown_machine::hostile::HostileError>(())
//! ```
//!
//! # Invariants
//! - H1: after every call the sets are closed: a walk from anything that can be walked from adds
//!   nothing (with [`Fills::Anytime`]; see `fill.rs`).
//! - H2: an entry leaves only through an invalidation that covers it, a fault on it where the rules
//!   say so, or a load that does not keep its tag. Nothing is dropped to save room: a full set is
//!   an error.
//! - H3: equal states behave equally: whatever decides the future is part of equality and hash.
//! - H4: without [`Rules::provenance`] versions do not matter and are stored as 0.
//!
//! Not modelled: stage 2 and VMIDs (a tag is a [`Tag`](shootdown::Tag); a caller may give virtual
//! machines tags of their own), hierarchical accessed flags (FEAT_HAFT), ASIDs taken from TTBR1,
//! and accesses that cross a page.

mod access;
mod cpu;
mod descriptor;
mod entry;
mod error;
mod fill;
mod held;
mod instructions;
mod invalidate;
mod late;
mod memory;
mod query;
mod rules;
mod shape;
mod state;
#[cfg(test)]
mod tests;
mod walk;

pub use access::{Access, FaultKind, Kind, Outcome, Update};
pub use descriptor::{Descriptor, Rights};
pub use entry::{Owner, Partial, Path, Source, Translation};
pub use error::HostileError;
pub use invalidate::{Invalidation, Owners, Walks};
pub use memory::{Frame, TableId, TableMemory, Word};
pub use rules::{
    Aarch64, AccessedUpdates, Broken, Dirty, Errata, Fills, Late, Negative, RiscV, Rules, WalkCache,
};
pub use shape::{MAX_INDEX_BITS, MAX_LEVELS, Pages, Shape};
pub use state::{Hostile, MAX_CPUS};

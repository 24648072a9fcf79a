//! Traces of page-table code in the format of Casemate, and an automaton of our own over them.
//!
//! # The problem
//! On Arm, an entry that maps something must not be replaced by one that maps something else before
//! it was made invalid, and every TLB has forgotten it: *break before make* (Arm ARM D8.16.1). A
//! TLB that breaks the rule may use a mixture of the two. Whether code obeys is a question about
//! its writes, barriers and TLBIs, and needs no adversary: one trace of them is enough.
//!
//! Casemate (Cambridge, BSD-2; `rems-project/casemate`) asks that question of hypervisors, and has
//! a format for such traces: one record per line, as an S-expression ([`Record`]). Traces written
//! here can be given to its checkers, and its traces to the [`Automaton`] here, which was written
//! from the manual's rule.
//!
//! # The format
//! As `doc/trace-format.md` and the parser `src/casemate-check-c/src/parser.c` of version 3 have
//! it: identifiers are decimal, numbers hexadecimal, every record ends with its source `FILE:LINE`.
//! We write what that parser reads, and `tlbi vae2`, which only the document has.
//!
//! # The automaton
//! | state of an entry | left by | for |
//! |---|---|---|
//! | valid | a write that makes it invalid | broken |
//! | broken | a DSB ISHST or ISH of the CPU that broke it | ordered |
//! | ordered | TLBIs of that CPU, on all CPUs, that cover everything the entry translated | invalidated |
//! | invalidated | a DSB ISH of that CPU | clean |
//! | clean | a write that makes it valid | valid |
//!
//! For stage 2 there are two TLBIs with a DSB between them (by address, then the combined entries).
//! While an entry is not clean, the table pages that it led to may not be written either: walks may
//! still read them.
//!
//! What it does not look at: locks and owners of tables, TLBIs of one CPU (they don't count),
//! address-space identifiers of EL1.

mod automaton;
mod record;
#[cfg(test)]
mod tests;

pub use automaton::{Automaton, Violation, judge};
pub use record::{Dsb, Record, RecordError, Register, Step, Tlbi, parse};

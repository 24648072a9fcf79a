//! Litmus tests: small programs with a published answer, run on every schedule there is.
//!
//! # The problem
//! A machine that is kinder than the architecture hides bugs, a machine that is harsher finds bugs
//! that are none. A litmus test asks one question (may this run end so?) to which the manuals, a
//! formal model or a published suite give an answer. This module asks them all of our machine: the
//! same [hostile hardware](crate::hostile) that hunts the library, under programs of a few
//! instructions.
//!
//! # The parts
//! - tests are text files of our own format (`parse`, and a page of the book), embedded in the
//!   library ([`embedded`]); Arm's herd files are read too, as far as our machine has their
//!   instructions ([`check_directory`]);
//! - `window` and `step` say what a CPU may do next: x86-64 executes in order with a store buffer,
//!   AArch64 and RISC-V in any order that dependencies, barriers and accesses of the same word
//!   permit;
//! - `device` is devices behind an IOMMU, where a test has some;
//! - [`explore`] visits every state once, [`run`] compares with the published verdict.
//!
//! # Invariants
//! - L1: no verdict without a finished exploration: a limit is "unknown", never "pass".
//! - L2: a test with a forbidden outcome names a witness, an outcome that must be reachable; a
//!   missing witness fails the test, so that nothing passes because nothing happened.
//! - L3: what our machine cannot decide says so and why, and never counts as passed.
//! - L4: results are the same in every run and build: no hash order, no addresses, no time.
//!
//! ```
//! use shootdown_machine::litmus::{Options, Test, run};
//!
//! let test = Test::parse("example", "
//!     test    invlpg-then-read
//!     arch    x86-64
//!     source  Intel SDM vol. 3A 4.10.4.1
//!     verdict forbidden
//!     frame old = 1
//!     frame new = 2
//!     map x -> old
//!     cpu 0
//!         store pte(x) = new
//!         invlpg x
//!         r0 = load x
//!     exists  0:r0 = 1
//!     witness 0:r0 = 2
//! ")?;
//! let verdict = run(&test, &Options::default());
//! assert!(verdict.pass, "{verdict:?}");
//! # Ok::<(), shootdown_machine::litmus::ParseError>(())
//! ```

mod condition;
mod device;
mod embedded;
mod error;
mod explore;
mod herd;
mod machine;
mod parse;
mod program;
mod step;
mod test;
#[cfg(test)]
mod tests;
mod traces;
mod value;
mod verdict;
mod window;

pub use embedded::{Embedded, embedded};
pub use error::{ParseError, RunError};
pub use explore::{Explored, explore};
pub use herd::{DirectoryError, check_directory, check_herd};
pub use machine::{Breakage, Options};
pub use test::{Arch, Case, Expectation, Faults, Features, Test};
pub use traces::traces;
pub use value::Value;
pub use verdict::{Outcome, Verdict, run};

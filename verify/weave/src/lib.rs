//! Writes a copy of a library's source with changes in it, each behind a switch.
//!
//! A [`Change`] is one mistake that somebody could have made: edits in the bodies of functions, in
//! one file or in several. [`Tree::read`] takes the source of a library, [`Tree::weave`] puts every
//! change into a copy of it, and [`Tree::write`] writes that copy, which a package then compiles in
//! place of the source. The source itself knows nothing of its changes, and a change whose text is
//! not found exactly once in its function is an [`Error`] that stops the build.
//!
//! # The switch
//! The smallest part of a body that holds a change becomes a choice: an argument, a condition, the
//! value of a declaration, statements that declare nothing for others, or a block.
//!
//! ```text
//! self.acked.store(seen, match crate::mutant::selected() {
//!     __on if !matches!(__on, 17) => { Ordering::Release }
//!     _ => { crate::mutant::reach(); Ordering::Relaxed }
//! });
//! ```
//!
//! So an edit may touch whatever stands in a body: an expression, statements, a pattern, a
//! declaration that later statements use (then all of its block is copied). Copies stand in one
//! line, and line numbers are those of the source. In a copy, `crate::mutant::reach()` is called
//! before the innermost statement that holds an edit.
//!
//! The copy needs a module `mutant` with `selected() -> u32` (zero for no change) and `reach()`;
//! [`Tree::add_module`] adds one.
//!
//! [`Woven`] does the same to one text, with words of the caller's choice, and tells which part of
//! the result is whose: what the compiler says of it can be brought home.
//!
//! # Tables
//! The mutants of this repository that are written by hand are a [`Table`] beside the source;
//! [`Library`] is what a build script does with it.
//!
//! # Limits
//! Signatures, constants, and code that a `macro_rules!` writes can't be changed. A function nested
//! in another is a part of that other one. A `const fn` with changes is no longer `const` in the
//! copy. A closure is of another type in each copy: where a function returns one, an edit must
//! stand in the closure's body.

mod change;
mod error;
mod function;
mod library;
mod site;
mod switch;
mod table;
mod tokens;
mod tree;
mod woven;

pub use change::{Change, Edit, What};
pub use error::Error;
pub use function::{Function, functions};
pub use library::{Library, WITHOUT_TABLE};
pub use switch::{Changed, Part, Replacement, Switch};
pub use table::{Mutant, Table};
pub use tree::Tree;
pub use woven::{Broken, Woven};

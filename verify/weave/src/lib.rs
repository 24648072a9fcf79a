//! Writes a copy of a library's source with changes in it, each behind a switch.
//!
//! A [`Change`] is one mistake that somebody could have made: edits in the bodies of functions, in
//! one file or in several. [`Tree::read`] takes the source of a library, [`Tree::weave`] puts every
//! change into a copy of it, and [`Tree::write`] writes that copy, which a package then compiles in
//! place of the source. The source itself knows nothing of its changes, and a change whose text is
//! not found exactly once in its function is an [`Error`] that stops the build.
//!
//! # The switch
//! A function that has changes asks once, at its start, which change is on. Each change has a copy
//! of the whole body:
//!
//! ```text
//! fn f(..) -> R {
//!     let selected = crate::mutant::selected();
//!     if !matches!(selected, 17 | 23) { the body }
//!     else if selected == 17 { the body with change 17 }
//!     else { the body with change 23 }
//! }
//! ```
//!
//! So an edit may touch whatever stands in a body: an expression, statements, a pattern, a
//! declaration that later statements use. Copies stand in one line after the body, and line numbers
//! of the copy are those of the source. Before the statement that holds an edit, the copy calls
//! `crate::mutant::reach()`.
//!
//! The copy needs a module `mutant` with `selected() -> u32` (zero for no change) and `reach()`;
//! [`Tree::add_module`] adds one.
//!
//! # Tables
//! The mutants of this repository that are written by hand are a [`Table`] beside the source;
//! [`Library`] is what a build script does with it.
//!
//! # Limits
//! Signatures, constants, and code that a `macro_rules!` writes can't be changed. A function nested
//! in another is a part of that other one. A `const fn` with changes is no longer `const` in the
//! copy. Where a function returns `impl Trait`, copies would be of different types: an edit of such
//! a function must replace a whole expression by another, and the switch stands in its place.

mod change;
mod error;
mod function;
mod library;
mod switch;
mod table;
mod tokens;
mod tree;

pub use change::{Change, Edit, What};
pub use error::Error;
pub use function::{Function, functions};
pub use library::{Library, WITHOUT_TABLE};
pub use table::{Mutant, Table};
pub use tree::Tree;

//! Automatic mutants: changes of the two libraries that nobody wrote.
//!
//! Mutants written by hand show that the checks find what their authors thought of. These show what
//! they find of the rest: a statement left out, a comparison off by one, an ordering weakened,
//! wherever the protocol files have one.
//!
//! ```text
//! src/*.rs -- generate --> mutants -- weave --> a copy of the workspace -- compile --> a binary
//!                                                        ^                       |
//!                                                        +--- drop what does not compile
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`scope`] | says what is left out, and why |
//! | [`generate`] | makes the mutants of a file |
//! | [`probes`] | finds what no hunt runs |
//! | [`switch`] | is what a text that holds many of them asks which one is on |
//! | [`tree`] | copies the workspace with woven libraries, and compiles it |
//!
//! What runs them is `shootdown check mutants --automatic`.

pub mod generate;
pub mod probes;
pub mod scope;
pub mod source;
pub mod switch;
pub mod tree;

/// What can go wrong before a mutant runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The list of what is left out is none.
    #[error("verify/automatic/scope.toml: {0}")]
    Scope(String),
    /// A file that can't be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// A source file that does not parse.
    #[error("{path}: {error}")]
    Syntax {
        /// Which.
        path: String,
        /// Why.
        error: syn::Error,
    },
    /// A mutant that can't be woven into the source.
    #[error("{0}")]
    Weave(#[from] shootdown_weave::Error),
    /// The woven copy does not compile, and no mutant is to blame.
    #[error("the copy with mutants does not compile: {0}")]
    Compile(String),
}

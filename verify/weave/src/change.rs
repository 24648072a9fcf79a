//! A change, and the edits that it is made of.

use std::ops::Range;
use std::path::PathBuf;

/// One mistake that somebody could have made.
#[derive(Clone, Debug)]
pub struct Change {
    /// The number that turns it on. Never zero, and no other change of the tree has it.
    pub id: u32,
    /// Its name, for what is printed.
    pub name: String,
    /// What is edited, in one or several functions. No two of them overlap.
    pub edits: Vec<Edit>,
}

/// One replacement in the body of a function.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The file, from the root of the tree (`tags/shared.rs`).
    pub file: PathBuf,
    /// The function, as [`Function::is_named`](crate::Function::is_named) takes it: `switch_to`,
    /// `PerCpu::set_lazy`, `<PerCpu as Drop>::drop`.
    pub function: String,
    /// What is replaced, and by what.
    pub what: What,
}

/// What is replaced, and by what.
#[derive(Clone, Debug)]
pub enum What {
    /// A text, which is found exactly once in the function. It is compared token by token: white
    /// space and comments don't count.
    Text {
        /// What stands there. It has a token at least, and its brackets are balanced.
        before: String,
        /// What the change makes of it.
        after: String,
    },
    /// A place in the file.
    Span {
        /// First byte and the byte after the last one, both in the body of the function.
        range: Range<usize>,
        /// What the change makes of it. Nothing is inserted where the range is empty but this.
        after: String,
    },
}

impl Edit {
    /// An edit that replaces a text.
    pub fn text(file: impl Into<PathBuf>, function: &str, before: &str, after: &str) -> Self {
        let what = What::Text { before: before.into(), after: after.into() };
        Self { file: file.into(), function: function.into(), what }
    }

    /// An edit that replaces a range of bytes.
    pub fn span(
        file: impl Into<PathBuf>,
        function: &str,
        range: Range<usize>,
        after: &str,
    ) -> Self {
        Self {
            file: file.into(),
            function: function.into(),
            what: What::Span { range, after: after.into() },
        }
    }
}

//! One text with many changes in it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Error;
use crate::function::{Function, functions};
use crate::switch::{self, Changed, Part, Switch};

/// A text with changes in it, each behind its number.
#[derive(Clone, Debug, Default)]
pub struct Woven {
    /// The text.
    pub text: String,
    parts: Vec<(Range<usize>, Part)>,
    first: usize,
    /// The changes of each choice, from number `first`.
    choices: Vec<Vec<u32>>,
}

/// A change that leaves no Rust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Its number.
    pub id: u32,
    /// The function that it is in.
    pub function: String,
    /// What the parser says.
    pub why: String,
}

impl From<String> for Woven {
    /// A text without changes.
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl Woven {
    /// A text with changes in it. Choices are numbered from `first`.
    ///
    /// # Errors
    /// [`Error::Syntax`]: the text is no Rust. The second one: a change is in no function, or what it
    /// leaves is no Rust.
    pub fn new(
        text: &str,
        changes: &[Changed],
        first: usize,
        words: &Switch<'_>,
    ) -> Result<Result<Self, Broken>, Error> {
        let functions = functions(text)?;
        let mut by_function: BTreeMap<usize, Vec<Changed>> = BTreeMap::new();
        for change in changes {
            let is_in = |body: &Range<usize>| {
                let mut all = change.replacements.iter().map(|r| &r.range);
                all.all(|r| body.start < r.start && r.end < body.end)
            };
            let Some(at) = functions.iter().position(|function| is_in(&function.body)) else {
                let why = "it is in the body of no function".into();
                return Ok(Err(Broken { id: change.id, function: String::new(), why }));
            };
            by_function.entry(at).or_default().push(change.clone());
        }
        Ok(weave(text, &functions, &by_function, first, words))
    }

    /// The innermost part that a byte of the text is in, if it is in one.
    #[must_use]
    pub fn part(&self, at: usize) -> Option<Part> {
        let holding = self.parts.iter().filter(|(range, _)| range.contains(&at));
        holding.min_by_key(|(range, _)| range.len()).map(|(_, part)| *part)
    }

    /// The changes that stand in a range of the text.
    pub fn changes_in(&self, range: &Range<usize>) -> impl Iterator<Item = u32> {
        let inside =
            self.parts.iter().filter(|(of, _)| range.start <= of.start && of.end <= range.end);
        inside.filter_map(|(_, part)| match part {
            Part::Change(id) => Some(*id),
            Part::Original(_) => None,
        })
    }

    /// The choices, and the changes of each.
    pub fn choices(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.choices.iter().enumerate().map(|(at, ids)| (self.first + at, ids.as_slice()))
    }
}

/// A text with the changes of its functions, given by the functions' places in the list.
pub(crate) fn weave(
    text: &str,
    functions: &[Function],
    changes: &BTreeMap<usize, Vec<Changed>>,
    first: usize,
    words: &Switch<'_>,
) -> Result<Woven, Broken> {
    let (mut inserts, mut choices) = (Vec::new(), Vec::new());
    for (&at, changes) in changes {
        let function = &functions[at];
        let switched = switch::switch(text, function, changes, first + choices.len(), words)
            .map_err(|(id, why)| Broken { id, function: function.path.clone(), why })?;
        inserts.extend(switched.inserts);
        choices.extend(switched.choices);
    }
    // What one function inserts at a place stays in its order.
    inserts.sort_by_key(|i| (i.replacement.range.start, i.replacement.range.end));
    let (text, parts) = switch::apply_inserts(text, &inserts);
    Ok(Woven { text, parts, first, choices })
}

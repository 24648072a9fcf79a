//! The text of a function with its changes in it.

use std::fmt::Write as _;
use std::ops::Range;
use std::str::FromStr;

use proc_macro2::TokenStream;
use syn::Block;

use crate::function::Function;

/// Text in place of a range of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    pub(crate) range: Range<usize>,
    pub(crate) text: String,
}

/// What a change makes of one function: replacements that don't overlap.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) id: u32,
    pub(crate) replacements: Vec<Replacement>,
}

const REACH: &str = "crate::mutant::reach(); ";

/// What is replaced in the text of a file so that a function has its changes; or the number of the
/// change whose body is no Rust, and what the parser says.
pub(crate) fn switch(
    text: &str,
    function: &Function,
    changes: &[Changed],
) -> Result<Vec<Replacement>, (u32, String)> {
    let mut replacements = Vec::new();
    if let Some(constant) = &function.constant {
        replacements
            .push(Replacement { range: constant.clone(), text: " ".repeat(constant.len()) });
    }
    if function.returns_impl {
        in_place(text, changes, &mut replacements);
        return Ok(replacements);
    }
    let mut numbers = String::new();
    let mut copies = String::new();
    for change in changes {
        let body = copy(text, function, change).map_err(|why| (change.id, why))?;
        let or = if numbers.is_empty() { "" } else { " | " };
        let _ = write!(numbers, "{or}{}", change.id);
        let _ = write!(copies, " else if __selected == {} {body}", change.id);
    }
    // The body keeps its braces, and its first line.
    let head = format!(
        "{{ let __selected = crate::mutant::selected(); if !matches!(__selected, {numbers}) "
    );
    let tail = format!("{copies} else {{ unreachable!() }} }}");
    replacements.push(Replacement { range: function.body.start..function.body.start, text: head });
    replacements.push(Replacement { range: function.body.end..function.body.end, text: tail });
    Ok(replacements)
}

/// The body of a function with a change in it, in one line.
fn copy(text: &str, function: &Function, change: &Changed) -> Result<String, String> {
    let mut all = change.replacements.clone();
    for replacement in &change.replacements {
        // Statements stand in the order of the text, those inside of others after them: the last
        // one is the innermost.
        let holds = |s: &&Range<usize>| {
            s.start <= replacement.range.start && replacement.range.start < s.end
        };
        let before =
            function.statements.iter().rfind(holds).map_or(function.body.start + 1, |s| s.start);
        let is_marked = all.iter().any(|r| r.text == REACH && r.range.start == before);
        let is_replaced = all.iter().any(|r| r.range.start < before && before < r.range.end);
        if !is_marked && !is_replaced {
            all.push(Replacement { range: before..before, text: REACH.into() });
        }
    }
    // The marker before an edit of the same place.
    all.sort_by_key(|r| (r.range.start, r.text != REACH, r.range.end));
    let body = apply(text, function.body.clone(), &all);
    let stream = TokenStream::from_str(&body).map_err(|why| why.to_string())?;
    syn::parse2::<Block>(stream.clone()).map_err(|why| why.to_string())?;
    Ok(stream.to_string())
}

/// Each replaced expression becomes a choice between the two.
fn in_place(text: &str, changes: &[Changed], replacements: &mut Vec<Replacement>) {
    for change in changes {
        for Replacement { range, text: after } in &change.replacements {
            let before = &text[range.clone()];
            let choice = format!(
                "(if crate::mutant::selected() == {} {{ {REACH}{after} }} else {{ {before} }})",
                change.id
            );
            replacements.push(Replacement { range: range.clone(), text: choice });
        }
    }
}

/// A range of a text with replacements made in it, which are sorted and don't overlap.
pub(crate) fn apply(text: &str, range: Range<usize>, replacements: &[Replacement]) -> String {
    let mut out = String::with_capacity(range.len());
    let mut at = range.start;
    for replacement in replacements {
        out.push_str(&text[at..replacement.range.start]);
        out.push_str(&replacement.text);
        at = replacement.range.end;
    }
    out.push_str(&text[at..range.end]);
    out
}

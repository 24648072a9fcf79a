//! The text of a function with its changes in it.

use std::fmt::Write as _;
use std::ops::Range;
use std::str::FromStr;

use proc_macro2::TokenStream;
use syn::{Block, Expr};

use crate::function::Function;
use crate::site::{Kind, Site, are_plain};

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

/// A site, and the changes that are made there.
struct Choice<'a> {
    site: Site,
    changes: Vec<&'a Changed>,
}

/// What is replaced in the text of a file so that a function has its changes; or the number of the
/// change that leaves no Rust, and what the parser says.
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
    let apart: Vec<Changed> = changes.iter().flat_map(|c| apart(text, function, c)).collect();
    let mut choices = Vec::new();
    for change in &apart {
        let site = site(text, function, change).map_err(|why| (change.id, why))?;
        add(&mut choices, site, change);
    }
    nest(function, &mut choices);
    insert(text, function, &choices, &mut replacements);
    Ok(replacements)
}

/// A change of several edits as several changes, where no edit declares what another may use: each
/// then has a site that is no block, and shares nothing of it.
fn apart(text: &str, function: &Function, change: &Changed) -> Vec<Changed> {
    let whole = || Changed { id: change.id, replacements: change.replacements.clone() };
    let mut parts: Vec<(Site, Changed)> = Vec::new();
    for replacement in &change.replacements {
        let part = Changed { id: change.id, replacements: vec![replacement.clone()] };
        let Ok(site) = site(text, function, &part) else { return vec![whole()] };
        let touches = |(other, _): &(Site, Changed)| {
            other.range.start < site.range.end && site.range.start < other.range.end
        };
        if site.kind == Kind::Block || parts.iter().any(touches) {
            return vec![whole()];
        }
        parts.push((site, part));
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// The smallest site that holds a change, and where what it leaves is what was there before: an
/// expression, statements that declare nothing for others, a block.
fn site(text: &str, function: &Function, change: &Changed) -> Result<Site, String> {
    let (Some(first), Some(last)) = (change.replacements.first(), change.replacements.last())
    else {
        return Err("it replaces nothing".into());
    };
    let hull = first.range.start..last.range.end;
    let fits = |site: &Site| {
        let text = apply(text, site.range.clone(), &change.replacements);
        let is_same = match site.kind {
            Kind::Value | Kind::Enclosed => syn::parse_str::<Expr>(&text).map(|_| true),
            Kind::Block => syn::parse_str::<Block>(&text).map(|_| true),
            Kind::Statements => {
                syn::parse_str::<Block>(&format!("{{{text}}}")).map(|b| are_plain(&b.stmts))
            }
        };
        is_same.map_err(|error| error.to_string())
    };
    let mut error = String::from("no part of the body holds it");
    let found = function.sites.smallest(&hull, |site| {
        fits(site).unwrap_or_else(|why| {
            error = why;
            false
        })
    });
    found.ok_or(error)
}

fn add<'a>(choices: &mut Vec<Choice<'a>>, site: Site, change: &'a Changed) {
    match choices.iter_mut().find(|choice| choice.site == site) {
        Some(choice) => choice.changes.push(change),
        None => choices.push(Choice { site, changes: vec![change] }),
    }
}

/// Makes choices nest: where two of them cross (statements one to two, and two to three), both move
/// to the block around. Outer ones then stand before inner ones.
fn nest(function: &Function, choices: &mut Vec<Choice<'_>>) {
    while let Some((a, b)) = crossing(choices) {
        let (second, first) = (choices.swap_remove(b), choices.swap_remove(a));
        let start = first.site.range.start.min(second.site.range.start);
        let hull = start..first.site.range.end.max(second.site.range.end);
        let block = function.sites.block(&hull).expect("the body holds both");
        for change in first.changes.into_iter().chain(second.changes) {
            add(choices, block.clone(), change);
        }
    }
    choices.sort_by_key(|choice| {
        let range = &choice.site.range;
        (range.start, std::cmp::Reverse(range.end), choice.site.kind)
    });
}

/// The places of two choices that cross, the lesser first.
fn crossing(choices: &[Choice<'_>]) -> Option<(usize, usize)> {
    let all = || (0..choices.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    all().find(|&(a, b)| choices[a].site.crosses(&choices[b].site))
}

/// Inserts a `match` around each site, and around those in it.
fn insert(text: &str, function: &Function, choices: &[Choice<'_>], out: &mut Vec<Replacement>) {
    let mut rest = choices;
    while let Some((outer, after)) = rest.split_first() {
        let range = &outer.site.range;
        let (inner, next) =
            after.split_at(after.partition_point(|choice| choice.site.range.start < range.end));
        let (open, original, close) = match outer.site.kind {
            Kind::Statements | Kind::Value => ("", "{ ", " } }"),
            Kind::Enclosed => ("(", "{ ", " } })"),
            Kind::Block => ("{ ", "", " } }"),
        };
        let mut head = format!("{open}match crate::mutant::selected() {{ ");
        for change in &outer.changes {
            let _ = write!(head, "{} => {{ {} }} ", change.id, copy(text, function, outer, change));
        }
        let _ = write!(head, "_ => {original}");
        out.push(Replacement { range: range.start..range.start, text: head });
        insert(text, function, inner, out);
        out.push(Replacement { range: range.end..range.end, text: close.into() });
        rest = next;
    }
}

/// What stands at a site with a change in it, in one line. The mark that it is come by stands before
/// the innermost statement that holds an edit, or before all of it.
fn copy(text: &str, function: &Function, choice: &Choice<'_>, change: &Changed) -> String {
    let site = &choice.site;
    let mut all = change.replacements.clone();
    let mut head = "";
    for replacement in &change.replacements {
        let before = function.sites.statement(replacement.range.start);
        let before = before.filter(|&at| site.range.start < at && at < site.range.end);
        let is_replaced =
            |at| all.iter().any(|r| r.range.start < at && at < r.range.end && r.text != REACH);
        match before {
            Some(at) if !is_replaced(at) => {
                if !all.iter().any(|r| r.text == REACH && r.range.start == at) {
                    all.push(Replacement { range: at..at, text: REACH.into() });
                }
            }
            _ => head = REACH,
        }
    }
    // The mark before an edit of the same place.
    all.sort_by_key(|r| (r.range.start, r.text != REACH, r.range.end));
    let copy = apply(text, site.range.clone(), &all);
    let in_one_line = TokenStream::from_str(&copy).map_or(copy, |tokens| tokens.to_string());
    format!("{head}{in_one_line}")
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

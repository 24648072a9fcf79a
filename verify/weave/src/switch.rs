//! The text of a function with its changes in it: see the root of the crate.

use std::fmt::Write as _;
use std::ops::Range;
use std::str::FromStr;

use proc_macro2::TokenStream;
use syn::{Block, Expr};

use crate::function::Function;
use crate::site::{Kind, Site, are_plain, are_whole, binds_as_operand};

/// Text in place of a range of bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// What goes.
    pub range: Range<usize>,
    /// What comes in its place.
    pub text: String,
}

/// What a change makes of one function: replacements in the order of the text, which don't overlap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The number that turns the change on. Never zero.
    pub id: u32,
    /// What it replaces, at least once.
    pub replacements: Vec<Replacement>,
}

/// The words of a choice.
pub struct Switch<'a> {
    /// The expression that says which change is on, given the number of the choice.
    pub ask: &'a dyn Fn(usize) -> String,
    /// The statement before a changed one, or nothing.
    pub reach: &'a str,
}

/// What a part of a woven text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A choice's text as it was, with the number of the choice.
    Original(usize),
    /// What a change makes of it.
    Change(u32),
}

/// A piece of text to be inserted, with the parts that begin and end in it.
#[derive(Clone, Debug)]
pub(crate) struct Insert {
    pub(crate) replacement: Replacement,
    /// Places in the text where a part begins (some) or the innermost one ends (none).
    marks: Vec<(usize, Option<Part>)>,
}

/// A site, and the changes that are made there.
struct Choice<'a> {
    site: Site,
    changes: Vec<&'a Changed>,
}

/// What is put into the text of a file so that a function has its changes.
pub(crate) struct Switched {
    pub(crate) inserts: Vec<Insert>,
    /// The changes of each choice.
    pub(crate) choices: Vec<Vec<u32>>,
}

/// Puts changes into a function, with choices numbered from `first`; or gives the number of the
/// change that leaves no Rust, and what the parser says.
pub(crate) fn switch(
    text: &str,
    function: &Function,
    changes: &[Changed],
    first: usize,
    words: &Switch<'_>,
) -> Result<Switched, (u32, String)> {
    let apart: Vec<Changed> = changes.iter().flat_map(|c| apart(text, function, c)).collect();
    let mut choices = Vec::new();
    for change in &apart {
        let site = site(text, function, change).map_err(|why| (change.id, why))?;
        add(&mut choices, site, change);
    }
    nest(function, &mut choices);
    let mut writer = Writer { text, function, words, next: first, inserts: Vec::new() };
    if let Some(constant) = &function.constant {
        writer.put(constant.clone(), " ".repeat(constant.len()), Vec::new());
    }
    writer.insert(&choices);
    let ids = |choice: &Choice<'_>| choice.changes.iter().map(|change| change.id).collect();
    Ok(Switched { inserts: writer.inserts, choices: choices.iter().map(ids).collect() })
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
            Kind::Value => syn::parse_str::<Expr>(&text).map(|_| true),
            Kind::Enclosed => syn::parse_str::<Expr>(&text).map(|e| binds_as_operand(&e)),
            Kind::Block => syn::parse_str::<Block>(&text).map(|_| true),
            Kind::Statements => {
                let block = syn::parse_str::<Block>(&format!("{{{text}}}"));
                block
                    .map(|b| are_plain(&b.stmts) && (!site.range.is_empty() || are_whole(&b.stmts)))
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

/// Writes the choices of a function.
struct Writer<'a> {
    text: &'a str,
    function: &'a Function,
    words: &'a Switch<'a>,
    /// The number of the next choice.
    next: usize,
    inserts: Vec<Insert>,
}

impl Writer<'_> {
    fn put(&mut self, range: Range<usize>, text: String, marks: Vec<(usize, Option<Part>)>) {
        self.inserts.push(Insert { replacement: Replacement { range, text }, marks });
    }

    /// Puts a `match` around each site, and around those in it. What was there comes first: it says
    /// which type the other arms have to have.
    fn insert(&mut self, choices: &[Choice<'_>]) {
        let mut rest = choices;
        while let Some((outer, after)) = rest.split_first() {
            let range = &outer.site.range;
            let (inner, next) =
                after.split_at(after.partition_point(|choice| choice.site.range.start < range.end));
            let number = self.next;
            self.next += 1;
            let (open, brace, close) = match outer.site.kind {
                Kind::Statements | Kind::Value => ("", ("{ ", " }"), " }"),
                Kind::Enclosed => ("(", ("{ ", " }"), " })"),
                Kind::Block => ("{ ", ("", ""), " } }"),
            };
            let ids: Vec<String> = outer.changes.iter().map(|c| c.id.to_string()).collect();
            let (ask, ids) = ((self.words.ask)(number), ids.join(" | "));
            let head =
                format!("{open}match {ask} {{ __on if !matches!(__on, {ids}) => {}", brace.0);
            let begins = vec![(head.len(), Some(Part::Original(number)))];
            self.put(range.start..range.start, head, begins);
            self.insert(inner);

            let mut tail = brace.1.to_owned();
            let mut marks = vec![(0, None)];
            for (at, change) in outer.changes.iter().enumerate() {
                let last = at + 1 == outer.changes.len();
                let _ = match change.id {
                    _ if last => write!(tail, " _ => {{ "),
                    id => write!(tail, " {id} => {{ "),
                };
                marks.push((tail.len(), Some(Part::Change(change.id))));
                tail.push_str(&self.copy(&outer.site, change));
                marks.push((tail.len(), None));
                tail.push_str(" }");
            }
            tail.push_str(close);
            self.put(range.end..range.end, tail, marks);
            rest = next;
        }
    }

    /// What stands at a site with a change in it, in one line. The mark that it is come by stands
    /// before the innermost statement that holds an edit, or before all of it.
    fn copy(&self, site: &Site, change: &Changed) -> String {
        let reach = self.words.reach;
        let mut all = change.replacements.clone();
        let mut head = "";
        for replacement in &change.replacements {
            let before = self.function.sites.statement(replacement.range.start);
            let before = before.filter(|&at| site.range.start < at && at < site.range.end);
            let is_replaced = |at| {
                let holds = |r: &&Replacement| r.range.start < at && at < r.range.end;
                change.replacements.iter().any(|r| holds(&r))
            };
            match before {
                Some(at) if !is_replaced(at) => {
                    if !all.iter().any(|r| r.text == reach && r.range == (at..at)) {
                        all.push(Replacement { range: at..at, text: reach.into() });
                    }
                }
                _ => head = reach,
            }
        }
        // The mark before an edit of the same place.
        all.sort_by_key(|r| (r.range.start, r.text != reach, r.range.end));
        let copy = apply(self.text, site.range.clone(), &all);
        let in_one_line = TokenStream::from_str(&copy).map_or(copy, |tokens| tokens.to_string());
        format!("{head}{in_one_line}")
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

/// A whole text with inserts made in it, which are sorted and don't overlap, and the parts of what
/// comes of it.
pub(crate) fn apply_inserts(text: &str, inserts: &[Insert]) -> (String, Vec<(Range<usize>, Part)>) {
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    let (mut open, mut parts) = (Vec::new(), Vec::new());
    for Insert { replacement, marks } in inserts {
        out.push_str(&text[at..replacement.range.start]);
        for (offset, begins) in marks {
            let place = out.len() + offset;
            match begins {
                Some(part) => open.push((place, *part)),
                None => parts.extend(open.pop().map(|(from, part)| (from..place, part))),
            }
        }
        out.push_str(&replacement.text);
        at = replacement.range.end;
    }
    out.push_str(&text[at..]);
    (out, parts)
}

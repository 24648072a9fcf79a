//! Which lines and branches the hunts come by.
//!
//! A probe is a call that notes its number when it is first come by. One stands before every
//! statement, in every arm of a `match`, and where an `if` has no `else`, there. What is noted by
//! no hunt was never run: a line that nobody hunts, or a branch that was taken one way only.

use std::fmt::Write as _;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Stmt};

use crate::generate::Function;

/// What a probe is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A statement.
    Statement,
    /// An arm of a `match`.
    Arm,
    /// The way past an `if` without `else`.
    Past,
}

/// A place that is run, or is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The function.
    pub function: String,
    /// What it is.
    pub kind: Kind,
    /// Where it is in the source, from 1.
    pub line: usize,
    /// What stands there, in a line.
    pub text: String,
}

/// A text with probes in it.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// The text.
    pub text: String,
    /// The probes, in the order of their numbers.
    pub probes: Vec<Probe>,
    inserted: Vec<Insert>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Insert {
    at: usize,
    side: Side,
    text: String,
}

/// To which side of its place an insert belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Side {
    /// To what stands before.
    Before,
    /// To what stands after.
    After,
}

impl Probed {
    /// Puts probes into functions of a text, with numbers from `first`. Those that may be computed
    /// as constants have none.
    #[must_use]
    pub fn new<'a>(
        text: &str,
        functions: impl IntoIterator<Item = (&'a Function, &'a Block)>,
        first: usize,
    ) -> Self {
        let mut finder = Finder {
            text,
            function: String::new(),
            first,
            probes: Vec::new(),
            inserts: Vec::new(),
        };
        for (function, block) in functions {
            if function.constant.is_none() {
                finder.function.clone_from(&function.name);
                finder.visit_block(block);
            }
        }
        let Finder { probes, inserts: mut inserted, .. } = finder;
        inserted.sort_by_key(|insert| (insert.at, insert.side)); // stable: inner ones first
        let (mut out, mut at) = (String::with_capacity(text.len() * 2), 0);
        for insert in &inserted {
            out.push_str(&text[at..insert.at]);
            out.push_str(&insert.text);
            at = insert.at;
        }
        out.push_str(&text[at..]);
        Self { text: out, probes, inserted }
    }

    /// Where a range of the source is now: what was inserted for what stands in it is in it.
    #[must_use]
    pub fn moved(&self, range: &Range<usize>) -> Range<usize> {
        let before = |at: usize, with: Side| -> usize {
            let holds = |i: &&Insert| i.at < at || i.at == at && i.side <= with;
            self.inserted.iter().filter(holds).map(|i| i.text.len()).sum()
        };
        if range.is_empty() {
            let at = range.start + before(range.start, Side::After);
            return at..at;
        }
        let start = range.start + before(range.start, Side::After);
        start..range.end + before(range.end, Side::Before)
    }
}

struct Finder<'a> {
    text: &'a str,
    function: String,
    first: usize,
    probes: Vec<Probe>,
    inserts: Vec<Insert>,
}

impl Finder<'_> {
    /// A new probe, as the call that notes it.
    fn probe(&mut self, kind: Kind, range: &Range<usize>) -> String {
        let number = self.first + self.probes.len();
        let line = self.text[..range.start].matches('\n').count() + 1;
        let words: Vec<&str> = self.text[range.clone()].split_whitespace().collect();
        let text: String = words.join(" ").chars().take(60).collect();
        self.probes.push(Probe { function: self.function.clone(), kind, line, text });
        let mut call = String::new();
        let _ = write!(call, "crate::automatic::probe({number});");
        call
    }

    fn insert(&mut self, at: usize, side: Side, text: String) {
        self.inserts.push(Insert { at, side, text });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        for statement in &block.stmts {
            if !matches!(statement, Stmt::Item(_)) {
                let range = statement.span().byte_range();
                let call = self.probe(Kind::Statement, &range);
                self.insert(range.start, Side::After, format!("{call} "));
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            // Nothing can be noted while a constant is computed.
            Expr::Const(_) | Expr::Repeat(_) => return,
            Expr::If(branch) if branch.else_branch.is_none() => {
                visit::visit_expr(self, expression);
                let call = self.probe(Kind::Past, &branch.cond.span().byte_range());
                let end = expression.span().byte_range().end;
                self.insert(end, Side::Before, format!(" else {{ {call} }}"));
                return;
            }
            Expr::Match(choice) => {
                for arm in &choice.arms {
                    if matches!(*arm.body, Expr::Block(_)) {
                        continue; // its statements have probes, if it has any
                    }
                    let call = self.probe(Kind::Arm, &arm.span().byte_range());
                    let body = arm.body.span().byte_range();
                    self.insert(body.start, Side::After, format!("{{ {call} "));
                }
                visit::visit_expr(self, expression);
                for arm in &choice.arms {
                    if !matches!(*arm.body, Expr::Block(_)) {
                        let end = arm.body.span().byte_range().end;
                        self.insert(end, Side::Before, " }".into());
                    }
                }
                return;
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::functions_of;

    const TEXT: &str = "fn f(x: u32) -> u32 {\n    if x > 3 { g(); }\n    let y = match x {\n        0 => 1,\n        _ => { 2 }\n    };\n    y\n}\nconst fn c() -> u32 { 1 }\n";

    fn probed() -> Probed {
        let file = syn::parse_file(TEXT).unwrap();
        let functions = functions_of(&file);
        Probed::new(TEXT, functions.iter().map(|(f, b)| (f, *b)), 5)
    }

    #[test]
    fn every_statement_arm_and_way_past_has_a_probe() {
        let probed = probed();
        syn::parse_file(&probed.text).expect("it parses");
        let all: Vec<(Kind, usize)> = probed.probes.iter().map(|p| (p.kind, p.line)).collect();
        let mut sorted = all.clone();
        sorted.sort_by_key(|(kind, line)| (*line, *kind));
        use Kind::{Arm, Past, Statement};
        let wanted = [
            (Statement, 2),
            (Statement, 2),
            (Past, 2),
            (Statement, 3),
            (Arm, 4),
            (Statement, 5),
            (Statement, 7),
        ];
        assert_eq!(sorted, wanted);
        for number in 5..12 {
            assert_eq!(probed.text.matches(&format!("probe({number});")).count(), 1);
        }
    }

    #[test]
    fn a_range_holds_what_it_held_and_the_probes_in_it() {
        let probed = probed();
        let moved = |of: &str| {
            let at = TEXT.find(of).unwrap();
            &probed.text[probed.moved(&(at..at + of.len()))]
        };
        assert_eq!(moved("x > 3"), "x > 3");
        assert_eq!(moved("g();"), "g();");
        assert_eq!(moved("1,"), "1 },");
        let whole = moved("if x > 3 { g(); }");
        assert!(whole.starts_with("if x > 3 {") && whole.contains("else {"), "{whole}");
    }
}

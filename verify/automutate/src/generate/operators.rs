//! What is done to a function.

mod atomics;
mod independent;
mod statements;

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Block, Expr, ExprBinary, ExprCall, ExprIf, ExprMethodCall, ExprWhile, Lit, PatGuard,
};

use super::Edit;
use super::functions::{Function, Returns};
use crate::scope::Scope;

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operator {
    /// A statement is left out.
    DropStatement,
    /// A fence is left out.
    DropFence,
    /// Two neighbouring statements change places.
    SwapStatements,
    /// A condition is negated.
    Negate,
    /// `<` for `<=`, `>` for `>=`, `==` for `!=`, and back.
    Compare,
    /// `&&` for `||`, and back.
    Logic,
    /// `+` for `-`, `<<` for `>>`, `&` for `|`, and back.
    Arithmetic,
    /// A method's opposite: `first` for `last`, `min` for `max`, `any` for `all`.
    Opposite,
    /// An ordering is weakened to `Relaxed`.
    Relax,
    /// A read-modify-write becomes a store.
    Store,
    /// A read-modify-write becomes a load and a store.
    Tear,
    /// A constant is off by one, or a flag the other way round.
    Constant,
    /// The function returns at once.
    EarlyReturn,
    /// `break` for `continue`, and back.
    Loop,
    /// Two neighbouring arguments change places.
    SwapArguments,
}

impl Operator {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::DropStatement,
        Self::DropFence,
        Self::SwapStatements,
        Self::Negate,
        Self::Compare,
        Self::Logic,
        Self::Arithmetic,
        Self::Opposite,
        Self::Relax,
        Self::Store,
        Self::Tear,
        Self::Constant,
        Self::EarlyReturn,
        Self::Loop,
        Self::SwapArguments,
    ];

    /// Its name, as part of a mutant's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DropStatement => "drop-statement",
            Self::DropFence => "drop-fence",
            Self::SwapStatements => "swap-statements",
            Self::Negate => "negate",
            Self::Compare => "compare",
            Self::Logic => "logic",
            Self::Arithmetic => "arithmetic",
            Self::Opposite => "opposite",
            Self::Relax => "relax",
            Self::Store => "store",
            Self::Tear => "tear",
            Self::Constant => "constant",
            Self::EarlyReturn => "early-return",
            Self::Loop => "loop",
            Self::SwapArguments => "swap-arguments",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Methods and their opposites.
const OPPOSITES: [(&str, &str); 12] = [
    ("first", "last"),
    ("min", "max"),
    ("any", "all"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("trailing_zeros", "leading_zeros"),
    ("insert", "remove"),
    ("take", "skip"),
    ("min_by_key", "max_by_key"),
    ("skip_while", "take_while"),
    ("push_front", "push_back"),
];

/// Functions whose two arguments may change places without a difference.
const SYMMETRIC: [&str; 6] = ["min", "max", "swap", "ptr_eq", "eq", "abs_diff"];

/// Everything that can be done to a function, in the order of its text for each operator.
pub fn apply(
    text: &str,
    function: &Function,
    block: &Block,
    scope: &Scope,
) -> Vec<(Operator, Vec<Edit>)> {
    let mut changes = Changes { text, scope, found: Vec::new() };
    let early = match function.returns {
        Returns::Unit => &["return;"][..],
        Returns::Bool => &["return false;", "return true;"],
        Returns::Option => &["return None;"],
        Returns::ResultOfUnit => &["return Ok(());"],
        Returns::Number => &["return 0;"],
        Returns::Opaque | Returns::Other => &[],
    };
    for line in early {
        let inside = function.body.start + 1;
        changes.edit(Operator::EarlyReturn, inside..inside, format!(" {line} "));
    }
    changes.tail_of_body(block, function.returns == Returns::Unit);
    changes.visit_block(block);
    changes.found
}

struct Changes<'a> {
    text: &'a str,
    scope: &'a Scope,
    found: Vec<(Operator, Vec<Edit>)>,
}

fn range(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Is it a pattern that is tested (`if let`), alone or among others?
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(both) => has_let(&both.left) || has_let(&both.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

impl Changes<'_> {
    fn edit(&mut self, operator: Operator, at: Range<usize>, text: impl Into<String>) {
        self.found.push((operator, vec![Edit { at, text: text.into() }]));
    }

    fn slice(&self, of: &impl Spanned) -> &str {
        &self.text[range(of)]
    }

    fn left_out(&self, of: &impl Spanned) -> bool {
        self.scope.leaves_out_text(self.slice(of))
    }

    /// A condition, the other way round. Comparisons and hooks have operators of their own, or
    /// none.
    fn condition(&mut self, condition: &Expr) {
        let compares =
            matches!(condition, Expr::Binary(ExprBinary { op: BinOp::Eq(_) | BinOp::Ne(_), .. }));
        if has_let(condition) || compares || is_hook(condition) || self.left_out(condition) {
            return;
        }
        let negated = match condition {
            Expr::Unary(not) if matches!(not.op, syn::UnOp::Not(_)) => {
                self.slice(&*not.expr).to_owned()
            }
            _ => format!("!({})", self.slice(condition)),
        };
        self.edit(Operator::Negate, range(condition), negated);
    }

    fn arguments<'b>(&mut self, name: &str, list: impl Iterator<Item = &'b Expr>) {
        if SYMMETRIC.contains(&name) {
            return;
        }
        let list: Vec<&Expr> = list.collect();
        for pair in list.windows(2) {
            let (a, b) = (self.slice(pair[0]).to_owned(), self.slice(pair[1]).to_owned());
            let simple = |e: &Expr| !matches!(e, Expr::Closure(_) | Expr::Macro(_));
            if a == b || !simple(pair[0]) || !simple(pair[1]) || pair.iter().any(|e| is_hook(e)) {
                continue;
            }
            let edits =
                vec![Edit { at: range(pair[0]), text: b }, Edit { at: range(pair[1]), text: a }];
            self.found.push((Operator::SwapArguments, edits));
        }
    }
}

/// The question whether a step is taken out, or its answer negated: nobody's code but the mutants'.
fn is_hook(of: &Expr) -> bool {
    match of {
        Expr::Macro(mac) => {
            let path = &mac.mac.path;
            path.is_ident("without") || path.is_ident("order")
        }
        Expr::Unary(not) => is_hook(&not.expr),
        Expr::Paren(inner) => is_hook(&inner.expr),
        Expr::Binary(both) => is_hook(&both.left) && is_hook(&both.right),
        Expr::MethodCall(call) => is_hook(&call.receiver),
        _ => false,
    }
}

impl<'a> Visit<'a> for Changes<'_> {
    fn visit_block(&mut self, block: &'a Block) {
        self.statements(block);
        for statement in &block.stmts {
            if !self.left_out_statement(statement) {
                self.visit_stmt(statement);
            }
        }
    }

    // What a macro is given is no code of the function.
    fn visit_macro(&mut self, _: &'a syn::Macro) {}

    // Types, patterns and attributes have constants of their own.
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}

    fn visit_pat_guard(&mut self, guard: &'a PatGuard) {
        self.condition(&guard.guard);
        self.visit_expr(&guard.guard);
    }

    fn visit_expr_if(&mut self, expr: &'a ExprIf) {
        self.condition(&expr.cond);
        visit::visit_expr_if(self, expr);
    }

    fn visit_expr_while(&mut self, expr: &'a ExprWhile) {
        self.condition(&expr.cond);
        visit::visit_expr_while(self, expr);
    }

    fn visit_expr_binary(&mut self, expr: &'a ExprBinary) {
        use BinOp as B;
        let (operator, other) = match expr.op {
            B::Lt(_) => (Operator::Compare, "<="),
            B::Le(_) => (Operator::Compare, "<"),
            B::Gt(_) => (Operator::Compare, ">="),
            B::Ge(_) => (Operator::Compare, ">"),
            B::Eq(_) => (Operator::Compare, "!="),
            B::Ne(_) => (Operator::Compare, "=="),
            B::And(_) => (Operator::Logic, "||"),
            B::Or(_) => (Operator::Logic, "&&"),
            B::Add(_) => (Operator::Arithmetic, "-"),
            B::Sub(_) => (Operator::Arithmetic, "+"),
            B::Mul(_) => (Operator::Arithmetic, "/"),
            B::Div(_) => (Operator::Arithmetic, "*"),
            B::Shl(_) => (Operator::Arithmetic, ">>"),
            B::Shr(_) => (Operator::Arithmetic, "<<"),
            B::BitAnd(_) => (Operator::Arithmetic, "|"),
            B::BitOr(_) => (Operator::Arithmetic, "&"),
            B::AddAssign(_) => (Operator::Arithmetic, "-="),
            B::SubAssign(_) => (Operator::Arithmetic, "+="),
            B::BitAndAssign(_) => (Operator::Arithmetic, "|="),
            B::BitOrAssign(_) => (Operator::Arithmetic, "&="),
            _ => return visit::visit_expr_binary(self, expr),
        };
        let lets = operator == Operator::Logic && (has_let(&expr.left) || has_let(&expr.right));
        let hooks = operator == Operator::Logic && (is_hook(&expr.left) || is_hook(&expr.right));
        if !lets && !hooks {
            self.edit(operator, range(&expr.op), other);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        let name = call.method.to_string();
        for (one, other) in OPPOSITES {
            let opposite = match name.as_str() {
                n if n == one => other,
                n if n == other => one,
                _ => continue,
            };
            self.edit(Operator::Opposite, range(&call.method), opposite);
        }
        self.update(call);
        self.arguments(&name, call.args.iter());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        let name = match &*call.func {
            Expr::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
            _ => None,
        };
        self.arguments(&name.clone().unwrap_or_default(), call.args.iter());
        if name.is_some_and(|name| name == "fence" || name == "compiler_fence") {
            return; // a fence is dropped, or stays as it is
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        self.ordering(path);
    }

    fn visit_expr_lit(&mut self, literal: &'a syn::ExprLit) {
        match &literal.lit {
            Lit::Bool(flag) => {
                self.edit(Operator::Constant, range(literal), (!flag.value).to_string());
            }
            Lit::Int(number) => {
                let (Ok(value), suffix) = (number.base10_parse::<u128>(), number.suffix()) else {
                    return;
                };
                // One more, or none where there was one.
                let other = if value == 1 { 0 } else { value + 1 };
                self.edit(Operator::Constant, range(literal), format!("{other}{suffix}"));
            }
            _ => {}
        }
    }

    fn visit_expr_break(&mut self, expr: &'a syn::ExprBreak) {
        if expr.expr.is_none() {
            self.edit(Operator::Loop, range(&expr.break_token), "continue");
        }
        visit::visit_expr_break(self, expr);
    }

    fn visit_expr_continue(&mut self, expr: &'a syn::ExprContinue) {
        self.edit(Operator::Loop, range(&expr.continue_token), "break");
    }
}

//! Statements whose order nobody can tell: one of them only gives a local variable a value, out of
//! values that the other does not change.
//!
//! It is decided from the text, and on the safe side: what is not known to be plain is taken for
//! something that acts.

use std::collections::BTreeSet;

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, Pat, Stmt};

/// Methods of numbers, which change nothing.
const PLAIN: [&str; 12] = [
    "wrapping_add",
    "wrapping_sub",
    "saturating_add",
    "saturating_sub",
    "min",
    "max",
    "trailing_zeros",
    "leading_zeros",
    "count_ones",
    "is_power_of_two",
    "div_ceil",
    "shift",
];

/// Would the two do the same in the other order, whatever else there is?
pub(super) fn independent(a: &Stmt, b: &Stmt) -> bool {
    let apart = |one: &Stmt, other: &Stmt| {
        plain(one).is_some_and(|plain| {
            let Mentions { names, changed, leaves } = Mentions::of(other);
            !leaves && !names.contains(&plain.gives) && plain.reads.is_disjoint(&changed)
        })
    };
    apart(a, b) || apart(b, a)
}

/// A statement that only gives a local variable a value.
struct Plain {
    gives: String,
    reads: BTreeSet<String>,
}

fn plain(statement: &Stmt) -> Option<Plain> {
    let mut reads = BTreeSet::new();
    let gives = match statement {
        Stmt::Local(local) => {
            let Pat::Ident(name) = &local.pat else { return None };
            let init = local.init.as_ref().filter(|init| init.diverge.is_none())?;
            is_plain(&init.expr, &mut reads).then(|| name.ident.to_string())?
        }
        Stmt::Expr(Expr::Assign(assign), Some(_)) => {
            is_plain(&assign.right, &mut reads).then(|| variable(&assign.left))??
        }
        Stmt::Expr(Expr::Binary(both), Some(_)) if changes_its_left(both) => {
            let name = variable(&both.left)?;
            reads.insert(name.clone());
            is_plain(&both.right, &mut reads).then_some(name)?
        }
        _ => return None,
    };
    Some(Plain { gives, reads })
}

/// The local variable that an expression is.
fn variable(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

fn changes_its_left(both: &syn::ExprBinary) -> bool {
    both.op.to_token_stream().to_string().len() > 1
        && both.op.to_token_stream().to_string().ends_with('=')
        && !matches!(
            both.op,
            syn::BinOp::Eq(_) | syn::BinOp::Ne(_) | syn::BinOp::Le(_) | syn::BinOp::Ge(_)
        )
}

/// Is the expression made of local variables, constants and arithmetic?
fn is_plain(expr: &Expr, reads: &mut BTreeSet<String>) -> bool {
    match expr {
        Expr::Lit(_) => true,
        Expr::Path(path) => {
            if let Some(name) = path.path.get_ident() {
                reads.insert(name.to_string());
            }
            true
        }
        Expr::Paren(inner) => is_plain(&inner.expr, reads),
        Expr::Cast(inner) => is_plain(&inner.expr, reads),
        Expr::Unary(inner) => {
            !matches!(inner.op, syn::UnOp::Deref(_)) && is_plain(&inner.expr, reads)
        }
        Expr::Binary(both) => {
            !changes_its_left(both) && is_plain(&both.left, reads) && is_plain(&both.right, reads)
        }
        Expr::Tuple(tuple) => tuple.elems.iter().all(|one| is_plain(one, reads)),
        Expr::MethodCall(call) => {
            PLAIN.iter().any(|plain| call.method == plain)
                && is_plain(&call.receiver, reads)
                && call.args.iter().all(|one| is_plain(one, reads))
        }
        Expr::Call(call) => {
            let Expr::Path(path) = &*call.func else { return false };
            let last = path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
            let constructs = last == "from" || last.starts_with(char::is_uppercase);
            constructs && call.args.iter().all(|one| is_plain(one, reads))
        }
        _ => false,
    }
}

/// What a statement names, and what of it it may change.
#[derive(Default)]
struct Mentions {
    names: BTreeSet<String>,
    changed: BTreeSet<String>,
    /// It may not come to its end: what follows is left out then.
    leaves: bool,
}

impl Mentions {
    fn of(statement: &Stmt) -> Self {
        let mut mentions = Self::default();
        mentions.visit_stmt(statement);
        mentions
    }

    /// All names in it may be changed.
    fn all_of(&mut self, tokens: &impl ToTokens) {
        for word in
            tokens.to_token_stream().to_string().split(|c: char| !(c.is_alphanumeric() || c == '_'))
        {
            self.names.insert(word.to_owned());
            self.changed.insert(word.to_owned());
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        self.names.insert(ident.to_string());
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) | Expr::Try(_) => {
                self.leaves = true;
            }
            Expr::Assign(assign) => self.all_of(&assign.left),
            Expr::Binary(both) if changes_its_left(both) => self.all_of(&both.left),
            Expr::Reference(reference) if reference.mutability.is_some() => {
                self.all_of(&reference.expr);
            }
            Expr::MethodCall(call) if PLAIN.iter().all(|plain| call.method != plain) => {
                self.all_of(&call.receiver);
            }
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
        self.changed.insert(name.ident.to_string());
        visit::visit_pat_ident(self, name);
    }

    fn visit_macro(&mut self, text: &'ast syn::Macro) {
        self.all_of(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are(a: &str, b: &str) -> bool {
        let parse = |text: &str| syn::parse_str::<Stmt>(text).unwrap();
        independent(&parse(a), &parse(b))
    }

    #[test]
    fn what_only_counts_may_change_places() {
        assert!(are("must = true;", "seen.store(now, Ordering::Relaxed);"));
        assert!(are("left -= u64::from(pages);", "at = at.wrapping_add(u64::from(pages) << 12);"));
        assert!(are("path.push(at);", "side = HIGH;"));
        assert!(are("let wide = n * 2;", "flush(n);"));
    }

    #[test]
    fn what_acts_or_depends_may_not() {
        assert!(!are("now = clock();", "seen.store(1, Ordering::Relaxed);"));
        assert!(!are("n += 1;", "send(n);"), "it sends another number");
        assert!(!are("at = n;", "n = 7;"), "it reads another number");
        assert!(!are("at = n;", "grow(&mut n);"));
        assert!(!are("at = n;", "n.push(1);"));
        assert!(!are("at = n;", "if x { n -= 1; }"));
        assert!(!are("at = n;", "set!(n);"));
        assert!(!are("n += 1;", "if done() { break; }"), "it is not counted then");
        assert!(!are("self.at = 1;", "self.flush();"), "others may read a field");
        assert!(!are("*at = 1;", "self.flush();"));
        assert!(!are("a.store(1, Ordering::Relaxed);", "b.store(1, Ordering::Relaxed);"));
    }
}

//! Statements that are left out, or change places.

use syn::{Block, Expr, Stmt};

use super::independent::independent;
use super::{Changes, Edit, Operator, is_hook, range};

/// The statement as an expression, if it is one that stands by itself.
fn expression(statement: &Stmt) -> Option<&Expr> {
    match statement {
        Stmt::Expr(expr, _) => Some(expr),
        _ => None,
    }
}

/// A statement without a value, whatever comes after it.
fn stands_alone(statement: &Stmt) -> bool {
    match statement {
        Stmt::Expr(_, Some(_)) => true,
        Stmt::Expr(Expr::If(expr), None) => expr.else_branch.is_none(),
        Stmt::Expr(Expr::ForLoop(_) | Expr::While(_), None) => true,
        _ => false,
    }
}

/// Does it do something: call, or assign?
fn acts(statement: &Stmt) -> bool {
    let text = match statement {
        Stmt::Local(local) => match &local.init {
            Some(init) => return calls(&init.expr),
            None => return false,
        },
        other => other,
    };
    expression(text).is_some_and(|expr| !matches!(expr, Expr::Macro(_)))
}

fn calls(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) => true,
        Expr::Try(inner) => calls(&inner.expr),
        Expr::Unary(inner) => calls(&inner.expr),
        Expr::Unsafe(_) | Expr::Match(_) | Expr::If(_) | Expr::Block(_) => true,
        Expr::Binary(both) => calls(&both.left) || calls(&both.right),
        _ => false,
    }
}

/// Is it a call of `fence`?
fn is_fence(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(call) if matches!(&*call.func, Expr::Path(path)
        if path.path.segments.last().is_some_and(|s| s.ident == "fence")))
}

/// An `if` that asks nothing but whether a step is taken out.
fn is_only_hooked(expr: &Expr) -> bool {
    matches!(expr, Expr::If(expr) if is_hook(&expr.cond) && expr.else_branch.is_none())
}

impl Changes<'_> {
    /// Statements that the scope leaves out, with all that is in them: those of such a text, and
    /// choices between nothing else.
    pub(super) fn left_out_statement(&self, statement: &Stmt) -> bool {
        match statement {
            Stmt::Expr(expr, _) => self.left_out_expression(expr),
            Stmt::Macro(_) => self.left_out(statement),
            _ => false,
        }
    }

    fn left_out_expression(&self, expr: &Expr) -> bool {
        let block = |block: &Block| {
            !block.stmts.is_empty() && block.stmts.iter().all(|s| self.left_out_statement(s))
        };
        match expr {
            Expr::If(expr) => {
                let other = expr.else_branch.as_ref();
                block(&expr.then_branch) && other.is_none_or(|(_, e)| self.left_out_expression(e))
            }
            Expr::Match(expr) => expr.arms.iter().all(|arm| self.left_out_expression(&arm.body)),
            Expr::Block(expr) => block(&expr.block),
            Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) | Expr::Unsafe(_) => false,
            _ => self.left_out(expr),
        }
    }

    /// Leaves out each statement of a block, and exchanges neighbours.
    pub(super) fn statements(&mut self, block: &Block) {
        for statement in &block.stmts {
            let Some(expr) = expression(statement) else { continue };
            if !stands_alone(statement)
                || matches!(expr, Expr::Macro(_))
                || is_only_hooked(expr)
                || self.left_out_statement(statement)
            {
                continue;
            }
            let operator =
                if is_fence(expr) { Operator::DropFence } else { Operator::DropStatement };
            self.edit(operator, range(statement), "");
        }
        for pair in block.stmts.windows(2) {
            let leaves = |s: &Stmt| {
                matches!(expression(s), Some(Expr::Return(_) | Expr::Break(_) | Expr::Continue(_)))
            };
            // The last expression of a block, where it is its value, stays the last.
            let value = matches!(&pair[1], Stmt::Expr(_, None)) && !stands_alone(&pair[1]);
            let movable = |s: &Stmt| acts(s) && !leaves(s) && !self.left_out_statement(s);
            if value
                || !pair.iter().all(movable)
                || pair.iter().all(|s| matches!(s, Stmt::Local(_)))
                || independent(&pair[0], &pair[1])
            {
                continue;
            }
            let [a, b] = [&pair[0], &pair[1]].map(|s| self.text[range(s)].to_owned());
            let edits =
                vec![Edit { at: range(&pair[0]), text: b }, Edit { at: range(&pair[1]), text: a }];
            self.found.push((Operator::SwapStatements, edits));
        }
    }

    /// The last expression of a body that returns nothing is a statement without its semicolon.
    pub(super) fn tail_of_body(&mut self, block: &Block, unit: bool) {
        let Some(last) = block.stmts.last().filter(|_| unit) else { return };
        if let Stmt::Expr(expr, None) = last
            && !stands_alone(last)
            && !matches!(expr, Expr::Macro(_))
            && !self.left_out_statement(last)
        {
            self.edit(Operator::DropStatement, range(last), "");
        }
    }
}

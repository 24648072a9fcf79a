//! The places of a function's body where a choice between two texts can stand.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Local, Pat, Stmt};

/// A place where a `match` can stand instead of what stands there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Site {
    pub(crate) range: Range<usize>,
    pub(crate) kind: Kind,
}

/// What stands at a site.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// Statements of one block, none of which declares a name that others use.
    Statements,
    /// An expression whose value is moved to where it is used.
    Value,
    /// The same where a `match` needs parentheses: an operand of `&&` or `||`, and before `else`.
    Enclosed,
    /// A block, with its braces.
    Block,
}

/// All sites of a function's body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    /// Expressions and blocks.
    single: Vec<Site>,
    /// For each block its statements, and whether each declares nothing.
    lists: Vec<(Range<usize>, Vec<Statement>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) range: Range<usize>,
    is_plain: bool,
    is_whole: bool,
}

impl Sites {
    /// The sites of a body.
    pub(crate) fn of(body: &Block) -> Self {
        let mut sites = Self::default();
        sites.visit_block(body);
        sites
    }

    /// The smallest site that holds a range, as long as `fits` takes it. The body of the function
    /// is one, so there is one for every range in it that `fits` takes there.
    pub(crate) fn smallest(
        &self,
        range: &Range<usize>,
        mut fits: impl FnMut(&Site) -> bool,
    ) -> Option<Site> {
        let mut all: Vec<Site> = self.single.iter().filter(|s| s.holds(range)).cloned().collect();
        all.extend(self.lists.iter().filter_map(|(block, list)| run(block, list, range)));
        all.sort_by_key(|site| (site.range.len(), site.kind));
        all.into_iter().find(|site| fits(site))
    }

    /// The smallest block that holds a range.
    pub(crate) fn block(&self, range: &Range<usize>) -> Option<Site> {
        self.smallest(range, |site| site.kind == Kind::Block)
    }

    /// The start of the innermost statement that holds a byte.
    pub(crate) fn statement(&self, at: usize) -> Option<usize> {
        let all = self.lists.iter().flat_map(|(_, list)| list);
        let holding = all.filter(|s| s.range.contains(&at));
        holding.min_by_key(|s| s.range.len()).map(|s| s.range.start)
    }

    /// Adds an expression, where copies of it are of one type.
    fn value(&mut self, expression: &Expr, kind: Kind) {
        let mut closures = Closures(false);
        closures.visit_expr(expression);
        if !closures.0 {
            self.expression(expression, kind);
        }
    }

    fn expression(&mut self, expression: &Expr, kind: Kind) {
        let fits = match expression {
            // Its length is a part of its type.
            Expr::Array(_) => false,
            // What is borrowed would end with the copy.
            Expr::Reference(reference) => is_place(&reference.expr),
            _ => true,
        };
        if fits {
            self.single.push(Site { range: expression.span().byte_range(), kind });
        }
    }

    fn condition(&mut self, condition: &Expr) {
        let mut declares = Declares(false);
        declares.visit_expr(condition);
        if !declares.0 {
            self.expression(condition, Kind::Value);
        }
    }
}

impl Site {
    /// Does it hold a range? A place at its edge, where something is inserted, is outside: it may
    /// belong to what stands before or after.
    pub(crate) fn holds(&self, range: &Range<usize>) -> bool {
        if range.is_empty() || self.kind == Kind::Block {
            self.range.start < range.start && range.end < self.range.end
        } else {
            self.range.start <= range.start && range.end <= self.range.end
        }
    }

    /// Does it share a part with another one, and neither holds the other?
    pub(crate) fn crosses(&self, other: &Self) -> bool {
        let (a, b) = (&self.range, &other.range);
        (a.start < b.start && b.start < a.end && a.end < b.end)
            || (b.start < a.start && a.start < b.end && b.end < a.end)
    }
}

/// The statements of a block that a range touches, if they declare nothing; or where something is
/// inserted between statements, that place.
fn run(block: &Range<usize>, list: &[Statement], range: &Range<usize>) -> Option<Site> {
    if !(block.start < range.start && range.end < block.end) {
        return None;
    }
    let mut touched =
        list.iter().filter(|s| s.range.start < range.end && range.start < s.range.end);
    let Some(first) = touched.next() else {
        let before = list.iter().rfind(|s| s.range.end <= range.start);
        let fits = range.is_empty() && before.is_none_or(|s| s.is_whole);
        return fits.then(|| Site { range: range.clone(), kind: Kind::Statements });
    };
    let last = touched.clone().next_back().unwrap_or(first);
    if !first.is_plain || !touched.all(|s| s.is_plain) {
        return None;
    }
    let site = Site { range: first.range.start..last.range.end, kind: Kind::Statements };
    site.holds(range).then_some(site)
}

/// Do these statements declare names for those that follow?
pub(crate) fn are_plain(statements: &[Stmt]) -> bool {
    statements.iter().all(is_plain)
}

fn is_plain(statement: &Stmt) -> bool {
    match statement {
        Stmt::Local(_) | Stmt::Item(_) => false,
        Stmt::Macro(call) => !call.mac.path.is_ident("macro_rules"),
        Stmt::Expr(..) => true,
    }
}

/// Can others stand after them? Not after a value of the block.
pub(crate) fn are_whole(statements: &[Stmt]) -> bool {
    statements.last().is_none_or(is_whole)
}

fn is_whole(statement: &Stmt) -> bool {
    match statement {
        Stmt::Expr(expression, None) => matches!(
            expression,
            Expr::Block(_)
                | Expr::ForLoop(_)
                | Expr::If(_)
                | Expr::Loop(_)
                | Expr::Match(_)
                | Expr::Unsafe(_)
                | Expr::While(_)
        ),
        Stmt::Macro(call) => call.semi_token.is_some(),
        _ => true,
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_block(&mut self, block: &'ast Block) {
        let range = block.span().byte_range();
        self.single.push(Site { range: range.clone(), kind: Kind::Block });
        let list = block.stmts.iter().map(|statement| Statement {
            range: statement.span().byte_range(),
            is_plain: is_plain(statement),
            is_whole: is_whole(statement),
        });
        self.lists.push((range, list.collect()));
        visit::visit_block(self, block);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(init) = &local.init {
            // A pattern may borrow from a place, or ignore it; a choice would move out of it.
            let is_name = matches!(&local.pat, Pat::Ident(name) if name.by_ref.is_none());
            let is_name = is_name || matches!(&local.pat, Pat::Type(_));
            if is_name || !is_place(&init.expr) {
                let kind = if init.diverge.is_some() { Kind::Enclosed } else { Kind::Value };
                self.value(&init.expr, kind);
            }
        }
        visit::visit_local(self, local);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Call(call) => {
                for argument in &call.args {
                    self.value(argument, Kind::Value);
                }
            }
            Expr::MethodCall(call) => {
                for argument in &call.args {
                    self.value(argument, Kind::Value);
                }
            }
            Expr::If(branch) => self.condition(&branch.cond),
            Expr::While(repeat) => self.condition(&repeat.cond),
            Expr::Match(choice) => {
                for arm in &choice.arms {
                    if let Some((_, guard)) = &arm.guard {
                        self.condition(guard);
                    }
                    self.value(&arm.body, Kind::Value);
                }
            }
            Expr::Closure(closure) => self.value(&closure.body, Kind::Value),
            Expr::Assign(assignment) => self.value(&assignment.right, Kind::Value),
            Expr::Return(end) => {
                if let Some(value) = &end.expr {
                    self.value(value, Kind::Value);
                }
            }
            Expr::Binary(operation) if matches!(operation.op, BinOp::And(_) | BinOp::Or(_)) => {
                for operand in [&operation.left, &operation.right] {
                    let mut declares = Declares(false);
                    declares.visit_expr(operand);
                    if !declares.0 {
                        self.expression(operand, Kind::Enclosed);
                    }
                }
            }
            // Nothing can be asked while a constant is computed.
            Expr::Const(_) | Expr::Repeat(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    // An item in a body has names of its own, and may be a constant.
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

/// Would it be one operand of `&&` without parentheses? An edit that ends with it, as `x < y ||
/// true`, changes more than the operand.
pub(crate) fn binds_as_operand(expression: &Expr) -> bool {
    match expression {
        Expr::Binary(operation) => matches!(
            operation.op,
            BinOp::Add(_)
                | BinOp::Sub(_)
                | BinOp::Mul(_)
                | BinOp::Div(_)
                | BinOp::Rem(_)
                | BinOp::And(_)
                | BinOp::BitXor(_)
                | BinOp::BitAnd(_)
                | BinOp::BitOr(_)
                | BinOp::Shl(_)
                | BinOp::Shr(_)
                | BinOp::Eq(_)
                | BinOp::Lt(_)
                | BinOp::Le(_)
                | BinOp::Ne(_)
                | BinOp::Ge(_)
                | BinOp::Gt(_)
        ),
        Expr::Assign(_)
        | Expr::Range(_)
        | Expr::Closure(_)
        | Expr::Return(_)
        | Expr::Break(_)
        | Expr::Let(_) => false,
        _ => true,
    }
}

/// Is there a `let` in a condition?
struct Declares(bool);

impl<'ast> Visit<'ast> for Declares {
    fn visit_expr_let(&mut self, _: &'ast syn::ExprLet) {
        self.0 = true;
    }
    // A block in it has conditions of its own.
    fn visit_block(&mut self, _: &'ast Block) {}
}

/// Is there a closure, which may be a part of the value's type? Each copy is of a type of its own.
struct Closures(bool);

impl<'ast> Visit<'ast> for Closures {
    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {
        self.0 = true;
    }
}

/// Does it name a place, which is not moved or copied before somebody asks for its value?
fn is_place(expression: &Expr) -> bool {
    match expression {
        Expr::Path(_) | Expr::Field(_) | Expr::Index(_) => true,
        Expr::Unary(unary) => matches!(unary.op, syn::UnOp::Deref(_)),
        Expr::Paren(inner) => is_place(&inner.expr),
        _ => false,
    }
}

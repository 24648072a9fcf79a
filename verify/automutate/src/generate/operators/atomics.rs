//! Changes of atomic accesses.

use syn::{ExprMethodCall, ExprPath};

use super::{Changes, Operator, is_hook, range};

/// Orderings that can be weakened.
const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

impl Changes<'_> {
    /// An ordering becomes `Relaxed`.
    pub(super) fn ordering(&mut self, path: &ExprPath) {
        let segments: Vec<String> =
            path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let [.., of, name] = segments.as_slice() else { return };
        if of == "Ordering" && STRONG.contains(&name.as_str()) {
            let last = path.path.segments.last().map(range);
            let at = range(path).start..last.unwrap_or_else(|| range(path)).end;
            let text = self.slice(path);
            let relaxed = text.strip_suffix(name.as_str()).map(|before| format!("{before}Relaxed"));
            if let Some(relaxed) = relaxed {
                self.edit(Operator::Relax, at, relaxed);
            }
        }
    }

    /// A read-modify-write becomes a store, where nobody looks at what was there, and a load and a
    /// store otherwise. Both are tried: which of them has the right type, the compiler says.
    pub(super) fn update(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        let arguments: Vec<&syn::Expr> = call.args.iter().collect();
        let target = self.slice(&*call.receiver).to_owned();
        let new = match name.as_str() {
            "fetch_add" => "old.wrapping_add(new)",
            "fetch_sub" => "old.wrapping_sub(new)",
            "fetch_or" => "old | new",
            "fetch_and" => "old & new",
            "fetch_max" => "old.max(new)",
            "fetch_min" => "old.min(new)",
            "swap" => "new",
            "compare_exchange" | "compare_exchange_weak" => {
                let [expected, new, ..] = arguments.as_slice() else { return };
                let (expected, new) = (self.slice(*expected), self.slice(*new));
                let torn = format!(
                    "{{ let (cell, expected, new) = (&{target}, {expected}, {new}); \
                     let old = cell.load({RELAXED}); \
                     if old == expected {{ cell.store(new, {RELAXED}); Ok(old) }} else {{ Err(old) }} }}"
                );
                return self.edit(Operator::Tear, range(call), torn);
            }
            _ => return,
        };
        let [value, order] = arguments.as_slice() else { return };
        let (value, order) = (self.slice(*value).to_owned(), self.stored(order));
        if name != "swap" {
            self.edit(Operator::Store, range(call), format!("{target}.store({value}, {order})"));
        }
        let torn = format!(
            "{{ let (cell, new) = (&{target}, {value}); let old = cell.load({RELAXED}); \
             cell.store({new}, {order}); old }}"
        );
        self.edit(Operator::Tear, range(call), torn);
    }

    /// The ordering of the store that a read-modify-write becomes: a store can't acquire.
    fn stored(&self, order: &syn::Expr) -> String {
        let text = self.slice(order);
        if is_hook(order) || !text.starts_with("Ordering::") {
            return "crate::sync::Ordering::Release".to_owned();
        }
        match text.trim_start_matches("Ordering::") {
            "AcqRel" => "Ordering::Release".to_owned(),
            "Acquire" => "Ordering::Relaxed".to_owned(),
            _ => text.to_owned(),
        }
    }
}

const RELAXED: &str = "crate::sync::Ordering::Relaxed";

//! The functions of a file.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, File, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, TraitItemFn};
use syn::{ReturnType, Signature, Type};

/// What a function returns, as far as its text tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returns {
    /// Nothing.
    Unit,
    /// `bool`.
    Bool,
    /// An `Option`.
    Option,
    /// A `Result` of nothing.
    ResultOfUnit,
    /// A number.
    Number,
    /// An `impl Trait`: bodies with closures have types of their own.
    Opaque,
    /// Something else.
    Other,
}

/// A function with a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name, with the type or trait that it belongs to.
    pub name: String,
    /// The body, with its braces.
    pub body: Range<usize>,
    /// The word `const`, if it is there.
    pub constant: Option<Range<usize>>,
    /// What it returns.
    pub returns: Returns,
}

/// The functions of a file, but for tests and what is only printed.
pub fn of(file: &File) -> Vec<(Function, &Block)> {
    let mut finder = Finder { owner: Vec::new(), found: Vec::new() };
    finder.visit_file(file);
    let mut found = finder.found;
    // Two functions of one name (under different conditions, or of generic types): the second is
    // `name~2`.
    for n in 1..found.len() {
        let same = found[..n]
            .iter()
            .filter(|(f, _)| f.name.split('~').next() == Some(&found[n].0.name))
            .count();
        if same > 0 {
            found[n].0.name.push_str(&format!("~{}", same + 1));
        }
    }
    found
}

struct Finder<'a> {
    owner: Vec<String>,
    found: Vec<(Function, &'a Block)>,
}

/// Conditions under which something is not there in the builds that mutants are hunted in.
const ELSEWHERE: [&str; 6] = [
    "test",
    "all(test,not(loom))",
    "loom",
    "not(shootdown_traced)",
    "not(any(loom,shootdown_traced))",
    "not(any(shootdown_traced,loom))",
];

/// Is it there in the builds that mutants are hunted in?
fn is_built(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("cfg")).all(|a| {
        let syn::Meta::List(list) = &a.meta else { return true };
        let words: String = list.tokens.to_string().split_whitespace().collect();
        !ELSEWHERE.contains(&words.as_str())
    })
}

/// Traits whose implementations only print.
const PRINTING: [&str; 3] = ["Debug", "Display", "Error"];

impl<'a> Finder<'a> {
    fn push(&mut self, sig: &Signature, block: &'a Block) {
        let mut name = self.owner.join("::");
        if !name.is_empty() {
            name.push_str("::");
        }
        name.push_str(&sig.ident.to_string());
        let braces = block.brace_token.span;
        let function = Function {
            name,
            body: braces.open().byte_range().start..braces.close().byte_range().end,
            constant: sig.constness.map(|word| word.span().byte_range()),
            returns: returns(&sig.output),
        };
        self.found.push((function, block));
    }
}

/// The last word of a type's path.
fn last(of: &Type) -> String {
    match of {
        Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
        Type::Reference(reference) => Some(last(&reference.elem)),
        _ => None,
    }
    .unwrap_or_default()
}

fn returns(output: &ReturnType) -> Returns {
    let ReturnType::Type(_, of) = output else { return Returns::Unit };
    if matches!(&**of, Type::ImplTrait(_)) {
        return Returns::Opaque;
    }
    let Type::Path(path) = &**of else { return Returns::Other };
    let Some(segment) = path.path.segments.last() else { return Returns::Other };
    match segment.ident.to_string().as_str() {
        "bool" => Returns::Bool,
        "Option" => Returns::Option,
        "u8" | "u16" | "u32" | "u64" | "usize" => Returns::Number,
        "Result" => match &segment.arguments {
            syn::PathArguments::AngleBracketed(list) => match list.args.first() {
                Some(syn::GenericArgument::Type(Type::Tuple(tuple))) if tuple.elems.is_empty() => {
                    Returns::ResultOfUnit
                }
                _ => Returns::Other,
            },
            _ => Returns::Other,
        },
        _ => Returns::Other,
    }
}

impl<'a> Visit<'a> for Finder<'a> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if is_built(&item.attrs) {
            self.owner.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.owner.pop();
        }
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        let of = of.map(|segment| segment.ident.to_string());
        if !is_built(&item.attrs) || of.as_deref().is_some_and(|name| PRINTING.contains(&name)) {
            return;
        }
        let name = match of {
            Some(of) => format!("<{} as {of}>", last(&item.self_ty)),
            None => last(&item.self_ty),
        };
        self.owner.push(name);
        visit::visit_item_impl(self, item);
        self.owner.pop();
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        self.owner.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner.pop();
    }

    // Functions within functions belong to those: their text is changed with them.
    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if is_built(&item.attrs) {
            self.push(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if is_built(&item.attrs) {
            self.push(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        if let Some(block) = item.default.as_ref().filter(|_| is_built(&item.attrs)) {
            self.push(&item.sig, block);
        }
    }
}

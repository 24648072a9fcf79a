//! The functions of a file, and where they stand in its text.

use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, Signature, TraitItemFn, Type};

use crate::error::Error;
use crate::site::Sites;

/// A function of a file, with its place in the text.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its path in the file: modules that stand in the file, the type or trait, the name
    /// (`PerCpu::set_lazy`).
    pub path: String,
    /// The trait that it implements, if any.
    pub of_trait: Option<String>,
    /// The whole function without its attributes.
    pub range: Range<usize>,
    /// Its body, with the braces.
    pub body: Range<usize>,
    /// The word `const`, if it is a `const fn`.
    pub constant: Option<Range<usize>>,
    /// Does it, or a module or `impl` block that holds it, stand under `#[cfg(test)]`, or is it a
    /// test?
    pub is_test: bool,
    /// Where its body can hold a choice between two texts.
    pub(crate) sites: Sites,
}

impl Function {
    /// Is this its name? Given is the path, or its end (`set_lazy`), or the trait too (`<PerCpu as
    /// Drop>::drop`).
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let is_end = |name: &str| {
            self.path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
        };
        let Some((owner, method)) = name.strip_prefix('<').and_then(|n| n.split_once(">::")) else {
            return is_end(name);
        };
        let Some((of_type, of_trait)) = owner.split_once(" as ") else {
            return is_end(&format!("{owner}::{method}"));
        };
        self.of_trait.as_deref() == Some(of_trait) && is_end(&format!("{of_type}::{method}"))
    }
}

/// The functions of a file that have a body, in the order of the text. Those inside of others are
/// not told apart.
///
/// # Errors
/// The text is no Rust.
pub fn functions(text: &str) -> Result<Vec<Function>, Error> {
    let syntax =
        |why: syn::Error| Error::Syntax { place: "functions".into(), why: why.to_string() };
    let file = syn::parse_file(text).map_err(syntax)?;
    let mut finder = Finder { path: Vec::new(), of_trait: None, is_test: false, found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder {
    path: Vec<String>,
    of_trait: Option<String>,
    is_test: bool,
    found: Vec<Function>,
}

impl Finder {
    fn add(
        &mut self,
        attributes: &[syn::Attribute],
        start: Span,
        signature: &Signature,
        block: &Block,
    ) {
        let mut path = self.path.clone();
        path.push(signature.ident.to_string());
        let body = block.span().byte_range();
        self.found.push(Function {
            path: path.join("::"),
            of_trait: self.of_trait.clone(),
            range: start.byte_range().start..body.end,
            body,
            constant: signature.constness.as_ref().map(|word| word.span.byte_range()),
            is_test: self.is_test || is_test(attributes),
            sites: Sites::of(block),
        });
    }

    /// Visits what is in a module, an `impl` block or a trait.
    fn inside(
        &mut self,
        name: String,
        of_trait: Option<String>,
        attributes: &[syn::Attribute],
        visit: impl FnOnce(&mut Self),
    ) {
        let before = (self.of_trait.clone(), self.is_test);
        self.path.push(name);
        self.of_trait = of_trait;
        self.is_test |= is_test(attributes);
        visit(self);
        self.path.pop();
        (self.of_trait, self.is_test) = before;
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.inside(module.ident.to_string(), None, &module.attrs, |finder| {
            visit::visit_item_mod(finder, module);
        });
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        let last = |path: &syn::Path| path.segments.last().map(|segment| segment.ident.to_string());
        let of_trait = block.trait_.as_ref().and_then(|(_, path, _)| last(path));
        self.inside(type_name(&block.self_ty), of_trait, &block.attrs, |finder| {
            visit::visit_item_impl(finder, block);
        });
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.inside(item.ident.to_string(), None, &item.attrs, |finder| {
            visit::visit_item_trait(finder, item);
        });
    }

    // None of these three visits what the body holds: a function in it is a part of this one.
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        let start = function.vis.span().join(function.sig.span()).unwrap_or(function.sig.span());
        self.add(&function.attrs, start, &function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        let start = function.vis.span().join(function.sig.span()).unwrap_or(function.sig.span());
        self.add(&function.attrs, start, &function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.attrs, function.sig.span(), &function.sig, block);
        }
    }
}

/// The last word of a type's name: `Bits` of `&mut arena::Bits<'_, P>`.
fn type_name(of: &Type) -> String {
    match of {
        Type::Path(path) => {
            path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
        }
        Type::Reference(reference) => type_name(&reference.elem),
        Type::Paren(inner) => type_name(&inner.elem),
        Type::Group(inner) => type_name(&inner.elem),
        Type::Array(array) => type_name(&array.elem),
        Type::Slice(slice) => type_name(&slice.elem),
        _ => "_".into(),
    }
}

/// `#[test]`, or a `cfg` whose first condition is `test` (`cfg(test)`, `cfg(all(test, ..))`).
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| {
                    let words: String =
                        list.tokens.to_string().chars().filter(|c| !c.is_whitespace()).collect();
                    words == "test" || words.starts_with("all(test")
                })
    })
}

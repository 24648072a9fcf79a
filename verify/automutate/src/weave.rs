//! Many mutants in one text.
//!
//! A function with mutants asks at its beginning which one is on, and goes on with that body:
//!
//! ```text
//! fn pay(&self) { match crate::automatic::selected(3) {
//!     17 => { the body with a statement less }
//!     18 => { the body with `<` for `<=` }
//!     _ => { the body }
//! } }
//! ```
//!
//! One binary holds as many as wanted, and the environment says which is on: see [`SWITCH`]. A
//! `const fn` becomes a plain one, as nothing can be asked while a constant is computed; where it
//! is needed as a constant, the compiler says so and its mutants are dropped.

use std::ops::Range;

use crate::generate::{Function, Mutant, changed};

/// The variable of the environment that holds the number of the mutant that is on; none without it.
pub const SWITCH: &str = "SHOOTDOWN_AUTOMATIC";

/// The variable that names a file to which each woven function's number is written when it is first
/// come by.
pub const REACHED: &str = "SHOOTDOWN_AUTOMATIC_REACHED";

/// A function, its number, and its mutants with theirs.
#[derive(Clone, Debug)]
pub struct Chosen<'a> {
    /// The function.
    pub function: &'a Function,
    /// Its number.
    pub number: u32,
    /// Its mutants, at least one.
    pub mutants: Vec<(u32, &'a Mutant)>,
}

/// Where something stands in a woven text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A mutant's body.
    Mutant(u32),
    /// The body of a function as it was, with the function's number.
    Whole(u32),
}

/// A woven text.
#[derive(Clone, Debug, Default)]
pub struct Woven {
    /// The text.
    pub text: String,
    /// The bodies in it, in order.
    pub parts: Vec<(Range<usize>, Part)>,
}

impl Woven {
    /// Which body a byte of the text is in.
    #[must_use]
    pub fn part(&self, at: usize) -> Option<Part> {
        let next = self.parts.partition_point(|(range, _)| range.end <= at);
        self.parts.get(next).filter(|(range, _)| range.contains(&at)).map(|(_, part)| *part)
    }
}

/// Weaves mutants into a file. The functions are in the order of the file.
#[must_use]
pub fn weave(text: &str, functions: &[Chosen<'_>]) -> Woven {
    let mut woven = Woven::default();
    let mut at = 0;
    for chosen in functions {
        let body = &chosen.function.body;
        if let Some(word) = &chosen.function.constant {
            woven.text.push_str(&text[at..word.start]);
            at = word.end;
        }
        woven.text.push_str(&text[at..body.start]);
        let asks = format!("{{ match crate::automatic::selected({}) {{\n", chosen.number);
        woven.text.push_str(&asks);
        for (number, mutant) in &chosen.mutants {
            woven.text.push_str(&format!("{number} => "));
            woven.body(&changed(text, body, &mutant.edits), Part::Mutant(*number));
        }
        woven.text.push_str("_ => ");
        woven.body(&text[body.clone()], Part::Whole(chosen.number));
        woven.text.push_str("} }");
        at = body.end;
    }
    woven.text.push_str(&text[at..]);
    woven
}

impl Woven {
    fn body(&mut self, text: &str, part: Part) {
        let begin = self.text.len();
        self.text.push_str(text);
        self.parts.push((begin..self.text.len(), part));
        self.text.push('\n');
    }
}

/// The root of a library with the switch in it, for functions whose numbers are below `functions`.
#[must_use]
pub fn root(text: &str, functions: u32) -> String {
    let switch = SWITCH_MODULE
        .replace("FUNCTIONS", &functions.max(1).to_string())
        .replace("SWITCH", SWITCH)
        .replace("NOTED", REACHED);
    // What the mutated code makes the compiler warn of is no news; nor are constants that overflow.
    format!(
        "#![allow(warnings, arithmetic_overflow, unconditional_panic, missing_docs)]\n\
         {text}\n{switch}"
    )
}

const SWITCH_MODULE: &str = r#"
/// Which automatic mutant is on.
#[doc(hidden)]
pub mod automatic {
    extern crate std;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    static SELECTED: AtomicU32 = AtomicU32::new(0);
    static REACHED: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];

    #[inline]
    pub fn selected(function: usize) -> u32 {
        if !REACHED[function].load(Ordering::Relaxed) {
            reached(function);
        }
        SELECTED.load(Ordering::Relaxed)
    }

    #[cold]
    fn reached(function: usize) {
        if REACHED[function].swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(number) = std::env::var("SWITCH") {
            SELECTED.store(number.parse().expect("a mutant's number"), Ordering::Relaxed);
        }
        if let Ok(path) = std::env::var("NOTED") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            let line = std::format!("{function}\n");
            file.expect("the file of what is reached").write_all(line.as_bytes()).expect("room");
        }
    }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;
    use crate::scope::Scope;

    #[test]
    fn every_body_is_there_and_is_found_by_its_place() {
        let text =
            "const fn a(x: u32) -> bool { x < 3 }\nfn b() {}\nfn c(y: bool) { if y { b() } }\n";
        let mutated = generate("core", "x.rs", text, &Scope::default()).unwrap();
        let (mut number, mut chosen) = (0, Vec::new());
        for (n, one) in mutated.iter().enumerate() {
            let mutants = one.mutants.iter().map(|m| {
                number += 1;
                (number, m)
            });
            let n = u32::try_from(n).unwrap();
            chosen.push(Chosen { function: &one.function, number: n, mutants: mutants.collect() });
        }
        let woven = weave(text, &chosen);
        syn::parse_file(&woven.text).expect("it parses");
        assert!(!woven.text.contains("const fn a"), "{}", woven.text);
        let le = woven.text.find("x <= 3").expect("a mutant");
        let Some(Part::Mutant(found)) = woven.part(le) else { panic!("{:?}", woven.part(le)) };
        let all: Vec<_> = chosen.iter().flat_map(|c| c.mutants.iter()).collect();
        let (_, mutant) = all.iter().find(|(number, _)| *number == found).unwrap();
        assert_eq!(mutant.change, "< => <=");
        let whole = woven.text.find("x < 3 }\n}").expect("the body as it was");
        assert_eq!(woven.part(whole), Some(Part::Whole(0)));
        assert_eq!(woven.part(0), None);
    }
}

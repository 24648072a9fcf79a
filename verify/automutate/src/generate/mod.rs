//! Mutants of one source file.
//!
//! The file is parsed, and every function body that the scope keeps is walked. Each operator that
//! applies at a place gives one [`Mutant`]: a change of the function as edits of byte ranges of the
//! file. Whether the changed text still compiles, only the compiler can say; operators that depend
//! on types (arguments that change places, an update that is torn) leave that to it.
//!
//! # Names
//! A mutant's name is made of file, function, operator and the ordinal of the place among those of
//! the same operator in the same function: `switch.rs switch_to drop-statement 3`. It does not
//! depend on line numbers, nor on other functions, so that results can be kept and compared while
//! the library changes.
//!
//! | module | holds |
//! |---|---|
//! | `functions` | which functions a file has |
//! | `operators` | what is done to them |

mod functions;
mod operators;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

pub use self::functions::{Function, of as functions_of};
pub use self::operators::Operator;
use crate::scope::Scope;

/// A byte range of the file, and what stands there instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// The bytes that go.
    pub at: Range<usize>,
    /// What comes in their place.
    pub text: String,
}

/// The name of a mutant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// The library: `core` or `dma`.
    pub library: &'static str,
    /// The file, below the library's `src`.
    pub file: String,
    /// The function, with the type it belongs to.
    pub function: String,
    /// What is done.
    pub operator: Operator,
    /// The how manieth of this operator in this function, from 1.
    pub ordinal: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, file, function, operator, ordinal } = self;
        write!(f, "{library}/{file}:{function}:{operator}:{ordinal}")
    }
}

/// A change that nobody wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: Name,
    /// What is changed, in the order of the file; ranges do not overlap.
    pub edits: Vec<Edit>,
    /// The change in a line, for people.
    pub change: String,
    /// A hash of the function with the change in it: a result holds as long as this stays.
    pub hash: u64,
}

/// A function, and what is made of it.
#[derive(Clone, Debug)]
pub struct Mutated {
    /// The function.
    pub function: Function,
    /// Its mutants.
    pub mutants: Vec<Mutant>,
}

/// The functions of a file with their mutants. Functions without any are left out.
#[must_use]
pub fn generate(
    library: &'static str,
    file: &str,
    text: &str,
    parsed: &syn::File,
    scope: &Scope,
) -> Vec<Mutated> {
    let mut all = Vec::new();
    for (function, block) in functions::of(parsed) {
        if scope.leaves_out_function(library, file, &function.name) {
            continue;
        }
        let changes = operators::apply(text, &function, block, scope);
        let mut seen = BTreeSet::from([hash(&text[function.body.clone()])]);
        let mut mutants: Vec<Mutant> = Vec::new();
        for (operator, edits) in changes {
            let hash = hash(&changed(text, &function.body, &edits));
            if !seen.insert(hash) {
                continue; // another operator has come to the same text
            }
            let same = mutants.iter().filter(|m| m.name.operator == operator).count();
            let name = Name {
                library,
                file: file.to_owned(),
                function: function.name.clone(),
                operator,
                ordinal: u32::try_from(same).unwrap_or(u32::MAX) + 1,
            };
            let change = describe(text, &edits);
            mutants.push(Mutant { name, edits, change, hash });
        }
        if !mutants.is_empty() {
            all.push(Mutated { function, mutants });
        }
    }
    all
}

/// The text of a range with the edits in it.
#[must_use]
pub fn changed(text: &str, range: &Range<usize>, edits: &[Edit]) -> String {
    let mut out = String::with_capacity(range.len());
    let mut at = range.start;
    for edit in edits {
        out.push_str(&text[at..edit.at.start]);
        out.push_str(&edit.text);
        at = edit.at.end;
    }
    out.push_str(&text[at..range.end]);
    out
}

/// FNV-1a over the words of a text: where lines break makes no difference.
fn hash(text: &str) -> u64 {
    text.split_whitespace()
        .flat_map(|word| word.bytes().chain([b' ']))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
}

/// The change in a line: what stood there, and what stands there now.
fn describe(text: &str, edits: &[Edit]) -> String {
    let parts: Vec<String> = edits
        .iter()
        .map(|edit| match (short(&text[edit.at.clone()]), short(&edit.text)) {
            (before, after) if before.is_empty() => format!("+ {after}"),
            (before, after) if after.is_empty() => format!("- {before}"),
            (before, after) => format!("{before} => {after}"),
        })
        .collect();
    parts.join(" | ")
}

/// The most of a text that is shown.
const SHOWN: usize = 70;

fn short(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    let line = words.join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}..", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r"
impl Space {
    /// Says so.
    pub fn pay(&self, to: u64) -> bool {
        fence(Ordering::SeqCst);
        if self.paid.load(Ordering::Acquire) < to && to != 0 {
            self.paid.fetch_max(to, Ordering::Release);
            self.stats.inc();
        }
        if to > 7 {
            self.stats.inc();
        }
        true
    }
}
impl fmt::Debug for Space {
    fn fmt(&self) { if a < b { c(); } }
}
#[cfg(test)]
mod tests { fn here() { if a < b { c(); } } }
";

    fn all() -> Vec<Mutant> {
        let scope = Scope::new("[[text]]\npattern = \".stats.\"\nbecause = \"counts\"").unwrap();
        let mutated = generate("core", "space.rs", FILE, &syn::parse_file(FILE).unwrap(), &scope);
        mutated.into_iter().flat_map(|m| m.mutants).collect()
    }

    #[test]
    fn each_operator_says_what_it_did() {
        let said: Vec<String> = all().iter().map(|m| format!("{}: {}", m.name, m.change)).collect();
        for line in [
            "core/space.rs:Space::pay:drop-fence:1: - fence(Ordering::SeqCst);",
            "core/space.rs:Space::pay:compare:1: < => <=",
            "core/space.rs:Space::pay:compare:2: != => ==",
            "core/space.rs:Space::pay:logic:1: && => ||",
            "core/space.rs:Space::pay:relax:1: Ordering::Acquire => Ordering::Relaxed",
            "core/space.rs:Space::pay:store:1: self.paid.fetch_max(to, Ordering::Release) => \
             self.paid.store(to, Ordering::Release)",
            "core/space.rs:Space::pay:early-return:1: + return false;",
        ] {
            assert!(said.contains(&line.to_owned()), "{line}\nnot in {said:#?}");
        }
        assert!(!said.iter().any(|line| line.contains("stats.inc")), "{said:#?}");
        assert!(!said.iter().any(|line| line.contains("fmt")), "{said:#?}");
        assert!(!said.iter().any(|line| line.contains("> => >=")), "{said:#?}");
    }

    #[test]
    fn every_mutant_has_a_name_and_a_text_of_its_own() {
        let all = all();
        for (n, mutant) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|m| m.name != mutant.name && m.hash != mutant.hash));
        }
    }

    #[test]
    fn names_do_not_depend_on_lines() {
        let scope = Scope::default();
        let moved = format!("\n// moved\n\n{}", FILE.replace(" && ", "\n && "));
        let names = |text: &str| -> Vec<(Name, u64)> {
            let mutated =
                generate("core", "space.rs", text, &syn::parse_file(text).unwrap(), &scope);
            mutated.into_iter().flat_map(|m| m.mutants).map(|m| (m.name, m.hash)).collect()
        };
        assert_eq!(names(FILE), names(&moved));
    }
}

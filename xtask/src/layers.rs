//! `cargo xtask layers`: no import of the core runs up a layer.
//!
//! The table of layers is the one in `crates/shootdown/ARCHITECTURE.md`. An import is any path of
//! the source that begins with `crate`, `self` or `super`, in a `use` or in code, tests and macros
//! included. What the root re-exports counts as what it stands for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Error;
use crate::image::root;

/// The core, below the root of the repository.
const CORE: &str = "crates/shootdown";

/// A module or an item: the names that lead to it from the root.
type Name = Vec<String>;

/// The layers, lowest first, each with its modules.
struct Layers(Vec<(String, Vec<Name>)>);

/// A module's text.
struct Source {
    /// Where it is.
    file: String,
    module: Name,
    text: String,
}

/// An import that a source has.
#[derive(Debug)]
struct Import {
    line: usize,
    name: Name,
}

/// Why the source can't be judged, or what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Syntax { file: String, why: String },
    NoLayer { file: String, line: usize, name: String },
    Up { file: String, line: usize, name: String, from: String, to: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { file, why } => write!(f, "{file}: {why}"),
            Self::NoLayer { file, line, name } => {
                write!(f, "{file}:{line}: {name} is in no layer; add it to the table")
            }
            Self::Up { file, line, name, from, to } => {
                write!(f, "{file}:{line}: {name} is of the layer {to}, above {from}")
            }
        }
    }
}

impl Layers {
    /// The rows `| 1 | name | \`module\` \`module\` | … |` of the text's table of layers.
    fn read(text: &str) -> Self {
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| ")?.split('|').map(str::trim);
            cells.next()?.parse::<u32>().ok()?;
            let name = cells.next()?.to_owned();
            let modules = cells.next()?.split('`').skip(1).step_by(2);
            Some((name, modules.map(|m| m.split("::").map(str::to_owned).collect()).collect()))
        };
        let table = text.lines().skip_while(|line| !line.starts_with("| | layer |"));
        Self(table.take_while(|line| line.starts_with('|')).filter_map(row).collect())
    }

    /// The layer of a module or of what is in it: that of the longest name in the table.
    fn of(&self, name: &[String]) -> Option<usize> {
        let known = self.0.iter().enumerate().flat_map(|(layer, (_, modules))| {
            modules.iter().filter(|m| name.starts_with(m)).map(move |m| (m.len(), layer))
        });
        known.max().map(|(_, layer)| layer)
    }
}

/// Collects the imports of a module's tokens. `uses` are noted with the name they give.
#[derive(Default)]
struct Scan {
    imports: Vec<Import>,
    uses: Vec<(Name, Name)>,
}

impl Scan {
    fn tokens(&mut self, tokens: TokenStream, module: &Name) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(word) if word == "mod" => {
                    if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
                        (tokens.get(at + 1), tokens.get(at + 2))
                    {
                        let inner: Name =
                            module.iter().cloned().chain([name.to_string()]).collect();
                        self.tokens(body.stream(), &inner);
                        at += 3;
                        continue;
                    }
                }
                TokenTree::Ident(word) if is_path(&tokens, at) => {
                    let begins = match word.to_string().as_str() {
                        "crate" => Some(Vec::new()),
                        "self" => Some(module.clone()),
                        "super" => Some(parent(module)),
                        // At the root a path may begin with what is there.
                        name if module.is_empty() => Some(vec![name.to_owned()]),
                        _ => None,
                    };
                    if let Some(begins) = begins {
                        at = self.path(&tokens, at + 3, begins, module);
                        continue;
                    }
                }
                TokenTree::Group(group) => self.tokens(group.stream(), module),
                _ => {}
            }
            at += 1;
        }
    }

    /// A path goes on at `at`; returns where it ends.
    fn path(&mut self, tokens: &[TokenTree], at: usize, mut name: Name, module: &Name) -> usize {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => {
                let line = word.span().start().line;
                match word.to_string().as_str() {
                    "self" => {}
                    "super" => name = parent(&name),
                    word => name.push(word.to_owned()),
                }
                if is_path(tokens, at) {
                    return self.path(tokens, at + 3, name, module);
                }
                let renamed = match (tokens.get(at + 1), tokens.get(at + 2)) {
                    (Some(TokenTree::Ident(r#as)), Some(TokenTree::Ident(new))) if r#as == "as" => {
                        Some(new.to_string())
                    }
                    _ => None,
                };
                if let Some(given) = renamed.or_else(|| name.last().cloned()) {
                    let given = module.iter().cloned().chain([given]).collect();
                    self.uses.push((given, name.clone()));
                }
                self.imports.push(Import { line, name });
                at + 1
            }
            // A tree: each branch goes on from here.
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let branches: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut branch = 0;
                while branch < branches.len() {
                    branch = self.path(&branches, branch, name.clone(), module);
                    let comma =
                        |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
                    branch += branches[branch..].iter().take_while(|t| !comma(t)).count() + 1;
                }
                at + 1
            }
            // All of a module, or the arguments of a type.
            Some(other) => {
                self.imports.push(Import { line: other.span().start().line, name });
                at
            }
            None => at,
        }
    }
}

fn parent(module: &Name) -> Name {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// Does `::` follow?
fn is_path(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(tokens.get(at + 1)) && colon(tokens.get(at + 2))
}

/// What an import names, when what the root re-exports is looked through.
fn real(mut name: Name, exported: &BTreeMap<Name, Name>) -> Name {
    // Each step leads to another place, or the compiler would not have it.
    for _ in 0..4 {
        let longest = (1..=name.len()).rev().find_map(|n| Some((n, exported.get(&name[..n])?)));
        match longest {
            Some((n, to)) if *to != name[..n] => name = [to, &name[n..]].concat(),
            _ => break,
        }
    }
    name
}

/// Everything that is wrong with the sources, and how many imports they have.
fn check(sources: &[Source], layers: &Layers) -> (Vec<Fault>, usize) {
    let mut faults = Vec::new();
    let mut scanned = Vec::new();
    for source in sources {
        let mut scan = Scan::default();
        match source.text.parse::<TokenStream>() {
            Ok(tokens) => scan.tokens(tokens, &source.module),
            Err(why) => {
                faults.push(Fault::Syntax { file: source.file.clone(), why: why.to_string() });
            }
        }
        scanned.push((source, scan));
    }
    let exported: BTreeMap<Name, Name> = scanned
        .iter()
        .filter(|(source, _)| source.module.is_empty())
        .flat_map(|(_, scan)| scan.uses.iter().cloned())
        .collect();
    let mut count = 0;
    for (source, scan) in &scanned {
        // The root only lists what there is.
        if source.module.is_empty() {
            continue;
        }
        let file = || source.file.clone();
        let Some(own) = layers.of(&source.module) else {
            faults.push(Fault::NoLayer { file: file(), line: 1, name: source.module.join("::") });
            continue;
        };
        for Import { line, name } in &scan.imports {
            count += 1;
            let name = real(name.clone(), &exported);
            let shown = || name.join("::");
            match layers.of(&name) {
                None => {
                    faults.push(Fault::NoLayer { file: file(), line: *line, name: shown() });
                }
                Some(layer) if layer > own => faults.push(Fault::Up {
                    file: file(),
                    line: *line,
                    name: shown(),
                    from: layers.0[own].0.clone(),
                    to: layers.0[layer].0.clone(),
                }),
                Some(_) => {}
            }
        }
    }
    (faults, count)
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })
}

/// The sources below a folder, whose module is `module`.
fn sources(folder: &Path, module: &Name, into: &mut Vec<Source>) -> Result<(), Error> {
    let failed = |source| Error::File { path: folder.display().to_string(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner: Name = module.iter().cloned().chain([name.clone()]).collect();
        if path.is_dir() {
            sources(&path, &inner, into)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let module = if name == "mod" || name == "lib" { module.clone() } else { inner };
            let file = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            into.push(Source { file, module, text: read(&path)? });
        }
    }
    Ok(())
}

/// Checks the core; returns the exit code.
pub fn run() -> Result<u8, Error> {
    let core = root().join(CORE);
    let table = core.join("ARCHITECTURE.md");
    let layers = Layers::read(&read(&table)?);
    if layers.0.is_empty() {
        return Err(Error::Unusable(format!("{}: there is no table of layers", table.display())));
    }
    let mut found = Vec::new();
    sources(&core.join("src"), &Vec::new(), &mut found)?;
    let (faults, count) = check(&found, &layers);
    faults.iter().for_each(|fault| say!("{fault}"));
    let up = faults.iter().filter(|fault| matches!(fault, Fault::Up { .. })).count();
    let (files, depth) = (found.len(), layers.0.len());
    say!("{CORE}: {files} files in {depth} layers, {count} imports, {up} run up");
    Ok(u8::from(!faults.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| | layer | modules | holds |
|---|---|---|---|
| 1 | base | `base` | words |
| 2 | state | `state` `port` | data |
| 3 | ops | `ops` | protocols |
";

    fn faults(module: &str, text: &str) -> Vec<String> {
        let source = |module: &str, text: &str| Source {
            file: format!("{module}.rs"),
            module: module.split("::").filter(|m| !m.is_empty()).map(str::to_owned).collect(),
            text: text.to_owned(),
        };
        let root = "mod base; mod ops; mod state; mod port; pub use ops::flush; \
            pub mod cpu { pub use crate::ops::online::online; pub use crate::state::cpu::PerCpu; } \
            pub use flush::Request as Asked;";
        let others = ["base", "state", "port", "ops"].map(|m| source(m, ""));
        let sources: Vec<Source> =
            [source("", root), source(module, text)].into_iter().chain(others).collect();
        let (faults, _) = check(&sources, &Layers::read(TABLE));
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn imports_that_run_down_or_stay_are_fine() {
        for text in [
            "use crate::base::ids::{CpuId, Tag}; fn f() { crate::state::cpu::g(); super::h(); }",
            "use crate::state::{cpu::{self, PerCpu}, space::*};",
            "use crate::cpu::PerCpu; mod tests { use super::*; use super::super::space; }",
            "/// See [`crate::flush`].\n pub(crate) fn f() -> &'static str { \"crate::ops\" }",
            "use core::fmt; use ops::other_crate;",
        ] {
            assert_eq!(faults("state::space", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn imports_that_run_up_are_found() {
        let up = |name| vec![format!("state::space.rs:1: {name} is of the layer ops, above state")];
        for (text, name) in [
            ("use crate::ops::call;", "ops::call"),
            ("use crate::{base::ids, ops::{call}};", "ops::call"),
            ("use super::super::ops::call as other;", "ops::call"),
            ("fn f() { g(|| crate::ops::call::kick::<P>(1)) }", "ops::call::kick"),
            ("fn f() { println!(\"{}\", crate::ops::N) }", "ops::N"),
            ("mod tests { use crate::ops::*; }", "ops"),
            // What the root re-exports.
            ("use crate::flush::Request;", "ops::flush::Request"),
            ("use crate::cpu::online;", "ops::online::online"),
            ("fn f(_: crate::Asked) {}", "ops::flush::Request"),
        ] {
            assert_eq!(faults("state::space", text), up(name), "{text}");
        }
    }

    #[test]
    fn what_is_in_no_layer_is_named() {
        assert_eq!(
            faults("memory", "").as_slice(),
            ["memory.rs:1: memory is in no layer; add it to the table"]
        );
        assert_eq!(
            faults("ops::call", "\nuse crate::memory;").as_slice(),
            ["ops::call.rs:2: memory is in no layer; add it to the table"]
        );
    }

    #[test]
    fn the_longest_name_counts() {
        let table = "| | layer |\n| 1 | low | `port::facts` | |\n| 2 | high | `port` | |\n\n\
            | 3 | of another table | `ops` | |\n";
        let layers = Layers::read(table);
        let of = |name: &str| layers.of(&name.split("::").map(str::to_owned).collect::<Name>());
        assert_eq!(
            (of("port::facts::Facts"), of("port::factsheet"), of("ops")),
            (Some(0), Some(1), None)
        );
    }

    #[test]
    fn no_import_of_the_core_runs_up() {
        assert_eq!(run().expect("the core is there"), 0);
    }
}

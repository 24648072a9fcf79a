//! The source of a library, in memory.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;

use crate::change::{Change, Edit, What};
use crate::error::Error;
use crate::function::{Function, functions};
use crate::switch::{self, Changed, Replacement, Switch};
use crate::tokens::{self, Token};
use crate::woven;

/// Which change is on, in a copy of a library.
const ASK: &str = "crate::mutant::selected()";
/// What says that a change is come by.
const REACH: &str = "crate::mutant::reach(); ";

/// The source of a library: the text of each `.rs` file, by its path from the root.
#[derive(Clone, Debug)]
pub struct Tree {
    files: BTreeMap<PathBuf, String>,
}

impl Tree {
    /// Reads every `.rs` file of a folder.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let mut tree = Self { files: BTreeMap::new() };
        tree.read_folder(root, Path::new(""))?;
        Ok(tree)
    }

    /// A tree of these files.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { files: files.into_iter().map(|(path, text)| (path.into(), text.into())).collect() }
    }

    fn read_folder(&mut self, root: &Path, folder: &Path) -> Result<(), Error> {
        let at = root.join(folder);
        for entry in fs::read_dir(&at).map_err(|why| Error::Io(at.clone(), why))? {
            let entry = entry.map_err(|why| Error::Io(at.clone(), why))?;
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                self.read_folder(root, &path)?;
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text =
                    fs::read_to_string(entry.path()).map_err(|why| Error::Io(entry.path(), why))?;
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// The files, by their paths from the root.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().map(|(path, text)| (path.as_path(), text.as_str()))
    }

    /// The text of a file.
    #[must_use]
    pub fn file(&self, path: &Path) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// The functions of a file.
    ///
    /// # Errors
    /// The file is no Rust.
    pub fn functions(&self, path: &Path) -> Result<Vec<Function>, Error> {
        let text = self.file(path).unwrap_or_default();
        functions(text).map_err(|error| match error {
            Error::Syntax { why, .. } => Error::Syntax { place: path.display().to_string(), why },
            error => error,
        })
    }

    /// Adds a file, or puts another text in its place.
    pub fn add_file(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.files.insert(path.into(), text.into());
    }

    /// Appends a text to a file; to one that is not there, it adds it.
    pub fn append(&mut self, path: impl Into<PathBuf>, text: &str) {
        self.files.entry(path.into()).or_default().push_str(text);
    }

    /// Adds a public module to the root, `lib.rs`.
    pub fn add_module(&mut self, name: &str, text: impl Into<String>) {
        self.append("lib.rs", &format!("\n#[allow(missing_docs)]\npub mod {name};\n"));
        self.add_file(format!("{name}.rs"), text);
    }

    /// Makes tests ordinary functions, which others call or nobody does.
    pub fn without_tests(&mut self) {
        for text in self.files.values_mut() {
            *text = text.replace("#[test]", "");
        }
    }

    /// Adds the files of another library, whose root becomes `NAME.rs`.
    ///
    /// # Errors
    /// Both have a file of one name.
    pub fn add_tree(&mut self, name: &str, other: &Self) -> Result<(), Error> {
        for (path, text) in &other.files {
            let root = Path::new("lib.rs");
            let to = if path == root { format!("{name}.rs").into() } else { path.clone() };
            if self.files.insert(to.clone(), text.clone()).is_some() {
                return Err(Error::Twice { file: to });
            }
        }
        Ok(())
    }

    /// Takes the attributes and the documentation of the crate out of a root, so that a package can
    /// `include!` it: the compiler takes them in the file only that it is called for.
    ///
    /// # Errors
    /// The root is no Rust.
    pub fn bare(&mut self, root: &str) -> Result<(), Error> {
        let Some(text) = self.files.get_mut(Path::new(root)) else { return Ok(()) };
        let syntax = |why: syn::Error| Error::Syntax { place: root.into(), why: why.to_string() };
        let file = syn::parse_file(text).map_err(syntax)?;
        let blanks = file.attrs.iter().map(|attribute| {
            let range = attribute.span().byte_range();
            let lines = text[range.clone()].matches('\n').count();
            Replacement { range, text: "\n".repeat(lines) }
        });
        let bare = switch::apply(text, 0..text.len(), &blanks.collect::<Vec<_>>());
        *text = bare;
        Ok(())
    }

    /// A copy of the tree with the changes in it.
    ///
    /// # Errors
    /// A change names what is not there, its text is not found exactly once, or what it leaves is
    /// no Rust.
    pub fn weave(&self, changes: &[Change]) -> Result<Self, Error> {
        let mut numbers = BTreeSet::from([0]);
        let mut by_file: BTreeMap<&Path, Vec<(&Change, &Edit)>> = BTreeMap::new();
        for change in changes {
            if !numbers.insert(change.id) {
                return Err(Error::Number { change: change.name.clone(), id: change.id });
            }
            for edit in &change.edits {
                by_file.entry(&edit.file).or_default().push((change, edit));
            }
        }
        let mut woven = self.clone();
        for (path, edits) in by_file {
            let text = self.weave_file(path, &edits)?;
            woven.files.insert(path.into(), text);
        }
        Ok(woven)
    }

    fn weave_file(&self, path: &Path, edits: &[(&Change, &Edit)]) -> Result<String, Error> {
        let Some(text) = self.file(path) else {
            return Err(Error::NoFile { change: edits[0].0.name.clone(), file: path.into() });
        };
        let functions = self.functions(path)?;
        let syntax = |why| Error::Syntax { place: path.display().to_string(), why };
        let tokens = tokens::tokens(text).map_err(syntax)?;

        // By function, then by change, in the order of the table.
        let mut changed: BTreeMap<usize, Vec<Changed>> = BTreeMap::new();
        for &(change, edit) in edits {
            let (at, replacement) = place(change, edit, &functions, &tokens)?;
            let of_function = changed.entry(at).or_default();
            match of_function.iter_mut().find(|c| c.id == change.id) {
                Some(c) => c.replacements.push(replacement),
                None => {
                    of_function.push(Changed { id: change.id, replacements: vec![replacement] })
                }
            }
        }

        for (at, changes) in &mut changed {
            for change in changes {
                change.replacements.sort_by_key(|r| (r.range.start, r.range.end));
                if change.replacements.windows(2).any(|two| two[1].range.start < two[0].range.end) {
                    let (file, function) = (path.into(), functions[*at].path.clone());
                    return Err(Error::Overlap { change: name(edits, change.id), file, function });
                }
            }
        }
        let words = Switch { ask: &|_| ASK.into(), reach: REACH };
        let woven = woven::weave(text, &functions, &changed, 0, &words);
        woven.map(|woven| woven.text).map_err(|broken| Error::Broken {
            change: name(edits, broken.id),
            file: path.into(),
            function: broken.function,
            why: broken.why,
        })
    }

    /// Writes the files into a folder of its own. What is there already and is the same is left
    /// alone; a file that the tree does not have (its source was moved) is removed.
    ///
    /// # Errors
    /// A file can't be written or removed.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        self.remove_others(folder, Path::new(""))?;
        for (path, text) in &self.files {
            let to = folder.join(path);
            if fs::read_to_string(&to).is_ok_and(|there| there == *text) {
                continue;
            }
            let above = to.parent().unwrap_or(folder);
            fs::create_dir_all(above).map_err(|why| Error::Io(above.into(), why))?;
            fs::write(&to, text).map_err(|why| Error::Io(to.clone(), why))?;
        }
        Ok(())
    }

    /// Removes what an older tree has left in the part `below` of a folder.
    fn remove_others(&self, folder: &Path, below: &Path) -> Result<(), Error> {
        let Ok(entries) = fs::read_dir(folder.join(below)) else { return Ok(()) };
        for entry in entries {
            let entry = entry.map_err(|why| Error::Io(folder.join(below), why))?;
            let path = below.join(entry.file_name());
            if entry.path().is_dir() {
                self.remove_others(folder, &path)?;
            } else if !self.files.contains_key(&path) {
                fs::remove_file(entry.path()).map_err(|why| Error::Io(entry.path(), why))?;
            }
        }
        Ok(())
    }
}

/// The name of the change with a number.
fn name(edits: &[(&Change, &Edit)], id: u32) -> String {
    let of_id = edits.iter().find(|(change, _)| change.id == id);
    of_id.map(|(change, _)| change.name.clone()).unwrap_or_default()
}

/// The function that an edit is in, and what it replaces.
fn place(
    change: &Change,
    edit: &Edit,
    functions: &[Function],
    tokens: &[Token],
) -> Result<(usize, Replacement), Error> {
    let (file, function) = (edit.file.clone(), edit.function.clone());
    let named = || functions.iter().enumerate().filter(|(_, f)| f.is_named(&edit.function));
    if named().next().is_none() {
        return Err(Error::NoFunction { change: change.name.clone(), file, function });
    }
    match &edit.what {
        What::Span { range, after } => {
            let holds = |body: &Range<usize>| body.start < range.start && range.end < body.end;
            let at = named().find(|(_, f)| holds(&f.body)).map(|(at, _)| at);
            let outside = Error::Outside {
                change: change.name.clone(),
                file,
                function,
                range: range.clone(),
            };
            let replacement = Replacement { range: range.clone(), text: after.clone() };
            at.map(|at| (at, replacement)).ok_or(outside)
        }
        What::Text { before, after } => {
            let place = || format!("change `{}`", change.name);
            let wanted =
                tokens::tokens(before).map_err(|why| Error::Syntax { place: place(), why })?;
            // Two functions of a name (one for a `cfg`, one for the other) are searched together.
            let found: Vec<_> = named()
                .flat_map(|(at, f)| {
                    let inside = f.body.start + 1..f.body.end - 1;
                    let found = tokens::find(tokens::within(tokens, &inside), &wanted);
                    found.into_iter().map(move |range| (at, range))
                })
                .collect();
            match &found[..] {
                [(at, range)] => {
                    Ok((*at, Replacement { range: range.clone(), text: after.clone() }))
                }
                _ => Err(Error::NotOnce {
                    change: change.name.clone(),
                    file,
                    function,
                    text: before.clone(),
                    times: found.len(),
                }),
            }
        }
    }
}

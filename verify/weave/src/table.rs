//! Changes as a table beside the source: a folder of `.toml` files, one for each file of the
//! source, with its path.
//!
//! ```toml
//! [[mutant]]
//! name = "switch-without-fence"
//! what = "The switcher publishes that it is switching, but without the fence."
//! in = "switch_to"
//! before = "fence(Ordering::SeqCst);"
//! after = ""
//! ```
//!
//! A mutant of several edits has an array `[[mutant.edit]]` of `in`, `before`, `after`, and, where
//! it is another file, `file`. Other keys of a mutant are its *columns*, which `columns.toml` in
//! the folder declares: `kind = "Kind"` for a key whose value names a variant of `Kind`, `unless =
//! "text"` for a text that a mutant may have or not, `scene = "function"` for the path of a
//! function of the copy's unit tests that it may have or not. `items = '''..'''` at the head of a
//! file is a text which the copy of that file has at its end, for what mutants call.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::change::{Change, Edit};
use crate::error::Error;

/// The mutants of a library, in the order of their files and of the text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    mutants: Vec<Mutant>,
    items: Vec<(PathBuf, String)>,
    /// Each with the `enum` whose variants it names, `text`, or `function`.
    columns: BTreeMap<String, String>,
}

const COLUMNS: &str = "columns.toml";
const TEXT: &str = "text";
const FUNCTION: &str = "function";

/// One row: a change, and what is said of it.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its name: words with hyphens.
    pub name: String,
    /// What is missing, in one sentence.
    pub what: String,
    /// What is edited.
    pub edits: Vec<Edit>,
    /// Every other key.
    pub columns: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    items: String,
    #[serde(default)]
    mutant: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    what: String,
    r#in: Option<String>,
    before: Option<String>,
    after: Option<String>,
    #[serde(default)]
    edit: Vec<RowEdit>,
    #[serde(flatten)]
    columns: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowEdit {
    file: Option<String>,
    r#in: String,
    before: String,
    after: String,
}

impl Table {
    /// Reads every `.toml` file of a folder.
    ///
    /// # Errors
    /// A file can't be read, or is no table; or two mutants have one name.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        find(folder, Path::new(""), &mut files)?;
        files.sort();
        let mut table = Self::default();
        for path in files {
            let at = folder.join(&path);
            let text = fs::read_to_string(&at).map_err(|why| Error::Io(at, why))?;
            if path == Path::new(COLUMNS) {
                let syntax = |why: toml::de::Error| Error::Syntax {
                    place: COLUMNS.into(),
                    why: why.to_string(),
                };
                table.columns = toml::from_str(&text).map_err(syntax)?;
                continue;
            }
            table.add(&path.with_extension("rs"), &text)?;
        }
        let mut names = BTreeSet::new();
        match table.mutants.iter().find(|mutant| !names.insert(&mutant.name)) {
            Some(twice) => Err(Error::Name { change: twice.name.clone() }),
            None => Ok(table),
        }
    }

    /// Adds the mutants of one file.
    fn add(&mut self, source: &Path, text: &str) -> Result<(), Error> {
        let place = source.with_extension("toml").display().to_string();
        let syntax = |why: &dyn std::fmt::Display| Error::Syntax {
            place: place.clone(),
            why: why.to_string(),
        };
        let file: File = toml::from_str(text).map_err(|why| syntax(&why))?;
        if !file.items.is_empty() {
            self.items.push((source.into(), file.items));
        }
        for row in file.mutant {
            let Row { name, what, r#in, before, after, edit, columns } = row;
            let in_other = |edit: RowEdit| {
                let file = edit.file.map_or_else(|| source.to_owned(), PathBuf::from);
                Edit::text(file, &edit.r#in, &edit.before, &edit.after)
            };
            let mut edits: Vec<Edit> = edit.into_iter().map(in_other).collect();
            match (r#in, before, after) {
                (Some(function), Some(before), Some(after)) => {
                    edits.push(Edit::text(source, &function, &before, &after));
                }
                (None, None, None) if !edits.is_empty() => {}
                _ => return Err(syntax(&format!("`{name}` has no edit, or a part of one"))),
            }
            self.mutants.push(Mutant { name, what, edits, columns });
        }
        Ok(())
    }

    /// The mutants.
    #[must_use]
    pub fn mutants(&self) -> &[Mutant] {
        &self.mutants
    }

    /// Texts that files have at their end in the copy.
    pub fn items(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.items.iter().map(|(path, text)| (path.as_path(), text.as_str()))
    }

    /// The mutants as changes, numbered from one.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let change = |(id, mutant): (u32, &Mutant)| Change {
            id,
            name: mutant.name.clone(),
            edits: mutant.edits.clone(),
        };
        (1..).zip(&self.mutants).map(change).collect()
    }

    /// The text of a module with `enum Mutant`, whose variants are the mutants in order, and a
    /// constant `ROWS: &[Row]` with what is said of each. The module above declares `Row`, with a
    /// field for each column (and `scene_fn` beside `scene`, in tests, for a function) and `name`,
    /// `sentence`, `place`; and the types of the columns.
    ///
    /// # Errors
    /// A mutant lacks a column, or has one that is not declared.
    pub fn list(&self) -> Result<String, Error> {
        let mut variants = String::new();
        let mut rows = String::new();
        for mutant in &self.mutants {
            let Mutant { name, what, .. } = mutant;
            let _ = writeln!(variants, "    #[doc = {what:?}]\n    {},", pascal(name));
            let place = mutant.place();
            let _ = write!(rows, "    Row {{ name: {name:?}, sentence: {what:?}, place: {place:?}");
            let mut left = mutant.columns.clone();
            for (key, of) in &self.columns {
                let value = left.remove(key);
                let _ = match value {
                    value if of == TEXT => write!(rows, ", {key}: {value:?}"),
                    value if of == FUNCTION => {
                        let path =
                            value.as_ref().map_or("None".into(), |path| format!("Some({path})"));
                        write!(rows, ", {key}: {value:?}, #[cfg(test)] {key}_fn: {path}")
                    }
                    Some(value) => write!(rows, ", {key}: {of}::{}", pascal(&value)),
                    None => {
                        return Err(Error::Column { change: name.clone(), column: key.clone() });
                    }
                };
            }
            rows.push_str(" },\n");
            if let Some(column) = left.into_keys().next() {
                return Err(Error::Column { change: name.clone(), column });
            }
        }
        let all: String =
            self.mutants.iter().map(|m| format!("Self::{}, ", pascal(&m.name))).collect();
        Ok(format!(
            "use super::*;\n\n\
            /// One removed or weakened step.\n\
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]\n\
            #[non_exhaustive]\n\
            pub enum Mutant {{\n{variants}}}\n\n\
            impl Mutant {{\n    /// Every mutant, in the order of the table.\n    \
            pub const ALL: &'static [Self] = &[{all}];\n}}\n\n\
            pub(super) const ROWS: &[Row] = &[\n{rows}];\n"
        ))
    }
}

impl Mutant {
    /// File and functions of its edits: `switch.rs: switch_to, leave_lazy`.
    #[must_use]
    pub fn place(&self) -> String {
        let mut files: Vec<(&Path, Vec<&str>)> = Vec::new();
        for Edit { file, function, .. } in &self.edits {
            match files.iter_mut().find(|(of, _)| of == file) {
                Some((_, functions)) if functions.contains(&function.as_str()) => {}
                Some((_, functions)) => functions.push(function),
                None => files.push((file, vec![function])),
            }
        }
        let of_file = |(file, functions): &(&Path, Vec<&str>)| {
            format!("{}: {}", file.display(), functions.join(", "))
        };
        files.iter().map(of_file).collect::<Vec<_>>().join("; ")
    }
}

/// `switch-without-fence` as the name of a variant.
fn pascal(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    };
    name.split('-').map(word).collect()
}

fn find(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let at = root.join(folder);
    for entry in fs::read_dir(&at).map_err(|why| Error::Io(at.clone(), why))? {
        let entry = entry.map_err(|why| Error::Io(at.clone(), why))?;
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            find(root, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    Ok(())
}

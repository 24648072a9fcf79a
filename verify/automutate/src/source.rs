//! The sources of the two libraries.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::generate::{Mutated, functions_of, generate};
use crate::probes::Probed;
use crate::scope::Scope;

/// A library, and where its source is below the workspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Library {
    /// Its name in those of mutants.
    pub name: &'static str,
    /// Its folder.
    pub folder: &'static str,
}

/// The two libraries.
pub const LIBRARIES: [Library; 2] = [
    Library { name: "core", folder: "crates/shootdown" },
    Library { name: "dma", folder: "crates/shootdown-dma" },
];

impl Library {
    /// Its source folder in a workspace.
    #[must_use]
    pub fn src(&self, workspace: &Path) -> PathBuf {
        workspace.join(self.folder).join("src")
    }
}

/// A source file with its mutants.
#[derive(Clone, Debug)]
pub struct Source {
    /// The library.
    pub library: Library,
    /// The file, below `src`.
    pub file: String,
    /// Its text.
    pub text: String,
    /// Its functions that have mutants.
    pub functions: Vec<Mutated>,
    /// The text that mutants are put into.
    pub probed: Probed,
}

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path)
        .map_err(|error| Error::File { path: path.display().to_string(), error })
}

/// The files below a folder, sorted, as paths relative to it.
pub(crate) fn files(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |error| Error::File { path: folder.display().to_string(), error };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().map_err(failed)?.is_dir() {
            found.extend(files(&entry.path())?.into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// All sources of a workspace that the scope keeps, with their mutants; and with probes, numbered
/// from 0 through all of them, where they are wanted.
///
/// # Errors
/// A file that can't be read or parsed.
pub fn sources(workspace: &Path, scope: &Scope, probes: bool) -> Result<Vec<Source>, Error> {
    let (mut all, mut first): (Vec<Source>, usize) = (Vec::new(), 0);
    for library in LIBRARIES {
        let src = library.src(workspace);
        for file in files(&src)? {
            let test = file.split('/').any(|part| part == "tests.rs" || part == "tests");
            if !file.ends_with(".rs") || test || scope.leaves_out_file(library.name, &file) {
                continue;
            }
            let path = src.join(&file);
            let text = read(&path)?;
            let syntax = |error| Error::Syntax { path: path.display().to_string(), error };
            let parsed = syn::parse_file(&text).map_err(syntax)?;
            let functions = generate(library.name, &file, &text, &parsed, scope);
            let keeps =
                |name: &str| probes && !scope.leaves_out_function(library.name, &file, name);
            let probed: Vec<_> =
                functions_of(&parsed).into_iter().filter(|(f, _)| keeps(&f.name)).collect();
            let probed = Probed::new(&text, probed.iter().map(|(f, block)| (f, *block)), first);
            first += probed.probes.len();
            if !functions.is_empty() || !probed.probes.is_empty() {
                all.push(Source { library, file, text, functions, probed });
            }
        }
    }
    Ok(all)
}

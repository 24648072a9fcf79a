//! What the build script of a package does whose source is a woven copy.

use std::path::{Path, PathBuf};

use crate::change::Change;
use crate::error::Error;
use crate::table::Table;
use crate::tree::Tree;

/// A library whose source is woven with a table of mutants.
///
/// The package includes the root of the copy:
///
/// ```text
/// include!(concat!(env!("OUT_DIR"), "/woven/lib.rs"));
/// ```
#[derive(Clone, Debug)]
pub struct Library<'a> {
    /// The source, `src/` of the library.
    pub source: &'a Path,
    /// Crates that build on the library and are woven into the same copy, so that one table has the
    /// mutants of both: the name of each there, and its source. Their paths in the table are those
    /// from their own root, which the copy has as `NAME.rs`; who includes that beside the root
    /// declares `extern crate self as LIBRARY`, by which they name the library.
    pub above: &'a [(&'a str, &'a Path)],
    /// The folder of the table. `mutant.rs` in it becomes the module `mutant` of the copy; it has
    /// a `mod list`, and a type `Row` with a field for each column and `name`, `sentence`,
    /// `place`.
    pub mutants: &'a Path,
    /// Changes beside those of the table, with numbers of their own.
    pub more: &'a [Change],
}

/// The variable of the environment that leaves the changes of tables out of copies: the source
/// holds changes already, other ones, and a copy of theirs would be as large again.
pub const WITHOUT_TABLE: &str = "SHOOTDOWN_WITHOUT_TABLE";

impl Library<'_> {
    /// Writes the copy to `OUT_DIR/woven`, and tells Cargo what it depends on. For a build script.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write(&self) -> Result<(), Error> {
        let above = self.above.iter().map(|(_, source)| *source);
        for folder in [self.source, self.mutants].into_iter().chain(above) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
        println!("cargo::rerun-if-env-changed={WITHOUT_TABLE}");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        self.woven()?.write(&out.join("woven"))
    }

    /// The copy.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn woven(&self) -> Result<Tree, Error> {
        let table = Table::read(self.mutants)?;
        let without = std::env::var_os(WITHOUT_TABLE).is_some();
        let mut changes = if without { Vec::new() } else { table.changes() };
        changes.extend_from_slice(self.more);
        let mut tree = self.tree()?.weave(&changes)?;
        for (file, items) in table.items() {
            tree.append(file, &format!("\n{items}"));
        }
        tree.without_tests(); // they are run where the source is
        let module = self.mutants.join("mutant.rs");
        let text = std::fs::read_to_string(&module).map_err(|why| Error::Io(module, why))?;
        tree.add_module("mutant", text);
        tree.add_file("mutant/list.rs", table.list()?);
        tree.bare("lib.rs")?;
        for (name, _) in self.above {
            tree.bare(&format!("{name}.rs"))?;
        }
        Ok(tree)
    }

    /// The source as it is, with what is above it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn tree(&self) -> Result<Tree, Error> {
        let mut tree = Tree::read(self.source)?;
        for (name, source) in self.above {
            tree.add_tree(name, &Tree::read(source)?)?;
        }
        Ok(tree)
    }
}

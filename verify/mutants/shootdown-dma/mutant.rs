//! The mutants of the library: one step taken out of an algorithm, or weakened.
//!
//! A step that nobody misses is either superfluous or badly tested. So each step that keeps a
//! promise has a mutant, in the tables beside this file, and each row names what kills it:
//!
//! - `scene = "path"`: a function of the crate's unit tests that panics when the promise is broken.
//!   It is run here, once as it is (it must pass) and once with the mutant on (it must panic, and
//!   must have come by the step).
//! - `loom = "loom_x.rs: test"`: a test of the model checker, in `verify/dma/tests`.
//! - `test = "x.rs: test"`: an ordinary test there, which turns the mutant on itself.
//! - `unless = "reason"`: nothing breaks, and why.
//!
//! This module is a part of the woven copies of the library only.

extern crate std;

mod list;

use core::cell::Cell;
use std::format;
use std::string::String;

pub use list::Mutant;

/// The part of the crate that a mutant is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Allocators of addresses.
    Iova,
    /// I/O page tables.
    Table,
    /// Invalidation.
    Invalidate,
    /// What each CPU has for itself.
    Local,
    /// What joins them.
    Domain,
    /// Bounce pages.
    Bounce,
    /// Emulated IOMMUs.
    Vmm,
    /// Drivers in user space.
    User,
}

/// What the table says of a mutant.
pub(super) struct Row {
    name: &'static str,
    sentence: &'static str,
    place: &'static str,
    part: Part,
    scene: Option<&'static str>,
    #[cfg(test)]
    scene_fn: Option<fn()>,
    loom: Option<&'static str>,
    test: Option<&'static str>,
    unless: Option<&'static str>,
}

impl Mutant {
    const fn row(self) -> &'static Row {
        &list::ROWS[self as usize]
    }

    /// Its name in print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The mutant of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|m| m.name() == name)
    }

    /// What is missing.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// The part it is in.
    #[must_use]
    pub const fn part(self) -> Part {
        self.row().part
    }

    /// File and function of the step.
    #[must_use]
    pub const fn place(self) -> &'static str {
        self.row().place
    }

    /// The test that kills it, in words.
    #[must_use]
    pub fn killed_by(self) -> String {
        let Row { scene, loom, test, .. } = self.row();
        match (scene, loom, test) {
            (Some(path), ..) => format!("the unit test `{path}` of shootdown-dma"),
            (_, Some(test), _) => format!("the model checker: {}", in_words(test)),
            (.., Some(test)) => in_words(test),
            _ => String::new(),
        }
    }

    /// Why nothing breaks without the step, if nothing does.
    #[must_use]
    pub const fn equivalent(self) -> Option<&'static str> {
        self.row().unless
    }
}

/// `x.rs: test`
fn in_words(test: &str) -> String {
    let (file, test) = test.split_once(": ").unwrap_or_default();
    format!("`{test}` in verify/dma/tests/{file}")
}

std::thread_local! {
    static SELECTED: Cell<u32> = const { Cell::new(0) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}

/// The number of the change that is on in this thread; zero for none. The functions of the copy
/// ask.
#[inline]
#[must_use]
pub fn selected() -> u32 {
    SELECTED.get()
}

/// The changed place is come by.
#[inline]
pub fn reach() {
    REACHED.set(true);
}

/// Turns the change of this number on in this thread (zero: all off).
pub fn select(number: u32) {
    SELECTED.set(number);
    REACHED.set(false);
}

/// Turns one mutant on in this thread (or all off).
pub fn set(mutant: Option<Mutant>) {
    select(mutant.map_or(0, |mutant| mutant as u32 + 1));
}

/// Is the mutant on in this thread?
#[must_use]
pub fn active(mutant: Mutant) -> bool {
    current() == Some(mutant)
}

/// Was the step that is missing come by in this thread since it was taken out?
#[must_use]
pub fn reached() -> bool {
    REACHED.get()
}

/// The mutant that is on in this thread.
#[must_use]
pub fn current() -> Option<Mutant> {
    let at = (selected() as usize).checked_sub(1)?;
    Mutant::ALL.get(at).copied()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::catch_unwind;
    use std::path::Path;
    use std::vec::Vec;

    use super::*;

    /// Is the mutant killed? If not, why not.
    fn kill(mutant: Mutant) -> Result<(), String> {
        let Row { scene_fn, loom, test, unless, .. } = mutant.row();
        match (*scene_fn, loom.or(*test), *unless) {
            (Some(scene), None, None) => missed(mutant, scene),
            (None, Some(test), None) => is_named(mutant, test),
            (None, None, Some(because)) if because.len() > 20 => Ok(()),
            (None, None, Some(_)) => Err("it is not said why nobody misses it".into()),
            _ => Err("nobody is said to kill it, or several are".into()),
        }
    }

    fn missed(mutant: Mutant, scene: fn()) -> Result<(), String> {
        set(None);
        catch_unwind(scene).map_err(|_| "its scene fails as it is")?;
        set(Some(mutant));
        let outcome = catch_unwind(scene);
        let reached = reached();
        set(None);
        match outcome {
            Err(_) if reached => Ok(()),
            Err(_) => Err("its scene fails without coming by the step".into()),
            Ok(()) if reached => Err("nobody misses the step".into()),
            Ok(()) => Err("its scene does not come by the step".into()),
        }
    }

    /// The test is long enough to be known by its name, and names the mutant.
    fn is_named(mutant: Mutant, test: &str) -> Result<(), String> {
        let (file, test) = test.split_once(": ").ok_or("no file: test")?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
        let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
        let body = text.split_once(&format!("fn {test}()")).map(|(_, body)| body);
        let body = body.ok_or_else(|| format!("{file} has no test {test}"))?;
        let body = body.split("#[test]").next().unwrap_or_default();
        if body.contains(&format!("{mutant:?}")) {
            Ok(())
        } else {
            Err(format!("{test} in {file} does not name it"))
        }
    }

    #[test]
    fn every_mutant_is_killed() {
        let survivors: Vec<String> = Mutant::ALL
            .iter()
            .filter_map(|m| kill(*m).err().map(|why| format!("{}: {why}", m.name())))
            .collect();
        assert!(survivors.is_empty(), "{survivors:#?}");
    }
}

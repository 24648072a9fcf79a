//! Test-only switches that take one step out of an algorithm, or weaken it.
//!
//! A step that nobody misses is either superfluous or badly tested. So each step that keeps a promise can be taken out:
//! the code asks `without!(Step)`, and a test turns the mutant on and expects to fail. They are all declared in one table,
//! [`list`](Mutant::ALL), and each row names what kills it:
//!
//! - `by scene(path)`: a function of this crate that panics when the promise is broken. It is run here, once as it is
//!   (it must pass) and once with the mutant on (it must panic, and must have come by the step).
//! - `by loom("loom_x.rs" "test")`: a test of the model checker, in `tests/`.
//! - `by test("x.rs" "test")`: an ordinary test in `tests/`, which turns the mutant on itself.
//! - `unless "reason"`: nothing breaks, and why.
//!
//! Only builds that are tested for it have them: unit tests, `cfg(loom)`, and the feature `mutants`, which is for this
//! repository's tests alone. It changes no type, and needs `std`: on bare metal it does not compile.

mod list;

use core::cell::Cell;

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

std::thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}

/// Is the mutant on in this thread?
#[inline]
#[must_use]
pub fn active(mutant: Mutant) -> bool {
    let active = ACTIVE.get() == Some(mutant);
    if active {
        REACHED.set(true);
    }
    active
}

/// Turns one mutant on in this thread (or all off). Threads that a test starts begin with none: pass [`current`] on.
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
    REACHED.set(false);
}

/// Was the step that is missing come by in this thread since it was taken out?
#[must_use]
pub fn reached() -> bool {
    REACHED.get()
}

/// The mutant that is on in this thread.
#[must_use]
pub fn current() -> Option<Mutant> {
    ACTIVE.get()
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::panic::catch_unwind;
    use std::path::Path;
    use std::string::String;
    use std::vec::Vec;

    use super::list::Killer;
    use super::*;

    /// Is the mutant killed? If not, why not.
    fn kill(mutant: Mutant) -> Result<(), String> {
        match mutant.killer() {
            Killer::Scene(scene) => {
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
            Killer::Elsewhere(file, test) => {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
                let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
                // The test is long enough to be known by its name, and the mutant is named after it.
                let body = text.split_once(&format!("fn {test}()")).map(|(_, body)| body);
                let body = body.ok_or_else(|| format!("{file} has no test {test}"))?;
                let body = body.split("#[test]").next().unwrap_or_default();
                if body.contains(&format!("{mutant:?}")) {
                    Ok(())
                } else {
                    Err(format!("{test} in {file} does not name it"))
                }
            }
            Killer::Nobody(because) if because.len() > 20 => Ok(()),
            Killer::Nobody(_) => Err("it is not said why nobody misses it".into()),
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

    #[test]
    fn every_mutant_has_a_name_of_its_own_and_a_place() {
        for (n, m) in Mutant::ALL.iter().enumerate() {
            assert_eq!(Mutant::from_name(m.name()), Some(*m));
            assert!(Mutant::ALL[..n].iter().all(|o| o.name() != m.name()), "{}", m.name());
            assert!(m.sentence().len() > 20, "{m:?} is not described");
            let (file, item) = m.place().split_once(": ").expect("file: item");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
            let text = std::fs::read_to_string(&path).expect("the file is there");
            assert!(text.contains(item), "{} has no {item}", m.place());
            assert!(text.contains(&format!("{m:?}")), "{} does not ask for {m:?}", m.place());
        }
    }
}

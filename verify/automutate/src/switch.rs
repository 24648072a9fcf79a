//! The switch of a text that holds many mutants.
//!
//! Where mutants stand, the text asks which one is on, and the environment says so: see [`SWITCH`].
//! One binary holds as many as wanted. How they are put there is `shootdown_weave`'s; a `const fn`
//! becomes a plain one, and where it is needed as a constant, the compiler says so and its mutants
//! are dropped.

/// The variable of the environment that holds the number of the mutant that is on; none without it.
pub const SWITCH: &str = "SHOOTDOWN_AUTOMATIC";

/// The variable that names a file to which the number of each choice is written when it is first
/// come by.
pub const REACHED: &str = "SHOOTDOWN_AUTOMATIC_REACHED";

/// The expression that says which mutant is on, in a choice of this number.
#[must_use]
pub fn ask(choice: usize) -> String {
    format!("crate::automatic::selected({choice})")
}

/// The root of a library with the switch in it, for choices whose numbers are below `choices`.
#[must_use]
pub fn root(text: &str, choices: usize) -> String {
    let switch = SWITCH_MODULE
        .replace("CHOICES", &choices.max(1).to_string())
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
    static REACHED: [AtomicBool; CHOICES] = [const { AtomicBool::new(false) }; CHOICES];

    #[inline]
    pub fn selected(choice: usize) -> u32 {
        if !REACHED[choice].load(Ordering::Relaxed) {
            reached(choice);
        }
        SELECTED.load(Ordering::Relaxed)
    }

    /// Notes that something is come by.
    #[inline]
    pub fn probe(number: usize) {
        if !REACHED[number].load(Ordering::Relaxed) {
            reached(number);
        }
    }

    #[cold]
    fn reached(choice: usize) {
        if REACHED[choice].swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(number) = std::env::var("SWITCH") {
            SELECTED.store(number.parse().expect("a mutant's number"), Ordering::Relaxed);
        }
        if let Ok(path) = std::env::var("NOTED") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            let line = std::format!("{choice}\n");
            file.expect("the file of what is reached").write_all(line.as_bytes()).expect("room");
        }
    }
}
"#;

//! Which checks the names on the command line mean.
//!
//! A name is a kind (`zoo`), a check (`zoo/z01-move-page`, or without the kind), the beginning of
//! one (`z01`), or a pattern with `*` and `?` (`litmus/riscv/*`).

use super::{Check, Kind};
use crate::LabError;
use crate::names::unknown;

/// The checks that the names mean, as indices into `all`, in the order of `all`, each once. No
/// names mean the default set.
///
/// # Errors
/// [`LabError::BadInput`] for a name that means none, with the nearest.
pub fn select(all: &[Box<dyn Check>], names: &[String]) -> Result<Vec<usize>, LabError> {
    let mut chosen = vec![false; all.len()];
    if names.is_empty() {
        for (mark, check) in chosen.iter_mut().zip(all) {
            *mark = check.by_default();
        }
    }
    for name in names {
        let meant = meant_by(all, name);
        if meant.is_empty() {
            let kinds = Kind::ALL.iter().filter(|k| all.iter().any(|c| c.kind() == **k));
            let kinds = kinds.map(|k| k.word());
            return Err(unknown("check", name, kinds.chain(all.iter().map(|c| c.name()))));
        }
        for index in meant {
            chosen[index] = true;
        }
    }
    Ok((0..all.len()).filter(|&i| chosen[i]).collect())
}

fn meant_by(all: &[Box<dyn Check>], name: &str) -> Vec<usize> {
    if let Some(kind) = Kind::ALL.into_iter().find(|k| k.word() == name || k.name() == name) {
        return which(all, |c| c.kind() == kind);
    }
    let exact = which(all, |c| c.name() == name || short(c.name()) == name);
    if !exact.is_empty() || name.is_empty() {
        return exact;
    }
    which(all, |c| names(name, c.name()))
}

/// Is this the name, its beginning or its own part, or does the pattern match it?
#[must_use]
pub fn names(pattern: &str, name: &str) -> bool {
    if pattern.contains(['*', '?']) {
        matches(pattern, name) || matches(pattern, short(name))
    } else {
        name.starts_with(pattern) || short(name).starts_with(pattern)
    }
}

fn which(all: &[Box<dyn Check>], wanted: impl Fn(&dyn Check) -> bool) -> Vec<usize> {
    (0..all.len()).filter(|&i| wanted(all[i].as_ref())).collect()
}

/// A check's name without its kind.
fn short(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, own)| own)
}

/// Does the pattern match the whole text? `*` is any text, `?` any one character.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to try again: the last star, and how much of the text it swallowed.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star, swallowed)) = again else { return false };
                again = Some((star, swallowed + 1));
                p = star + 1;
                t = swallowed + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::super::{CheckResult, Settings, Verdict};
    use super::*;
    use crate::progress::Progress;

    struct Toy(&'static str, Kind, bool);

    impl Check for Toy {
        fn name(&self) -> &str {
            self.0
        }
        fn kind(&self) -> Kind {
            self.1
        }
        fn line(&self) -> &str {
            "a toy"
        }
        fn by_default(&self) -> bool {
            self.2
        }
        fn run(&self, _: &Settings, _: &Progress) -> CheckResult {
            CheckResult::new("x", "x", Verdict::Pass)
        }
    }

    fn toys() -> Vec<Box<dyn Check>> {
        vec![
            Box::new(Toy("litmus/arm-1", Kind::Litmus, true)),
            Box::new(Toy("litmus/arm-12", Kind::Litmus, true)),
            Box::new(Toy("zoo/z1-free-first", Kind::Zoo, true)),
            Box::new(Toy("mutants/no-wait", Kind::Mutant, false)),
        ]
    }

    fn chosen(names: &[&str]) -> Vec<usize> {
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        select(&toys(), &names).unwrap()
    }

    #[test]
    fn names_mean_kinds_checks_beginnings_and_patterns() {
        assert_eq!(chosen(&[]), [0, 1, 2], "the default set");
        assert_eq!(chosen(&["mutants"]), [3]);
        assert_eq!(chosen(&["mutant"]), [3]);
        assert_eq!(chosen(&["litmus/arm-1"]), [0], "an exact name is not a beginning");
        assert_eq!(chosen(&["arm-"]), [0, 1]);
        assert_eq!(chosen(&["z1"]), [2]);
        assert_eq!(chosen(&["*-wait", "arm-?"]), [0, 3]);
        assert_eq!(chosen(&["zoo", "z1-free-first"]), [2], "each once");
    }

    #[test]
    fn a_name_that_means_nothing_is_answered_with_the_nearest() {
        for (name, near) in
            [("zooo", "zoo"), ("zoo/z1-free-frist", "zoo/z1-free-first"), ("", "known")]
        {
            let said = select(&toys(), &[name.to_owned()]).unwrap_err().to_string();
            assert!(said.contains(near), "{name}: {said}");
        }
    }

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyyd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("**a", "bba", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }
}

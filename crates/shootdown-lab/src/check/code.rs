//! The line that shows a failure again.
//!
//! `random/three:seed=81985529:mutant=no-wait:4k2.9s1` is a check, what it ran with where that is
//! not the check's own, and a schedule. It needs no quoting in a shell. The schedule has a checksum
//! of its own.

use std::fmt;
use std::str::FromStr;

/// A failing schedule and what it ran with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayCode {
    /// The check that found it.
    pub check: String,
    /// The seed of the world's programs, for worlds made by chance.
    pub seed: Option<u64>,
    /// The policy, when it was chosen by the user.
    pub policy: Option<String>,
    /// The planted mutant.
    pub mutant: Option<String>,
    /// The adversary's powers, when they were chosen by the user.
    pub powers: Option<String>,
    /// The choices that were made.
    pub schedule: String,
}

impl fmt::Display for ReplayCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.check)?;
        if let Some(seed) = self.seed {
            write!(f, ":seed={seed}")?;
        }
        if let Some(policy) = &self.policy {
            write!(f, ":policy={policy}")?;
        }
        if let Some(mutant) = &self.mutant {
            write!(f, ":mutant={mutant}")?;
        }
        if let Some(powers) = &self.powers {
            write!(f, ":powers={powers}")?;
        }
        write!(f, ":{}", self.schedule)
    }
}

impl FromStr for ReplayCode {
    type Err = String;

    /// Reads a code. The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.trim().split(':');
        let check = parts.next().unwrap_or_default();
        if check.is_empty() {
            return Err("the code is empty; a failing check prints one".to_owned());
        }
        let mut code = Self { check: check.to_owned(), ..Self::default() };
        let rest: Vec<&str> = parts.collect();
        let mut at = 0;
        while let Some((key, value)) = rest.get(at).and_then(|part| part.split_once('=')) {
            match key {
                "seed" => {
                    let seed = value.parse().map_err(|_| format!("`{value}` is not a seed"))?;
                    code.seed = Some(seed);
                }
                "policy" => code.policy = Some(value.to_owned()),
                "mutant" => code.mutant = Some(value.to_owned()),
                "powers" => code.powers = Some(value.to_owned()),
                _ => return Err(format!("the code has an unknown part `{key}`")),
            }
            at += 1;
        }
        code.schedule = rest[at..].join(":");
        if code.schedule.is_empty() {
            return Err(format!("the code has no schedule: `{text}` ends too early"));
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_reads_back_as_what_was_written() {
        let whole = ReplayCode {
            check: "random/three".to_owned(),
            seed: Some(u64::MAX),
            policy: Some("linux-5.13".to_owned()),
            mutant: Some("no-wait".to_owned()),
            powers: Some("tso+speculation".to_owned()),
            schedule: "4k2.9s1".to_owned(),
        };
        let bare = ReplayCode {
            check: "exhaustive/switch".to_owned(),
            schedule: "0".to_owned(),
            ..ReplayCode::default()
        };
        for code in [whole, bare] {
            assert_eq!(code.to_string().parse(), Ok(code));
        }
    }

    #[test]
    fn what_is_not_a_code_is_refused_with_a_sentence() {
        for (text, word) in [
            ("", "empty"),
            ("random/three", "schedule"),
            ("random/three:seed=x:1", "seed"),
            ("random/three:sed=3:1", "sed"),
            ("random/three:seed=3", "schedule"),
        ] {
            let said = text.parse::<ReplayCode>().unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }
}

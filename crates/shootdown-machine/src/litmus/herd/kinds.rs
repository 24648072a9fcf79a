//! Files of published verdicts: one line per test, its name and its kind.

use std::collections::BTreeMap;

use crate::litmus::test::Expectation;

/// Verdicts by test.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Kinds {
    /// `None`: the file contradicts itself.
    verdicts: BTreeMap<String, Option<Expectation>>,
}

impl Kinds {
    /// Reads what lines say a verdict; the others are remarks.
    pub fn parse(text: &str) -> Self {
        let mut verdicts = BTreeMap::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let (Some(name), Some(kind), None) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let kind = match kind {
                "Allowed" | "Allow" => Expectation::Allowed,
                "Forbidden" | "Forbid" => Expectation::Forbidden,
                "Required" | "Require" => Expectation::Required,
                _ => continue,
            };
            verdicts
                .entry(name.to_owned())
                .and_modify(|known| {
                    if *known != Some(kind) {
                        *known = None;
                    }
                })
                .or_insert(Some(kind));
        }
        Self { verdicts }
    }

    /// The verdict; `Err` if the file gives two.
    pub fn of(&self, name: &str) -> Result<Option<Expectation>, ()> {
        match self.verdicts.get(name) {
            None => Ok(None),
            Some(Some(kind)) => Ok(Some(*kind)),
            Some(None) => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_give_no_verdict() {
        let kinds =
            Kinds::parse("# new\nA Allowed\nB  Forbid # with ETS2\nA Forbidden\nC Sometimes\n");
        assert_eq!(kinds.of("A"), Err(()));
        assert_eq!(kinds.of("B"), Ok(Some(Expectation::Forbidden)));
        assert_eq!(kinds.of("C"), Ok(None));
    }
}

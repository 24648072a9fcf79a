//! Which powers the adversary has, as the user asks for them.
//!
//! Every check has an adversary of its own. `--powers` replaces it, `--without` takes powers from
//! it. The memory models `sc`, `tso` and `weak` are named like powers; at most one may be. A model
//! alone changes the model and nothing else; `none` stands for no power at all.

use shootdown_machine::hunt::{Memory, Power, Powers};

use crate::LabError;
use crate::names::unknown;

/// The memory models, as typed.
const MODELS: [(&str, Memory); 3] =
    [("sc", Memory::Sc), ("tso", Memory::Tso), ("weak", Memory::Weak)];

/// What the user asked of the adversary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adversary {
    only: Option<Powers>,
    memory: Option<Memory>,
    without: Vec<Power>,
}

impl Adversary {
    /// From the lists of `--powers` and `--without`.
    ///
    /// # Errors
    /// [`LabError::BadInput`] for an unknown name, with the nearest; for two memory models; for a
    /// model that is to be left out.
    pub fn new(only: Option<&[String]>, without: &[String]) -> Result<Self, LabError> {
        let mut asked = Self::default();
        for name in only.unwrap_or_default() {
            if name == NONE {
                asked.only = asked.only.or(Some(Powers::NONE));
                continue;
            }
            match named(name)? {
                Named::Model(model) => {
                    if asked.memory.replace(model).is_some() {
                        return Err(LabError::bad(
                            "only one of the memory models sc, tso and weak can be had at a time",
                        ));
                    }
                }
                Named::Power(power) => {
                    asked.only = Some(asked.only.unwrap_or(Powers::NONE).with(power));
                }
            }
        }
        for name in without {
            match named(name)? {
                Named::Power(power) => asked.without.push(power),
                Named::Model(_) => {
                    return Err(LabError::bad(format!(
                        "the memory model `{name}` can't be left out; choose another with --powers"
                    )));
                }
            }
        }
        Ok(asked)
    }

    /// Exactly these powers.
    #[must_use]
    pub const fn exactly(powers: Powers) -> Self {
        Self { only: Some(powers), memory: Some(powers.memory), without: Vec::new() }
    }

    /// What becomes of a check's own adversary.
    #[must_use]
    pub fn applied_to(&self, own: Powers) -> Powers {
        let memory = self.memory.unwrap_or(own.memory);
        let powers = self.only.unwrap_or(own).memory(memory);
        self.without.iter().fold(powers, |powers, power| powers.without(*power))
    }
}

/// What stands for no power at all.
const NONE: &str = "none";

enum Named {
    Model(Memory),
    Power(Power),
}

fn named(name: &str) -> Result<Named, LabError> {
    if let Some((_, model)) = MODELS.iter().find(|(n, _)| *n == name) {
        return Ok(Named::Model(*model));
    }
    Power::from_name(name).map(Named::Power).ok_or_else(|| {
        let models = MODELS.iter().map(|(n, _)| *n);
        unknown("power of the adversary", name, Power::ALL.iter().map(|p| p.name()).chain(models))
    })
}

/// The powers as one word: `tso+speculation+walk-caches`.
#[must_use]
pub fn write(powers: Powers) -> String {
    let model = MODELS.iter().find(|(_, m)| *m == powers.memory).map_or("sc", |(n, _)| n);
    powers.iter().fold(model.to_owned(), |word, power| word + "+" + power.name())
}

/// The powers of a word that [`write()`] wrote.
///
/// # Errors
/// [`LabError::BadInput`] for an unknown name.
pub fn read(word: &str) -> Result<Powers, LabError> {
    word.split('+').try_fold(Powers::NONE, |powers, name| {
        Ok(match named(name)? {
            Named::Model(model) => powers.memory(model),
            Named::Power(power) => powers.with(power),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(only: Option<&[&str]>, without: &[&str]) -> Result<Powers, String> {
        let list = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let only = only.map(list);
        Adversary::new(only.as_deref(), &list(without))
            .map(|a| a.applied_to(Powers::HOSTILE))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn each_power_is_a_switch() {
        assert_eq!(asked(None, &[]), Ok(Powers::HOSTILE));
        for power in Power::ALL {
            assert_eq!(asked(None, &[power.name()]), Ok(Powers::HOSTILE.without(power)));
            let alone = Powers::NONE.memory(Memory::Weak).with(power);
            assert_eq!(asked(Some(&[power.name()]), &[]), Ok(alone), "the model stays");
        }
        assert_eq!(asked(Some(&["tso"]), &[]), Ok(Powers::HOSTILE.memory(Memory::Tso)));
        assert_eq!(asked(Some(&["sc", "none"]), &[]), Ok(Powers::NONE));
    }

    #[test]
    fn unknown_powers_are_refused_with_the_nearest() {
        let said = asked(Some(&["speculaton"]), &[]).unwrap_err();
        assert!(said.contains("speculation"), "{said}");
        assert!(asked(Some(&["sc", "tso"]), &[]).unwrap_err().contains("one"));
        assert!(asked(None, &["weak"]).unwrap_err().contains("--powers"));
    }

    #[test]
    fn a_word_of_powers_reads_back() {
        for powers in [Powers::NONE, Powers::HOSTILE, Powers::HOSTILE.memory(Memory::Tso)] {
            assert_eq!(read(&write(powers)).unwrap(), powers);
        }
        assert!(read("tso+flying").is_err());
    }
}

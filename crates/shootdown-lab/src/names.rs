//! Names users type, and what to say when one is unknown.

use shootdown::policy::Policy;
use shootdown::residency::Strategy;

use crate::LabError;

/// A way to keep translations coherent, or the bound they are held against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contestant {
    /// A set of mechanisms, run on the machine.
    Policy(Policy),
    /// What no policy can beat: it knows which CPU holds what and pays for one multicast, nothing
    /// serialized. Computed from the profile, never run.
    Omniscient,
}

/// A contestant and what it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// As typed on the command line and printed in rows.
    pub name: &'static str,
    /// One line for `shootdown list`.
    pub line: &'static str,
    /// What it is.
    pub contestant: Contestant,
}

/// The project's own policy with this strategy.
#[must_use]
pub const fn broadcasting(strategy: Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}

/// Every policy, weakest first.
pub const POLICIES: &[Named] = &[
    Named {
        name: "naive",
        line: "no tags, full flushes, every online CPU interrupted, local work before remote",
        contestant: Contestant::Policy(Policy::NAIVE),
    },
    Named {
        name: "linux-4.13",
        line: "generations, exact ranges, lazy CPUs interrupted once; no tags, local work before remote",
        contestant: Contestant::Policy(Policy::LINUX_4_13),
    },
    Named {
        name: "linux-4.14",
        line: "4.13 with six tag slots per CPU",
        contestant: Contestant::Policy(Policy::LINUX_4_14),
    },
    Named {
        name: "linux-5.13",
        line: "4.14 with overlapped flushes, lazy CPUs left alone, the lazy flag on its own line",
        contestant: Contestant::Policy(Policy::LINUX_5_13),
    },
    Named {
        name: "linux-6.15",
        line: "5.13 with CPU sets left when asked in vain, and tags for all CPUs where x86 hardware invalidates by them",
        contestant: Contestant::Policy(Policy::LINUX_6_15),
    },
    Named {
        name: "arm64-mainline",
        line: "5.13 where tags are machine-wide: the hardware broadcasts every invalidation",
        contestant: Contestant::Policy(Policy::ARM64_MAINLINE),
    },
    Named {
        name: "shootdown",
        line: "everything this project has: pull delivery, range log, early and tree-wise acknowledgement",
        contestant: Contestant::Policy(Policy::SHOOTDOWN),
    },
    Named {
        name: "sticky",
        line: "shootdown; where hardware broadcasts, local for the only CPU that ever ran the space",
        contestant: Contestant::Policy(broadcasting(Strategy::Sticky)),
    },
    Named {
        name: "active",
        line: "shootdown; where hardware broadcasts, local for the only CPU that runs the space now",
        contestant: Contestant::Policy(broadcasting(Strategy::Active)),
    },
    Named {
        name: "trim",
        line: "shootdown; where hardware broadcasts, local for the only CPU that may hold entries",
        contestant: Contestant::Policy(broadcasting(Strategy::Trim)),
    },
    Named {
        name: "omniscient",
        line: "a bound, not a policy: one multicast to exactly the CPUs that hold entries, nothing serialized",
        contestant: Contestant::Omniscient,
    },
];

/// The policy of that name.
///
/// # Errors
/// [`LabError::BadInput`] with the nearest names.
pub fn policy(name: &str) -> Result<Named, LabError> {
    POLICIES
        .iter()
        .find(|p| p.name == name)
        .copied()
        .ok_or_else(|| unknown("policy", name, POLICIES.iter().map(|p| p.name)))
}

/// Policies from a comma-separated list, in the order given.
///
/// # Errors
/// [`LabError::BadInput`] for an unknown name (with the nearest) or an empty list.
pub fn policies(list: &[String]) -> Result<Vec<Named>, LabError> {
    if list.is_empty() {
        return Err(LabError::bad(
            "the list of policies is empty; `shootdown list policies` shows them",
        ));
    }
    list.iter().map(|name| policy(name)).collect()
}

/// The error for a name that is not known: one sentence with the nearest names.
pub fn unknown<'a>(kind: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> LabError {
    let mut scored: Vec<(f64, &str)> = known
        .into_iter()
        .map(|candidate| {
            let near = strsim::normalized_damerau_levenshtein(&name.to_lowercase(), candidate);
            let prefix = if candidate.starts_with(name) && !name.is_empty() { 0.5 } else { 0.0 };
            (near + prefix, candidate)
        })
        .collect();
    // Nearest first; equally near ones by name, so that the sentence is the same on every host.
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    /// How alike two names must be for one to be offered for the other.
    const ALIKE: f64 = 0.4;
    let name: String = name.chars().flat_map(printable).collect();
    let near: Vec<&str> =
        scored.iter().filter(|(s, _)| *s >= ALIKE).map(|(_, c)| *c).take(3).collect();
    if near.is_empty() {
        /// More is no answer that fits a terminal.
        const MOST: usize = 24;
        if scored.len() > MOST {
            return LabError::bad(format!(
                "there is no {kind} named `{name}`; `shootdown list` shows the {} there are",
                scored.len()
            ));
        }
        let mut all: Vec<&str> = scored.iter().map(|(_, c)| *c).collect();
        all.sort_unstable();
        LabError::bad(format!("there is no {kind} named `{name}`; known are {}", all.join(", ")))
    } else {
        LabError::bad(format!("there is no {kind} named `{name}`; nearest: {}", near.join(", ")))
    }
}

/// A character of what the user typed, or its escape where it would disturb the terminal or the
/// line.
fn printable(c: char) -> impl Iterator<Item = char> {
    let (kept, escaped) =
        if c.is_control() { (None, Some(c.escape_default())) } else { (Some(c), None) };
    kept.into_iter().chain(escaped.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_are_answered_with_the_nearest() {
        let said = policy("linux-5.14").unwrap_err().to_string();
        assert!(said.contains("linux-5.13") && said.contains("linux-4.14"), "{said}");
        assert_eq!(policy("linux-5.13").unwrap().name, "linux-5.13");
        let said = policy("zzz").unwrap_err().to_string();
        assert!(said.contains("known are") && said.contains("omniscient"), "{said}");
        assert!(policies(&[]).is_err());
    }

    #[test]
    fn where_there_are_many_names_they_are_not_all_printed() {
        let many: Vec<String> = (0..100).map(|i| format!("zoo/{i}")).collect();
        let said = unknown("check", "", many.iter().map(String::as_str)).to_string();
        assert!(
            said.contains("shootdown list") && said.contains("100") && said.len() < 100,
            "{said}"
        );
    }

    #[test]
    fn control_characters_of_a_name_do_not_reach_the_terminal() {
        let said = policy("a\u{1b}[2J\nb").unwrap_err().to_string();
        assert!(said.contains("`a\\u{1b}[2J\\nb`"), "{said}");
    }

    #[test]
    fn a_prefix_is_enough_to_be_near() {
        let said = policy("omni").unwrap_err().to_string();
        assert!(said.contains("omniscient"), "{said}");
    }
}

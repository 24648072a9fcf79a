//! `shootdown list`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use shootdown_machine::oracle::Invariant;

use super::Shared;
use crate::check::{self, breakers};
use crate::experiments::EXPERIMENTS;
use crate::names::{POLICIES, unknown};
use crate::output::{Format, emit};
use crate::{LabError, machines};

/// Show what there is, one line each.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Show what there is, one line each: machine profiles to simulate, policies to compare, \
        experiments to run, checks to make and the invariants they hold the library to.",
    after_long_help = "Examples:\n  shootdown list\n  shootdown list policies\n  shootdown list checks\n  \
        shootdown list experiments --format json"
)]
pub struct ListArgs {
    /// Only this kind: machines, policies, experiments or checks.
    #[arg(value_name = "KIND")]
    pub kind: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    name: String,
    line: String,
    /// What more there is to say: label and text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    facts: BTreeMap<&'static str, String>,
}

/// A kind the user can ask for, and the kinds of entries that it shows.
const KINDS: [(&str, &[&str]); 4] = [
    ("machines", &["machines"]),
    ("policies", &["policies"]),
    ("experiments", &["experiments"]),
    ("checks", &["checks", "invariants"]),
];

impl ListArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        let mut entries = entries();
        if let Some(kind) = self.kind.as_deref() {
            let Some((_, shown)) = KINDS.iter().find(|(name, _)| *name == kind) else {
                return Err(unknown("list", kind, KINDS.iter().map(|(name, _)| *name)));
            };
            entries.retain(|e| shown.contains(&e.kind));
        }
        match shared.format {
            Format::Json => {
                emit(&serde_json::to_string(&entries).expect("entries hold only strings"));
            }
            Format::Table => print_table(&entries),
        }
        Ok(())
    }
}

impl Entry {
    fn new(kind: &'static str, name: &str, line: impl Into<String>) -> Self {
        Self { kind, name: name.to_owned(), line: line.into(), facts: BTreeMap::new() }
    }
}

fn entries() -> Vec<Entry> {
    let machines =
        machines::all().into_iter().map(|(name, line)| Entry::new("machines", &name, line));
    let policies = POLICIES.iter().map(|p| Entry::new("policies", p.name, p.line));
    let experiments = EXPERIMENTS
        .iter()
        .map(|e| Entry::new("experiments", e.name(), format!("{} [{}]", e.line(), e.machine())));
    let mut entries: Vec<Entry> = machines.chain(policies).chain(experiments).collect();
    entries.extend(check::all().iter().map(|c| Entry::new("checks", c.name(), c.line())));
    entries.extend(Invariant::ALL.into_iter().map(invariant));
    entries
}

fn invariant(invariant: Invariant) -> Entry {
    let mut entry = Entry::new("invariants", invariant.name(), invariant.sentence());
    entry.facts.insert("checked", invariant.checked_by().to_owned());
    entry.facts.insert("upheld", invariant.upheld_by().to_owned());
    entry.facts.insert("mutants", breakers::of(invariant).join(", "));
    entry
}

fn print_table(entries: &[Entry]) {
    let width = entries.iter().map(|e| e.name.len()).max().unwrap_or(0);
    let mut kind = "";
    for entry in entries {
        if entry.kind != kind {
            if !kind.is_empty() {
                emit("");
            }
            kind = entry.kind;
            emit(&format!("{kind}:"));
        }
        emit(&format!("  {:width$}  {}", entry.name, entry.line));
        for (label, text) in &entry.facts {
            emit(&format!("  {:width$}    {label}: {text}", ""));
        }
    }
}

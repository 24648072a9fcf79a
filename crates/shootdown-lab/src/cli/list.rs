//! `shootdown list`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use shootdown_machine::oracle::Invariant;

use super::Shared;
use crate::check::{self, breakers, select};
use crate::experiments::EXPERIMENTS;
use crate::names::{POLICIES, unknown};
use crate::output::{Format, WIDEST, emit, wrapped};
use crate::{LabError, machines};

/// Show what there is: how much of each kind, or all of one kind, one line each.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Show what there is: machine profiles to simulate, policies to compare, experiments to run, \
        checks to make and the invariants they hold the library to. Without a kind, how much there is of \
        each; with one, a line for each thing of it.",
    after_long_help = "Examples:\n  shootdown list\n  shootdown list policies\n  shootdown list checks 'z0*'\n  \
        shootdown list experiments --format json"
)]
pub struct ListArgs {
    /// All of this kind: machines, policies, experiments or checks.
    #[arg(value_name = "KIND")]
    pub kind: Option<String>,

    /// Only what is named, begins like this, or matches a pattern with * and ?.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
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
        if let Some(unused) =
            self.names.iter().find(|name| !entries.iter().any(|e| select::names(name, &e.name)))
        {
            return Err(unknown("thing", unused, entries.iter().map(|e| e.name.as_str())));
        }
        if !self.names.is_empty() {
            entries.retain(|e| self.names.iter().any(|name| select::names(name, &e.name)));
        }
        if shared.table_or_json("list")? == Format::Json {
            emit(&serde_json::to_string(&entries).expect("entries hold only strings"));
        } else if self.kind.is_none() {
            print_counts(&entries);
        } else {
            print_table(&entries);
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

/// For each kind, how much there is of it, and the names where they are few.
fn print_counts(entries: &[Entry]) {
    for (kind, shown) in KINDS {
        for of in shown {
            let names: Vec<&str> =
                entries.iter().filter(|e| e.kind == *of).map(|e| e.name.as_str()).collect();
            let words = if *of == "checks" { groups(&names) } else { names.join(", ") };
            let label = format!("{of:<12} {:>5}   ", names.len());
            for (i, line) in wrapped(&words, WIDEST - label.len()).iter().enumerate() {
                let label = if i == 0 { label.as_str() } else { "" };
                emit(&format!("{label:<21}{line}"));
            }
        }
        emit(&format!("{:<21}(shootdown list {kind})", ""));
    }
}

/// Checks are too many to name: how many there are of each kind.
fn groups(names: &[&str]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        let group = name.split_once('/').map_or(*name, |(group, _)| group);
        match counts.iter_mut().find(|(known, _)| *known == group) {
            Some((_, count)) => *count += 1,
            None => counts.push((group, 1)),
        }
    }
    let words: Vec<String> =
        counts.iter().map(|(group, count)| format!("{count} {group}")).collect();
    words.join(", ")
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

//! `shootdown list`.

use clap::Args;
use serde::Serialize;

use super::Shared;
use crate::experiments::EXPERIMENTS;
use crate::names::{POLICIES, unknown};
use crate::output::{Format, emit};
use crate::{LabError, machines};

/// Show what there is, one line each.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Show what there is, one line each: machine profiles to simulate, policies to compare, \
        experiments to run.",
    after_long_help = "Examples:\n  shootdown list\n  shootdown list policies\n  \
        shootdown list experiments --format json"
)]
pub struct ListArgs {
    /// Only this kind: machines, policies or experiments.
    #[arg(value_name = "KIND")]
    pub kind: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    name: String,
    line: String,
}

const KINDS: [&str; 3] = ["machines", "policies", "experiments"];

impl ListArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        if let Some(kind) = self.kind.as_deref()
            && !KINDS.contains(&kind)
        {
            return Err(unknown("list", kind, KINDS));
        }
        let entries: Vec<Entry> = entries()
            .into_iter()
            .filter(|e| self.kind.as_deref().is_none_or(|k| k == e.kind))
            .collect();
        match shared.format {
            Format::Json => {
                emit(&serde_json::to_string(&entries).expect("entries hold only strings"));
            }
            Format::Table => print_table(&entries),
        }
        Ok(())
    }
}

fn entries() -> Vec<Entry> {
    let policies = POLICIES.iter().map(|p| ("policies", p.name.to_owned(), p.line.to_owned()));
    let experiments = EXPERIMENTS
        .iter()
        .map(|e| ("experiments", e.name().to_owned(), format!("{} [{}]", e.line(), e.machine())));
    let machines = machines::all().into_iter().map(|(name, line)| ("machines", name, line));
    machines
        .chain(policies)
        .chain(experiments)
        .map(|(kind, name, line)| Entry { kind, name, line })
        .collect()
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
    }
}

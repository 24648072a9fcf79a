//! `cargo xtask wrappers`: what an instruction of VMX or SVM costs beside itself, as the compiler
//! makes it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use crate::Error;
use crate::cli::WrappersArgs;
use crate::image::root;
use crate::probes::{self, Probe};

/// Runs what was asked for; returns the exit code.
pub fn run(of: &WrappersArgs) -> Result<u8, Error> {
    let probes = probes::all()?;
    if let Some(name) = &of.listing {
        return listing(&probes, name);
    }
    let (ours, others): (Vec<Probe>, Vec<Probe>) =
        probes.into_iter().partition(|probe| probe.project == "ours");
    print(&ours, &others);
    if of.record {
        record(&ours)?;
    }
    if of.check { check(&ours) } else { Ok(0) }
}

/// The way that succeeds, of each project that has the wrapper.
fn listing(probes: &[Probe], name: &str) -> Result<u8, Error> {
    let mut found = false;
    for probe in probes.iter().filter(|probe| probe.name == name) {
        say!("{}:\n{}", probe.project, probe.success.listing());
        found = true;
    }
    if found {
        return Ok(0);
    }
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    Err(Error::Unusable(format!("there is no wrapper {name}; there are {}", names.join(", "))))
}

fn print(ours: &[Probe], others: &[Probe]) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header([
        "wrapper",
        "instructions",
        "bytes",
        "jumps, taken",
        "out of line",
        "entries",
        "x86 0.52: instructions",
        "bytes",
        "jumps, taken",
        "entries",
    ]);
    let jumps = |probe: &Probe| {
        format!("{}, {}", probe.success.not_taken + probe.success.taken, probe.success.taken)
    };
    for probe in ours {
        let mut row = vec![
            probe.name.clone(),
            probe.success.instructions.len().to_string(),
            probe.success.bytes().to_string(),
            jumps(probe),
            probe.outside.to_string(),
            probe.entries.to_string(),
        ];
        if let Some(other) = others.iter().find(|other| other.name == probe.name) {
            row.extend([
                other.success.instructions.len().to_string(),
                other.success.bytes().to_string(),
                jumps(other),
                other.entries.to_string(),
            ]);
        }
        table.add_row(row);
    }
    say!("{table}");
    say!(
        "instructions and bytes: the way that succeeds, the instruction and its operands included,"
    );
    say!(
        "RET and the function's own stack frame left out; out of line: bytes beside it, fix-ups included."
    );
    say!(
        "KVM (published): VMWRITE and its like are the instruction and one jump that is not taken, by"
    );
    say!(
        "asm goto, the rest out of line, one entry each; VMREAD is so where the compiler has asm goto"
    );
    say!(
        "with outputs. The crate x86 0.52 reads the flags by PUSHFQ and POPQ; a fault has no entry."
    );
}

fn path() -> PathBuf {
    root().join("crates/shootdown-virt/budgets.txt")
}

/// Instructions, bytes and jumps.
type Budget = [usize; 3];

fn measured(probe: &Probe) -> Budget {
    let success = &probe.success;
    [success.instructions.len(), success.bytes(), success.not_taken + success.taken]
}

fn record(ours: &[Probe]) -> Result<(), Error> {
    let path = path();
    let mut text = String::from(
        "# The way of each wrapper that succeeds: instructions, bytes, jumps: `cargo xtask wrappers --record`.\n",
    );
    for probe in ours {
        let [instructions, bytes, jumps] = measured(probe);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {instructions} {bytes} {jumps}", probe.name);
    }
    std::fs::write(&path, text)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    say!("recorded in {}", path.display());
    Ok(())
}

/// Reads the record.
fn budgets(text: &str) -> Result<BTreeMap<&str, Budget>, usize> {
    let mut budgets = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let mut words = line.split_ascii_whitespace();
        let mut parse = || {
            let name = words.next()?;
            let figures: Vec<usize> = words.by_ref().map_while(|word| word.parse().ok()).collect();
            Some((name, figures.try_into().ok()?))
        };
        let (name, budget) = parse().ok_or(number + 1)?;
        budgets.insert(name, budget);
    }
    Ok(budgets)
}

/// Compares with the record, and with two rules: there is one jump that is not taken after each
/// instruction that fails by flags, and no other; the exception table names each instruction that
/// may fault, and no other.
fn check(ours: &[Probe]) -> Result<u8, Error> {
    let path = path();
    let text = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    let mut recorded = budgets(&text).map_err(|line| {
        let path = path.display();
        Error::Unusable(format!("{path}:{line}: give a name and three numbers"))
    })?;
    let mut worse = 0;
    for probe in ours {
        let name = probe.name.as_str();
        let [rule, not_taken, taken] =
            [probe.jumps(), probe.success.not_taken, probe.success.taken];
        if (not_taken, taken) != (rule, 0) {
            say!(
                "{name}: {not_taken} jumps not taken, {taken} taken; only {rule} not taken may be there"
            );
            worse += 1;
        }
        if !probe.misnamed.is_empty() {
            let at = &probe.misnamed;
            say!(
                "{name}: the exception table does not name what may fault and no more: see {at:x?}"
            );
            worse += 1;
        }
        let now = measured(probe);
        let Some(before) = recorded.remove(name) else {
            say!("{name}: {now:?}, not recorded yet: record it (--record)");
            worse += 1;
            continue;
        };
        if now.iter().zip(before).any(|(now, before)| *now > before) {
            say!("{name}: {now:?}, recorded {before:?}: more");
            worse += 1;
        } else if now != before {
            say!("{name}: {now:?}, recorded {before:?}: better; record it (--record)");
        }
    }
    for name in recorded.keys() {
        say!("{name}: recorded, and not there any more");
        worse += 1;
    }
    say!("{} wrappers, {worse} outside their budgets", ours.len());
    Ok(u8::from(worse > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_record_is_a_name_and_three_numbers() {
        let good = budgets("# what\nvmread 3 12 1\nstgi 1 3 0\n").unwrap();
        assert_eq!(good, BTreeMap::from([("vmread", [3, 12, 1]), ("stgi", [1, 3, 0])]));
        for bad in ["vmread", "vmread 3 12", "vmread 3 12 x", "vmread 3 12 1 4", ""] {
            assert_eq!(budgets(&format!("stgi 1 3 0\n{bad}\n")), Err(2), "{bad}");
        }
    }
}

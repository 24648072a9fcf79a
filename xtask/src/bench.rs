//! `cargo xtask bench`: the image's costs, side by side for several policies, and against what was recorded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use crate::Error;
use crate::cli::{BenchArgs, MachineArgs};
use crate::emulator::{self, Ended, Verdict};
use crate::image::{Profile, root};
use crate::process::Show;

/// How far above its record a figure may be: compilers differ by a few in a hundred.
const TOLERANCE_PERCENT: u64 = 10;

/// Names and medians, in the image's order.
type Figures = Vec<(String, u64)>;

/// What is measured: a name for the column, and what the image is told.
const COLUMNS: [(&str, &str); 3] =
    [("shootdown", ""), ("linux-4.14 (serial)", "policy=linux-4.14"), ("no tags", "tags=off")];

/// Runs what was asked for; returns the exit code.
pub fn run(of: &BenchArgs) -> Result<u8, Error> {
    let mut columns: Vec<(&str, Figures)> = Vec::new();
    for (name, words) in COLUMNS {
        // The record is of the first column alone, and without tags there is nothing to leave out.
        let wanted = columns.is_empty() || !of.check && !of.record;
        if !wanted {
            break;
        }
        let append = format!("suite=bench {words} {}", of.machine.append);
        let machine = MachineArgs { append, ..of.machine.clone() };
        let ran = emulator::boot(&machine, Profile::Release, Show::Nothing)?;
        if ran.ended != Ended::Verdict(Verdict::Pass) {
            eprintln!("{}\n{}{}", ran.output, ran.errors, ran.ended);
            return Ok(ran.ended.code());
        }
        columns.push((name, figures(&ran.output)));
        if ran.output.contains("tags no") && columns.len() + 1 == COLUMNS.len() {
            break;
        }
    }
    print(of, &columns);
    let figures = columns.swap_remove(0).1;
    if of.record {
        record(&of.machine, &figures)?;
    }
    if of.check { check(&of.machine, &figures) } else { Ok(0) }
}

/// The lines `bench NAME MEDIAN LEAST`.
fn figures(output: &str) -> Figures {
    let line = |line: &str| {
        let mut words = line.strip_prefix("bench ")?.split_ascii_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    output.lines().filter_map(line).collect()
}

fn print(of: &BenchArgs, columns: &[(&str, Figures)]) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["path"].into_iter().chain(columns.iter().map(|(name, _)| *name)));
    for (row, (name, _)) in columns[0].1.iter().enumerate() {
        let value = |(_, figures): &(&str, Figures)| {
            figures.get(row).map_or_else(String::new, |(_, value)| value.to_string())
        };
        table.add_row([name.clone()].into_iter().chain(columns.iter().map(value)));
    }
    println!("{table}");
    let unit = match of.machine.machine {
        _ if of.machine.kvm => "ticks of the CPU's counter, medians",
        crate::cli::Machine::Qemu => "instructions of all CPUs together, which take turns",
        crate::cli::Machine::Bochs => "ticks of Bochs's clock, while its CPUs run side by side",
    };
    println!("{} on {}, {} CPUs: {unit}", of.machine.arch, of.machine.machine, of.machine.cpus);
}

fn path(machine: &MachineArgs) -> PathBuf {
    root().join(format!("kernel/budgets/{}-{}.txt", machine.machine, machine.arch))
}

fn record(machine: &MachineArgs, figures: &Figures) -> Result<(), Error> {
    let path = path(machine);
    let mut text = format!(
        "# Instructions of the hot paths: `cargo xtask bench --arch {} --cpus {} --record`.\n",
        machine.arch, machine.cpus
    );
    for (name, value) in figures {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {value}");
    }
    let failed = |source| Error::File { path: path.display().to_string(), source };
    std::fs::create_dir_all(path.with_file_name("")).map_err(failed)?;
    std::fs::write(&path, text).map_err(failed)?;
    println!("recorded in {}", path.display());
    Ok(())
}

/// Compares with the record: no figure may be more than the tolerance above its own.
fn check(machine: &MachineArgs, figures: &Figures) -> Result<u8, Error> {
    let path = path(machine);
    let text = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    let mut recorded: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let parsed =
            line.split_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let (name, value) = parsed.ok_or_else(|| {
            Error::Unusable(format!("{}:{}: give a name and a number", path.display(), number + 1))
        })?;
        recorded.insert(name, value);
    }
    let mut worse = 0;
    for (name, value) in figures {
        let Some(before) = recorded.remove(name.as_str()) else {
            println!("{name}: {value}, not recorded yet: record it (--record)");
            worse += 1;
            continue;
        };
        let change = format!("{name}: {value}, recorded {before}");
        if *value > before + before * TOLERANCE_PERCENT / 100 {
            println!("{change}: more than {TOLERANCE_PERCENT} % above");
            worse += 1;
        } else if *value < before - before * TOLERANCE_PERCENT / 100 {
            println!("{change}: better; record it (--record)");
        }
    }
    for name in recorded.keys() {
        println!("{name}: recorded, and not measured any more");
        worse += 1;
    }
    println!("{} figures, {worse} outside their budgets", figures.len());
    Ok(u8::from(worse > 0))
}

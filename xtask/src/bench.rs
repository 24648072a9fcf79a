//! `cargo xtask bench`: the image's costs, side by side for several policies, and against what was
//! recorded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use crate::Error;
use crate::cli::{BenchArgs, Loader, Machine, MachineArgs, Suite};
use crate::emulator::{self, Ended, Verdict};
use crate::image::{Profile, root};
use crate::process::Show;

/// How far above its record a figure may be: compilers differ by a few in a hundred.
const TOLERANCE_PERCENT: u64 = 10;

/// What a path cost: the median, and the TLB misses of the CPU that begins, where it counts them.
struct Figure {
    name: String,
    median: u64,
    misses: Option<u64>,
}

/// All paths, in the image's order.
type Figures = Vec<Figure>;

/// What is measured.
struct Column {
    name: &'static str,
    /// What the image is told.
    words: &'static str,
    /// Of the image's line about the machine: without this it is the first column over again.
    needs: &'static str,
}

const COLUMNS: [Column; 5] = [
    Column { name: "shootdown", words: "", needs: "" },
    Column { name: "no broadcast", words: "policy=interrupts", needs: "broadcast yes" },
    Column { name: "serial", words: "policy=serial", needs: "" },
    Column { name: "linux-4.14", words: "policy=linux-4.14", needs: "" },
    Column { name: "no tags", words: "tags=off", needs: "tags yes" },
];

/// Runs what was asked for; returns the exit code.
pub fn run(of: &BenchArgs) -> Result<u8, Error> {
    if of.machine.suite == Suite::Dma || of.machine.iommu.is_some() {
        return Err(Error::Unusable(
            "bench measures CPUs: leave out --suite and --iommu, or take 'test'".into(),
        ));
    }
    if of.machine.loader == Loader::Uefi {
        return Err(Error::Unusable(
            "under UEFI firmware QEMU does not count instructions: leave out --loader, or take bios".into(),
        ));
    }
    let mut columns: Vec<(&str, Figures)> = Vec::new();
    let mut notes = Vec::new();
    for Column { name, words, needs } in COLUMNS {
        // The record is of the first column alone.
        if !columns.is_empty() && (of.check || of.record) {
            break;
        }
        if notes.iter().all(|note: &String| !note.contains(needs)) && !needs.is_empty() {
            continue;
        }
        let append = format!("suite=bench {words} {}", of.machine.append);
        let machine = MachineArgs { append, ..of.machine.clone() };
        let ran = emulator::boot(&machine, Profile::Release, Show::Nothing)?;
        if ran.ended != Ended::Verdict(Verdict::Pass) {
            complain!("{}\n{}{}", ran.output, ran.errors, ran.ended);
            return Ok(ran.ended.code());
        }
        if columns.is_empty() {
            let told = |line: &&str| line.starts_with("machine: ") || line.starts_with("pmu: ");
            notes = ran.output.lines().filter(told).map(str::to_owned).collect();
        }
        columns.push((name, figures(&ran.output)));
    }
    print(of, &columns, &notes);
    let figures = columns.swap_remove(0).1;
    if of.record {
        record(&of.machine, &figures)?;
    }
    if of.check { check(&of.machine, &figures) } else { Ok(0) }
}

/// The lines `bench NAME MEDIAN LEAST`, with the misses behind, if there are any.
fn figures(output: &str) -> Figures {
    let line = |line: &str| {
        let mut words = line.strip_prefix("bench ")?.split_ascii_whitespace();
        Some(Figure {
            name: words.next()?.to_owned(),
            median: words.next()?.parse().ok()?,
            misses: words.nth(1).and_then(|misses| misses.parse().ok()),
        })
    };
    output.lines().filter_map(line).collect()
}

fn print(of: &BenchArgs, columns: &[(&str, Figures)], notes: &[String]) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["path"].into_iter().chain(columns.iter().map(|(name, _)| *name)));
    for (row, Figure { name, .. }) in columns[0].1.iter().enumerate() {
        let value = |(_, figures): &(&str, Figures)| match figures.get(row) {
            Some(Figure { median, misses: Some(misses), .. }) => format!("{median} ({misses})"),
            Some(Figure { median, .. }) => median.to_string(),
            None => String::new(),
        };
        table.add_row([name.clone()].into_iter().chain(columns.iter().map(value)));
    }
    say!("{table}");
    let unit = match of.machine.machine {
        _ if of.machine.kvm => "ticks of the CPU's counter, medians",
        Machine::Qemu => "instructions of all CPUs together, which take turns",
        Machine::Bochs => "ticks of Bochs's clock, while its CPUs run side by side",
    };
    say!("{} on {}, {} CPUs: {unit}", of.machine.arch, of.machine.machine, of.machine.cpus);
    notes.iter().for_each(|note| say!("{note}"));
    if columns[0].1.iter().any(|figure| figure.misses.is_some()) {
        say!("in parentheses: TLB misses of the CPU that begins, medians of runs of their own");
    }
    if !notes.iter().any(|note| note.contains("broadcast yes")) {
        say!(
            "no broadcast here: this machine has no instruction that invalidates on other CPUs (x86-64: INVLPGB)"
        );
    }
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
    for Figure { name, median: value, .. } in figures {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {value}");
    }
    let failed = |source| Error::File { path: path.display().to_string(), source };
    std::fs::create_dir_all(path.with_file_name("")).map_err(failed)?;
    std::fs::write(&path, text).map_err(failed)?;
    say!("recorded in {}", path.display());
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
    for Figure { name, median: value, .. } in figures {
        let Some(before) = recorded.remove(name.as_str()) else {
            say!("{name}: {value}, not recorded yet: record it (--record)");
            worse += 1;
            continue;
        };
        let change = format!("{name}: {value}, recorded {before}");
        if *value > before + before * TOLERANCE_PERCENT / 100 {
            say!("{change}: more than {TOLERANCE_PERCENT} % above");
            worse += 1;
        } else if *value < before - before * TOLERANCE_PERCENT / 100 {
            say!("{change}: better; record it (--record)");
        }
    }
    for name in recorded.keys() {
        say!("{name}: recorded, and not measured any more");
        worse += 1;
    }
    say!("{} figures, {worse} outside their budgets", figures.len());
    Ok(u8::from(worse > 0))
}

//! The table of a test run.

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use crate::cli::MachineArgs;
use crate::emulator::{Ended, Ran, Verdict};
use crate::expect::Unobservable;

/// One line of the image's: `case NAME VERDICT what it saw`.
struct Case<'a> {
    name: &'a str,
    verdict: Verdict,
    detail: &'a str,
}

impl<'a> Case<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("case ")?.split_once(' ')?;
        let (verdict, detail) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self { name, verdict: Verdict::of_name(verdict)?, detail: detail.trim() })
    }
}

/// Prints the table and the sum; returns the exit code, or `None` when the image ended well and no
/// case was run.
pub fn print(machine: &MachineArgs, ran: &Ran, known: &[Unobservable]) -> Option<u8> {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["case", "verdict", "seen"]);
    let (mut passed, mut masked, mut surprises, mut broken) = (0, 0, 0, 0);
    let mut notes: Vec<&str> = Vec::new();
    for line in ran.output.lines() {
        let Some(case) = Case::parse(line) else { continue };
        let reason = known.iter().find(|known| known.case == case.name);
        let shown = match (case.verdict, reason) {
            (Verdict::Pass, _) => {
                passed += 1;
                "pass".into()
            }
            (Verdict::NotObservable, Some(known)) => {
                masked += 1;
                let number =
                    notes.iter().position(|note| *note == known.why).unwrap_or_else(|| {
                        notes.push(&known.why);
                        notes.len() - 1
                    });
                format!("not observable [{}]", number + 1)
            }
            (Verdict::NotObservable, None) => {
                surprises += 1;
                "NOT OBSERVABLE".into()
            }
            (Verdict::Fail | Verdict::Crashed, _) => {
                broken += 1;
                "FAIL".into()
            }
        };
        table.add_row([case.name.to_owned(), shown, case.detail.to_owned()]);
    }
    for line in ran.output.lines().filter(|line| !line.starts_with("case ")) {
        say!("{line}");
    }
    if !table.is_empty() {
        say!("{table}");
    }
    for (number, note) in notes.iter().enumerate() {
        say!("[{}] {note}", number + 1);
    }
    let mut on =
        if machine.kvm { "this computer's CPUs".into() } else { machine.machine.to_string() };
    if let Some(iommu) = machine.iommu {
        on = format!("{on} with {}", iommu.name());
    }
    say!(
        "{} on {on}, {} CPUs: {passed} passed, {masked} passed and known not to be observable, {surprises} passed without proof, {broken} failed",
        machine.arch,
        machine.cpus
    );
    let code = match ran.ended {
        Ended::Verdict(Verdict::NotObservable) if surprises == 0 => 0,
        ended => ended.code(),
    };
    if table.is_empty() && ran.ended.is_judgement() {
        return None;
    }
    match code {
        0 => {}
        3 => complain!(
            "{surprises} cases passed, but their controls showed nothing: that they passed proves nothing here"
        ),
        _ => {
            complain!("{}", ran.ended);
            complain!("{}", ran.errors.trim_end());
        }
    }
    Some(code)
}

//! The cases: what must hold when a translation changes while CPUs hold it.
//!
//! Each case is a function of a [`Stage`], which is set up anew for every try, and says how many
//! CPUs still used the old translation. It runs with the flush left out, and then with it:
//!
//! | without the flush | with it | verdict |
//! |---|---|---|
//! | somebody used the old translation | nobody | pass |
//! | nobody | nobody | not observable: this machine can't tell |
//! | any | somebody, or an error | fail |
//!
//! A case runs `here`, where the CPU that makes the change is the one that looks, and `there`,
//! where all others look. A machine with one CPU runs `here` alone.

mod kernel;
mod pages;
mod ranges;
mod spaces;
mod stage;
mod stress;
mod tables;
#[cfg(target_arch = "aarch64")]
mod tlbi;

use shootdown::FlushError;

use crate::arch::{self, Features};
use crate::cmdline::Options;
use crate::say;
use crate::verdict::Verdict;

pub use kernel::prepare;
use stage::Stage;

/// Who looks whether the old translation is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The CPU that makes the change.
    Here,
    /// All others.
    There,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::There => "there",
        }
    }
}

/// Why a case can't say what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A flush failed.
    Flush(FlushError),
    /// What must hold before the change does not.
    Premise(&'static str),
    /// Neither the old translation nor the new one was used.
    Wrong(&'static str),
}

impl From<FlushError> for Broken {
    fn from(error: FlushError) -> Self {
        Self::Flush(error)
    }
}

/// How many looks used the old translation.
pub type Outcome = Result<u32, Broken>;

/// A case.
pub struct Case {
    /// Its name, without the place.
    pub name: &'static str,
    /// Where it makes sense.
    pub places: &'static [Place],
    /// Does it make sense on this machine?
    pub needs: fn(&Features) -> bool,
    /// The case.
    pub run: fn(&Stage) -> Outcome,
}

const BOTH: &[Place] = &[Place::Here, Place::There];
const THERE: &[Place] = &[Place::There];

impl Case {
    const fn new(name: &'static str, run: fn(&Stage) -> Outcome) -> Self {
        Self { name, places: BOTH, needs: |_| true, run }
    }

    const fn there(self) -> Self {
        Self { places: THERE, ..self }
    }

    const fn needs(self, needs: fn(&Features) -> bool) -> Self {
        Self { needs, ..self }
    }
}

/// Tries of each case, at different addresses: a small TLB of an emulator may lose an entry by
/// chance.
const TRIES: u32 = 4;

/// What came of the tries of a case.
struct Tries {
    stale: u32,
    broken: Option<Broken>,
}

fn tries(case: &Case, place: Place, cpus: u32, flushes: bool) -> Tries {
    let mut sum = Tries { stale: 0, broken: None };
    for number in 0..TRIES {
        let stage = Stage::new(place, cpus, number, flushes);
        stage.begin();
        match (case.run)(&stage) {
            Ok(stale) => sum.stale += u32::from(stale > 0),
            Err(broken) => sum.broken = Some(broken),
        }
        stage.strike();
        if sum.broken.is_some() {
            break;
        }
    }
    sum
}

/// Runs one case at one place.
fn judge(case: &Case, place: Place, cpus: u32) -> Verdict {
    let (control, held) = (tries(case, place, cpus, false), tries(case, place, cpus, true));
    let verdict = match (&control, &held) {
        (Tries { broken: Some(_), .. }, _) | (_, Tries { broken: Some(_), .. }) => Verdict::Fail,
        (_, Tries { stale: 1.., .. }) => Verdict::Fail,
        (Tries { stale: 0, .. }, _) => Verdict::NotObservable,
        _ => Verdict::Pass,
    };
    match control.broken.or(held.broken) {
        Some(broken) => say!("case {}/{} {verdict} {broken:?}", case.name, place.name()),
        None => say!(
            "case {}/{} {verdict} stale without the flush {} of {TRIES}, with it {}",
            case.name,
            place.name(),
            control.stale,
            held.stale
        ),
    }
    verdict
}

/// Runs all cases that were asked for; the worst verdict.
pub fn run(options: &Options, cpus: u32) -> Verdict {
    let wanted = |name: &str| options.only.is_none_or(|part| name.contains(part));
    let mut worst = Verdict::Pass;
    let (mut ran, mut skipped) = (0, 0);
    #[cfg(target_arch = "aarch64")]
    let own = tlbi::CASES;
    #[cfg(not(target_arch = "aarch64"))]
    let own = &[];
    let cases = [pages::CASES, ranges::CASES, tables::CASES, kernel::CASES, spaces::CASES, own];
    for case in cases.into_iter().flatten().filter(|case| wanted(case.name)) {
        if !(case.needs)(arch::features()) {
            say!("case-not-run {}: this machine has not what it is about", case.name);
            continue;
        }
        for place in case.places.iter().copied() {
            if place == Place::There && cpus < 2 {
                skipped += 1;
                continue;
            }
            worst = worst.max(judge(case, place, cpus));
            ran += 1;
        }
    }
    for stress in stress::ALL.iter().filter(|stress| wanted(stress.name)) {
        if cpus < 2 {
            skipped += 1;
            continue;
        }
        worst = worst.max(stress.judge(options, cpus));
        ran += 1;
    }
    if skipped > 0 {
        say!("suite: {skipped} cases need a second CPU and were not run");
    }
    if ran == 0 {
        say!(
            "suite: no case that could run has '{}' in its name",
            options.only.unwrap_or_default()
        );
        return Verdict::NotObservable;
    }
    worst
}

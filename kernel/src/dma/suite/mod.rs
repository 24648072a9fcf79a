//! The cases: what must hold of a device's accesses when what it may reach changes.
//!
//! Each case is a function of a [`Stage`] and says how many of the device's accesses went the old
//! way. It runs with the queue muffled ([`Muffle`](super::host::Muffle)): the library does all that
//! it does, and the unit never hears of it; and then with the unit told:
//!
//! | not told | told | verdict |
//! |---|---|---|
//! | some access went the old way | none | pass |
//! | none | none | not observable: this unit can't tell |
//! | any | some, or an error | fail |
//!
//! Cases whose control is within ([`Case::with_control_inside`]) run once, told.

mod pages;
mod places;
mod policies;
pub mod refusals;
mod stage;
mod takeover;

use shootdown_dma::domain::{MapError, UnmapError};
use shootdown_dma::invalidate::{AttachError, QueueError};

use super::edu::Edu;
use super::iommu::{Iommu, Refuses};
use crate::cmdline::{Options, Sabotage};
use crate::say;
use crate::verdict::Verdict;

pub use stage::{Behind, Buffer, Stage};

/// Why a case can't say what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Memory was not mapped.
    Map(MapError),
    /// Or not unmapped.
    Unmap(UnmapError),
    /// A queue stands still.
    Queue(QueueError),
    /// A device was not attached.
    Attach(AttachError),
    /// What must hold before the change does not.
    Premise(&'static str),
    /// What must hold in any case does not.
    Wrong(&'static str),
    /// Nothing: the unit has no means to tell.
    NotObservable(&'static str),
}

macro_rules! broken_by {
    ($($error:ty => $broken:ident),*) => {$(
        impl From<$error> for Broken {
            fn from(error: $error) -> Self {
                Self::$broken(error)
            }
        }
    )*};
}
broken_by! { MapError => Map, UnmapError => Unmap, QueueError => Queue, AttachError => Attach }

/// How many accesses went the old way.
pub type Outcome = Result<u32, Broken>;

/// A case.
pub struct Case<I: Iommu> {
    /// Its name.
    pub name: &'static str,
    /// Its negative control is a part of it.
    pub control_inside: bool,
    /// It needs CPUs beside the one that begins.
    pub needs_others: bool,
    /// The case.
    pub run: fn(&Stage<I>) -> Outcome,
}

impl<I: Iommu> Case<I> {
    /// A case that runs twice.
    pub const fn new(name: &'static str, run: fn(&Stage<I>) -> Outcome) -> Self {
        Self { name, control_inside: false, needs_others: false, run }
    }

    /// The same, once.
    pub const fn with_control_inside(self) -> Self {
        Self { control_inside: true, ..self }
    }

    /// The same, where there are other CPUs.
    pub const fn with_others(self) -> Self {
        Self { needs_others: true, ..self }
    }
}

/// What becomes of commands while a case changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// They go to the unit.
    Told,
    /// They don't, and that is the control.
    Muffled,
    /// They don't, and the case does not know: it must fail.
    Sabotaged,
}

/// Tries of each case, at different addresses.
const TRIES: u32 = 2;

/// Where the cases are tried.
pub struct Place<I: 'static> {
    /// The unit.
    pub iommu: &'static I,
    /// The device behind it.
    pub edu: &'static Edu,
    /// CPUs that take work.
    pub cpus: u32,
}

/// What came of the tries of a case.
#[derive(Default)]
struct Tries {
    stale: u32,
    broken: Option<Broken>,
}

fn tries<I: Iommu>(case: &Case<I>, place: &Place<I>, queue: Queue) -> Tries {
    let mut sum = Tries::default();
    for number in 0..TRIES {
        let stage = Stage::set(place, number, queue);
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

fn judge<I: Iommu>(case: &Case<I>, place: &Place<I>, sabotage: bool) -> Verdict {
    let control = !case.control_inside;
    let control = control.then(|| tries(case, place, Queue::Muffled));
    let queue = if sabotage { Queue::Sabotaged } else { Queue::Told };
    let held = tries(case, place, queue);
    let broken = control.as_ref().and_then(|tries| tries.broken).or(held.broken);
    let unseen = control.as_ref().is_some_and(|tries| tries.stale == 0);
    let verdict = match held.stale {
        _ if matches!(broken, Some(Broken::NotObservable(_))) => Verdict::NotObservable,
        _ if broken.is_some() => Verdict::Fail,
        1.. => Verdict::Fail,
        0 if unseen => Verdict::NotObservable,
        0 => Verdict::Pass,
    };
    match (broken, control) {
        (Some(broken), _) => say!("case {}/{} {verdict} {broken:?}", place.iommu.name(), case.name),
        (None, Some(control)) => say!(
            "case {}/{} {verdict} old ways without the invalidation {} of {TRIES}, with it {}",
            place.iommu.name(),
            case.name,
            control.stale,
            held.stale
        ),
        (None, None) => {
            say!("case {}/{} {verdict} its control is part of it", place.iommu.name(), case.name);
        }
    }
    verdict
}

/// Runs all cases that were asked for; the worst verdict.
pub fn run<I: Refuses>(place: &Place<I>, options: &Options) -> Verdict {
    let wanted = |name: &str| options.only.is_none_or(|part| name.contains(part));
    let cases = [pages::cases(), policies::cases(), places::cases(), refusals::cases()];
    let cases =
        cases.into_iter().chain([I::own_cases()]).flatten().filter(|case| wanted(case.name));
    let sabotage = options.sabotage == Some(Sabotage::Everywhere);
    // What has its control inside is not about invalidations that are left out.
    let cases = cases.filter(|case| !(sabotage && case.control_inside));
    let (mut worst, mut skipped) = (None, 0);
    for case in cases {
        if case.needs_others && place.cpus < 2 {
            skipped += 1;
            continue;
        }
        worst = worst.max(Some(judge(case, place, sabotage)));
    }
    // It is nobody's invalidation that is left out there, either.
    if wanted(takeover::NAME) && !sabotage {
        worst = worst.max(Some(takeover::run(place)));
    }
    if skipped > 0 {
        say!("dma: {skipped} cases need a second CPU and were not run");
    }
    worst.unwrap_or_else(|| {
        say!("dma: no case that could run has '{}' in its name", options.only.unwrap_or_default());
        Verdict::NotObservable
    })
}

//! Replaying a recording on the machine.
//!
//! **Problem.** A recording says what a program did to its spaces on one machine under one kernel.
//! What it would cost on another machine, under other policies, is to be found by doing the same
//! things there.
//!
//! **Protocol.** The rebuilt [`Timeline`] becomes one program per simulated CPU ([`drive`]): it
//! switches, maps, touches, unmaps, protects and flushes through the machine's kernel, which is to
//! say through the library, with the oracle watching. With as many CPUs as recorded and one copy,
//! every CPU does what the recorded one did, when it did it. Otherwise [`spread`] makes a new
//! schedule first.
//!
//! **Rules of the replay.**
//! - P1 (pace): nothing happens before its recorded time. A CPU that is late (because a policy
//!   costs more than the recorded kernel did) catches up in the time the recording left idle or
//!   computing.
//! - P2 (changes): a recorded flush is made by really doing what it was for, where the recording
//!   tells: pages are unmapped, write-protected, given back. Where it does not, the same number of
//!   pages of the same space is flushed. Either way it is one request.
//! - P3 (working set): between events a thread reads pages it has touched before: when it gets a
//!   CPU, after each of its flushes, and every [`drive::SLICE`] of its time, [`drive::READS`] of
//!   the last [`drive::WORKING_SET`] pages it faulted on. Recordings do not hold accesses that do
//!   not fault, so TLB misses are comparable between policies, not with the recorded machine's.
//! - P4 (tables): page tables are freed when no mapping is left that they serve, as recorded `mmap`
//!   and `munmap` calls leave them. What `exec` mapped is known only page by page, when it is
//!   touched.
//! - P5 (spaces): a space ends when its last thread is gone and no CPU has it loaded any more.

pub mod drive;
mod ranges;
pub mod report;
pub mod spread;
mod world;

use std::path::Path;

use shootdown::policy::Policy;
use shootdown_machine::{Config, CpuId, Machine, Outcome, Profile, Time};

use crate::LabError;
use crate::recording::model::{Header, Trailer};
use crate::recording::timeline::Timeline;
use crate::recording::{Reader, RecordingError};

/// A recording, read and rebuilt.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Where it comes from.
    pub header: Header,
    /// What is known at its end.
    pub trailer: Trailer,
    /// What it means.
    pub timeline: Timeline,
}

impl Recorded {
    /// Reads and rebuilds a recording.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (header, events, trailer) = Reader::open(path)?.read_all()?;
        Ok(Self { header, trailer, timeline: Timeline::of(&events) })
    }
}

/// What a replay did.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// What the machine did.
    pub outcome: Outcome,
    /// Of its CPUs' time, what the program's own computing took (P1), the same under every policy.
    pub computing: Time,
}

impl Replayed {
    /// Interrupts raised for flushes.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.outcome.total().library.kicks_sent
    }

    /// Time of all CPUs that was neither idle nor the program's own computing: accesses and their
    /// misses, faults, switches, flushes, waits, interrupts.
    #[must_use]
    pub fn spent(&self) -> Time {
        let time = self.outcome.total().time;
        time.user + time.kernel + time.waiting + time.responder - self.computing
    }
}

/// Replays a timeline on a machine with as many CPUs as it has, or more.
///
/// # Errors
/// [`LabError::BadInput`] when there is no such machine; [`LabError::Broken`] when the oracle
/// stopped it.
pub fn run(
    timeline: &Timeline,
    profile: &Profile,
    policy: Policy,
    cpus: u32,
    seed: u64,
) -> Result<Replayed, LabError> {
    let mut config = Config::new(profile.clone());
    (config.policy, config.cpus, config.seed) = (policy, Some(cpus), seed);
    config.frames = FRAMES;
    let mut machine = Machine::new(config).map_err(|e| LabError::bad(e.to_string()))?;
    let world = world::World::shared(timeline, cpus);
    let end = timeline.steps.last().map_or(0, |step| step.time);
    if end > MOST_TIME {
        return Err(LabError::bad(
            "the replay would take more than 104 days; use more CPUs or fewer copies",
        ));
    }
    for (cpu, steps) in (0..cpus).zip(drive::by_cpu(timeline, cpus)) {
        let world = std::rc::Rc::clone(&world);
        machine
            .spawn(CpuId(cpu), move |c| drive::Driver::new(c, world, cpu).run(&steps, end))
            .map_err(|e| LabError::bad(e.to_string()))?;
    }
    let outcome = machine.run().map_err(|violation| LabError::broken(violation.to_string()))?;
    let computing = world.borrow().computing;
    Ok(Replayed { outcome, computing })
}

/// Nanoseconds. The machine counts picoseconds in 64 bits; this leaves as much for what policies
/// cost.
const MOST_TIME: u64 = 1 << 53;

/// Physical memory of a replay, in frames of 4 KiB: 64 GiB, of which only what is used costs the
/// host.
const FRAMES: u32 = 1 << 24;

//! What a recording means: which space each CPU had loaded when, who flushed what of it, who
//! touched what.
//!
//! **Problem.** The events name threads. Whether a flush has to interrupt a CPU depends on spaces:
//! which one the CPU has loaded, and whether it runs it or merely keeps it while a kernel thread
//! runs.
//!
//! **Rules.**
//! - R1: a thread made with `CLONE_VM` has its creator's space; any other has a new one; `exec`
//!   gives a new one. Of `exec` the moment that counts is when the kernel loads the new space,
//!   which it reports as a switch that no context switch preceded.
//! - R2: threads of other programs have a space per process. Kernel threads and the idle thread
//!   have none: the CPU keeps what it had, lazily.
//! - R3: a flush is one request, seen as [`FlushStep::Ask`] when other CPUs are in the space's set
//!   and as [`FlushStep::LocalSpace`] when the CPU itself has it loaded; both together are one
//!   request.
//! - R4: a request inside a memory system call is about the call's range; one right after a write
//!   fault, about the page of the fault; one that asks other CPUs for everything while the last
//!   thread of a space ends or leaves it by `exec`, about that space's end; what any other is about
//!   is not known, only how many pages.
//! - R5: a CPU ran, from the beginning, the thread its first event names.
//! - R6: when an event names another thread than the one the CPU was last known to run, a switch
//!   went unseen (perf loses what happens in the idle thread of every CPU but the first). It
//!   happened as long before this event as the first event of a thread follows its switch from idle
//!   elsewhere in the recording (the median), but not before the thread was made runnable or the
//!   CPU's last event.
//! - R7: in a recording without any flush events (of strace) each call that takes something away is
//!   one request for its whole range, whether or not anything of it was there.
//!
//! None of these rules looks at [`What::RemoteFlush`], so that what is predicted can be held
//! against it.
//!
//! **The truth.** The recording's own count of remote flushes is the number of its `RemoteFlush`
//! events: one for each CPU that was asked, each time. On Linux x86 it equals what the `TLB` line
//! of `/proc/interrupts` counts (the trailer has that number for the whole machine). Where the
//! kernel has no such event, the interrupts sent for flushes are counted instead.
//!
//! [`FlushStep::Ask`]: super::model::FlushStep::Ask
//! [`FlushStep::LocalSpace`]: super::model::FlushStep::LocalSpace
//! [`What::RemoteFlush`]: super::model::What::RemoteFlush

use std::collections::BTreeMap;

use super::model::{CallArgs, Cpu, Event, Extent, Tid};

mod build;
mod exec;
mod sets;
#[cfg(test)]
mod tests;
mod unseen;

/// A space of the recording; numbered from 0 in order of appearance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub u32);

/// What a CPU runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// A program's thread, in its space.
    Program {
        /// The thread.
        thread: Tid,
        /// Its space.
        space: SpaceId,
    },
    /// A kernel thread, in whatever space was loaded.
    Kernel,
    /// Nothing.
    Idle,
}

impl Runs {
    /// The space of the program that runs.
    #[must_use]
    pub const fn space(self) -> Option<SpaceId> {
        match self {
            Self::Program { space, .. } => Some(space),
            Self::Kernel | Self::Idle => None,
        }
    }
}

/// What a flush request was about (R4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A memory system call.
    Call(CallArgs),
    /// A write fault on this page: its frame was replaced.
    WriteFault(u64),
    /// The space is taken down; its tables are freed.
    Teardown,
    /// Something the recording does not tell (fork, write-back).
    Unknown,
}

/// Something one CPU does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It turns to something else.
    Run(Runs),
    /// Its thread touches a page for the first time (a fault).
    Touch {
        /// Page number.
        page: u64,
        /// A write.
        write: bool,
        /// An instruction fetch.
        execute: bool,
    },
    /// It asks for a flush.
    Flush {
        /// Of this space: its thread's, or the one its thread has just left by `exec`.
        space: SpaceId,
        /// How much.
        extent: Extent,
        /// What changed.
        cause: Cause,
    },
    /// The recorded kernel asked another CPU to flush this space (`None`: it is not known which).
    Asked {
        /// The CPU.
        target: Cpu,
        /// When the flush began.
        since: u64,
        /// The space.
        space: Option<SpaceId>,
    },
    /// Its thread's space has a new mapping (what was there has gone).
    Map(Range),
    /// Nothing is mapped there any more.
    Unmap(Range),
    /// Its thread made this range writable.
    Permit(Range),
    /// The last thread of a space is gone.
    End(SpaceId),
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Its first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// An act with its place and time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Nanoseconds since the recording began.
    pub time: u64,
    /// Where.
    pub cpu: Cpu,
    /// What.
    pub act: Act,
}

/// When a thread could run again after it had stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// It stopped.
    pub from: u64,
    /// It was made runnable; equal to `from` when it never stopped being so.
    pub until: u64,
}

/// A rebuilt recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    /// CPUs that appear.
    pub cpus: u16,
    /// How many spaces; those of the command come with `true`.
    pub spaces: Vec<bool>,
    /// Everything, in order of time.
    pub steps: Vec<Step>,
    /// For each thread of the command, its pauses in order.
    pub pauses: BTreeMap<Tid, Vec<Pause>>,
    /// Who made each thread of the command, and when.
    pub births: BTreeMap<Tid, (Tid, u64)>,
    /// Whether the tracer saw flushes; otherwise there is no truth, and requests are presumed
    /// (R7).
    pub flushes_seen: bool,
    /// From when to when each CPU was between two spaces, as far as seen.
    pub switches: BTreeMap<Cpu, Vec<(u64, u64)>>,
    /// What the recorded kernel did.
    pub truth: Truth,
}

/// What the recorded kernel did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Truth {
    /// CPUs asked to flush, each time, by the command (or the kernel on its behalf).
    pub remote_flushes: u64,
    /// Of these, those that found the CPU running the space.
    pub met_running: u64,
    /// Those that found it kept lazily, and so made the CPU leave it.
    pub met_lazy: u64,
    /// Those that found the CPU between two spaces, where it has to be asked whatever they are. It
    /// is there for a tenth of a microsecond, but for ten times as long while that is being
    /// traced.
    pub met_switching: u64,
    /// Those that found the CPU with another space or none: Linux clears CPU sets lazily since
    /// 6.14, and asks everyone in the set when tables are freed.
    pub in_vain: u64,
    /// Those asked by kernel threads, whose space is not known, so that no replay repeats them.
    pub unknown: u64,
    /// Requests that considered other CPUs.
    pub asks: u64,
    /// All requests.
    pub requests: u64,
    /// Context switches that dropped the entries of the space switched to.
    pub switches_flushed: u64,
    /// Context switches that kept them.
    pub switches_kept: u64,
}

impl Timeline {
    /// Rebuilds a recording.
    #[must_use]
    pub fn of(events: &[Event]) -> Self {
        build::timeline(events)
    }

    /// How often a flush met another CPU that ran (not merely kept) the space, in the recorded
    /// schedule: what an exact filter would have asked. Replays measure the same on the
    /// machine.
    #[must_use]
    pub fn met_running(&self) -> u64 {
        let mut runs: BTreeMap<Cpu, Runs> = BTreeMap::new();
        let mut met = 0;
        for step in &self.steps {
            match step.act {
                Act::Run(what) => {
                    runs.insert(step.cpu, what);
                }
                Act::Flush { space, .. } => {
                    let others = runs.iter().filter(|(cpu, _)| **cpu != step.cpu);
                    met += others.filter(|(_, r)| r.space() == Some(space)).count() as u64;
                }
                _ => {}
            }
        }
        met
    }

    /// Whether a CPU was between two spaces at some time from `since` to `until`.
    fn is_switching(&self, cpu: Cpu, since: u64, until: u64) -> bool {
        let Some(list) = self.switches.get(&cpu) else { return false };
        let begun = list.partition_point(|(begin, _)| *begin <= until);
        begun.checked_sub(1).is_some_and(|last| list[last].1 >= since)
    }

    /// Sorts the recorded remote flushes by what they found.
    fn judge(&mut self) {
        let mut truth = self.truth;
        let mut runs: BTreeMap<Cpu, Runs> = BTreeMap::new();
        let mut loaded: BTreeMap<Cpu, SpaceId> = BTreeMap::new();
        for step in &self.steps {
            match step.act {
                Act::Run(what) => {
                    runs.insert(step.cpu, what);
                    loaded.extend(what.space().map(|space| (step.cpu, space)));
                }
                Act::Asked { space: None, .. } => truth.unknown += 1,
                Act::Asked { target, since, space: Some(space) } => {
                    if runs.get(&target).and_then(|r| r.space()) != Some(space)
                        && self.is_switching(target, since, step.time)
                    {
                        truth.met_switching += 1;
                    } else if loaded.get(&target) != Some(&space) {
                        truth.in_vain += 1;
                    } else if runs.get(&target).and_then(|r| r.space()).is_some() {
                        truth.met_running += 1;
                    } else {
                        truth.met_lazy += 1;
                        loaded.remove(&target);
                    }
                }
                _ => {}
            }
        }
        self.truth = truth;
    }
}

//! Whose events are whose, and which are kept.
//!
//! | event | command's threads | kernel threads | others |
//! |---|---|---|---|
//! | switches and what they loaded | kept | kept | kept, anonymous |
//! | steps of flushes, remote flushes | kept | kept (write-back flushes for the command) | counted |
//! | memory system calls, faults, forks, wake-ups, migrations | kept | - | dropped |
//! | interrupts sent | kept | kept if for a flush | dropped |

use std::collections::{BTreeMap, BTreeSet};

use super::Imported;
use crate::recording::model::{Cpu, Event, FlushStep, Origin, Purpose, Tid, Trailer, What};
use crate::recording::perf_script::{Job, Sample, Seen};

const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x10000;

/// A switch to a kernel thread loads nothing, but an interrupt that makes the CPU leave its lazily
/// kept space can look as if it did. One in so many is taken for that.
const SELDOM: u32 = 4;

/// Kernel threads that start and end interrupted work all the time carry these names.
fn is_worker(name: &str) -> bool {
    ["kworker/", "ksoftirqd/", "migration/"].iter().any(|prefix| name.starts_with(prefix))
}

/// How perf names the child it has forked, until that runs the command.
const BEFORE_EXEC: &str = "perf-exec";

/// Collects samples; [`Collector::finish`] makes events of them.
#[derive(Debug, Default)]
pub struct Collector {
    samples: Vec<Sample>,
}

impl Extend<Sample> for Collector {
    fn extend<I: IntoIterator<Item = Sample>>(&mut self, samples: I) {
        self.samples.extend(samples);
    }
}

impl Collector {
    /// Decides whose everything is, and keeps what belongs into a recording.
    #[must_use]
    pub fn finish(mut self, root: Option<Tid>) -> Imported {
        self.samples.sort_by_key(|sample| sample.time);
        let samples = place(self.samples);
        let origins = Origins::of(&samples, root);
        let begin = match origins.root {
            Some(root) => samples
                .iter()
                .position(|s| s.tid == root && s.seen == Seen::Plain(What::Exec))
                .unwrap_or(0),
            None => 0,
        };
        let samples = &samples[begin..];
        let Some(first) = samples.first() else { return Imported::default() };
        let mut keeper = Keeper { base: first.time, origins, ..Keeper::default() };
        for sample in samples {
            keeper.take(sample);
        }
        keeper.finish()
    }
}

/// A sample whose thread is known.
#[derive(Debug)]
struct Placed {
    time: u64,
    cpu: Cpu,
    tid: Tid,
    pid: Option<u32>,
    seen: Seen,
}

/// Finds the thread of every sample. perf attributes what a switch loads to the thread that leaves,
/// and knows no thread that has ended; the switches before tell better. What is still unknown is
/// dropped.
fn place(samples: Vec<Sample>) -> Vec<Placed> {
    let mut running: BTreeMap<Cpu, Tid> = BTreeMap::new();
    let mut switched: BTreeSet<Cpu> = BTreeSet::new();
    let placed = samples.into_iter().filter_map(|Sample { time, cpu, tid: printed, pid, seen }| {
        let current = running.get(&cpu).copied();
        let just_switched = switched.remove(&cpu);
        let tid = match &seen {
            Seen::Switch { prev, next, .. } => {
                switched.insert(cpu);
                running.insert(cpu, next.0);
                return Some(Placed { time, cpu, tid: prev.0, pid, seen });
            }
            Seen::Plain(What::Flush { step: FlushStep::Switch, .. }) if just_switched => current,
            _ => printed.or(current),
        }?;
        running.insert(cpu, tid);
        Some(Placed { time, cpu, tid, pid: pid.filter(|_| Some(tid) == printed), seen })
    });
    placed.collect()
}

/// Whose each thread is.
#[derive(Debug, Default)]
pub struct Origins {
    root: Option<Tid>,
    /// Process of each thread of the command.
    command: BTreeMap<Tid, u32>,
    /// Threads with a space of their own.
    users: BTreeSet<Tid>,
    /// Threads that faulted or called.
    acted: BTreeSet<Tid>,
    /// Process of each thread the text names together with it.
    processes: BTreeMap<Tid, u32>,
    names: BTreeMap<Tid, String>,
}

impl Origins {
    /// Finds the command's tree and tells other programs from the kernel's threads: a program's
    /// thread faults, calls, is one of several, or has switches to it load its space; a kernel
    /// thread does none of these.
    fn of(samples: &[Placed], root: Option<Tid>) -> Self {
        let renamed = |s: &Placed| match &s.seen {
            Seen::Rename { task, old, .. } if old == BEFORE_EXEC => Some(*task),
            _ => None,
        };
        let executed = |s: &Placed| (s.seen == Seen::Plain(What::Exec)).then_some(s.tid);
        let root = root
            .or_else(|| samples.iter().find_map(renamed))
            .or_else(|| samples.iter().find_map(executed));
        let mut this = Self { root, ..Self::default() };
        this.command.extend(root.map(|tid| (tid, tid.0)));
        let mut arrived: BTreeMap<Cpu, Tid> = BTreeMap::new();
        // How often a thread came, and how often that loaded a space.
        let mut loads: BTreeMap<Tid, (u32, u32)> = BTreeMap::new();
        for sample in samples {
            let just_arrived = arrived.remove(&sample.cpu);
            if let Some(pid) = sample.pid {
                this.processes.insert(sample.tid, pid);
                // Kernel threads are processes of their own.
                if pid != sample.tid.0 {
                    this.users.insert(sample.tid);
                }
            }
            match &sample.seen {
                Seen::Switch { prev, next, .. } => {
                    for (tid, name) in [prev, next] {
                        this.names.entry(*tid).or_insert_with(|| name.clone());
                    }
                    arrived.insert(sample.cpu, next.0);
                    loads.entry(next.0).or_default().0 += 1;
                }
                Seen::Plain(What::Flush { step: FlushStep::Switch, .. }) => {
                    if let Some(tid) = just_arrived {
                        loads.entry(tid).or_default().1 += 1;
                    }
                }
                Seen::Plain(What::Fault { .. } | What::Enter(_)) => {
                    this.acted.insert(sample.tid);
                }
                Seen::NewTask { child, name, flags } => {
                    this.names.entry(*child).or_insert_with(|| name.clone());
                    if let Some(&pid) = this.command.get(&sample.tid) {
                        let pid = if flags & CLONE_THREAD == 0 { child.0 } else { pid };
                        this.command.insert(*child, pid);
                    }
                }
                _ => {}
            }
        }
        let often =
            |(_, (came, loaded)): &(Tid, (u32, u32))| *loaded > 0 && loaded * SELDOM > *came;
        this.users.extend(loads.into_iter().filter(often).map(|(tid, _)| tid));
        let Self { names, acted, users, .. } = &mut this;
        users.retain(|tid| !names.get(tid).is_some_and(|name| is_worker(name)));
        users.append(acted);
        if root.is_none() {
            let Self { command, users, processes, .. } = &mut this;
            let process = |tid: &Tid| (*tid, processes.get(tid).copied().unwrap_or(tid.0));
            command.extend(users.iter().filter(|tid| **tid != Tid::IDLE).map(process));
        }
        this
    }

    fn origin(&self, tid: Tid) -> Origin {
        if self.command.contains_key(&tid) {
            Origin::Command
        } else if tid != Tid::IDLE && self.users.contains(&tid) {
            Origin::Foreign
        } else {
            Origin::Kernel
        }
    }
}

#[derive(Debug, Default)]
struct Keeper {
    base: u64,
    origins: Origins,
    declared: BTreeSet<Tid>,
    /// What each CPU last queued for another one.
    queued: BTreeMap<Cpu, Job>,
    events: Vec<Event>,
    /// Events up to and including the command's last one.
    relevant: usize,
    last_cpu: u16,
    foreign_remote_flushes: u64,
    lost: u64,
}

impl Keeper {
    fn take(&mut self, sample: &Placed) {
        let origin = self.origins.origin(sample.tid);
        let ours = origin == Origin::Command;
        self.last_cpu = self.last_cpu.max(sample.cpu.0);
        match &sample.seen {
            Seen::Lost(count) => self.lost = self.lost.saturating_add(*count),
            Seen::Switch { off, next, .. } => {
                self.declare(next.0, sample);
                self.keep(sample, What::Switch { next: next.0, off: *off });
            }
            Seen::NewTask { child, flags, .. } if ours => {
                self.declare(*child, sample);
                self.keep(
                    sample,
                    What::Fork { child: *child, shares_space: flags & CLONE_VM != 0 },
                );
            }
            Seen::Rename { task, new, .. } if ours && *task == sample.tid => {
                self.keep(sample, What::Rename { name: new.clone() });
            }
            Seen::Queued { target, job } => {
                self.queued.insert(sample.cpu, *job);
                match (job, origin) {
                    (Job::Flush, Origin::Foreign) => self.foreign_remote_flushes += 1,
                    (Job::Flush, _) => self.keep(sample, What::RemoteFlush { target: *target }),
                    (Job::KernelFlush, Origin::Command | Origin::Kernel) => {
                        self.keep(sample, What::KernelFlush { target: *target });
                    }
                    _ => {}
                }
            }
            Seen::Ipi { target, reschedule, may_flush } => {
                let purpose = match self.queued.get(&sample.cpu) {
                    _ if *reschedule => Purpose::Reschedule,
                    Some(Job::Flush) if *may_flush => Purpose::Flush,
                    Some(Job::Wakeup) if !*may_flush => Purpose::Reschedule,
                    // Kernels without the csd events: the flush path is the main user of such
                    // calls.
                    None if *may_flush => Purpose::Flush,
                    _ => Purpose::Call,
                };
                if ours || (purpose == Purpose::Flush && origin == Origin::Kernel) {
                    self.keep(sample, What::Ipi { target: *target, purpose });
                }
            }
            Seen::Plain(what @ What::Flush { step, .. })
                if *step == FlushStep::Switch || origin != Origin::Foreign =>
            {
                self.keep(sample, what.clone());
            }
            Seen::Plain(what @ (What::Wakeup { task } | What::Migrate { task, .. }))
                if self.origins.origin(*task) == Origin::Command =>
            {
                self.declare(*task, sample);
                self.keep(sample, what.clone());
            }
            Seen::Plain(What::Flush { .. } | What::Wakeup { .. } | What::Migrate { .. }) => {}
            Seen::Plain(what) if ours => self.keep(sample, what.clone()),
            _ => {}
        }
    }

    fn keep(&mut self, sample: &Placed, what: What) {
        self.declare(sample.tid, sample);
        let ours = self.origins.origin(sample.tid) == Origin::Command;
        self.events.push(Event {
            time: sample.time - self.base,
            cpu: sample.cpu,
            tid: sample.tid,
            what,
        });
        if ours {
            self.relevant = self.events.len();
        }
    }

    fn declare(&mut self, tid: Tid, sample: &Placed) {
        if !self.declared.insert(tid) {
            return;
        }
        let origin = self.origins.origin(tid);
        let name = match origin {
            Origin::Foreign => String::new(),
            _ if tid == Tid::IDLE => "idle".to_owned(),
            _ => self.origins.names.get(&tid).cloned().unwrap_or_default(),
        };
        let Origins { command, processes, .. } = &self.origins;
        let pid = command.get(&tid).or_else(|| processes.get(&tid)).copied().unwrap_or(tid.0);
        let what = What::Task { pid, origin, name };
        self.events.push(Event { time: sample.time - self.base, cpu: sample.cpu, tid, what });
    }

    fn finish(mut self) -> Imported {
        self.events.truncate(self.relevant);
        let trailer = Trailer {
            duration: self.events.last().map_or(0, |event| event.time),
            foreign_remote_flushes: self.foreign_remote_flushes,
            lost: self.lost,
            ..Trailer::default()
        };
        Imported { events: self.events, clock_base: self.base, cpus: self.last_cpu + 1, trailer }
    }
}

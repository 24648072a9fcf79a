//! A recording on another number of CPUs, or several of it at once.
//!
//! **Problem.** A schedule for two CPUs says nothing about eight. What remains of it is what each
//! thread did by itself: how long it ran before it slept, and how long it slept.
//!
//! **Rules.**
//! - S1: each thread of the command has a home CPU and stays there. Threads get homes in the order
//!   of their first run, each the CPU with the fewest living threads (the lowest of those).
//! - S2: runs keep their length and what is done in them, sleeps keep theirs; waiting for a CPU is
//!   left out, and happens anew.
//! - S3: a CPU serves its threads in the order in which they became ready; a run ends as it was
//!   recorded to end.
//! - S4: a thread is ready when its creator's run reaches the creation; one whose creation was not
//!   seen, at its recorded first run.
//! - S5: copies are separate in everything; they begin together.
//! - S6: other programs and kernel threads are left out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::recording::model::{Cpu, Tid};
use crate::recording::timeline::{Act, Runs, SpaceId, Step, Timeline, Truth};

/// A thread's time on a CPU, without interruption.
#[derive(Debug, Default)]
struct Burst {
    start: u64,
    end: u64,
    space: Option<SpaceId>,
    /// With the time since `start`.
    acts: Vec<(u64, Act)>,
    /// Threads made, with the time since `start`.
    births: Vec<(u64, Tid)>,
}

/// The bursts of every thread of the command, in order.
fn bursts(timeline: &Timeline) -> BTreeMap<Tid, Vec<Burst>> {
    let mut done: BTreeMap<Tid, Vec<Burst>> = BTreeMap::new();
    let mut open: BTreeMap<Cpu, (Tid, Burst)> = BTreeMap::new();
    let end = timeline.steps.last().map_or(0, |step| step.time);
    for Step { time, cpu, act } in &timeline.steps {
        let since = |burst: &Burst| time - burst.start;
        match *act {
            Act::Run(runs) => {
                let next = match runs {
                    Runs::Program { thread, space } if timeline.spaces[space.0 as usize] => {
                        Some((thread, space))
                    }
                    _ => None,
                };
                if let Some((thread, burst)) = open.get_mut(cpu)
                    && let Some((same, _)) = next
                    && *thread == same
                {
                    // The thread got another space.
                    let at = since(burst);
                    burst.acts.push((at, *act));
                    continue;
                }
                if let Some((thread, mut burst)) = open.remove(cpu) {
                    burst.end = *time;
                    done.entry(thread).or_default().push(burst);
                }
                if let Some((thread, space)) = next {
                    let burst = Burst { start: *time, space: Some(space), ..Burst::default() };
                    open.insert(*cpu, (thread, burst));
                }
            }
            // Comes after the switch away; when a space ends follows from who uses it.
            Act::End(_) => {}
            act => {
                if let Some((_, burst)) = open.get_mut(cpu) {
                    let at = since(burst);
                    burst.acts.push((at, act));
                }
            }
        }
    }
    for (thread, mut burst) in open.into_values() {
        burst.end = end;
        done.entry(thread).or_default().push(burst);
    }
    for (child, (parent, time)) in &timeline.births {
        let list = done.get_mut(parent).map_or(&mut [][..], |list| list);
        if let Some(burst) = list.iter_mut().find(|b| b.start <= *time && *time <= b.end) {
            let at = time - burst.start;
            burst.births.push((at, *child));
        }
    }
    done
}

/// A thread of a copy.
type Who = (u32, Tid);

struct Schedule<'a> {
    timeline: &'a Timeline,
    bursts: BTreeMap<Tid, Vec<Burst>>,
    /// When, in which order, who, which of its bursts.
    ready: BinaryHeap<Reverse<(u64, u64, Who, usize)>>,
    order: u64,
    homes: BTreeMap<Who, usize>,
    /// Living threads and end of the last run of each CPU.
    cpus: Vec<(u32, u64)>,
    steps: Vec<Step>,
    /// Last use of each space: when and where.
    last_use: BTreeMap<SpaceId, (u64, Cpu)>,
    most: Tid,
}

/// The recording on `cpus` CPUs, `copies` times at once.
#[must_use]
pub fn spread(timeline: &Timeline, cpus: u32, copies: u32) -> Timeline {
    let bursts = bursts(timeline);
    let most = bursts.keys().next_back().copied().unwrap_or(Tid::IDLE);
    let cpus = cpus.min(u32::from(u16::MAX));
    let mut schedule = Schedule {
        timeline,
        bursts,
        ready: BinaryHeap::new(),
        order: 0,
        homes: BTreeMap::new(),
        cpus: vec![(0, 0); cpus as usize],
        steps: Vec::new(),
        last_use: BTreeMap::new(),
        most,
    };
    schedule.begin(copies);
    while let Some(Reverse((time, _, who, index))) = schedule.ready.pop() {
        schedule.run(time, who, index);
    }
    schedule.finish(cpus, copies)
}

impl Schedule<'_> {
    fn begin(&mut self, copies: u32) {
        let unborn: Vec<(u64, Tid)> = self
            .bursts
            .iter()
            .filter(|(tid, _)| !self.born(**tid))
            .filter_map(|(tid, list)| Some((list.first()?.start, *tid)))
            .collect();
        for copy in 0..copies {
            for (time, tid) in &unborn {
                self.make_ready(*time, (copy, *tid), 0);
            }
        }
    }

    /// Whether the thread will be made ready by its creator (S4).
    fn born(&self, tid: Tid) -> bool {
        let births =
            |list: &Vec<Burst>| list.iter().any(|b| b.births.iter().any(|(_, t)| *t == tid));
        self.timeline
            .births
            .get(&tid)
            .and_then(|(parent, _)| self.bursts.get(parent))
            .is_some_and(births)
    }

    fn make_ready(&mut self, time: u64, who: Who, index: usize) {
        self.order += 1;
        self.ready.push(Reverse((time, self.order, who, index)));
    }

    /// S1.
    fn home(&mut self, who: Who) -> usize {
        if let Some(home) = self.homes.get(&who) {
            return *home;
        }
        let fewest = (0..self.cpus.len()).min_by_key(|cpu| self.cpus[*cpu].0).unwrap_or(0);
        self.cpus[fewest].0 += 1;
        self.homes.insert(who, fewest);
        fewest
    }

    fn run(&mut self, ready: u64, who: Who, index: usize) {
        let home = self.home(who);
        let cpu = Cpu(u16::try_from(home).expect("limited to u16"));
        let (copy, tid) = who;
        let start = ready.max(self.cpus[home].1);
        let Some(burst) = self.bursts.get_mut(&tid).and_then(|list| list.get_mut(index)) else {
            return;
        };
        let (length, acts, space) = (burst.end - burst.start, burst.acts.clone(), burst.space);
        let births = burst.births.clone();
        let end = start.saturating_add(length);
        if let Some(space) = space {
            let runs = Runs::Program { thread: tid, space };
            self.emit(copy, start, cpu, Act::Run(runs));
        }
        for (at, act) in acts {
            self.emit(copy, start.saturating_add(at), cpu, act);
        }
        self.cpus[home].1 = end;
        self.steps.push(Step { time: end, cpu, act: Act::Run(Runs::Idle) });
        for (at, child) in births {
            if self.bursts.contains_key(&child) {
                self.make_ready(start.saturating_add(at), (copy, child), 0);
            }
        }
        let more = self.bursts.get(&tid).is_some_and(|list| index + 1 < list.len());
        if more {
            let pauses = self.timeline.pauses.get(&tid);
            let pause = pauses.and_then(|list| list.get(index));
            // S2.
            let sleep = pause.map_or(0, |pause| pause.until.saturating_sub(pause.from));
            self.make_ready(end.saturating_add(sleep), who, index + 1);
        } else {
            self.cpus[home].0 -= 1;
        }
    }

    /// Adds a step of a copy (S5).
    fn emit(&mut self, copy: u32, time: u64, cpu: Cpu, act: Act) {
        let spaces = u32::try_from(self.timeline.spaces.len()).expect("numbered with u32");
        let space = |SpaceId(space)| SpaceId(space + copy * spaces);
        let act = match act {
            Act::Run(Runs::Program { thread: Tid(thread), space: own }) => {
                let thread = Tid(thread + copy * (self.most.0 + 1));
                self.used(space(own), time, cpu);
                Act::Run(Runs::Program { thread, space: space(own) })
            }
            Act::Flush { space: own, extent, cause } => {
                self.used(space(own), time, cpu);
                Act::Flush { space: space(own), extent, cause }
            }
            other => other,
        };
        self.steps.push(Step { time, cpu, act });
    }

    fn used(&mut self, space: SpaceId, time: u64, cpu: Cpu) {
        let last = self.last_use.entry(space).or_insert((time, cpu));
        *last = (*last).max((time, cpu));
    }

    fn finish(mut self, cpus: u32, copies: u32) -> Timeline {
        // A space that is loaded somewhere at this moment ends when it no longer is.
        let ends = self.last_use.iter();
        self.steps.extend(ends.map(|(space, (time, cpu))| Step {
            time: *time,
            cpu: *cpu,
            act: Act::End(*space),
        }));
        self.steps.sort_by_key(|step| step.time);
        let spaces = self.timeline.spaces.len() * copies as usize;
        Timeline {
            cpus: u16::try_from(cpus).expect("limited to u16"),
            spaces: self.timeline.spaces.iter().copied().cycle().take(spaces).collect(),
            steps: self.steps,
            pauses: BTreeMap::new(),
            births: BTreeMap::new(),
            flushes_seen: self.timeline.flushes_seen,
            switches: BTreeMap::new(),
            truth: Truth::default(),
        }
    }
}

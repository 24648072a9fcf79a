//! Building a timeline, event by event.

use std::collections::{BTreeMap, BTreeSet};

use super::unseen::Unseen;
use super::{Act, Cause, Pause, Range, Runs, SpaceId, Step, Timeline, exec};
use crate::recording::model::{
    Call, CallArgs, Cpu, Event, Extent, FlushStep, OffCpu, Origin, Purpose, Tid, What,
};

/// Of `mprotect`.
const PROT_WRITE: u64 = 2;
/// Of `madvise`.
const MADV_DONTNEED: u64 = 4;

/// The timeline of these events.
pub fn timeline(events: &[Event]) -> Timeline {
    let activations = exec::activations(events);
    let mut builder = Builder::new(events);
    let mut switches = Unseen::learn(events);
    for (index, event) in events.iter().enumerate() {
        if let Some(time) = switches.before(event) {
            builder.resume(time, event.tid);
            builder.run(time, event.cpu, event.tid);
        }
        builder.event(event);
        if activations.contains(&index) {
            builder.exec(event);
        }
    }
    builder.finish()
}

#[derive(Debug, Default)]
struct Thread {
    pid: u32,
    /// `None` for threads that have no space: the kernel's, and those that have ended.
    command: Option<bool>,
    space: Option<SpaceId>,
    call: Option<CallArgs>,
    /// Page of a write fault that nothing followed yet (R4).
    fault: Option<u64>,
    /// An `Ask` whose local half is still to come (R3).
    asked: bool,
    /// The space its last request was about, and when it came.
    asking: Option<(SpaceId, u64)>,
    exiting: bool,
    /// The space it has left by an `exec` that is not over yet, if it was the last one in it.
    left: Option<SpaceId>,
    stopped: Option<(u64, OffCpu)>,
    woken: Option<u64>,
}

#[derive(Debug, Default)]
struct Builder {
    out: Timeline,
    threads: BTreeMap<Tid, Thread>,
    /// Spaces of processes whose threads were not seen to be made.
    processes: BTreeMap<u32, SpaceId>,
    users: BTreeMap<SpaceId, BTreeSet<Tid>>,
    flush_interrupts: u64,
    /// When each CPU left its last thread, until it is known that this loaded a space.
    switching: BTreeMap<Cpu, u64>,
}

impl Builder {
    fn new(events: &[Event]) -> Self {
        let mut this = Self::default();
        let mut first: BTreeMap<Cpu, Tid> = BTreeMap::new();
        this.out.flushes_seen = events.iter().any(|e| matches!(e.what, What::Flush { .. }));
        for event in events {
            this.out.cpus = this.out.cpus.max(event.cpu.0 + 1);
            if let What::Task { pid, origin, .. } = event.what {
                let thread = this.thread(event.tid);
                thread.pid = pid;
                thread.command = match origin {
                    Origin::Command => Some(true),
                    Origin::Foreign => Some(false),
                    Origin::Kernel => None,
                };
            } else {
                first.entry(event.cpu).or_insert(event.tid);
            }
        }
        // R5.
        for (cpu, tid) in first {
            this.run(0, cpu, tid);
        }
        this
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread {
        self.threads.entry(tid).or_default()
    }

    fn step(&mut self, time: u64, cpu: Cpu, act: Act) {
        self.out.steps.push(Step { time, cpu, act });
    }

    fn run(&mut self, time: u64, cpu: Cpu, tid: Tid) {
        let runs = match self.space(tid) {
            Some(space) => Runs::Program { thread: tid, space },
            None if tid == Tid::IDLE => Runs::Idle,
            None => Runs::Kernel,
        };
        self.step(time, cpu, Act::Run(runs));
    }

    fn new_space(&mut self, command: bool) -> SpaceId {
        self.out.spaces.push(command);
        SpaceId(u32::try_from(self.out.spaces.len() - 1).expect("fewer spaces than thread numbers"))
    }

    /// The space of a thread (R1, R2); `None` for the kernel's.
    fn space(&mut self, tid: Tid) -> Option<SpaceId> {
        let thread = self.threads.get(&tid)?;
        let (pid, command) = (thread.pid, thread.command?);
        if thread.space.is_some() {
            return thread.space;
        }
        let space = match self.processes.get(&pid) {
            Some(space) => *space,
            None => self.new_space(command),
        };
        self.processes.insert(pid, space);
        self.enter_space(tid, space);
        Some(space)
    }

    fn enter_space(&mut self, tid: Tid, space: SpaceId) {
        self.thread(tid).space = Some(space);
        self.users.entry(space).or_default().insert(tid);
    }

    /// The thread leaves its space; the space, if it was the last one in it.
    fn leave_space(&mut self, tid: Tid) -> Option<SpaceId> {
        let space = self.thread(tid).space.take()?;
        let users = self.users.entry(space).or_default();
        users.remove(&tid);
        users.is_empty().then_some(space)
    }

    /// The thread is gone; the space, if it was the last one in it.
    fn end(&mut self, tid: Tid) -> Option<SpaceId> {
        let ended = self.leave_space(tid);
        self.thread(tid).command = None;
        ended
    }

    fn event(&mut self, event: &Event) {
        let Event { time, cpu, tid, ref what } = *event;
        if !matches!(what, What::Task { .. } | What::Flush { step: FlushStep::Switch, .. }) {
            self.switching.remove(&cpu);
        }
        match *what {
            What::Task { .. } | What::Rename { .. } | What::Migrate { .. } => {}
            What::KernelFlush { .. } => {}
            What::Exec => {
                if let Some(space) = self.thread(tid).left.take() {
                    self.step(time, cpu, Act::End(space));
                }
            }
            What::Switch { next, off } => {
                let leaving = self.thread(tid);
                (leaving.stopped, leaving.woken) = (Some((time, off)), None);
                (leaving.fault, leaving.asked) = (None, false);
                let ended = if leaving.exiting { self.end(tid) } else { None };
                self.switching.insert(cpu, time);
                self.resume(time, next);
                self.run(time, cpu, next);
                if let Some(space) = ended {
                    self.step(time, cpu, Act::End(space));
                }
            }
            What::Wakeup { task } => {
                self.thread(task).woken.get_or_insert(time);
            }
            What::Fork { child, shares_space } => {
                let shared = self.space(tid).filter(|_| shares_space);
                let space = shared.unwrap_or_else(|| self.new_space(true));
                self.enter_space(child, space);
                self.out.births.insert(child, (tid, time));
                let pid = self.thread(child).pid;
                self.processes.insert(pid, space);
            }
            // Its space is taken down between here and its last switch.
            What::Exit => {
                let thread = self.thread(tid);
                (thread.exiting, thread.call, thread.fault) = (true, None, None);
            }
            What::Flush { step, extent } => self.flush(event, step, extent),
            What::RemoteFlush { target } => {
                self.out.truth.remote_flushes += 1;
                let own = self.space(tid);
                let (space, since) = match self.thread(tid).asking {
                    Some((space, since)) => (Some(space), since),
                    None => (own, time),
                };
                self.step(time, cpu, Act::Asked { target, since, space });
            }
            What::Ipi { purpose, .. } => {
                self.flush_interrupts += u64::from(purpose == Purpose::Flush);
            }
            What::Enter(args) => {
                let thread = self.thread(tid);
                (thread.call, thread.fault, thread.asked) = (Some(args), None, false);
                if args.call == Call::Mprotect && args.mode & PROT_WRITE != 0 {
                    self.step(time, cpu, Act::Permit(Range { addr: args.addr, len: args.len }));
                }
            }
            What::Leave { call, result } => {
                let thread = self.thread(tid);
                (thread.fault, thread.asked) = (None, false);
                let args = thread.call.take().filter(|args| args.call == call);
                if let Some(args) = args
                    && result >= 0
                    && !self.out.flushes_seen
                {
                    self.presume(event, args);
                }
                match (call, args) {
                    (Call::Mmap, Some(args)) if result > 0 => {
                        let range = Range { addr: result.cast_unsigned(), len: args.len };
                        self.step(time, cpu, Act::Map(range));
                    }
                    (Call::Munmap, Some(args)) if result == 0 => {
                        self.step(time, cpu, Act::Unmap(Range { addr: args.addr, len: args.len }));
                    }
                    _ => {}
                }
            }
            What::Fault { page, write, execute, .. } => {
                let thread = self.thread(tid);
                (thread.fault, thread.asked) = (write.then_some(page), false);
                self.step(time, cpu, Act::Touch { page, write, execute });
            }
        }
    }

    /// R7: the flush that a call must have taken.
    fn presume(&mut self, event: &Event, args: CallArgs) {
        let Event { time, cpu, tid, .. } = *event;
        let revokes = match args.call {
            Call::Munmap | Call::Mremap | Call::Msync => true,
            Call::Mprotect => args.mode & PROT_WRITE == 0,
            Call::Madvise => args.mode == MADV_DONTNEED,
            Call::Mmap | Call::Brk => false,
        };
        if let Some(space) = self.space(tid).filter(|_| revokes) {
            let extent = Extent::Pages(args.len.div_ceil(4096));
            self.step(time, cpu, Act::Flush { space, extent, cause: Cause::Call(args) });
        }
    }

    /// A thread of the command gets a CPU again.
    fn resume(&mut self, time: u64, tid: Tid) {
        let thread = self.thread(tid);
        let Some((from, off)) = thread.stopped.take() else { return };
        let until = match off {
            OffCpu::Preempted => from,
            // A wake-up that was not seen happened at the latest now.
            OffCpu::Blocked | OffCpu::Dead => thread.woken.take().unwrap_or(time),
        };
        if thread.command == Some(true) {
            self.out.pauses.entry(tid).or_default().push(Pause { from, until });
        }
    }

    /// R1: the thread has a new space from now on.
    fn exec(&mut self, event: &Event) {
        let Event { time, cpu, tid, .. } = *event;
        let ended = self.leave_space(tid);
        let space = self.new_space(true);
        self.enter_space(tid, space);
        let thread = self.thread(tid);
        (thread.fault, thread.call) = (None, None);
        let pid = thread.pid;
        self.processes.insert(pid, space);
        self.run(time, cpu, tid);
        match (ended, &event.what) {
            (Some(space), What::Exec) => self.step(time, cpu, Act::End(space)),
            (left, _) => self.thread(tid).left = left,
        }
    }

    /// R3, R4.
    fn flush(&mut self, event: &Event, step: FlushStep, extent: Extent) {
        let Event { time, cpu, tid, .. } = *event;
        if step == FlushStep::Switch
            && let Some(begin) = self.switching.remove(&cpu)
        {
            self.out.switches.entry(cpu).or_default().push((begin, time));
        }
        let truth = &mut self.out.truth;
        match (step, extent) {
            (FlushStep::Switch, Extent::Everything) => truth.switches_flushed += 1,
            (FlushStep::Switch, Extent::Pages(_)) => truth.switches_kept += 1,
            _ => {}
        }
        let asks = match step {
            FlushStep::Ask => true,
            FlushStep::LocalSpace => false,
            FlushStep::Switch | FlushStep::Responded | FlushStep::Local | FlushStep::WrongCpu => {
                return;
            }
        };
        let thread = self.threads.entry(tid).or_default();
        let local_half = !asks && thread.asked;
        thread.asked = asks;
        let (call, fault, left) = (thread.call, thread.fault.take(), thread.left);
        let exiting = thread.exiting;
        if local_half {
            return;
        }
        self.out.truth.asks += u64::from(asks);
        self.out.truth.requests += 1;
        let Some(own) = self.space(tid) else { return };
        let last = self.users.get(&own).is_some_and(|users| users.len() == 1);
        let everything = extent == Extent::Everything;
        let (space, cause) = match (left, call, fault) {
            (Some(left), ..) if asks && everything => (left, Cause::Teardown),
            _ if exiting && last && everything => (own, Cause::Teardown),
            (_, Some(args), _) => (own, Cause::Call(args)),
            (_, None, Some(page)) => (own, Cause::WriteFault(page)),
            (_, None, None) => (own, Cause::Unknown),
        };
        self.thread(tid).asking = Some((space, time));
        self.step(time, cpu, Act::Flush { space, extent, cause });
    }

    fn finish(mut self) -> Timeline {
        if self.out.truth.remote_flushes == 0 {
            self.out.truth.remote_flushes = self.flush_interrupts;
        }
        // An unseen switch lies before the event that gave it away.
        self.out.steps.sort_by_key(|step| step.time);
        self.out.judge();
        self.out
    }
}

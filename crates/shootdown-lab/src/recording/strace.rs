//! The text of `strace -f -ttt`, where perf cannot be used.
//!
//! **What it can tell.** Which thread made which memory call when, who created whom, who ended.
//! Not: on which CPU anything ran, who was interrupted, what was touched. So each thread is given a
//! CPU of its own for its whole life (the fewest that do: a CPU is given again when its thread has
//! ended), there are no flush events, and the recording has no truth to hold a prediction against.
//! strace slows every call by some 30 us, which the times include.
//!
//! A call that is cut in two (`<unfinished ...>`, `<... NAME resumed>`) is put together again by
//! thread.

use std::collections::BTreeMap;

use super::import::Imported;
use super::model::{Call, CallArgs, Cpu, Event, OffCpu, Origin, Tid, Trailer, What};
use super::perf_script::{fields::call_of, seconds};

/// Collects lines; [`Collector::finish`] makes events of them.
#[derive(Debug, Default)]
pub struct Collector {
    base: Option<u64>,
    time: u64,
    threads: BTreeMap<Tid, Cpu>,
    pids: BTreeMap<Tid, u32>,
    free: Vec<Cpu>,
    cpus: u16,
    /// The first part of each thread's unfinished call.
    unfinished: BTreeMap<Tid, String>,
    events: Vec<Event>,
}

impl Collector {
    /// Takes a line.
    ///
    /// # Errors
    ///
    /// What was expected.
    pub fn line(&mut self, text: &str) -> Result<(), &'static str> {
        let (tid, rest) = thread(text).ok_or("`PID SECONDS.FRACTION call(...) = result`")?;
        let (time, rest) = rest.split_once(' ').ok_or("a time and a call")?;
        let time = seconds(time).ok_or("a time as SECONDS.FRACTION (strace -ttt)")?;
        let base = *self.base.get_or_insert(time);
        self.time = self.time.max(time.saturating_sub(base));
        let rest = rest.trim();
        if rest.starts_with("---") {
            return Ok(());
        }
        self.adopt(tid);
        self.appear(tid, tid.0);
        if rest.starts_with("+++") {
            self.exit(tid);
            return Ok(());
        }
        if let Some(start) = rest.strip_suffix("<unfinished ...>") {
            let start = start.trim_end().to_owned();
            self.enter(tid, &start);
            self.unfinished.insert(tid, start);
            return Ok(());
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, end) = resumed.split_once(" resumed>").ok_or("`<... call resumed>`")?;
            if let Some(start) = self.unfinished.remove(&tid) {
                self.leave(tid, &format!("{start}{end}"));
            }
            return Ok(());
        }
        self.enter(tid, rest);
        self.leave(tid, rest);
        Ok(())
    }

    /// The recording.
    #[must_use]
    pub fn finish(self) -> Imported {
        Imported {
            trailer: Trailer { duration: self.time, ..Trailer::default() },
            events: self.events,
            clock_base: self.base.unwrap_or(0),
            cpus: self.cpus,
        }
    }

    fn push(&mut self, tid: Tid, what: What) {
        let cpu = self.threads.get(&tid).copied().unwrap_or(Cpu(0));
        self.events.push(Event { time: self.time, cpu, tid, what });
    }

    /// Gives a new thread a CPU.
    fn appear(&mut self, tid: Tid, pid: u32) {
        if self.threads.contains_key(&tid) {
            return;
        }
        let cpu = self.free.pop().unwrap_or_else(|| {
            // More threads at once than CPUs can be counted share the last one.
            let next = Cpu::new(self.cpus).unwrap_or(Cpu(Cpu::LIMIT - 1));
            self.cpus = next.0 + 1;
            next
        });
        self.threads.insert(tid, cpu);
        self.pids.insert(tid, pid);
        let task = |pid, origin, name: &str| What::Task { pid, origin, name: name.to_owned() };
        if self.events.is_empty() {
            self.push(Tid::IDLE, task(0, Origin::Kernel, "idle"));
        }
        self.push(tid, task(pid, Origin::Command, ""));
        self.events.push(Event {
            time: self.time,
            cpu,
            tid: Tid::IDLE,
            what: What::Switch { next: tid, off: OffCpu::Preempted },
        });
    }

    /// A thread nobody knows, while someone is in the call that makes one: it is that one's child.
    fn adopt(&mut self, child: Tid) {
        if self.threads.contains_key(&child) {
            return;
        }
        let creating = |text: &str| text.split_once('(').is_some_and(|(name, _)| creates(name));
        let parent = self.unfinished.iter().find(|(_, text)| creating(text));
        if let Some((parent, text)) = parent.map(|(tid, text)| (*tid, text.clone())) {
            self.fork(parent, child, &text);
        }
    }

    fn fork(&mut self, parent: Tid, child: Tid, text: &str) {
        if self.threads.contains_key(&child) {
            return;
        }
        let pid = match text.contains("CLONE_THREAD") {
            true => self.pids.get(&parent).copied().unwrap_or(parent.0),
            false => child.0,
        };
        self.appear(child, pid);
        let shares_space = text.starts_with("vfork") || text.contains("CLONE_VM");
        self.push(parent, What::Fork { child, shares_space });
    }

    fn exit(&mut self, tid: Tid) {
        self.push(tid, What::Exit);
        self.push(tid, What::Switch { next: Tid::IDLE, off: OffCpu::Dead });
        self.pids.remove(&tid);
        self.unfinished.remove(&tid);
        if let Some(cpu) = self.threads.remove(&tid) {
            // The lowest free CPU goes first, so that numbers stay small.
            self.free.push(cpu);
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    fn enter(&mut self, tid: Tid, text: &str) {
        if let Some(args) = call(text) {
            self.push(tid, What::Enter(args));
        }
    }

    fn leave(&mut self, tid: Tid, text: &str) {
        let Some((name, _)) = text.split_once('(') else { return };
        let Some((_, result)) = text.rsplit_once(" = ") else { return };
        let result = result.split(' ').next().and_then(integer);
        match (name, call_of(name), result) {
            (_, Some(call), Some(result)) => self.push(tid, What::Leave { call, result }),
            (name, None, Some(child)) if creates(name) && child > 0 => {
                if let Some(child) = u32::try_from(child).ok().and_then(Tid::new) {
                    self.fork(tid, child, text);
                }
            }
            ("execve" | "execveat", _, Some(0)) => self.push(tid, What::Exec),
            _ => {}
        }
    }
}

fn creates(name: &str) -> bool {
    matches!(name, "clone" | "clone3" | "fork" | "vfork")
}

/// `[pid N] rest` or `N rest`.
fn thread(text: &str) -> Option<(Tid, &str)> {
    let (number, rest) = match text.strip_prefix("[pid") {
        Some(rest) => rest.trim_start().split_once(']')?,
        None => text.split_once(' ')?,
    };
    Some((Tid::new(number.trim().parse().ok()?)?, rest.trim_start()))
}

fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(u64::cast_signed),
        None => text.parse().ok(),
    }
}

/// Names strace prints for the flags that matter to translations, and their values on x86-64.
const FLAGS: [(&str, u64); 26] = [
    ("NULL", 0),
    ("PROT_NONE", 0),
    ("PROT_READ", 1),
    ("PROT_WRITE", 2),
    ("PROT_EXEC", 4),
    ("MAP_SHARED", 1),
    ("MAP_PRIVATE", 2),
    ("MAP_SHARED_VALIDATE", 3),
    ("MAP_FIXED", 0x10),
    ("MAP_ANONYMOUS", 0x20),
    ("MAP_GROWSDOWN", 0x100),
    ("MAP_POPULATE", 0x8000),
    ("MAP_FIXED_NOREPLACE", 0x10_0000),
    ("MADV_NORMAL", 0),
    ("MADV_WILLNEED", 3),
    ("MADV_DONTNEED", 4),
    ("MADV_FREE", 8),
    ("MADV_REMOVE", 9),
    ("MADV_HUGEPAGE", 14),
    ("MADV_NOHUGEPAGE", 15),
    ("MADV_COLD", 20),
    ("MADV_PAGEOUT", 21),
    ("MS_ASYNC", 1),
    ("MS_INVALIDATE", 2),
    ("MS_SYNC", 4),
    ("MREMAP_MAYMOVE", 1),
];

/// A number, or names joined by `|`; names that do not matter count as 0.
fn value(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(')');
    if let Some(number) = integer(text) {
        return Some(number.cast_unsigned());
    }
    let named =
        |name: &str| FLAGS.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
    text.starts_with(|c: char| c.is_ascii_uppercase())
        .then(|| text.split('|').map(named).fold(0, |all, one| all | one))
}

fn call(text: &str) -> Option<CallArgs> {
    let (name, rest) = text.split_once('(')?;
    let call = call_of(name)?;
    let rest = rest.rsplit_once(" = ").map_or(rest, |(arguments, _)| arguments);
    let arguments: Vec<u64> = rest.split(", ").map_while(value).collect();
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let (len, mode, extra) = match call {
        Call::Brk => (0, 0, 0),
        Call::Munmap => (at(1), 0, 0),
        Call::Mprotect | Call::Madvise | Call::Msync => (at(1), at(2), 0),
        Call::Mmap => (at(1), at(2), at(3)),
        Call::Mremap => (at(1), at(3), at(2)),
    };
    Some(CallArgs { call, addr: *arguments.first()?, len, mode, extra })
}

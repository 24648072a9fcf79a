//! The text of `perf script`, line by line.
//!
//! **Problem.** `perf.data` is the tool's own, changing format; its text is the stable interface.
//! One line is one event: `comm pid/tid [cpu] seconds.fraction: group:event: fields`, where `comm`
//! may be missing or hold anything, and `pid/` may be missing.
//!
//! **Protocol.** [`line()`] takes a line apart, [`fields::what`] turns event and fields into a
//! [`Seen`]. Lines of events we do not use are skipped; a line that is no event at all is an error,
//! so that a file of something else is not silently an empty recording.

use super::model::{CallArgs, Cpu, Extent, FlushStep, OffCpu, Tid, What};

pub mod fields;

/// An event as perf tells it, before it is known whose it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Nanoseconds of perf's clock.
    pub time: u64,
    /// Where.
    pub cpu: Cpu,
    /// The thread that ran there; perf no longer knows one that has ended.
    pub tid: Option<Tid>,
    /// Its process, when the text has both numbers.
    pub pid: Option<u32>,
    /// What.
    pub seen: Seen,
}

/// What perf saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// `sched:sched_switch`. The names are those of both threads.
    Switch {
        /// The thread that left.
        prev: (Tid, String),
        /// How.
        off: OffCpu,
        /// The thread that came.
        next: (Tid, String),
    },
    /// `task:task_newtask`.
    NewTask {
        /// The new thread.
        child: Tid,
        /// Its name.
        name: String,
        /// `clone` flags.
        flags: u64,
    },
    /// `task:task_rename` of the thread `task`.
    Rename {
        /// The thread.
        task: Tid,
        /// What it was called.
        old: String,
        /// What it is called from now on.
        new: String,
    },
    /// `csd:csd_queue_cpu`: a function was queued for another CPU.
    Queued {
        /// The CPU.
        target: Cpu,
        /// What it will run.
        job: Job,
    },
    /// `ipi:ipi_send_cpu` and `ipi:ipi_send_cpumask`.
    Ipi {
        /// The CPU; `None` for a set the tool could not print.
        target: Option<Cpu>,
        /// It runs nothing: a request to reschedule.
        reschedule: bool,
        /// It was sent by the flush path itself, or by a function call that serves it.
        may_flush: bool,
    },
    /// The tool lost events.
    Lost(u64),
    /// Something that needs no knowledge of others.
    Plain(What),
}

/// What a remote CPU was asked to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// A flush of user addresses.
    Flush,
    /// A flush of kernel addresses.
    KernelFlush,
    /// A wake-up.
    Wakeup,
    /// Anything else.
    Other,
}

/// The parts of one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// Process, if printed.
    pub pid: Option<u32>,
    /// Thread; printed as -1 once it has ended.
    pub tid: Option<Tid>,
    /// CPU.
    pub cpu: Cpu,
    /// Nanoseconds.
    pub time: u64,
    /// `group:event`, or a record's name.
    pub event: &'a str,
    /// The fields as printed.
    pub fields: &'a str,
}

/// Takes a line apart; `None` when it is not one of an event.
#[must_use]
pub fn line(text: &str) -> Option<Line<'_>> {
    // A name may hold brackets too, so the CPU is the first bracketed number that follows a thread
    // number.
    let mut from = 0;
    while let Some(open) = text[from..].find('[').map(|at| at + from) {
        from = open + 1;
        if let Some(found) = at_bracket(text, open) {
            return Some(found);
        }
    }
    None
}

fn at_bracket(text: &str, open: usize) -> Option<Line<'_>> {
    let ids = text[..open].split_whitespace().next_back()?;
    let (pid, tid) = match ids.split_once('/') {
        Some((pid, tid)) => (number(pid)?, number(tid)?),
        None => (None, number(ids)?),
    };
    let tid = match tid {
        Some(tid) => Some(Tid::new(tid)?),
        None => None,
    };
    let close = open + text[open..].find(']')?;
    let cpu = text[open + 1..close].parse().ok().and_then(Cpu::new)?;
    let rest = text[close + 1..].trim_start();
    let (time, rest) = rest.split_once(": ")?;
    let rest = rest.trim_start();
    // `group:event: fields`, or `NAME fields` for records of the tool itself.
    let end = rest.find(": ").or_else(|| rest.ends_with(':').then(|| rest.len() - 1));
    let (event, fields) = match end {
        Some(end) if !rest[..end].contains(' ') => (&rest[..end], rest[end + 1..].trim()),
        _ => rest.split_once(' ').unwrap_or((rest, "")),
    };
    Some(Line { pid, tid, cpu, time: seconds(time)?, event, fields })
}

/// A thread's number, which is -1 when perf does not know it.
#[expect(clippy::option_option, reason = "not a number at all, or the number of no thread")]
fn number(text: &str) -> Option<Option<u32>> {
    if text == "-1" { Some(None) } else { text.parse().ok().map(Some) }
}

/// Seconds with a fraction, as nanoseconds.
#[must_use]
pub fn seconds(text: &str) -> Option<u64> {
    const DIGITS: usize = 9;
    let (whole, fraction) = text.split_once('.')?;
    if fraction.is_empty()
        || fraction.len() > DIGITS
        || !fraction.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let nanos = fraction.parse::<u64>().ok()? * 10u64.pow((DIGITS - fraction.len()) as u32);
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// A line's event: `Ok(None)` for one we do not use.
///
/// # Errors
///
/// What was expected, for a line that is no event and for one whose fields are not as they should
/// be.
pub fn sample(text: &str) -> Result<Option<Sample>, &'static str> {
    let line = line(text).ok_or("`comm pid/tid [cpu] time: event: fields`")?;
    let seen = fields::what(line.event, line.fields)?;
    Ok(seen.map(|seen| Sample {
        time: line.time,
        cpu: line.cpu,
        tid: line.tid,
        pid: line.pid,
        seen,
    }))
}

impl Seen {
    /// A step of a flush.
    #[must_use]
    pub const fn flush(step: FlushStep, extent: Extent) -> Self {
        Self::Plain(What::Flush { step, extent })
    }

    /// Entering a memory system call.
    #[must_use]
    pub const fn enter(args: CallArgs) -> Self {
        Self::Plain(What::Enter(args))
    }
}

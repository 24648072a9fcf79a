//! What each CPU did lately, in rings of fixed size, for the story that a violation report tells.

use std::fmt;

use shootdown::{CpuId, Tag, VaRange};

use crate::mmu::Root;

/// Something worth telling. Times are kept beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A root was loaded.
    Load {
        /// The tables.
        root: Root,
        /// The tag.
        tag: Tag,
        /// With the tag's entries kept.
        keep: bool,
    },
    /// A table entry was changed in a way that takes something away.
    Revoke {
        /// Whose tables.
        root: Root,
        /// The first address concerned.
        va: u64,
    },
    /// A flush began.
    FlushBegins {
        /// Whose entries; `None` for everyone's.
        root: Option<Root>,
        /// Which addresses; `None` for all.
        range: Option<VaRange>,
        /// Table pages go away too.
        freed_tables: bool,
    },
    /// A flush returned to its caller.
    FlushReturns,
    /// A range was invalidated on this CPU.
    InvalidateRange {
        /// Under this tag.
        tag: Tag,
        /// These addresses.
        range: VaRange,
    },
    /// A whole tag was invalidated on this CPU.
    InvalidateTag(Tag),
    /// Kernel addresses were invalidated on this CPU.
    InvalidateKernel(VaRange),
    /// Everything was invalidated on this CPU.
    InvalidateEverything,
    /// An interrupt was sent.
    Kick {
        /// How many CPUs.
        targets: u32,
        /// The first of them.
        first: CpuId,
    },
    /// The interrupt handler began.
    InterruptBegins,
    /// The interrupt handler ended.
    InterruptEnds,
    /// A page fault.
    Fault(u64),
    /// Memory was freed.
    Free(u64),
    /// Anything else, with a number that is not shown when it is 0.
    Note(&'static str, u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Load { root, tag, keep } => {
                let how = if keep { "keeping its entries" } else { "empty" };
                write!(f, "loads {root} under tag {}, {how}", tag.0)
            }
            Self::Revoke { root, va } => write!(f, "revokes {va:#x} in {root}"),
            Self::FlushBegins { root, range, freed_tables } => {
                f.write_str("flush of ")?;
                match root {
                    Some(root) => write!(f, "{root}")?,
                    None => f.write_str("everything")?,
                }
                if let Some(range) = range {
                    write!(f, " {}", Range(range))?;
                }
                f.write_str(if freed_tables { ", tables freed, begins" } else { " begins" })
            }
            Self::FlushReturns => f.write_str("flush returns"),
            Self::InvalidateRange { tag, range } => {
                write!(f, "invalidates {} under tag {}", Range(range), tag.0)
            }
            Self::InvalidateTag(tag) => write!(f, "invalidates tag {}", tag.0),
            Self::InvalidateKernel(range) => {
                write!(f, "invalidates kernel addresses {}", Range(range))
            }
            Self::InvalidateEverything => f.write_str("invalidates everything"),
            Self::Kick { targets, first } => write!(f, "interrupts {targets} CPUs from {first} on"),
            Self::InterruptBegins => f.write_str("interrupt begins"),
            Self::InterruptEnds => f.write_str("interrupt ends"),
            Self::Fault(va) => write!(f, "faults at {va:#x}"),
            Self::Free(frame) => write!(f, "frees frame {frame:#x}"),
            Self::Note(what, 0) => f.write_str(what),
            Self::Note(what, number) => write!(f, "{what} {number}"),
        }
    }
}

struct Range(VaRange);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strides = if self.0.count() == 1 { "stride" } else { "strides" };
        write!(f, "{:#x}..={:#x} ({} {strides})", self.0.start(), self.0.last(), self.0.count())
    }
}

/// How many events a CPU remembers.
const REMEMBERED: usize = 32;
/// How many lines a report shows.
const SHOWN: usize = 60;

/// One CPU's recent events.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Grows to [`REMEMBERED`], then the oldest is overwritten.
    ring: Vec<(u64, Event)>,
    next: usize,
}

impl Timeline {
    /// Remembers an event; `at` is virtual time in picoseconds.
    pub fn push(&mut self, at: u64, event: Event) {
        if self.ring.len() < REMEMBERED {
            self.ring.push((at, event));
        } else {
            self.ring[self.next] = (at, event);
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// The events, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &(u64, Event)> {
        let (newer, older) = self.ring.split_at(self.next);
        older.iter().chain(newer)
    }
}

/// The timelines of all CPUs.
#[derive(Debug)]
pub struct Timelines {
    cpus: Vec<Timeline>,
}

impl Timelines {
    /// For CPUs 0 to `cpus - 1`.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self { cpus: std::iter::repeat_with(Timeline::default).take(cpus).collect() }
    }

    /// Remembers an event of a CPU. Unknown CPUs are ignored: a story must not stop a run.
    #[inline]
    pub fn push(&mut self, cpu: CpuId, at: u64, event: Event) {
        if let Some(timeline) = self.cpus.get_mut(cpu.index()) {
            timeline.push(at, event);
        }
    }

    /// One CPU's.
    #[must_use]
    pub fn of(&self, cpu: CpuId) -> Option<&Timeline> {
        self.cpus.get(cpu.index())
    }

    /// The latest events of these CPUs together, oldest first, one per line.
    #[must_use]
    pub fn render(&self, cpus: &[CpuId]) -> String {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let mut lines: Vec<(u64, CpuId, &Event)> = Vec::new();
        for cpu in cpus {
            if let Some(timeline) = self.of(cpu) {
                lines.extend(timeline.iter().map(|(at, event)| (*at, cpu, event)));
            }
        }
        // Stable: events of one CPU at one time stay in their order.
        lines.sort_by_key(|(at, cpu, _)| (*at, *cpu));
        let skipped = lines.len().saturating_sub(SHOWN);
        let mut text = String::new();
        for (at, cpu, event) in &lines[skipped..] {
            text.push_str(&format!(
                "  {:>14.3} ns  {:<8} {event}\n",
                *at as f64 / 1000.0,
                cpu.to_string()
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_keeps_the_latest_events_in_order() {
        let mut lines = Timelines::new(2);
        for i in 0..100 {
            lines.push(CpuId(1), i * 1000, Event::Note("step", i));
        }
        lines.push(CpuId(0), 98_500, Event::FlushReturns);
        lines.push(CpuId(7), 0, Event::FlushReturns);
        let kept: Vec<_> = lines.of(CpuId(1)).unwrap().iter().map(|(at, _)| at / 1000).collect();
        assert_eq!(kept, (68..100).collect::<Vec<_>>());
        let text = lines.render(&[CpuId(1), CpuId(0), CpuId(1)]);
        let tail: Vec<_> = text.lines().rev().take(3).collect();
        assert!(
            tail[0].contains("step 99")
                && tail[1].contains("flush returns")
                && tail[2].contains("step 98")
        );
    }
}

//! Switches that the tracer did not see (R6).

use std::collections::BTreeMap;

use crate::recording::model::{Cpu, Event, FlushStep, Tid, What};

/// Fills in the time of unseen switches.
#[derive(Debug, Default)]
pub struct Unseen {
    running: BTreeMap<Cpu, Tid>,
    last: BTreeMap<Cpu, u64>,
    woken: BTreeMap<Tid, u64>,
    quiet: u64,
}

impl Unseen {
    /// Learns from a recording how long a thread that came to an idle CPU does nothing that is
    /// recorded.
    pub fn learn(events: &[Event]) -> Self {
        let mut arrived: BTreeMap<Cpu, u64> = BTreeMap::new();
        let mut quiet = Vec::new();
        for event in events {
            match event.what {
                What::Task { .. } | What::Flush { step: FlushStep::Switch, .. } => {}
                _ => quiet.extend(arrived.remove(&event.cpu).map(|at| event.time - at)),
            }
            if let What::Switch { next, .. } = event.what
                && event.tid == Tid::IDLE
                && next != Tid::IDLE
            {
                arrived.insert(event.cpu, event.time);
            }
        }
        quiet.sort_unstable();
        let quiet = quiet.get(quiet.len() / 2).copied().unwrap_or(0);
        Self { quiet, ..Self::default() }
    }

    /// Takes the next event; when its thread must have been switched to unseen, the time at which
    /// it was.
    pub fn before(&mut self, event: &Event) -> Option<u64> {
        let Event { time, cpu, tid, ref what } = *event;
        if let What::Task { .. } = what {
            return None;
        }
        let unseen = self.running.get(&cpu).is_some_and(|running| *running != tid).then(|| {
            let runnable = self.woken.get(&tid).copied().unwrap_or(0);
            let last = self.last.get(&cpu).copied().unwrap_or(0);
            time.saturating_sub(self.quiet).max(runnable).max(last)
        });
        self.woken.remove(&tid);
        match *what {
            What::Switch { next, .. } => {
                self.running.insert(cpu, next);
                self.woken.remove(&next);
            }
            What::Wakeup { task } => {
                self.running.insert(cpu, tid);
                self.woken.insert(task, time);
            }
            _ => {
                self.running.insert(cpu, tid);
            }
        }
        self.last.insert(cpu, time);
        unseen
    }
}

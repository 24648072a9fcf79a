//! Switches that the tracer did not see (R6).

use std::collections::BTreeMap;

use crate::recording::model::{Cpu, Event, Tid, What};

/// Fills in the time of unseen switches.
#[derive(Debug, Default)]
pub struct Unseen {
    running: BTreeMap<Cpu, Tid>,
    last: BTreeMap<Cpu, u64>,
    woken: BTreeMap<Tid, u64>,
    latency: u64,
}

impl Unseen {
    /// Learns from a recording how long a thread takes from being runnable to running on an idle CPU.
    pub fn learn(events: &[Event]) -> Self {
        let mut woken: BTreeMap<Tid, u64> = BTreeMap::new();
        let mut latencies = Vec::new();
        for event in events {
            match event.what {
                What::Wakeup { task } => {
                    woken.insert(task, event.time);
                }
                What::Switch { next, .. } => {
                    let since = woken.remove(&next).map(|at| event.time - at);
                    latencies.extend(since.filter(|_| event.tid == Tid::IDLE));
                }
                _ => {}
            }
        }
        latencies.sort_unstable();
        let latency = latencies.get(latencies.len() / 2).copied().unwrap_or(0);
        Self { latency, ..Self::default() }
    }

    /// Takes the next event; when its thread must have been switched to unseen, the time at which it was.
    pub fn before(&mut self, event: &Event) -> Option<u64> {
        let Event { time, cpu, tid, ref what } = *event;
        if let What::Task { .. } = what {
            return None;
        }
        let unseen = self.running.get(&cpu).is_some_and(|running| *running != tid).then(|| {
            let runnable = self.woken.get(&tid).map_or(time, |at| at + self.latency);
            let last = self.last.get(&cpu).copied().unwrap_or(0);
            runnable.max(last).min(time)
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

//! The moment an `exec` gives a thread its new space.

use std::collections::BTreeSet;

use crate::recording::model::{Cpu, Event, FlushStep, Tid, What};

/// Indexes of the events at which a thread gets a new space: for each `Exec`, the load of a space
/// that no context switch explains and that nothing of the program separates from it; without one,
/// itself.
pub fn activations(events: &[Event]) -> BTreeSet<usize> {
    let unexplained = unexplained_loads(events);
    let mut found = BTreeSet::new();
    // Threads whose `Exec` lies ahead, with its index.
    let mut ahead: Vec<(Tid, usize)> = Vec::new();
    for (index, event) in events.iter().enumerate().rev() {
        let waiting = ahead.iter().position(|(tid, _)| *tid == event.tid);
        match (&event.what, waiting) {
            (What::Exec, earlier) => {
                found.extend(earlier.map(|at| ahead.swap_remove(at).1));
                ahead.push((event.tid, index));
            }
            (What::Flush { step: FlushStep::Switch, .. }, Some(at))
                if unexplained.contains(&index) =>
            {
                ahead.swap_remove(at);
                found.insert(index);
            }
            (What::Enter(_) | What::Leave { .. } | What::Fault { .. }, Some(at)) => {
                found.insert(ahead.swap_remove(at).1);
            }
            _ => {}
        }
    }
    found.extend(ahead.into_iter().map(|(_, index)| index));
    found
}

/// Loads that are not the first thing on their CPU after a context switch.
fn unexplained_loads(events: &[Event]) -> BTreeSet<usize> {
    let mut switched: BTreeSet<Cpu> = BTreeSet::new();
    let mut found = BTreeSet::new();
    for (index, event) in events.iter().enumerate() {
        match event.what {
            What::Task { .. } => {}
            What::Switch { .. } => {
                switched.insert(event.cpu);
            }
            What::Flush { step: FlushStep::Switch, .. } => {
                if !switched.remove(&event.cpu) {
                    found.insert(index);
                }
            }
            _ => {
                switched.remove(&event.cpu);
            }
        }
    }
    found
}

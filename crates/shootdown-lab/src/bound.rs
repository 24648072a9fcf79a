//! What no policy of interrupts can beat: the `omniscient` bound.
//!
//! It knows which CPUs hold entries, sends one multicast, and nothing it does is serialized: not
//! the sending, not the answering, not the lines they travel on. Computed from the profile alone:
//!
//! latency = max(local invalidation, send + longest delivery + interrupt entry + invalidation +
//! longest acknowledgement), responder CPU time = targets x (interrupt entry + invalidation +
//! interrupt exit).
//!
//! One thing can come below it: acknowledging a leaf change *before* invalidating (the handler
//! makes no user access in between), which takes the remote invalidation out of the wait. The bound
//! includes it, because the word "invalidated" in its definition is meant literally.

use shootdown_machine::Time;
use shootdown_machine::profile::{Costs, Topology};

/// Cost of one flush under the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// From the request to its completion, on the initiator.
    pub latency: Time,
    /// Taken from all targets together.
    pub responder: Time,
}

/// How far apart two CPUs are: the cost of a line and of an interrupt between them.
fn apart(costs: &Costs, topology: &Topology, a: u32, b: u32) -> (Time, Time) {
    if topology.socket(a) == topology.socket(b) {
        let line = if topology.core(a) == topology.core(b) {
            costs.line_smt
        } else if topology.cache(a) == topology.cache(b) {
            costs.line_same
        } else {
            costs.line_cross
        };
        (line, costs.ipi_same)
    } else if topology.group(a) == topology.group(b) {
        (costs.line_cross, costs.ipi_cross)
    } else {
        (costs.line_far, costs.ipi_far)
    }
}

/// Invalidating `pages` pages on one CPU: page by page up to the ceiling, the whole tag beyond.
#[must_use]
pub fn invalidation(costs: &Costs, pages: u64, ceiling: u64) -> Time {
    if pages <= ceiling { costs.page * pages } else { costs.tag }
}

/// One flush of `pages` pages from `initiator` to `targets`.
#[must_use]
pub fn flush(
    costs: &Costs,
    topology: &Topology,
    initiator: u32,
    targets: impl IntoIterator<Item = u32>,
    pages: u64,
    ceiling: u64,
) -> Bound {
    let work = invalidation(costs, pages, ceiling);
    let mut delivery = Time::ZERO;
    let mut acknowledgement = Time::ZERO;
    let mut count = 0;
    for target in targets {
        let (line, interrupt) = apart(costs, topology, initiator, target);
        delivery = delivery.max(interrupt);
        acknowledgement = acknowledgement.max(line);
        count += 1;
    }
    if count == 0 {
        return Bound { latency: work, responder: Time::ZERO };
    }
    let remote = costs.ipi_send + delivery + costs.irq_entry + work + acknowledgement;
    Bound {
        latency: remote.max(work),
        responder: (costs.irq_entry + work + costs.irq_exit) * count,
    }
}

#[cfg(test)]
mod tests {
    use shootdown_machine::Profile;

    use super::*;

    #[test]
    fn the_bound_grows_with_distance_and_not_with_the_number_of_targets() {
        let profile = Profile::named("generic-4096").unwrap();
        let (costs, topology) = (profile.costs(false), profile.topology(4096));
        let near = flush(&costs, &topology, 0, 1..2, 1, 33);
        let many = flush(&costs, &topology, 0, 1..64, 1, 33);
        let far = flush(&costs, &topology, 0, 1..4096, 1, 33);
        assert_eq!(near.latency.max(many.latency), many.latency);
        assert!(far.latency > many.latency);
        assert_eq!(far.responder, near.responder * 4095);
        assert_eq!(flush(&costs, &topology, 0, [], 3, 33).latency, costs.page * 3);
    }
}

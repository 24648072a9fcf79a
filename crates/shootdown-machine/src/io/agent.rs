//! What happens when: the coroutine of all hardware.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::queue::Descriptor;
use super::{State, port, with};
use crate::engine;
use crate::time::Time;

/// Something that hardware does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// The IOMMU fetches its next command.
    Fetch,
    /// It is done with it.
    Executed,
    /// The network card does something.
    Nic(super::nic::Event),
    /// The drives do something.
    Nvme(super::nvme::Event),
    /// The hostile device tries something.
    Try,
}

/// What is to happen, in the order of time; of the same time, as it was asked for.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    asked: u64,
}

impl Events {
    /// At `at` (ps).
    pub fn push(&mut self, at: u64, event: Event) {
        self.asked += 1;
        self.heap.push(Reverse((at, self.asked, event)));
    }

    fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    fn pop(&mut self, now: u64) -> Option<Event> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse((.., event))| event)
    }
}

/// Is the hardware, until all CPUs have [left](super::leave). The program of the CPU behind the
/// last that uses it.
pub fn serve(_: &mut crate::Cpu) {
    while !with(|s| s.left == s.setup.cpus) {
        let next = with(|s| s.events.next());
        let now = engine::agent::sleep(next.map_or(Time::NEVER, Time::from_ps)).ps();
        while let Some(event) = with(|s| s.events.pop(now)) {
            super::checked(with(|s| s.happen(now, event)));
        }
    }
}

impl State {
    fn happen(&mut self, now: u64, event: Event) -> Result<(), crate::oracle::devices::Finding> {
        match event {
            Event::Fetch => self.fetch(now),
            Event::Executed => self.executed(now),
            Event::Nic(_) | Event::Nvme(_) | Event::Try if self.stopped => {}
            Event::Nic(event) => self.nic_does(now, event),
            Event::Nvme(event) => self.nvme_does(now, event),
            Event::Try => return self.hostile_tries(now),
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<Descriptor> {
        Descriptor::decode(port::read_slot(self.commands.ring, self.commands.head))
    }

    /// The next command, if there is one.
    fn fetch(&mut self, now: u64) {
        if self.commands.head == self.commands.tail {
            self.commands.busy = false;
            return;
        }
        match self.descriptor() {
            Some(descriptor) => {
                let service = descriptor.service(&self.setup.costs.iommu).ps();
                self.events.push(now + service, Event::Executed);
            }
            None => {
                self.commands.busy = false;
                self.commands.stopped = true;
            }
        }
    }

    /// The command at the head takes effect.
    fn executed(&mut self, now: u64) {
        match self.descriptor() {
            Some(Descriptor::Forget(command)) => {
                self.iommu.execute(command);
                self.commands.drained = self.landing;
            }
            // Accesses that it is to drain are under way.
            Some(Descriptor::Wait { .. }) if now < self.commands.drained => {
                return self.events.push(self.commands.drained, Event::Executed);
            }
            Some(Descriptor::Wait { address, status }) => {
                self.iommu.counts_mut().waits += 1;
                port::store_status(self.commands.status, address, status);
            }
            // The software has changed it meanwhile; the fetch is made again.
            None => return self.fetch(now),
        }
        self.commands.head = (self.commands.head + 1) & (self.commands.slots - 1);
        self.fetch(now);
    }
}

//! A network card: a pair of queues for each CPU, descriptors and buffers behind the IOMMU,
//! moderated interrupts.
//!
//! A connection's requests go to one queue (receive-side scaling). The card fetches descriptors of
//! receive buffers in advance, some at a time. A request that comes takes the next of them: the
//! card writes the packet and, in the descriptor's place, the completion, and interrupts if the
//! driver waits and the last interrupt is long enough ago. When the driver has rung to send, the
//! card reads the descriptors, then each answer, writes the completion, and the other side's next
//! request is on its way. Each direction does one packet after the other at the rate of the
//! profile; what is under way overlaps. Completions of a queue come in order.
//!
//! Each of these accesses is translated when it is made: what one waits for is not asked for
//! before. So a miss is later first, and dear only when the IOMMU has no walker left.

use std::collections::VecDeque;

use shootdown_dma::DmaAddr;

use super::agent::Event as Any;
use super::{Setup, State, look, with};
use crate::time::Time;
use crate::{engine, kernel};

/// Connections' addresses of buffers, in bytes.
type At = u64;

/// Something that the card does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// It looks if there are descriptors to be fetched.
    Looks { queue: u32 },
    /// So many have come.
    Fetched { queue: u32, count: u32 },
    /// A request comes.
    Arrives { connection: u32 },
    /// It is written to a buffer.
    Writes { connection: u32, at: At },
    /// It is there, and its completion.
    Landed { connection: u32, at: At },
    /// The driver has rung.
    Rung { queue: u32 },
    /// The card knows of an answer.
    Known { connection: u32, at: At },
    /// It is read.
    Reads { connection: u32, at: At },
    /// It has been read, and leaves.
    Leaves { connection: u32, at: At },
    /// Its completion is there.
    Left { connection: u32, at: At },
    /// An interrupt that was put off is due.
    Interrupt { queue: u32 },
}

/// A request, as the driver finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Of which connection.
    pub connection: u32,
    /// In which buffer.
    pub at: DmaAddr,
}

/// What the card has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NicCounts {
    /// Requests written.
    pub received: u64,
    /// Answers that have left.
    pub sent: u64,
    /// Requests that found no buffer posted, and waited.
    pub starved: u64,
    /// Packets lost because the IOMMU refused.
    pub lost: u64,
    /// Interrupts.
    pub interrupts: u64,
}

#[derive(Default)]
struct Queue {
    /// Where its descriptors are, to receive and to send.
    rings: [At; 2],
    posted: VecDeque<At>,
    /// Buffers whose descriptors the card has.
    fetched: VecDeque<At>,
    /// Descriptors are on their way.
    fetching: bool,
    /// Requests that wait for a buffer.
    starved: VecDeque<u32>,
    received: VecDeque<Received>,
    to_send: VecDeque<(u32, At)>,
    sent: VecDeque<At>,
    /// The driver waits for an interrupt.
    armed: bool,
    /// One is put off.
    put_off: bool,
    /// When the next may be, ps.
    quiet_until: u64,
    /// When its last completions come, ps.
    last: [u64; 2],
}

pub(super) struct Nic {
    queues: Vec<Queue>,
    /// When a direction is done with its last packet, ps.
    free: [u64; 2],
    draws: u64,
    pub counts: NicCounts,
}

const RECEIVE: usize = 0;
const SEND: usize = 1;

impl Nic {
    pub fn new(setup: &Setup) -> Self {
        let queues = (0..setup.cpus).map(|_| Queue::default()).collect();
        Self { queues, free: [0; 2], draws: 0, counts: NicCounts::default() }
    }

    #[allow(clippy::cast_possible_truncation)] // at most 4096 CPUs
    fn queue_of(&self, connection: u32) -> usize {
        (connection % self.queues.len() as u32) as usize
    }
}

impl State {
    /// The time on the other side: the profile's, and up to an eighth more or less, or all
    /// connections would fall into step.
    fn remote(&mut self) -> u64 {
        self.nic.draws += 1;
        let all = self.setup.costs.nic.remote.ps();
        let spread = (all / 4).max(1);
        all - spread / 2 + super::draw(self.setup.seed, self.nic.draws) % spread
    }

    /// The card's turn in a direction: when it begins with the packet.
    fn turn(&mut self, direction: usize, now: u64) -> u64 {
        let begins = now.max(self.nic.free[direction]);
        self.nic.free[direction] = begins + self.setup.costs.nic.packet.ps();
        begins
    }

    /// An access of the card: when it can be made. `None`: a fault, and the packet is lost.
    fn reach(&mut self, now: u64, at: At, write: bool) -> Option<u64> {
        let found = self.translate(now, at, write);
        self.nic.counts.lost += u64::from(found.is_none());
        found
    }

    /// The page of the descriptors of a connection's queue.
    fn ring_of(&self, connection: u32, direction: usize) -> At {
        self.nic.queues[self.nic.queue_of(connection)].rings[direction]
    }

    /// Fetches descriptors of receive buffers, if there are enough to be worth it, or none is left.
    fn fetch_ahead(&mut self, now: u64, number: u32) {
        let costs = self.setup.costs.nic;
        let queue = &self.nic.queues[number as usize];
        let room = (costs.ahead as usize).saturating_sub(queue.fetched.len());
        let count = queue.posted.len().min(room);
        let least = if queue.fetched.is_empty() { 1 } else { costs.least as usize };
        if queue.fetching || count < least {
            return;
        }
        let ring = queue.rings[RECEIVE];
        let Some(ready) = self.reach(now, ring, false) else { return };
        self.nic.queues[number as usize].fetching = true;
        let comes = self.lands(ready + costs.read.ps());
        #[allow(clippy::cast_possible_truncation)] // at most `ahead`
        self.nic_at(comes, Event::Fetched { queue: number, count: count as u32 });
    }

    pub(super) fn nic_does(&mut self, now: u64, event: Event) {
        let costs = self.setup.costs.nic;
        match event {
            Event::Looks { queue } => self.fetch_ahead(now, queue),
            Event::Fetched { queue: number, count } => {
                let queue = &mut self.nic.queues[number as usize];
                queue.fetching = false;
                queue.fetched.extend(queue.posted.drain(..count as usize));
                let waiting = queue.starved.len().min(count as usize);
                for connection in queue.starved.drain(..waiting).collect::<Vec<_>>() {
                    self.nic_at(now, Event::Arrives { connection });
                }
                self.fetch_ahead(now, number);
            }
            Event::Arrives { connection } => {
                let number = self.nic.queue_of(connection);
                let queue = &mut self.nic.queues[number];
                if let Some(at) = queue.fetched.pop_front() {
                    let begins = self.turn(RECEIVE, now);
                    self.nic_at(begins, Event::Writes { connection, at });
                } else {
                    self.nic.counts.starved += u64::from(queue.posted.is_empty());
                    queue.starved.push_back(connection);
                }
                #[allow(clippy::cast_possible_truncation)] // at most 4096 CPUs
                self.fetch_ahead(now, number as u32);
            }
            Event::Writes { connection, at } => {
                // Writes follow each other without waiting, and land in order.
                let Some(packet) = self.reach(now, at, true) else { return };
                let ring = self.ring_of(connection, RECEIVE);
                let Some(completion) = self.reach(now, ring, true) else { return };
                let lands = packet.max(completion) + costs.write.ps();
                let landed = self.complete(RECEIVE, connection, lands);
                self.nic_at(landed, Event::Landed { connection, at });
            }
            Event::Landed { connection, at } => {
                self.nic.counts.received += 1;
                let queue = self.nic.queue_of(connection);
                let received = Received { connection, at: DmaAddr(at) };
                self.nic.queues[queue].received.push_back(received);
                self.interrupt(now, queue);
            }
            Event::Rung { queue } => {
                // The descriptors of all that are to be sent come together.
                let number = queue as usize;
                let rung = std::mem::take(&mut self.nic.queues[number].to_send);
                if rung.is_empty() {
                    return;
                }
                let ring = self.nic.queues[number].rings[SEND];
                let Some(ready) = self.reach(now, ring, false) else { return };
                let known = self.lands(ready + costs.read.ps());
                for (connection, at) in rung {
                    self.nic_at(known, Event::Known { connection, at });
                }
            }
            Event::Known { connection, at } => {
                let begins = self.turn(SEND, now);
                self.nic_at(begins, Event::Reads { connection, at });
            }
            Event::Reads { connection, at } => {
                let Some(ready) = self.reach(now, at, false) else { return };
                let read = self.lands(ready + costs.read.ps());
                self.nic_at(read, Event::Leaves { connection, at });
            }
            Event::Leaves { connection, at } => {
                let next = now + self.remote();
                self.nic_at(next, Event::Arrives { connection });
                let ring = self.ring_of(connection, SEND);
                let Some(ready) = self.reach(now, ring, true) else { return };
                let left = self.complete(SEND, connection, ready + costs.write.ps());
                self.nic_at(left, Event::Left { connection, at });
            }
            Event::Left { connection, at } => {
                self.nic.counts.sent += 1;
                let queue = self.nic.queue_of(connection);
                self.nic.queues[queue].sent.push_back(at);
                if self.nic.queues[queue].sent.len() >= costs.sent as usize {
                    self.interrupt(now, queue);
                }
            }
            Event::Interrupt { queue } => {
                let queue = queue as usize;
                self.nic.queues[queue].put_off = false;
                if !self.nic.queues[queue].received.is_empty() {
                    self.interrupt(now, queue);
                }
            }
        }
    }

    /// A completion lands at `at`: those of a queue come in order.
    fn complete(&mut self, direction: usize, connection: u32, at: u64) -> u64 {
        let at = self.lands(at);
        let queue = self.nic.queue_of(connection);
        let last = &mut self.nic.queues[queue].last[direction];
        *last = at.max(*last);
        *last
    }

    fn nic_at(&mut self, at: u64, event: Event) {
        self.events.push(at, Any::Nic(event));
    }

    /// Interrupts the CPU of a queue, if it waits for that.
    fn interrupt(&mut self, now: u64, number: usize) {
        let costs = self.setup.costs.nic;
        let queue = &mut self.nic.queues[number];
        if !queue.armed {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // at most 4096 CPUs
        let cpu = number as u32;
        if now < queue.quiet_until {
            if !std::mem::replace(&mut queue.put_off, true) {
                let at = queue.quiet_until;
                self.nic_at(at, Event::Interrupt { queue: cpu });
            }
            return;
        }
        queue.armed = false;
        queue.quiet_until = now + costs.moderation.ps();
        self.nic.counts.interrupts += 1;
        engine::agent::message(cpu, Time::from_ps(now + costs.interrupt.ps()));
    }

    fn ring_nic(&mut self, event: Event, at: Time) -> (u32, Time) {
        let at = Time::from_ps(at.ps() + self.setup.costs.nic.travel.ps());
        self.nic_at(at.ps(), event);
        (self.setup.cpus, at)
    }
}

/// The driver tells the card where the descriptors of a CPU's queues are.
pub fn set_rings(cpu: u32, receive: DmaAddr, send: DmaAddr) {
    with(|s| s.nic.queues[cpu as usize].rings = [receive.0, send.0]);
}

/// The driver posts a receive buffer. (Its descriptor is in the CPU's cache; the card finds it by
/// itself.)
pub fn post(cpu: u32, at: DmaAddr) {
    engine::step();
    let rouses = with(|s| {
        let queue = &mut s.nic.queues[cpu as usize];
        queue.posted.push_back(at.0);
        if queue.starved.is_empty() {
            return None;
        }
        Some(s.ring_nic(Event::Looks { queue: cpu }, engine::now()))
    });
    if let Some((agent, at)) = rouses {
        engine::agent::rouse(agent, at);
    }
}

/// The other side begins: each connection has its first request on the way.
pub fn begin(connections: u32) {
    engine::step();
    let now = engine::now().ps();
    let (agent, first) = with(|s| {
        let mut first = u64::MAX;
        for connection in 0..connections {
            let at = now + s.remote();
            first = first.min(at);
            s.nic_at(at, Event::Arrives { connection });
        }
        (s.setup.cpus, first)
    });
    engine::agent::rouse(agent, Time::from_ps(first));
}

/// The driver looks for a request: the card has written the completion, so that the line comes from
/// the last-level cache.
#[must_use]
pub fn receive(cpu: u32) -> Option<Received> {
    look(|s| s.nic.queues[cpu as usize].received.pop_front())
}

/// The driver looks for an answer that has left, whose buffer it may unmap.
#[must_use]
pub fn reclaim(cpu: u32) -> Option<DmaAddr> {
    look(|s| s.nic.queues[cpu as usize].sent.pop_front().map(DmaAddr))
}

/// The driver has an answer sent.
pub fn send(cpu: u32, connection: u32, at: DmaAddr) {
    engine::charge(with(|s| s.setup.costs.nic.doorbell));
    engine::step();
    let (agent, at) = with(|s| {
        s.nic.queues[cpu as usize].to_send.push_back((connection, at.0));
        s.ring_nic(Event::Rung { queue: cpu }, engine::now())
    });
    engine::agent::rouse(agent, at);
}

/// Nothing is to do: the driver has the card interrupt, and waits for that, or until then.
pub fn wait(cpu: u32, until: Time) {
    engine::step();
    let waits = with(|s| {
        let queue = &mut s.nic.queues[cpu as usize];
        queue.armed = queue.received.is_empty() && !s.stopped;
        queue.armed
    });
    if waits {
        kernel::idle(until);
        with(|s| s.nic.queues[cpu as usize].armed = false);
    }
}

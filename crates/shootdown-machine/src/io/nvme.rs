//! Drives behind one IOMMU, as one device: a pair of queues in memory for each CPU, lists of pages,
//! completions in any order.
//!
//! The driver writes a read's entry into the submission queue and rings. The device fetches the
//! entries of all that were rung for together; it takes one command after the other, and reads the
//! medium for so many at a time. Where the data go is in the entry (NVMe's *PRP*): one page, two,
//! or one and the address of a list of the others, which the device reads meanwhile. The
//! data go over the link page by page, each written when it has been translated; then the
//! completion is written, and if the driver waits it is interrupted.
//!
//! All drives are one controller, one medium and one link, as fast as they are together (the
//! profile's `nvme`). Each access is translated when it is made.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use shootdown_dma::DmaAddr;

use super::agent::Event as Any;
use super::{Setup, State, with};
use crate::profile::NvmeCosts;
use crate::time::Time;
use crate::{engine, kernel};

/// Something that the device does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// The driver has rung.
    Rung { queue: u32 },
    /// An entry has come.
    Known { queue: u32, tag: u32 },
    /// The controller begins with it.
    Begins { queue: u32, tag: u32 },
    /// The data are there, and it is known where they go.
    Found { queue: u32, tag: u32 },
    /// A page of them goes over the link.
    Page { queue: u32, tag: u32, number: u32 },
    /// The completion is written.
    Completes { queue: u32, tag: u32 },
    /// It is there.
    Done { queue: u32, tag: u32 },
}

/// A read, as its entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// What the driver calls it; below the queue's depth.
    pub tag: u32,
    /// Where the data go: as many pages, in a row.
    pub at: DmaAddr,
    /// How many.
    pub pages: u32,
    /// Where the list is that says so, if there are more than two.
    pub list: Option<DmaAddr>,
}

/// What the device has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NvmeCounts {
    /// Reads complete.
    pub reads: u64,
    /// Pages written.
    pub pages: u64,
    /// Accesses that the IOMMU refused.
    pub lost: u64,
    /// Interrupts.
    pub interrupts: u64,
}

struct Queue {
    /// Where its entries are, and where completions go.
    rings: [u64; 2],
    submitted: VecDeque<u32>,
    /// By tag: the read, and when the last of its data has landed, ps.
    reads: Vec<Option<(Read, u64)>>,
    completed: VecDeque<u32>,
    /// The driver waits for an interrupt.
    armed: bool,
}

pub(super) struct Nvme {
    queues: Vec<Queue>,
    /// When the controller is done with its last command, ps.
    controller: u64,
    /// When the link has sent its last page, ps.
    link: u64,
    /// When each read of the medium is over, ps: the first to end on top.
    channels: BinaryHeap<Reverse<u64>>,
    pub counts: NvmeCounts,
}

const SUBMISSIONS: usize = 0;
const COMPLETIONS: usize = 1;

impl Nvme {
    pub fn new(setup: &Setup) -> Self {
        let NvmeCosts { depth, channels, .. } = setup.costs.nvme;
        let queue = || Queue {
            rings: [0; 2],
            submitted: VecDeque::new(),
            reads: vec![None; depth as usize],
            completed: VecDeque::new(),
            armed: false,
        };
        Self {
            queues: (0..setup.cpus).map(|_| queue()).collect(),
            controller: 0,
            link: 0,
            channels: (0..channels).map(|_| Reverse(0)).collect(),
            counts: NvmeCounts::default(),
        }
    }

    /// When what is free at `free` takes something on that comes now; it is busy for so long.
    fn turn(free: &mut u64, now: u64, length: Time) -> u64 {
        let begins = now.max(*free);
        *free = begins + length.ps();
        begins
    }

    fn read(&mut self, queue: u32, tag: u32) -> &mut (Read, u64) {
        self.queues[queue as usize].reads[tag as usize].as_mut().expect("it is under way")
    }
}

impl State {
    /// An access of the device: when it can be made. What is refused goes nowhere.
    fn nvme_reach(&mut self, now: u64, at: u64, write: bool) -> u64 {
        let found = self.translate(now, at, write);
        self.nvme.counts.lost += u64::from(found.is_none());
        found.unwrap_or(now)
    }

    fn nvme_at(&mut self, at: u64, event: Event) {
        self.events.push(at, Any::Nvme(event));
    }

    pub(super) fn nvme_does(&mut self, now: u64, event: Event) {
        let costs = self.setup.costs.nvme;
        match event {
            Event::Rung { queue } => {
                let rung = std::mem::take(&mut self.nvme.queues[queue as usize].submitted);
                if rung.is_empty() {
                    return;
                }
                let entries = self.nvme.queues[queue as usize].rings[SUBMISSIONS];
                let ready = self.nvme_reach(now, entries, false);
                let known = self.lands(ready + costs.read.ps());
                for tag in rung {
                    self.nvme_at(known, Event::Known { queue, tag });
                }
            }
            Event::Known { queue, tag } => {
                let begins = Nvme::turn(&mut self.nvme.controller, now, costs.command);
                self.nvme_at(begins, Event::Begins { queue, tag });
            }
            Event::Begins { queue, tag } => {
                let Reverse(free) = self.nvme.channels.pop().unwrap_or(Reverse(now));
                let found = now.max(free) + costs.medium.ps();
                self.nvme.channels.push(Reverse(found));
                let (read, _) = *self.nvme.read(queue, tag);
                let listed = read.list.map_or(now, |list| {
                    let ready = self.nvme_reach(now, list.0, false);
                    self.lands(ready + costs.read.ps())
                });
                self.nvme_at(found.max(listed), Event::Found { queue, tag });
            }
            Event::Found { queue, tag } => self.next_page(now, queue, tag, 0),
            Event::Page { queue, tag, number } => {
                let (read, _) = *self.nvme.read(queue, tag);
                let ready = self.nvme_reach(now, read.at.0 + (u64::from(number) << 12), true);
                let landed = self.lands(ready + costs.write.ps());
                self.nvme.counts.pages += 1;
                let (_, last) = self.nvme.read(queue, tag);
                *last = landed.max(*last);
                if number + 1 < read.pages {
                    self.next_page(now, queue, tag, number + 1);
                } else {
                    self.nvme_at(now, Event::Completes { queue, tag });
                }
            }
            Event::Completes { queue, tag } => {
                let ring = self.nvme.queues[queue as usize].rings[COMPLETIONS];
                let ready = self.nvme_reach(now, ring, true);
                // Writes land in order: the completion behind the data.
                let (_, landed) = *self.nvme.read(queue, tag);
                let done = self.lands(landed.max(ready + costs.write.ps()));
                self.nvme_at(done, Event::Done { queue, tag });
            }
            Event::Done { queue, tag } => {
                self.nvme.counts.reads += 1;
                let number = queue;
                let queue = &mut self.nvme.queues[number as usize];
                queue.reads[tag as usize] = None;
                queue.completed.push_back(tag);
                if std::mem::take(&mut queue.armed) {
                    self.nvme.counts.interrupts += 1;
                    engine::agent::message(number, Time::from_ps(now + costs.interrupt.ps()));
                }
            }
        }
    }

    fn next_page(&mut self, now: u64, queue: u32, tag: u32, number: u32) {
        let begins = Nvme::turn(&mut self.nvme.link, now, self.setup.costs.nvme.page);
        self.nvme_at(begins, Event::Page { queue, tag, number });
    }
}

/// The driver tells the device where a CPU's queues are.
pub fn set_queues(cpu: u32, submissions: DmaAddr, completions: DmaAddr) {
    with(|s| s.nvme.queues[cpu as usize].rings = [submissions.0, completions.0]);
}

/// The driver puts a read into its CPU's queue. (The entry is in the CPU's cache; [`ring`] tells
/// the device.)
///
/// # Panics
/// When the tag is in use, or above the queue's depth.
pub fn submit(cpu: u32, read: Read) {
    engine::step();
    with(|s| {
        let queue = &mut s.nvme.queues[cpu as usize];
        let place = &mut queue.reads[read.tag as usize];
        assert!(place.replace((read, 0)).is_none(), "one read for each tag");
        queue.submitted.push_back(read.tag);
    });
}

/// The driver rings, for all that was submitted.
pub fn ring(cpu: u32) {
    engine::charge(with(|s| s.setup.costs.nvme.doorbell));
    engine::step();
    let (agent, at) = with(|s| {
        let at = engine::now().ps() + s.setup.costs.nvme.travel.ps();
        s.nvme_at(at, Event::Rung { queue: cpu });
        (s.setup.cpus, at)
    });
    engine::agent::rouse(agent, Time::from_ps(at));
}

/// The driver looks for a completion, which the device has written: the line comes from the
/// last-level cache.
#[must_use]
pub fn completed(cpu: u32) -> Option<u32> {
    super::look(|s| s.nvme.queues[cpu as usize].completed.pop_front())
}

/// Nothing is to do: the driver has the device interrupt, and waits for that, or until then.
pub fn wait(cpu: u32, until: Time) {
    engine::step();
    let waits = with(|s| {
        let queue = &mut s.nvme.queues[cpu as usize];
        queue.armed = queue.completed.is_empty() && !s.stopped;
        queue.armed
    });
    if waits {
        kernel::idle(until);
        with(|s| s.nvme.queues[cpu as usize].armed = false);
    }
}

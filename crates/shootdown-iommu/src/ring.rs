//! A unit's ring of commands and its status word: the port of the library's queue.

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::{Port, Slot};
use shootdown_dma::sync::AtomicU64;
use shootdown_dma::{DeviceId, PhysAddr};

use crate::bus::{Bus, wait};
use crate::error::{Error, Step};
use crate::memory::{Memory, PAGE, Pages};

/// Bytes of a slot.
pub const SLOT: usize = 16;

/// The source of events of devices that do not acknowledge, if a unit has a log of them.
pub trait Timeouts: Sync {
    /// See [`Port::drain_events`].
    fn drain(&self, timed_out: &mut dyn FnMut(DeviceId));
}

/// No such log: the unit's registers report these devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NoLog;

impl Timeouts for NoLog {
    fn drain(&self, _: &mut dyn FnMut(DeviceId)) {}
}

/// The ring, its registers, and the status word. A copy is the same ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring<B, M, L = NoLog> {
    bus: B,
    memory: M,
    ring: PhysAddr,
    slots: usize,
    status: PhysAddr,
    log: L,
}

impl<B: Bus, M: Memory, L: Timeouts> Ring<B, M, L> {
    /// The ring in these pages, all of them, and the status word at the beginning of others. Both
    /// stay allocated as long as this is used: the unit keeps them.
    pub(crate) fn new(bus: B, memory: M, ring: &Pages<M>, status: &Pages<M>, log: L) -> Self {
        let slots = ring.words().len() / 2;
        Self { bus, memory, ring: ring.address(), slots, status: status.address(), log }
    }

    /// The address of the ring.
    pub(crate) const fn address(&self) -> PhysAddr {
        self.ring
    }

    /// The number of slots.
    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    /// Writes slots from the first on.
    pub(crate) fn fill(&self, slots: impl IntoIterator<Item = Slot>) {
        for (words, slot) in self.ring().chunks_exact(2).zip(slots) {
            words.iter().zip(slot).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        }
        self.publish();
    }

    /// Waits until the status word has this value.
    pub(crate) fn wait_for(&self, step: Step, status: u64) -> Result<(), Error> {
        // ORDERING: Acquire: the unit has stored the status after the commands before it had taken
        // effect.
        wait(&self.bus, step, || self.status().load(Ordering::Acquire) == status)
    }
}

/// Pages for a ring of this many slots.
pub(crate) fn pages<M: Memory>(memory: M, slots: usize) -> Result<Pages<M>, Error> {
    Pages::of_bytes(memory, (slots * SLOT).max(PAGE))
}

// SAFETY: 1. `bus` is the unit's (contract of `set_up`). 2. `ring` is the memory in the unit's base
// register, and of the queues on it only the last one is used (`renewable.rs`). 3. The status word
// is in a page of its own; an SMMU stores to it only if IDR0.MSI says that it can. 4. The unit
// stores it when it reaches a wait, in order. 5. `publish` is the barrier of `Bus`; rings are read
// coherently, and `TableMemory` handles tables. 6. By `log`, where there is one. 7. The contract of
// `Bus`, 1 and 3.
unsafe impl<B: Bus, M: Memory, L: Timeouts> Port for Ring<B, M, L> {
    fn read32(&self, offset: usize) -> u32 {
        self.bus.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.bus.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.bus.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.bus.write64(offset, value);
    }

    fn ring(&self) -> &[AtomicU64] {
        // SAFETY: the ring, which stays allocated while this is used (`new`).
        unsafe { self.memory.words(self.ring, self.slots * 2) }
    }

    fn status(&self) -> &AtomicU64 {
        // SAFETY: the status word, as above.
        unsafe { &self.memory.words(self.status, 1)[0] }
    }

    fn status_address(&self) -> PhysAddr {
        self.status
    }

    fn publish(&self) {
        // Nothing is written back. ECAP.C concerns VT-d's tables alone: its queue, and what a wait
        // stores, are always coherent (VT-d, chapter 11, "Extended Capability Register"; Linux
        // writes descriptors back on no unit). Other units are set up only if they are coherent.
        self.bus.barrier();
    }

    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId)) {
        self.log.drain(timed_out);
    }
}

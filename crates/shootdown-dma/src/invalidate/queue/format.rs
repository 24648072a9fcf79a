//! What differs between the queues of IOMMUs: what a slot looks like, what registers say, how
//! errors are told.

use crate::addr::{DeviceId, PhysAddr};
use crate::invalidate::Command;

use super::Port;

/// A slot of the ring.
pub type Slot = [u64; 2];

/// Slots that one command takes at most.
pub const MOST: usize = 4;

/// Why a queue stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It does not take the slot at its head.
    Refused,
    /// A device has not answered; which one, if the unit says so.
    Silent(Option<DeviceId>),
    /// It could not read the slot at its head.
    Unread,
}

/// What is to be put in the place of a slot that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instead {
    /// This, which covers what was refused.
    Coarser(Slot),
    /// A wait of the queue's own, as it should have been.
    Wait,
    /// A barrier of the queue's own, as it should have been.
    Barrier,
    /// It isn't known what it was.
    Unknown,
}

/// The queue of one kind of IOMMU. Pure but for registers.
pub trait Format: Sync {
    /// Encodes a command: at most [`MOST`] slots.
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot));

    /// The logarithm of the bytes of a page, as commands count: see
    /// [`Unit::granule`](crate::invalidate::Unit::granule).
    fn granule(&self) -> u32 {
        12
    }

    /// Can the unit be told to forget all of all domains?
    fn forgets_all(&self) -> bool {
        true
    }

    /// Nothing after it begins before all before it is complete. `status` is the address of the
    /// status word, of which it may touch only the upper half.
    fn barrier(&self, status: PhysAddr) -> Slot;

    /// Are commands for the unit itself to be told twice, with a barrier between? Some units have
    /// an erratum by which an entry that is in use may survive one invalidation.
    fn repeats(&self) -> bool {
        false
    }

    /// Says, when all before it is complete, that the queue has come to `position`.
    fn wait(&self, status: PhysAddr, position: u64) -> Slot;

    /// Does it make anybody forget anything? (It is no wait, and no barrier.)
    fn is_command(&self, slot: Slot) -> bool;

    /// The device that a slot tells to forget.
    fn device(&self, slot: Slot) -> Option<DeviceId>;

    /// How far the unit says that all is complete: at least `base`, which it has read up to
    /// already.
    fn position<P: Port>(&self, port: &P, base: u64) -> u64;

    /// Can [`position`](Self::position) be anything but the end of a submission?
    fn is_coarse(&self) -> bool {
        false
    }

    /// Does the unit say that it came to a wait though a device has not answered what was before
    /// it, and tell that in its event log ([`Port::drain_events`])?
    fn logs_timeouts(&self) -> bool {
        false
    }

    /// Tells the unit that it may read all slots before `position`.
    fn set_tail<P: Port>(&self, port: &P, position: u64);

    /// The slot that the unit reads next, of so many.
    fn head<P: Port>(&self, port: &P, slots: u64) -> u64;

    /// Does the queue stand still?
    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble>;

    /// What covers a slot that was refused. `again`: it was refused in its coarser form as well.
    fn instead(&self, status: PhysAddr, slot: Slot) -> Instead;

    /// Something that is never refused and does no harm.
    fn harmless(&self) -> Slot;

    /// Lets the queue go on, whose tail is at `position`.
    fn resume<P: Port>(&self, port: &P, trouble: Trouble, position: u64);
}

/// `base`, moved on to what the low 32 bits say: serial arithmetic. What is behind it was
/// overtaken, and moves nothing.
#[must_use]
pub fn widen(base: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(base as u32);
    // Never more than some rings ahead, or else behind.
    if ahead < 1 << 31 { base + ahead as u64 } else { base }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// I8: exhaustively in the small, and where 32 bits wrap.
    #[test]
    pub(crate) fn widening_finds_the_position_and_never_goes_back() {
        for done in [0, 5, (1 << 32) - 3, (1 << 32) - 1, 1 << 32, (7 << 32) - 2] {
            for ahead in 0..10u64 {
                assert_eq!(widen(done, (done + ahead) as u32), done + ahead);
                assert_eq!(widen(done, done.saturating_sub(ahead) as u32), done);
            }
        }
    }
}

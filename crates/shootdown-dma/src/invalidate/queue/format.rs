//! What differs between the queues of IOMMUs: the format of a slot, the registers, the report of
//! errors.

use crate::addr::{DeviceId, PhysAddr};
use crate::invalidate::Command;

use super::Port;

/// A slot of the ring.
pub type Slot = [u64; 2];

/// Slots that one command takes at most.
pub const MOST: usize = 4;

/// Why a queue has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The unit refuses the slot at its head.
    Refused,
    /// A device has not acknowledged; which one, if the unit reports it.
    Silent(Option<DeviceId>),
    /// The unit could not read the slot at its head.
    Unread,
}

/// What replaces a slot that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instead {
    /// This slot, which covers what was refused.
    Coarser(Slot),
    /// A wait of the queue's own, built again.
    Wait,
    /// A barrier of the queue's own, built again.
    Barrier,
    /// The refused slot can't be decoded.
    Unknown,
}

/// The queue of one kind of IOMMU. It has no state beside registers.
pub trait Format: Sync {
    /// Encodes a command: at most [`MOST`] slots.
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot));

    /// The logarithm of the bytes of a page, as commands count: see
    /// [`Unit::granule`](crate::invalidate::Unit::granule).
    fn granule(&self) -> u32 {
        12
    }

    /// Whether the unit has a command that invalidates all of all domains.
    fn forgets_all(&self) -> bool {
        true
    }

    /// A barrier: nothing after it begins before all before it is complete. `status` is the address
    /// of the status word, of which it may write only the upper half.
    fn barrier(&self, status: PhysAddr) -> Slot;

    /// Whether commands for the unit itself are issued twice, with a barrier between. Some units
    /// have an erratum by which an entry that is in use may survive one invalidation.
    fn repeats(&self) -> bool {
        false
    }

    /// A wait: when all before it is complete, it reports that the queue has reached `position`.
    fn wait(&self, status: PhysAddr, position: u64) -> Slot;

    /// Whether the slot invalidates anything. (It is no wait, and no barrier.)
    fn is_command(&self, slot: Slot) -> bool;

    /// The device whose cache a slot invalidates.
    fn device(&self, slot: Slot) -> Option<DeviceId>;

    /// The position up to which the unit reports completion: at least `base`, up to which it was
    /// read before.
    fn position<P: Port>(&self, port: &P, base: u64) -> u64;

    /// Whether [`position`](Self::position) can be anything but the end of a submission.
    fn is_coarse(&self) -> bool {
        false
    }

    /// Whether the unit reaches a wait though a device has not acknowledged a command before it,
    /// and reports that in its event log ([`Port::drain_events`]).
    fn logs_timeouts(&self) -> bool {
        false
    }

    /// Writes the tail register: the unit may read all slots before `position`.
    fn set_tail<P: Port>(&self, port: &P, position: u64);

    /// The slot that the unit reads next, in a ring of `slots`.
    fn head<P: Port>(&self, port: &P, slots: u64) -> u64;

    /// Why the queue has stopped, if it has.
    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble>;

    /// What covers a slot that was refused. `again`: it was refused in its coarser form as well.
    fn instead(&self, status: PhysAddr, slot: Slot) -> Instead;

    /// A slot that is never refused and does no harm.
    fn harmless(&self) -> Slot;

    /// Lets the queue, whose tail is at `position`, go on.
    fn resume<P: Port>(&self, port: &P, trouble: Trouble, position: u64);
}

/// `base`, moved on to the position with these low 32 bits, by serial arithmetic. A value behind
/// `base` is out of date, and moves nothing.
#[must_use]
pub fn widen(base: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(base as u32);
    // It is never more than some rings ahead; any other distance means behind.
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

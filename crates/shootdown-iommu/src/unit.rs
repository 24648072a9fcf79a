//! The operations that all units have, so that a kernel can be written for any of them.

use core::fmt::Debug;

use shootdown_dma::invalidate::Unit;
use shootdown_dma::table::Format;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use crate::error::{AdmitError, Error};
use crate::fault::Fault;

/// The message by which a unit interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The address that it stores to.
    pub address: u64,
    /// The data that it stores.
    pub data: u32,
}

/// A unit that is set up: devices behind it reach nothing to which they were not admitted.
pub trait RemappingUnit: Sync {
    /// The tables that it walks.
    type Tables: Format;
    /// The library's queue on it.
    type Queue: Unit;
    /// The unit's record of an access that it refuses.
    type Record: Copy + Debug + Into<Fault>;

    /// The format of its tables, with the parameters of the unit.
    fn tables(&self) -> Self::Tables;

    /// Bits of the addresses that it translates.
    fn address_bits(&self) -> u32;

    /// Its queue, with which a domain is made.
    fn queue(&self) -> &Self::Queue;

    /// Whether its walker reads the CPUs' caches. If not, the host's `TableMemory` has to write
    /// tables back.
    fn is_coherent(&self) -> bool;

    /// Whether it needs an invalidation after mapping. It may cache absent entries, or not yet see
    /// the new ones (VT-d with write buffers, which an invalidation flushes). Then the domain's
    /// [configuration](shootdown_dma::Config::caching_absence) has to say so.
    fn remembers_absence(&self) -> bool;

    /// Makes the device's entry valid: its accesses go through the tables at `root`, tagged with
    /// the id.
    ///
    /// Before this call the host lists the device with the domain (`Domain::attach`), after it the
    /// host announces the entry (`Domain::announce`). No interrupt handler that interrupts this
    /// call may call this unit's `admit` or [`expel`](Self::expel).
    ///
    /// # Errors
    /// See [`AdmitError`]. Nothing has changed.
    ///
    /// # Safety
    /// The device may reach all that these tables map, now and until it is expelled and the
    /// invalidation of that is complete. The tables are of the format of this unit, and stay. If
    /// the device was admitted before, `Domain::detach` has returned since it was
    /// [expelled](Self::expel): until then the unit may have read one half of the entry.
    unsafe fn admit(
        &self,
        device: DeviceId,
        root: PhysAddr,
        id: DomainId,
    ) -> Result<(), AdmitError>;

    /// Makes the device's entry invalid, without an invalidation: what the unit has cached of it
    /// stays until `Domain::detach` invalidates it. `false`: the device was not admitted.
    fn expel(&self, device: DeviceId) -> bool;

    /// Takes out the oldest record of the unit that was not taken yet. Never waits.
    fn next_record(&self) -> Option<Self::Record>;

    /// Resets the unit's queue and invalidates everything in the unit: all submissions are
    /// complete. Call it when the queue [is stuck](shootdown_dma::invalidate::QueueError::Stuck).
    /// Devices keep their access to what they are admitted to.
    ///
    /// # Errors
    /// The unit does not acknowledge a step: nothing completes any more until another reset
    /// succeeds. [`Error::Busy`]: nothing has changed.
    ///
    /// # Safety
    /// Devices behind the unit that have caches of their own (ATS) have been reset, or have them
    /// turned off: the unit's reset does not invalidate these caches.
    unsafe fn renew(&self) -> Result<(), Error>;
}

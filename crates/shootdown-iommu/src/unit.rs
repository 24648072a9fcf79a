//! What all units do, so that a kernel can be written for whichever there is.

use core::fmt::Debug;

use shootdown_dma::invalidate::Unit;
use shootdown_dma::table::Format;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use crate::error::{AdmitError, Error};
use crate::fault::Fault;

/// What is written where when a unit interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Where to.
    pub address: u64,
    /// What.
    pub data: u32,
}

/// A unit that is set up: devices behind it reach nothing but what they are admitted to.
pub trait RemappingUnit: Sync {
    /// The tables that it walks.
    type Tables: Format;
    /// The library's queue on it.
    type Queue: Unit;
    /// What it records of an access that it refuses.
    type Record: Copy + Debug + Into<Fault>;

    /// The format of its tables, with what depends on the unit.
    fn tables(&self) -> Self::Tables;

    /// Bits of the addresses that it translates.
    fn address_bits(&self) -> u32;

    /// Its queue: what a domain is made with.
    fn queue(&self) -> &Self::Queue;

    /// Does its walker read the CPUs' caches? If not, the host's `TableMemory` has to write tables
    /// back.
    fn is_coherent(&self) -> bool;

    /// Does it have to be told what was mapped? It may remember what is not, or not yet see it
    /// (VT-d with write buffers, which an invalidation flushes). Then a domain has to be
    /// [told so](shootdown_dma::Config::caching_absence).
    fn remembers_absence(&self) -> bool;

    /// Makes the device's entry valid: its accesses go through the tables at `root`, tagged with
    /// the id.
    ///
    /// Before it the device is listed with the domain (`Domain::attach`), after it the entry is
    /// announced (`Domain::announce`). Nothing that interrupts it may call this unit's `admit` or
    /// [`expel`](Self::expel).
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

    /// Makes the device's entry invalid, and tells nobody: what the unit has cached of it stays
    /// until it is told, which `Domain::detach` does. `false`: it was not admitted.
    fn expel(&self, device: DeviceId) -> bool;

    /// The oldest thing that the unit has recorded and nobody has taken, which is taken out. Never
    /// waits.
    fn next_record(&self) -> Option<Self::Record>;

    /// Resets the unit's queue and makes it forget everything: all that it was told is complete. To
    /// be called when the queue [is stuck](shootdown_dma::invalidate::QueueError::Stuck). Devices
    /// reach what they are admitted to all the while.
    ///
    /// # Errors
    /// The unit does not do what it is told: nothing completes any more until another reset
    /// succeeds. [`Error::Busy`]: nothing has changed.
    ///
    /// # Safety
    /// Devices behind the unit that have caches of their own (ATS) have been reset, or have them
    /// turned off: the unit's reset does not reach them.
    unsafe fn renew(&self) -> Result<(), Error>;
}

//! What the cases ask of an IOMMU, whichever it is: the host's half beside the library's queue.

use shootdown_dma::invalidate::{Command, Unit};
use shootdown_dma::table::Format;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::marred::Rule;
use super::suite::Case;
use crate::port::is_late;
use crate::{arch, memory};

/// An access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Whose it was.
    pub device: DeviceId,
    /// The address that it used; where the unit says only the page, that.
    pub address: u64,
    /// What was wrong.
    pub kind: FaultKind,
}

/// What was wrong with an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// There is no translation, or none with this right.
    Translation {
        /// It was a write.
        write: bool,
    },
    /// The device's entry is not valid.
    Configuration,
    /// Something else, by the unit's own number.
    Other(u8),
}

/// Why a unit is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetUpError {
    /// It lacks what the library needs: a queue, tables in a format that it makes. These are its capabilities.
    Unfit([u64; 2]),
    /// It does not do what it is told.
    Deaf(&'static str),
    /// There is no memory.
    NoMemory,
}

/// A frame of zeros, for what a unit reads or writes.
pub fn blank_frame() -> Result<u64, SetUpError> {
    let frame = memory::allocate().ok_or(SetUpError::NoMemory)?;
    memory::fill(frame, 0);
    Ok(frame)
}

/// An IOMMU that is set up: devices reach nothing but what they are admitted to.
pub trait Iommu: Sync + Sized + 'static {
    /// Its page tables.
    type Format: Format;
    /// The library's queue on it.
    type Queue: Unit;

    /// As cases are prefixed by it.
    fn name(&self) -> &'static str;

    /// The format, with what depends on the unit.
    fn format(&self) -> Self::Format;

    /// Bits of the addresses that it translates.
    fn address_bits(&self) -> u32;

    /// The queue.
    fn queue(&self) -> &Self::Queue;

    /// Does it read the CPUs' caches?
    fn is_coherent(&self) -> bool;

    /// May it remember what is not mapped?
    fn remembers_absence(&self) -> bool;

    /// Does it record what it refuses? If not, faults are not looked for.
    fn records_faults(&self) -> bool;

    /// Makes the device's entry valid: its accesses go through the tables at `root`, under the id. The device is listed with
    /// the domain before.
    fn admit(&self, device: DeviceId, root: PhysAddr, id: DomainId);

    /// Makes the device's entry invalid, and tells nobody: what the unit has cached of it stays until the library tells.
    fn expel(&self, device: DeviceId);

    /// The oldest fault that was not read yet, which is taken out.
    fn fault(&self) -> Option<Fault>;

    /// Tells the unit something, and waits until it has heard.
    fn tell(&self, commands: &[Command]) {
        let ticket = self.queue().submit(commands).expect("the queue has room between cases");
        while self.queue().completed().expect("the unit takes what it is told") < ticket {
            arch::relax();
            assert!(!is_late(), "the unit does not complete what it was told");
        }
    }

    /// Cases that only this unit has.
    fn own_cases() -> &'static [Case<Self>] {
        &[]
    }
}

/// A unit whose queue can stand still, and which can be reset.
pub trait Refuses: Iommu {
    /// Makes something that is refused of a command that forgets translations.
    const COMMAND: Rule;
    /// The same of a wait.
    const WAIT: Rule;
    /// The same of what tells a device.
    const DEVICE: Rule;
    /// Is a wait that was refused known for one, so that it can be mended?
    const WAITS_ARE_MENDED: bool;

    /// Does its queue stand still, by its registers?
    fn stands_still(&self) -> bool;

    /// A device that did not answer was reset: it is told again. `false`: try again.
    fn revive(&self, device: DeviceId) -> bool;

    /// Resets the unit's queue and makes it forget everything: all that it was told is complete.
    ///
    /// # Errors
    /// It does not do what it is told.
    fn renew(&self) -> Result<(), SetUpError>;
}

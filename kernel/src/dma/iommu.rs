//! What the cases ask of an IOMMU beside what its driver does.

use shootdown_dma::invalidate::{Command, Unit};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};
use shootdown_iommu::fault::{Access, Class};
use shootdown_iommu::{Error, RemappingUnit};

use super::marred::Rule;
use super::pci::Function;
use super::suite::Case;
use crate::arch;
use crate::port::is_late;

/// An access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Whose it was.
    pub device: DeviceId,
    /// The address that it used; where the unit says only the page, that. 0 where it says nothing.
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
    /// Something else.
    Other(Class),
}

impl From<shootdown_iommu::Fault> for Fault {
    fn from(fault: shootdown_iommu::Fault) -> Self {
        let kind = match fault.class {
            Class::Translation => {
                FaultKind::Translation { write: fault.access == Some(Access::Write) }
            }
            Class::Configuration => FaultKind::Configuration,
            other => FaultKind::Other(other),
        };
        let device = fault.device.unwrap_or(DeviceId(u32::MAX));
        Self { device, address: fault.address.unwrap_or(0), kind }
    }
}

/// An IOMMU that is set up, for the cases.
pub trait Iommu: RemappingUnit + Sized + 'static {
    /// As cases are prefixed by it.
    fn name(&self) -> &'static str;

    /// Does it record what it refuses? If not, faults are not looked for.
    fn records_faults(&self) -> bool;

    /// As what the unit knows a function of PCI.
    fn knows_as(&self, function: Function) -> DeviceId {
        DeviceId(u32::from(function.0))
    }

    /// Makes the device's entry valid: its accesses go through the tables at `root`, under the id.
    /// The device is listed with the domain before.
    fn let_in(&self, device: DeviceId, root: PhysAddr, id: DomainId) {
        // SAFETY: cases give a device their own frames, and take it out of one domain before they
        // let it into the next.
        let admitted = unsafe { self.admit(device, root, id) };
        admitted.expect("a device of bus 0 that is nowhere else");
    }

    /// The oldest fault that was not read yet, which is taken out.
    fn fault(&self) -> Option<Fault> {
        self.next_record().map(|record| Fault::from(record.into()))
    }

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

    /// Does it refuse accesses while it is off?
    const REFUSES_WHEN_OFF: bool;

    /// The unit, set up again whatever it does now: by another driver, which has it from now on.
    fn find_again() -> Option<Result<Self, Error>>;

    /// Turns it off.
    ///
    /// # Errors
    /// It does not do what it is told.
    fn turn_off_now(self) -> Result<(), Error>;

    /// A device that did not answer was reset: it is told again. `false`: try again.
    fn revive(&self, device: DeviceId) -> bool;
}

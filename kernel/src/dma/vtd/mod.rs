//! Intel VT-d: what the cases have to know beside its driver.

mod cases;

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::Vtd as QueueFormat;
use shootdown_iommu::bus::Register;
use shootdown_iommu::fault::Access;
use shootdown_iommu::vtd::fault::{Reason, Record};
use shootdown_iommu::vtd::registers::{Capability, ExtendedCapability, FaultStatus, Version};
use shootdown_iommu::vtd::{self, Options};
use shootdown_iommu::{Error, RemappingUnit};

use super::iommu::{Fault, Iommu, Refuses};
use super::marred::{Marred, Rule};
use super::suite::Case;
use super::units;
use super::window::{Structures, Window};
use crate::say;

/// The unit, with a queue whose slots can be marred.
pub type Vtd = vtd::Vtd<Window, Structures, Marred<QueueFormat>>;

/// The first unit that firmware describes, set up: every access is refused until its device is
/// admitted. `None` where there is none.
pub fn find() -> Option<Result<Vtd, Error>> {
    let base = units::vtd()?.registers;
    let window = Window::new(base);
    let version = Version::read(&window);
    say!(
        "vt-d: version {}.{}, CAP {:#x}, ECAP {:#x}, registers at {base:#x}",
        version.major(),
        version.minor(),
        Capability::read(&window).into_bits(),
        ExtendedCapability::read(&window).into_bits()
    );
    // SAFETY: firmware says that they are a VT-d unit's; nobody else drives it. No device does DMA
    // yet.
    Some(unsafe { Vtd::set_up_with(window, Structures, Options::default(), Marred) })
}

impl Iommu for Vtd {
    fn name(&self) -> &'static str {
        if self.remembers_absence() { "vt-d-caching" } else { "vt-d" }
    }

    fn records_faults(&self) -> bool {
        true
    }

    fn fault(&self) -> Option<Fault> {
        let record = self.next_record()?;
        let fault = shootdown_iommu::Fault::from(record);
        // The reason tells reads from writes as well; they must agree.
        if let Record::Refused { reason, .. } = record {
            let wrong = match reason {
                Reason::NoWrite => fault.access != Some(Access::Write),
                Reason::NoRead => fault.access != Some(Access::Read),
                _ => false,
            };
            if wrong {
                say!("vt-d: the fault's reason and its type disagree: {record:?}");
            }
        }
        Some(fault.into())
    }

    fn own_cases() -> &'static [Case<Self>] {
        cases::CASES
    }
}

impl Refuses for Vtd {
    /// Granularity 0 is reserved.
    const COMMAND: Rule = |[low, high]| match low & 0xf {
        1 | 2 => [low & !(0b11 << 4), high],
        _ => [low, high],
    };
    /// A wait has to store something, or interrupt.
    const WAIT: Rule = |[low, high]| [if low & 0xf == 5 { low & !(1 << 5) } else { low }, high];
    /// Bit 4 is reserved.
    const DEVICE: Rule = |[low, high]| [if low & 0xf == 3 { low | 1 << 4 } else { low }, high];
    const REFUSES_WHEN_OFF: bool = false;
    const WAITS_ARE_MENDED: bool = true;

    fn stands_still(&self) -> bool {
        let status = FaultStatus::read(self.bus());
        status.queue_error() || status.completion_error() || status.timeout()
    }

    fn find_again() -> Option<Result<Self, Error>> {
        find()
    }

    fn turn_off_now(self) -> Result<(), Error> {
        // SAFETY: no domain uses it; the one device does what a case tells it, and that is to land
        // in a frame of the case.
        unsafe { self.turn_off() }.map_err(|(_, error)| error)
    }

    fn revive(&self, device: DeviceId) -> bool {
        self.renewable().revive(device).is_ok()
    }
}

//! AMD-Vi: what the cases have to know beside its driver.

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::Amd as QueueFormat;
use shootdown_iommu::amd::registers::Status;
use shootdown_iommu::amd::{self, Options};
use shootdown_iommu::bus::Register;
use shootdown_iommu::{Bus, Error};

use super::iommu::{Iommu, Refuses};
use super::marred::{Marred, Rule};
use super::units;
use super::window::{Structures, Window};
use crate::say;

/// The unit, with a queue whose slots can be marred.
pub type Amd = amd::Amd<Window, Structures, Marred<QueueFormat>>;

/// The first unit that firmware describes, set up: every access is refused until its device is
/// admitted. `None` where there is none.
pub fn find() -> Option<Result<Amd, Error>> {
    let unit = units::amd()?;
    let base = unit.registers;
    let window = Window::new(base);
    say!("amd-vi: extended features {:#x}, registers at {base:#x}", window.read64(0x30));
    let last_device = unit.devices.last();
    let options = Options { last_device, flags: unit.flags, ..Options::default() };
    // SAFETY: firmware says that they are an AMD-Vi unit's; nobody else drives it. No device does
    // DMA yet.
    Some(unsafe { Amd::set_up_with(window, Structures, options, Marred) })
}

impl Iommu for Amd {
    fn name(&self) -> &'static str {
        "amd-vi"
    }

    fn records_faults(&self) -> bool {
        // QEMU 7.2 writes events and never moves the tail, so that there are none.
        false
    }
}

impl Refuses for Amd {
    /// Opcode 15 is none.
    const COMMAND: Rule = |[low, high]| match low >> 60 {
        2 | 3 | 8 => [low | 0xf << 60, high],
        _ => [low, high],
    };
    const WAIT: Rule = |[low, high]| [if low >> 60 == 1 { low | 0xf << 60 } else { low }, high];
    const DEVICE: Rule = |[low, high]| [if low >> 60 == 4 { low | 0xf << 60 } else { low }, high];
    const REFUSES_WHEN_OFF: bool = false;
    const WAITS_ARE_MENDED: bool = true;

    fn stands_still(&self) -> bool {
        !Status::read(self.bus()).commands_run()
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

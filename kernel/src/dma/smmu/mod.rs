//! An Arm SMMUv3: what the cases have to know beside its driver.

mod cases;

use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::Smmu as QueueFormat;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};
use shootdown_iommu::bus::Register;
use shootdown_iommu::smmu::registers::{Idr0, Idr3};
use shootdown_iommu::smmu::{self, Options};
use shootdown_iommu::{Error, RemappingUnit};

use super::iommu::{Iommu, Refuses};
use super::marred::{Marred, Rule};
use super::pci::Function;
use super::suite::Case;
use super::window::{Structures, Window};
use crate::{arch, say};

/// The unit, with a queue whose slots can be marred.
pub type Smmu = smmu::Smmu<Window, Structures, Marred<QueueFormat>>;

/// The unit that firmware describes, set up: every access is refused until its device is admitted.
/// `None` where there is none.
pub fn find() -> Option<Result<Smmu, Error>> {
    let base = arch::smmu()?;
    let window = Window::new(base);
    say!(
        "smmu: IDR0 {:#x}, IDR3 {:#x}, registers at {base:#x}",
        Idr0::read(&window).into_bits(),
        Idr3::read(&window).into_bits()
    );
    let options = Options { levels: 3, ..Options::default() };
    // SAFETY: firmware says that they are an SMMUv3's; nobody else drives it. No device does DMA
    // yet.
    let unit = unsafe { Smmu::set_up_with(window, Structures, options, Marred) };
    if let Ok(unit) = &unit {
        let closed = if unit.aborts_when_off() { "refused" } else { "let through" };
        say!("smmu: while it is off accesses are {closed}");
    }
    Some(unit)
}

impl Iommu for Smmu {
    fn name(&self) -> &'static str {
        "smmu"
    }

    fn records_faults(&self) -> bool {
        true
    }

    fn knows_as(&self, function: Function) -> DeviceId {
        DeviceId(arch::stream_of(function.0).expect("the device tree says so"))
    }

    fn let_in(&self, device: DeviceId, root: PhysAddr, id: DomainId) {
        // SAFETY: cases give a device their own frames, and take it out of one domain before they
        // let it into the next.
        let admitted = unsafe { self.admit(device, root, id) };
        admitted.expect("a device of bus 0 that is nowhere else");
        // An invalid entry may be cached as well (Arm IHI 0070, 3.21.3).
        self.tell(&[Command::Config { device, domain: id }]);
    }

    fn own_cases() -> &'static [Case<Self>] {
        cases::CASES
    }
}

impl Refuses for Smmu {
    /// An opcode that no command has, in the range of those that forget translations.
    const COMMAND: Rule = |[low, high]| match low & 0xff {
        0x10..=0x30 => [low & !0xff | 0x2f, high],
        _ => [low, high],
    };
    /// The same beside SYNC's.
    const WAIT: Rule = |[low, high]| [if low & 0xff == 0x46 { low | 1 } else { low }, high];
    /// "Of the secure world" (bit 10), which this one is not.
    const DEVICE: Rule = |[low, high]| [if low & 0xff == 0x40 { low | 1 << 10 } else { low }, high];
    /// QEMU 7.2 has no GBPA.
    const REFUSES_WHEN_OFF: bool = false;
    const WAITS_ARE_MENDED: bool = false;

    fn stands_still(&self) -> bool {
        self.errors().command()
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

//! Functions on PCI's first bus: found, and given an address.

use crate::arch::pci;

/// A function of bus 0: device number times eight, and function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function(pub u16);

/// Configuration registers.
const COMMAND: u16 = 0x04;
const BAR0: u16 = 0x10;
/// Memory accesses are answered; it may be a master.
const MEMORY_AND_MASTER: u32 = 1 << 1 | 1 << 2;

impl Function {
    /// The function with this vendor and device, if there is one.
    #[must_use]
    pub fn find(vendor: u16, device: u16) -> Option<Self> {
        let wanted = u32::from(device) << 16 | u32::from(vendor);
        (0..256).find(|function| pci::read(*function, 0) == wanted).map(Self)
    }

    /// Gives its first window an address of the range, unless firmware has, and lets it access
    /// memory. The physical address of the window; `None` if it has none of 32 bits.
    #[must_use]
    pub fn enable(self, window: core::ops::Range<u64>) -> Option<u64> {
        let Self(function) = self;
        // SAFETY: the function does nothing yet; sizing a window (all ones, then read) is how it is
        // done, and the image knows all who use these addresses.
        unsafe {
            let before = pci::read(function, BAR0);
            pci::write(function, BAR0, u32::MAX);
            let mask = pci::read(function, BAR0);
            if mask == 0 || mask & 0b111 != 0 {
                return None;
            }
            let size = u64::from(!(mask & !0xf)) + 1;
            let given = u64::from(before & !0xf);
            let at = if given != 0 { given } else { window.start.next_multiple_of(size) };
            if at + size > window.end && given == 0 {
                return None;
            }
            pci::write(function, BAR0, u32::try_from(at).ok()?);
            pci::write(function, COMMAND, pci::read(function, COMMAND) | MEMORY_AND_MASTER);
            Some(at)
        }
    }
}

//! The queue in which the IOMMU takes its commands: VT-d's, read from the ring that the library has
//! written.
//!
//! The unit begins some time after its register was written, and does one command after the other;
//! each takes what the profile says, and takes effect at the end of that. A wait is complete when
//! all before it is, and when every access has landed that was translated before they took effect
//! (the library asks for it: DR, DW); then its status is stored.
//!
//! Descriptors are read as the specification says (VT-d, 6.5.2), apart from the library's encoder.
//! What is none stops the queue (IQE), as it would in hardware.

use shootdown_dma::invalidate::Command;
use shootdown_dma::{DeviceId, DomainId, IovaRange, PhysAddr};

use crate::profile::IommuCosts;
use crate::time::Time;

/// What a descriptor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// To forget something.
    Forget(Command),
    /// To store a status (32 bits) when all before it is complete.
    Wait {
        /// Where.
        address: PhysAddr,
        /// What.
        status: u32,
    },
}

impl Descriptor {
    /// Reads one; `None`: it is none.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // fields are cut out
    pub fn decode([low, high]: [u64; 2]) -> Option<Self> {
        let domain = DomainId((low >> 16 & 0xffff) as u16);
        let device = DeviceId((low >> 32 & 0xffff) as u32);
        let command = match (low & 0xf, low >> 4 & 3) {
            (1, 1..=3) => Command::Config { device, domain },
            (2, 1) => Command::All,
            (2, 2) => Command::Domain(domain),
            (2, 3) => {
                let range = IovaRange::new(high >> 12, 1 << (high & 0x3f))?;
                Command::Pages { domain, range, leaf_only: high & 1 << 6 != 0 }
            }
            (3, _) => {
                // Ones from bit 12 on, and then a zero, give the size.
                let order = if high & 1 == 0 { 0 } else { (high >> 12).trailing_ones() + 1 };
                let range = (order < 52)
                    .then(|| IovaRange::new(high >> 12 & !((1 << order) - 1), 1 << order));
                Command::Device { device, range: range.flatten() }
            }
            (5, _) if low & 1 << 5 != 0 => {
                return Some(Self::Wait {
                    address: PhysAddr(high & !3),
                    status: (low >> 32) as u32,
                });
            }
            _ => return None,
        };
        Some(Self::Forget(command))
    }

    /// How long the unit takes for it.
    #[must_use]
    pub const fn service(&self, costs: &IommuCosts) -> Time {
        match self {
            Self::Wait { .. } => costs.wait,
            Self::Forget(Command::Pages { .. }) => costs.pages,
            Self::Forget(Command::Device { .. }) => costs.device,
            Self::Forget(_) => costs.domain,
        }
    }
}

/// The unit's side of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Commands {
    /// Where the ring is, on the host; 0: it is not set up.
    pub ring: usize,
    /// Where the status word is.
    pub status: usize,
    pub slots: u64,
    pub head: u64,
    pub tail: u64,
    /// A command is being worked on.
    pub busy: bool,
    /// The queue has stopped at what is no descriptor.
    pub stopped: bool,
    /// When accesses have landed that were translated before the last command took effect, ps.
    pub drained: u64,
}

#[cfg(test)]
mod tests {
    use shootdown_dma::invalidate::vtd::{self, Facts};

    use super::*;

    const FACTS: Facts = Facts {
        page_selective: true,
        max_order: 18,
        drains_reads: true,
        drains_writes: true,
        throttles_devices: false,
    };

    #[test]
    fn what_the_library_encodes_is_read_back() {
        let (domain, device) = (DomainId(7), DeviceId(0x1234));
        let range = |first, pages| IovaRange::new(first, pages).unwrap();
        for command in [
            Command::Pages { domain, range: range(0x40, 8), leaf_only: true },
            Command::Pages { domain, range: range(0x41, 1), leaf_only: false },
            Command::Domain(domain),
            Command::All,
            Command::Device { device, range: Some(range(0x100, 16)) },
            Command::Device { device, range: Some(range(0x101, 1)) },
            Command::Device { device, range: None },
            Command::Config { device, domain },
        ] {
            let mut read = Vec::new();
            vtd::encode(&FACTS, &command, |slot| read.push(Descriptor::decode(slot)));
            assert_eq!(read, [Some(Descriptor::Forget(command))]);
        }
        let wait = vtd::wait(PhysAddr(0x1004), 0x99, true);
        let read = Descriptor::Wait { address: PhysAddr(0x1004), status: 0x99 };
        assert_eq!(Descriptor::decode(wait), Some(read));
        assert_eq!(Descriptor::decode([0, 0]), None);
    }
}

//! A virtio-iommu device (virtio 1.2, 5.13) in front of the kernel's IOMMU.
//!
//! ```text
//! guest's driver: request in guest memory --> virtqueue --> Device --> user::Space --> kernel
//! ```
//!
//! A domain of the guest is a [`Space`](shootdown_vfio::user::Space) that hands out no addresses,
//! on an address space of the kernel's; an endpoint is a device that is passed on to the guest.
//! Domains come and go with the endpoints that are attached to them. The device offers the features
//! `INPUT_RANGE`, `DOMAIN_RANGE`, `MAP_UNMAP`, `PROBE` and `BYPASS_CONFIG`; `MMIO` it does not, and
//! faults are the kernel's affair, which VFIO reports to nobody.
//!
//! | file | has |
//! |---|---|
//! | `request.rs` | requests and statuses, as they lie in guest memory |
//! | `device.rs` | the device: what it does with them |
//! | `platform.rs` | where address spaces and devices come from; the dry backend (VFIO is in `group.rs` beside) |
//! | `guest.rs` | a guest's driver: puts requests into a virtqueue |
//! | `cases.rs` | what must hold |

pub mod cases;
pub mod device;
pub mod guest;
pub mod platform;
pub mod request;

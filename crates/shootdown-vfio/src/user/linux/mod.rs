//! Linux: VFIO and iommufd.
//!
//! Structures and flags are those of `include/uapi/linux/vfio.h` and `iommufd.h`, by the crates
//! `vfio-bindings` and `iommufd-bindings`. Both interfaces number their calls without sizes
//! (`_IO`), and carry the size in the first word.

mod iommufd;
mod sys;
mod vfio;

pub use iommufd::Iommufd;
pub use vfio::VfioType1;

//! Linux: VFIO and iommufd.
//!
//! Numbers and structures are those of `include/uapi/linux/vfio.h` and `iommufd.h`; sizes and
//! offsets are asserted where they are declared. Both interfaces number their calls without sizes
//! (`_IO`), and carry the size in the first word.

mod iommufd;
mod sys;
mod vfio;

pub use iommufd::Iommufd;
pub use vfio::VfioType1;

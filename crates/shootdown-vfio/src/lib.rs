//! DMA for user space and for hypervisors, on [`shootdown_dma`]: its domains, policies and
//! allocators where the hardware is Linux' VFIO or iommufd, and where it is an emulated IOMMU.
//!
//! | module | who uses it | what takes the place of hardware |
//! |---|---|---|
//! | [`user`] | drivers in user space, and a hypervisor that passes a device on | the kernel: its page table, and its system calls to map and to unmap |
//! | [`vmm`] | a hypervisor's emulated devices | the cache of translations that they share, for `vm-memory` |
//!
//! The crate needs `std`. The README lists what has not run on real hardware.

pub mod user;
pub mod vmm;

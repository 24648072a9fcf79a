//! iommufd: an address space of its own, that devices are attached to.

use std::ffi::c_ulong;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use iommufd_bindings::{
    IOMMUFD_CMD_DESTROY, IOMMUFD_CMD_IOAS_ALLOC, IOMMUFD_CMD_IOAS_IOVA_RANGES,
    IOMMUFD_CMD_IOAS_MAP, IOMMUFD_CMD_IOAS_UNMAP, iommu_destroy, iommu_ioas_alloc,
    iommu_ioas_iova_ranges, iommu_ioas_map, iommu_ioas_unmap, iommu_iova_range,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA as MAP_FIXED,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE as MAP_READ,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE as MAP_WRITE,
};
use shootdown_dma::addr::Rights;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, vfio_device_attach_iommufd_pt, vfio_device_bind_iommufd,
};

use super::sys::{call, error, open, request};
use crate::user::{Backend, BackendError, Window};

const DESTROY: c_ulong = request(IOMMUFD_CMD_DESTROY);
const IOAS_ALLOC: c_ulong = request(IOMMUFD_CMD_IOAS_ALLOC);
const IOAS_IOVA_RANGES: c_ulong = request(IOMMUFD_CMD_IOAS_IOVA_RANGES);
const IOAS_MAP: c_ulong = request(IOMMUFD_CMD_IOAS_MAP);
const IOAS_UNMAP: c_ulong = request(IOMMUFD_CMD_IOAS_UNMAP);
/// Of VFIO's devices: `VFIO_DEVICE_BIND_IOMMUFD`, `VFIO_DEVICE_ATTACH_IOMMUFD_PT`.
const DEVICE_BIND: c_ulong = request(VFIO_BASE + 18);
const DEVICE_ATTACH: c_ulong = request(VFIO_BASE + 19);

/// The structures as Linux 6.6 has them, without a token and without a PASID, which later kernels
/// take too: `argsz` shows the kernel that they are absent.
const BIND_SIZE: usize = offset_of!(vfio_device_bind_iommufd, token_uuid_ptr);
const ATTACH_SIZE: usize = offset_of!(vfio_device_attach_iommufd_pt, pasid);

const _: () = {
    assert!(BIND_SIZE == 16 && ATTACH_SIZE == 12);
    assert!(DESTROY == 0x3b80 && IOAS_ALLOC == 0x3b81 && IOAS_IOVA_RANGES == 0x3b84);
    assert!(IOAS_MAP == 0x3b85 && IOAS_UNMAP == 0x3b86);
    assert!(DEVICE_BIND == 0x3b76 && DEVICE_ATTACH == 0x3b77);
};

/// An I/O address space of iommufd.
#[derive(Debug)]
pub struct Iommufd {
    iommufd: OwnedFd,
    ioas: u32,
}

impl Iommufd {
    /// A new address space, of `/dev/iommu`.
    ///
    /// # Errors
    /// Of the operating system: there is none before Linux 6.2.
    pub fn open() -> io::Result<Self> {
        Self::from_fd(open("/dev/iommu")?.into())
    }

    /// A new address space, of a file that was opened elsewhere.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn from_fd(iommufd: OwnedFd) -> io::Result<Self> {
        let mut alloc = iommu_ioas_alloc {
            size: size_of::<iommu_ioas_alloc>() as u32,
            flags: 0,
            out_ioas_id: 0,
        };
        // SAFETY: it reads and writes such a structure.
        unsafe { call(iommufd.as_fd(), IOAS_ALLOC, &raw mut alloc)? };
        Ok(Self { iommufd, ioas: alloc.out_ioas_id })
    }

    /// The file.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.iommufd.as_fd()
    }

    /// The number of the address space.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.ioas
    }

    /// Binds a device (`/dev/vfio/devices/vfioN`, opened) and attaches it to the address space. The
    /// windows may become narrower: do it before a [`Space`](crate::user::Space) is built.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn attach(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        let mut bind = vfio_device_bind_iommufd {
            argsz: BIND_SIZE as u32,
            flags: 0,
            iommufd: self.iommufd.as_raw_fd(),
            out_devid: 0,
            token_uuid_ptr: 0,
        };
        // SAFETY: it reads and writes `argsz` bytes of such a structure.
        unsafe { call(device, DEVICE_BIND, &raw mut bind)? };
        let mut attach = vfio_device_attach_iommufd_pt {
            argsz: ATTACH_SIZE as u32,
            flags: 0,
            pt_id: self.ioas,
            pasid: 0,
        };
        // SAFETY: it reads and writes `argsz` bytes of such a structure.
        unsafe { call(device, DEVICE_ATTACH, &raw mut attach) }.map(drop)
    }

    /// The windows, and the alignment of addresses and lengths.
    fn query(&self) -> Result<(Vec<Window>, u64), BackendError> {
        let mut ranges = vec![iommu_iova_range { start: 0, last: 0 }; 16];
        loop {
            let mut query = iommu_ioas_iova_ranges {
                size: size_of::<iommu_ioas_iova_ranges>() as u32,
                ioas_id: self.ioas,
                num_iovas: u32::try_from(ranges.len()).unwrap_or(u32::MAX),
                __reserved: 0,
                allowed_iovas: ranges.as_mut_ptr() as u64,
                out_iova_alignment: 0,
            };
            // SAFETY: it writes at most `num_iovas` ranges.
            let outcome = unsafe { call(self.fd(), IOAS_IOVA_RANGES, &raw mut query) };
            let count = query.num_iovas as usize;
            match outcome {
                Ok(_) => {
                    let window = |r: &iommu_iova_range| Window { first: r.start, last: r.last };
                    let windows = ranges[..count.min(ranges.len())].iter().map(window).collect();
                    return Ok((windows, query.out_iova_alignment));
                }
                Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && count > ranges.len() => {
                    ranges.resize(count, iommu_iova_range { start: 0, last: 0 });
                }
                Err(e) => return Err(error(&e)),
            }
        }
    }
}

impl Drop for Iommufd {
    fn drop(&mut self) {
        let mut destroy = iommu_destroy { size: size_of::<iommu_destroy>() as u32, id: self.ioas };
        // SAFETY: it reads such a structure. If a device is attached it refuses, and it goes with
        // the file.
        let _ = unsafe { call(self.iommufd.as_fd(), DESTROY, &raw mut destroy) };
    }
}

// SAFETY: (1) the kernel unmaps, invalidates and waits before the call returns, and reports how
// many bytes it has unmapped; it refuses mappings that only partly lie in the range. (2) It maps at
// the address that it gets (`MAP_FIXED`), or nothing.
unsafe impl Backend for Iommufd {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        self.query().map(|(windows, _)| windows)
    }

    /// The kernel reports only the smallest page size: all addresses and lengths must be multiples
    /// of it (`out_iova_alignment`; no larger than a page of the CPU, and 1 as long as no device is
    /// attached).
    fn page_sizes(&self) -> u64 {
        self.query().map_or(0, |(_, alignment)| alignment.next_power_of_two().wrapping_neg())
    }

    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        let mut flags = MAP_FIXED;
        flags |= if rights.reads() { MAP_READ } else { 0 };
        flags |= if rights.writes() { MAP_WRITE } else { 0 };
        let mut map = iommu_ioas_map {
            size: size_of::<iommu_ioas_map>() as u32,
            flags,
            ioas_id: self.ioas,
            __reserved: 0,
            user_va: memory,
            length: bytes,
            iova,
        };
        // SAFETY: it reads such a structure. That devices may have the memory is what `Space::map`
        // demands.
        unsafe { call(self.fd(), IOAS_MAP, &raw mut map) }.map(drop).map_err(|e| error(&e))
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        let mut unmap = iommu_ioas_unmap {
            size: size_of::<iommu_ioas_unmap>() as u32,
            ioas_id: self.ioas,
            iova,
            length: bytes,
        };
        // SAFETY: it reads and writes such a structure.
        unsafe { call(self.fd(), IOAS_UNMAP, &raw mut unmap) }
            .map(|_| unmap.length)
            .map_err(|e| error(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_iommufd_says_so() {
        let null: OwnedFd = open("/dev/null").unwrap().into();
        let error = Iommufd::from_fd(null).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let null: OwnedFd = open("/dev/null").unwrap().into();
        let none = Iommufd { iommufd: null, ioas: 1 };
        let refused = Err(BackendError::Other(libc::ENOTTY));
        assert_eq!(none.map(0x1000, 0x1000, 0x1000, Rights::Read), refused);
        assert_eq!(none.unmap(0x1000, 0x1000).map(drop), refused);
        assert_eq!(none.windows().map(drop), refused);
        assert_eq!(none.page_sizes(), 0);
        let device = open("/dev/null").unwrap();
        assert_eq!(none.attach(device.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}

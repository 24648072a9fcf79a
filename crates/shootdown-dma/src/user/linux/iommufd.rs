//! iommufd: an address space of its own, that devices are attached to.

use std::ffi::c_ulong;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::vec::Vec;

use super::sys::{call, error, open, request};
use crate::addr::Rights;
use crate::user::{Backend, BackendError, Window};

const DESTROY: c_ulong = request(0x80);
const IOAS_ALLOC: c_ulong = request(0x81);
const IOAS_IOVA_RANGES: c_ulong = request(0x84);
const IOAS_MAP: c_ulong = request(0x85);
const IOAS_UNMAP: c_ulong = request(0x86);
/// Of VFIO's devices: `VFIO_DEVICE_BIND_IOMMUFD`, `VFIO_DEVICE_ATTACH_IOMMUFD_PT`.
const DEVICE_BIND: c_ulong = request(118);
const DEVICE_ATTACH: c_ulong = request(119);

const MAP_FIXED: u32 = 1;
const MAP_WRITE: u32 = 2;
const MAP_READ: u32 = 4;

#[repr(C)]
struct Destroy {
    size: u32,
    id: u32,
}

#[repr(C)]
struct IoasAlloc {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}

#[repr(C)]
struct IovaRanges {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}

/// `struct iommu_iova_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    last: u64,
}

#[repr(C)]
struct IoasMap {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

#[repr(C)]
struct IoasUnmap {
    size: u32,
    ioas_id: u32,
    iova: u64,
    length: u64,
}

/// `struct vfio_device_bind_iommufd`.
#[repr(C)]
struct Bind {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    out_devid: u32,
}

/// `struct vfio_device_attach_iommufd_pt`, as it was first: without a PASID.
#[repr(C)]
struct Attach {
    argsz: u32,
    flags: u32,
    pt_id: u32,
}

// `include/uapi/linux/iommufd.h`: 64-bit words are aligned to 8 bytes on every architecture. Of
// `vfio_device_bind_iommufd` and `vfio_device_attach_iommufd_pt` (vfio.h of Linux 6.6) later
// kernels have longer forms, and take these: `argsz` says so.
const _: () = {
    assert!(size_of::<Destroy>() == 8 && size_of::<IoasAlloc>() == 12 && size_of::<Range>() == 16);
    assert!(offset_of!(IoasAlloc, out_ioas_id) == 8 && offset_of!(Range, last) == 8);
    assert!(size_of::<IovaRanges>() == 32 && offset_of!(IovaRanges, allowed_iovas) == 16);
    assert!(offset_of!(IovaRanges, num_iovas) == 8);
    assert!(offset_of!(IovaRanges, out_iova_alignment) == 24);
    assert!(size_of::<IoasMap>() == 40 && offset_of!(IoasMap, user_va) == 16);
    assert!(offset_of!(IoasMap, length) == 24 && offset_of!(IoasMap, iova) == 32);
    assert!(size_of::<IoasUnmap>() == 24 && offset_of!(IoasUnmap, iova) == 8);
    assert!(offset_of!(IoasUnmap, length) == 16 && offset_of!(IoasMap, ioas_id) == 8);
    assert!(size_of::<Bind>() == 16 && offset_of!(Bind, iommufd) == 8);
    assert!(offset_of!(Bind, out_devid) == 12);
    assert!(size_of::<Attach>() == 12 && offset_of!(Attach, pt_id) == 8);
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
        let mut alloc = IoasAlloc { size: size_of::<IoasAlloc>() as u32, flags: 0, out_ioas_id: 0 };
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
        let mut bind = Bind {
            argsz: size_of::<Bind>() as u32,
            flags: 0,
            iommufd: self.iommufd.as_raw_fd(),
            out_devid: 0,
        };
        // SAFETY: it reads and writes such a structure.
        unsafe { call(device, DEVICE_BIND, &raw mut bind)? };
        let mut attach = Attach { argsz: size_of::<Attach>() as u32, flags: 0, pt_id: self.ioas };
        // SAFETY: it reads and writes such a structure.
        unsafe { call(device, DEVICE_ATTACH, &raw mut attach) }.map(drop)
    }

    /// The windows, and what addresses and lengths are to be multiples of.
    fn query(&self) -> Result<(Vec<Window>, u64), BackendError> {
        let mut ranges = std::vec![Range { start: 0, last: 0 }; 16];
        loop {
            let mut query = IovaRanges {
                size: size_of::<IovaRanges>() as u32,
                ioas_id: self.ioas,
                num_iovas: u32::try_from(ranges.len()).unwrap_or(u32::MAX),
                reserved: 0,
                allowed_iovas: ranges.as_mut_ptr() as u64,
                out_iova_alignment: 0,
            };
            // SAFETY: it writes at most `num_iovas` ranges.
            let outcome = unsafe { call(self.fd(), IOAS_IOVA_RANGES, &raw mut query) };
            let count = query.num_iovas as usize;
            match outcome {
                Ok(_) => {
                    let window = |r: &Range| Window { first: r.start, last: r.last };
                    let windows = ranges[..count.min(ranges.len())].iter().map(window).collect();
                    return Ok((windows, query.out_iova_alignment));
                }
                Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && count > ranges.len() => {
                    ranges.resize(count, Range { start: 0, last: 0 });
                }
                Err(e) => return Err(error(&e)),
            }
        }
    }
}

impl Drop for Iommufd {
    fn drop(&mut self) {
        let mut destroy = Destroy { size: size_of::<Destroy>() as u32, id: self.ioas };
        // SAFETY: it reads such a structure. If a device is attached it refuses, and it goes with
        // the file.
        let _ = unsafe { call(self.iommufd.as_fd(), DESTROY, &raw mut destroy) };
    }
}

// SAFETY: (1) the kernel unmaps, invalidates and waits before the call returns, and says how many
// bytes it has unmapped; mappings that only partly lie in the range it refuses. (2) It maps where
// it is told to (`MAP_FIXED`), or nothing.
unsafe impl Backend for Iommufd {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        self.query().map(|(windows, _)| windows)
    }

    /// Of sizes the kernel says only what is the smallest: all addresses and lengths are to be
    /// multiples of it (`out_iova_alignment`; no larger than a page of the CPU, and 1 as long
    /// as no device is attached).
    fn page_sizes(&self) -> u64 {
        self.query().map_or(0, |(_, alignment)| alignment.next_power_of_two().wrapping_neg())
    }

    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        let mut flags = MAP_FIXED;
        flags |= if rights.reads() { MAP_READ } else { 0 };
        flags |= if rights.writes() { MAP_WRITE } else { 0 };
        let mut map = IoasMap {
            size: size_of::<IoasMap>() as u32,
            flags,
            ioas_id: self.ioas,
            reserved: 0,
            user_va: memory,
            length: bytes,
            iova,
        };
        // SAFETY: it reads such a structure. That devices may have the memory is what `Space::map`
        // demands.
        unsafe { call(self.fd(), IOAS_MAP, &raw mut map) }.map(drop).map_err(|e| error(&e))
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        let mut unmap = IoasUnmap {
            size: size_of::<IoasUnmap>() as u32,
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

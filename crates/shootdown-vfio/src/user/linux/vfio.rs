//! VFIO's type 1, version 2: a container with the groups of devices in it.

use std::ffi::c_ulong;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use shootdown_dma::addr::Rights;
use vfio_bindings::bindings::vfio::{
    __IncompleteArrayField, VFIO_API_VERSION, VFIO_BASE, VFIO_DMA_MAP_FLAG_READ,
    VFIO_DMA_MAP_FLAG_WRITE, VFIO_GROUP_FLAGS_VIABLE, VFIO_IOMMU_INFO_CAPS,
    VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
    VFIO_TYPE1v2_IOMMU, vfio_group_status, vfio_info_cap_header, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_iommu_type1_info_cap_iova_range,
    vfio_iommu_type1_info_dma_avail, vfio_iova_range,
};

use super::sys::{call, call_with, error, open, request};
use crate::user::{Backend, BackendError, Window};

// The bindings have no numbers of calls: bindgen does not follow the macros that make them.
const GET_API_VERSION: c_ulong = request(VFIO_BASE);
const CHECK_EXTENSION: c_ulong = request(VFIO_BASE + 1);
const SET_IOMMU: c_ulong = request(VFIO_BASE + 2);
const GROUP_GET_STATUS: c_ulong = request(VFIO_BASE + 3);
const GROUP_SET_CONTAINER: c_ulong = request(VFIO_BASE + 4);
const GROUP_GET_DEVICE_FD: c_ulong = request(VFIO_BASE + 6);
const IOMMU_GET_INFO: c_ulong = request(VFIO_BASE + 12);
const IOMMU_MAP_DMA: c_ulong = request(VFIO_BASE + 13);
const IOMMU_UNMAP_DMA: c_ulong = request(VFIO_BASE + 14);

const TYPE1_V2: c_ulong = VFIO_TYPE1v2_IOMMU as c_ulong;
const CAPABILITY_WINDOWS: u16 = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE as u16;
const CAPABILITY_LEFT: u16 = VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL as u16;

/// Where the information is read ([`Info::read`]): in a structure that the kernel may lengthen, and
/// in the chain of capabilities behind it.
mod at {
    use super::*;

    pub const FLAGS: usize = offset_of!(vfio_iommu_type1_info, flags);
    pub const PAGE_SIZES: usize = offset_of!(vfio_iommu_type1_info, iova_pgsizes);
    pub const CAPABILITIES: usize = offset_of!(vfio_iommu_type1_info, cap_offset);
    /// From the head of a capability on.
    pub const NEXT: usize = offset_of!(vfio_info_cap_header, next);
    pub const WINDOW_COUNT: usize = offset_of!(vfio_iommu_type1_info_cap_iova_range, nr_iovas);
    pub const WINDOWS: usize = offset_of!(vfio_iommu_type1_info_cap_iova_range, iova_ranges);
    pub const LEFT: usize = offset_of!(vfio_iommu_type1_info_dma_avail, avail);
    /// From a window on.
    pub const LAST: usize = offset_of!(vfio_iova_range, end);
    pub const WINDOW: usize = size_of::<vfio_iova_range>();
}

// Of Linux 6.1, printed by a C compiler: the bindings agree with it.
const _: () = {
    assert!(at::FLAGS == 4 && at::PAGE_SIZES == 8 && at::CAPABILITIES == 16 && at::NEXT == 4);
    assert!(at::WINDOW_COUNT == 8 && at::WINDOWS == 16 && at::LEFT == 8);
    assert!(at::LAST == 8 && at::WINDOW == 16);
    assert!(IOMMU_GET_INFO == 0x3b70 && IOMMU_MAP_DMA == 0x3b71 && IOMMU_UNMAP_DMA == 0x3b72);
    assert!(GET_API_VERSION == 0x3b64 && CHECK_EXTENSION == 0x3b65 && SET_IOMMU == 0x3b66);
    assert!(GROUP_GET_STATUS == 0x3b67 && GROUP_SET_CONTAINER == 0x3b68);
    assert!(GROUP_GET_DEVICE_FD == 0x3b6a);
};

/// The kernel's information about a container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Info {
    page_sizes: u64,
    windows: Vec<Window>,
    /// Mappings that it still takes, if it reports that.
    left: Option<u32>,
}

impl Info {
    /// Reads `struct vfio_iommu_type1_info` and the chain of capabilities behind it. Fields beyond
    /// `bytes` are absent.
    fn read(bytes: &[u8]) -> Self {
        let u16_at = |at: usize| {
            Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
        };
        let u32_at = |at: usize| {
            Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        let u64_at = |at: usize| {
            Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
        };
        let flags = u32_at(at::FLAGS).unwrap_or(0);
        let mut info = Self::default();
        if flags & VFIO_IOMMU_INFO_PGSIZES != 0 {
            info.page_sizes = u64_at(at::PAGE_SIZES).unwrap_or(0);
        }
        let mut next = match flags & VFIO_IOMMU_INFO_CAPS {
            0 => 0,
            _ => u32_at(at::CAPABILITIES).unwrap_or(0) as usize,
        };
        // A chain that leads backwards would have no end.
        let mut before = 0;
        while next > before {
            before = next;
            match u16_at(next) {
                Some(CAPABILITY_WINDOWS) => {
                    let count = u32_at(next + at::WINDOW_COUNT).unwrap_or(0) as usize;
                    let window = |n: usize| {
                        let at = next + at::WINDOWS + n * at::WINDOW;
                        Some(Window { first: u64_at(at)?, last: u64_at(at + at::LAST)? })
                    };
                    info.windows.extend((0..count).map_while(window));
                }
                Some(CAPABILITY_LEFT) => info.left = u32_at(next + at::LEFT),
                _ => {}
            }
            next = u32_at(next + at::NEXT).unwrap_or(0) as usize;
        }
        info
    }
}

/// A VFIO container with a type 1 IOMMU.
#[derive(Debug)]
pub struct VfioType1 {
    container: OwnedFd,
    groups: Vec<OwnedFd>,
    page_sizes: u64,
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl VfioType1 {
    /// A container with one group in it: `/dev/vfio/GROUP`, whose number is the name of what
    /// `/sys/bus/pci/devices/…/iommu_group` points at.
    ///
    /// # Errors
    /// Of the operating system; `Unsupported` if VFIO has another version, no type 1 version 2, or
    /// if some device of the group has a driver that is not VFIO's.
    pub fn open(group: u32) -> io::Result<Self> {
        let container: OwnedFd = open("/dev/vfio/vfio")?.into();
        // SAFETY: these take no argument, or a number.
        let (version, type1) = unsafe {
            let version = call_with(container.as_fd(), GET_API_VERSION, 0)?;
            (version, call_with(container.as_fd(), CHECK_EXTENSION, TYPE1_V2)?)
        };
        if u32::try_from(version) != Ok(VFIO_API_VERSION) {
            return Err(unsupported("VFIO has another version than 0"));
        }
        if type1 == 0 {
            return Err(unsupported("VFIO has no type 1 IOMMU of version 2"));
        }
        let group: OwnedFd = open(&format!("/dev/vfio/{group}"))?.into();
        let mut status =
            vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
        // SAFETY: it writes such a structure.
        unsafe { call(group.as_fd(), GROUP_GET_STATUS, &raw mut status)? };
        if status.flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(unsupported("some device of the group has a driver that is not VFIO's"));
        }
        let mut fd = container.as_raw_fd();
        // SAFETY: it reads the number of a file.
        unsafe { call(group.as_fd(), GROUP_SET_CONTAINER, &raw mut fd)? };
        // SAFETY: it takes a number.
        unsafe { call_with(container.as_fd(), SET_IOMMU, TYPE1_V2)? };
        let mut opened = Self::from_container(container)?;
        opened.groups.push(group);
        Ok(opened)
    }

    /// A container that groups were put in, and whose IOMMU was set, elsewhere.
    ///
    /// # Errors
    /// Of the operating system: it is no such container.
    pub fn from_container(container: OwnedFd) -> io::Result<Self> {
        let page_sizes = info(container.as_fd())?.page_sizes;
        Ok(Self { container, groups: Vec::new(), page_sizes })
    }

    /// The container.
    #[must_use]
    pub fn container(&self) -> BorrowedFd<'_> {
        self.container.as_fd()
    }

    /// Mappings that the kernel still takes, if it reports that (Linux 5.11 and later).
    ///
    /// # Errors
    /// Of the operating system.
    pub fn left(&self) -> io::Result<Option<u32>> {
        Ok(info(self.container.as_fd())?.left)
    }

    /// A device of the groups that were [opened](Self::open), by its name (`0000:06:0d.0`).
    ///
    /// # Errors
    /// Of the operating system; `NotFound` if there is none of this name, or it has a zero byte in
    /// it.
    pub fn device(&self, name: &str) -> io::Result<OwnedFd> {
        let name = std::ffi::CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
        let mut outcome = Err(io::ErrorKind::NotFound.into());
        for group in &self.groups {
            // SAFETY: it reads a string that ends with zero, and returns a file that is the
            // caller's.
            outcome = unsafe {
                call(group.as_fd(), GROUP_GET_DEVICE_FD, name.as_ptr().cast_mut())
                    .map(|fd| OwnedFd::from_raw_fd(fd))
            };
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

fn info(container: BorrowedFd<'_>) -> io::Result<Info> {
    // The kernel reports how many bytes it would have written.
    let mut bytes = vec![0u64; 64];
    loop {
        let room = bytes.len() * 8;
        bytes.fill(0);
        let argsz = u32::try_from(room).map_err(|_| unsupported("too much information"))?;
        let mut header = [0u8; 8];
        header[..4].copy_from_slice(&argsz.to_ne_bytes());
        bytes[0] = u64::from_ne_bytes(header);
        // SAFETY: it writes at most `argsz` bytes.
        unsafe { call(container, IOMMU_GET_INFO, bytes.as_mut_ptr())? };
        let needed = u32::from_ne_bytes([0, 1, 2, 3].map(|n| bytes[0].to_ne_bytes()[n])) as usize;
        if needed <= room {
            let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
            return Ok(Info::read(&bytes));
        }
        bytes.resize(needed.div_ceil(8), 0);
    }
}

// SAFETY: (1) the kernel unmaps, invalidates and waits before the call returns, and reports how
// many bytes it has unmapped; it refuses mappings that only partly lie in the range. (2) It maps at
// the address that it gets, or nothing.
unsafe impl Backend for VfioType1 {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        let windows = info(self.container.as_fd()).map_err(|e| error(&e))?.windows;
        // A kernel before 5.4 does not report windows, and refuses a bad address when it gets it:
        // use what every IOMMU has, without PCs' interrupts.
        Ok(if windows.is_empty() {
            vec![
                Window { first: 0, last: 0xfedf_ffff },
                Window { first: 0xfef0_0000, last: (1 << 39) - 1 },
            ]
        } else {
            windows
        })
    }

    fn page_sizes(&self) -> u64 {
        self.page_sizes
    }

    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        let mut flags = 0;
        flags |= if rights.reads() { VFIO_DMA_MAP_FLAG_READ } else { 0 };
        flags |= if rights.writes() { VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
        let argsz = size_of::<vfio_iommu_type1_dma_map>() as u32;
        let mut map = vfio_iommu_type1_dma_map { argsz, flags, vaddr: memory, iova, size: bytes };
        // SAFETY: it reads such a structure. That devices may have the memory is what `Space::map`
        // demands.
        unsafe { call(self.container.as_fd(), IOMMU_MAP_DMA, &raw mut map) }
            .map(drop)
            .map_err(|e| error(&e))
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        let mut unmap = vfio_iommu_type1_dma_unmap {
            argsz: size_of::<vfio_iommu_type1_dma_unmap>() as u32,
            flags: 0,
            iova,
            size: bytes,
            data: __IncompleteArrayField::new(),
        };
        // SAFETY: it reads and writes such a structure.
        unsafe { call(self.container.as_fd(), IOMMU_UNMAP_DMA, &raw mut unmap) }
            .map(|_| unmap.size)
            .map_err(|e| error(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel would write: header, then capabilities one after the other.
    fn written(page_sizes: u64, capabilities: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0u8; 24];
        bytes[4..8].copy_from_slice(&3u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&page_sizes.to_ne_bytes());
        bytes[16..20].copy_from_slice(&24u32.to_ne_bytes());
        for (n, (id, data)) in capabilities.iter().enumerate() {
            let next = bytes.len() + 8 + data.len();
            let next = if n + 1 == capabilities.len() { 0 } else { next as u32 };
            bytes.extend(id.to_ne_bytes());
            bytes.extend(1u16.to_ne_bytes());
            bytes.extend(next.to_ne_bytes());
            bytes.extend(data);
        }
        bytes
    }

    fn windows(list: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = (list.len() as u32).to_ne_bytes().to_vec();
        bytes.extend([0; 4]);
        list.iter().for_each(|(first, last)| {
            bytes.extend(first.to_ne_bytes());
            bytes.extend(last.to_ne_bytes());
        });
        bytes
    }

    #[test]
    fn information_is_read_to_its_end_and_no_further() {
        let list = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];
        let left = 65_535u32.to_ne_bytes().to_vec();
        let all = written(0x4020_1000, &[(2, vec![0; 24]), (1, windows(&list)), (3, left)]);
        let info = Info::read(&all);
        assert_eq!((info.page_sizes, info.left), (0x4020_1000, Some(65_535)));
        assert_eq!(info.windows, list.map(|(first, last)| Window { first, last }));
        // Whatever is missing is missing.
        for len in 0..all.len() {
            let part = Info::read(&all[..len]);
            assert!(part.windows.len() <= 2 && part.left.is_none_or(|left| left == 65_535));
        }
        // A chain that leads to itself, and one that leads away.
        let mut looped = all.clone();
        looped[28..32].copy_from_slice(&24u32.to_ne_bytes());
        assert_eq!(Info::read(&looped).windows, []);
        looped[28..32].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Info::read(&looped).windows, []);
    }

    #[test]
    fn what_is_no_container_says_so() {
        let null: OwnedFd = open("/dev/null").unwrap().into();
        let error = VfioType1::from_container(null).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        // A call that a container would take, on a file that is none.
        let null: OwnedFd = open("/dev/null").unwrap().into();
        let none = VfioType1 { container: null, groups: Vec::new(), page_sizes: 0x1000 };
        let refused = Err(BackendError::Other(libc::ENOTTY));
        assert_eq!(none.map(0x1000, 0x1000, 0x1000, Rights::Read), refused);
        assert_eq!(none.unmap(0x1000, 0x1000).map(drop), refused);
        assert_eq!(none.windows().map(drop), refused);
        assert_eq!(none.device("0000:00:00.0").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

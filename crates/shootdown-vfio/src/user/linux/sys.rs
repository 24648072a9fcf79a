//! The system call itself.

use std::ffi::{c_int, c_ulong};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use iommufd_bindings::IOMMUFD_TYPE;
use vfio_bindings::bindings::vfio::VFIO_TYPE;

use crate::user::BackendError;

/// `_IO(';', number)`: both VFIO and iommufd have this letter.
pub const fn request(number: u32) -> c_ulong {
    const { assert!(VFIO_TYPE == IOMMUFD_TYPE) };
    (VFIO_TYPE as c_ulong) << 8 | number as c_ulong
}

/// Opens a device for reading and writing.
pub fn open(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A call with a pointer to a structure.
///
/// # Safety
/// The kernel reads and writes what `argument` points at, as this request of this file says.
pub unsafe fn call<T>(fd: BorrowedFd<'_>, request: c_ulong, argument: *mut T) -> io::Result<c_int> {
    // SAFETY: as promised; musl has another type for the number.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) })
}

/// A call with a number.
///
/// # Safety
/// The request takes a number, and no pointer.
pub unsafe fn call_with(
    fd: BorrowedFd<'_>,
    request: c_ulong,
    number: c_ulong,
) -> io::Result<c_int> {
    // SAFETY: as promised.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, number) })
}

fn done(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The error of the backend for an error of the operating system.
pub fn error(error: &io::Error) -> BackendError {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => BackendError::Entries,
        Some(libc::ENOMEM) => BackendError::Memory,
        Some(libc::EEXIST | libc::EADDRINUSE) => BackendError::Exists,
        Some(libc::ENOENT) => BackendError::NotMapped,
        Some(libc::EFAULT) => BackendError::Fault,
        Some(libc::EINVAL) => BackendError::Invalid,
        number => BackendError::Other(number.unwrap_or(0)),
    }
}

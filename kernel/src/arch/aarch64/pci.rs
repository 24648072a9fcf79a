//! PCI of QEMU's `virt`: configuration space is memory (ECAM), and there is no firmware that gives
//! devices addresses.

use super::PHYSICAL_BASE;

/// Configuration space of `virt` with `highmem`, 4 KiB for each function.
const ECAM: u64 = 0x40_1000_0000;

/// Physical addresses that devices' 32-bit windows may be put at.
pub const WINDOW: core::ops::Range<u64> = 0x1000_0000..0x3eff_0000;

/// Where a function's configuration register is.
fn register(function: u16, offset: u16) -> *mut u32 {
    (PHYSICAL_BASE + ECAM + (u64::from(function) << 12) + u64::from(offset & 0xffc)) as *mut u32
}

/// Reads a register of a function on bus 0 (device number times eight, and function); all ones
/// where there is none.
#[must_use]
pub fn read(function: u16, offset: u16) -> u32 {
    // SAFETY: the boot tables map the first 256 MiB of configuration space as device memory;
    // reading has no effect.
    unsafe { register(function & 0xff, offset).read_volatile() }
}

/// Writes one.
///
/// # Safety
/// What the device does then harms nobody.
pub unsafe fn write(function: u16, offset: u16, value: u32) {
    // SAFETY: as for `read`, and the caller's promise.
    unsafe { register(function & 0xff, offset).write_volatile(value) }
}

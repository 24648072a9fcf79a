//! The PL011 of QEMU's `virt`, as far as writing needs it (Arm DDI 0183).
//!
//! It needs no set-up there; elsewhere firmware has done it. A byte is written when the FIFO has
//! room.

use super::{PHYSICAL_BASE, relax};

/// Where `virt` has it.
const BASE: u64 = 0x0900_0000;
/// Flag register: bit 5 says that the transmit FIFO is full.
const FR: usize = 0x18;
const FULL: u32 = 1 << 5;

/// Writes one byte.
pub fn put(byte: u8) {
    let base = (PHYSICAL_BASE + BASE) as *mut u32;
    // SAFETY: the boot tables map the UART as device memory; reading FR and writing DR have no
    // effect but the byte.
    unsafe {
        while base.byte_add(FR).read_volatile() & FULL != 0 {
            relax();
        }
        base.write_volatile(u32::from(byte));
    }
}

//! Code that is written while the image runs.
//!
//! Instruction and data caches need not agree (Arm ARM B2.4.4): after the stores the data cache is
//! cleaned to the point of unification, line by line, and then the instruction cache forgets the
//! lines on every CPU. Each CPU that fetches needs an ISB after that; [`super::probe::execute`] has
//! one.

use core::arch::asm;

/// Bytes of a function.
pub const LEN: usize = 8;

/// A function that returns a number: `mov w0, #number; ret`.
///
/// # Panics
/// If the number does not fit 16 bits.
#[must_use]
pub fn returning(number: u32) -> [u8; LEN] {
    assert!(number <= 0xffff, "{number} is no 16-bit immediate");
    let [mov, ret] = [0x5280_0000 | number << 5, 0xd65f_03c0_u32];
    let mut code = [0; LEN];
    code[..4].copy_from_slice(&mov.to_le_bytes());
    code[4..].copy_from_slice(&ret.to_le_bytes());
    code
}

/// Makes code fetchable that was written to an address.
pub fn written(address: u64, len: usize) {
    let ctr: u64;
    // SAFETY: reading CTR_EL0 changes nothing.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    // The smallest lines of the caches: log2 of words.
    let lines = |field: u64| 4u64 << (field & 0xf);
    let each = |line: u64| (address / line * line..address + len as u64).step_by(line as usize);
    for line in each(lines(ctr >> 16)) {
        // SAFETY: cleaning a line changes no data.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in each(lines(ctr)) {
        // SAFETY: an instruction cache holds nothing that memory has not.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

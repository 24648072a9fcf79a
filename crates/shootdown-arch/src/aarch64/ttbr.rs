//! `TTBR0_EL1`: the tables of the lower half, and the ASID.
//!
//! | bits | field | |
//! |---|---|---|
//! | 63:48 | ASID | bits 63:56 are zero with 8-bit ASIDs |
//! | 47:1 | BADDR | the root table; with 52-bit addresses, bits 5:2 hold bits 51:48 of its address |
//! | 0 | CnP | entries may be shared with CPUs that have the same value here |
//!
//! (Arm ARM D24.2, TTBR0_EL1.) With `TCR_EL1.A1` clear the ASID in force is the one here, so that
//! one write changes tables and ASID together: at no moment does one belong to the other's space.

use crate::asid::Asid;

/// The frame of a root table: a multiple of 4 KiB, within the physical addresses of the CPU.
pub type RootFrame = crate::root::RootFrame<52>;

/// A value of `TTBR0_EL1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ttbr(u64);

impl Ttbr {
    /// Tables under an ASID. `shared`: every CPU that sets it means the same tables by the same
    /// ASID.
    #[must_use]
    pub const fn new(root: RootFrame, asid: Asid, shared: bool) -> Self {
        let low = root.address() & 0xffff_ffff_f000;
        let high = root.address() >> 48 << 2;
        Self(asid.field() | low | high | shared as u64)
    }

    /// The register's value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Reads `TTBR0_EL1`.
///
/// # Safety
/// The CPU is at EL1, or at EL2 of a host that runs in the EL2&0 regime.
#[cfg(target_arch = "aarch64")]
#[must_use]
#[inline(always)]
pub unsafe fn read_ttbr0() -> u64 {
    let raw: u64;
    // SAFETY: the register may be read (the caller's promise); reading it changes nothing.
    unsafe {
        core::arch::asm!("mrs {0}, ttbr0_el1", out(reg) raw,
            options(nomem, nostack, preserves_flags));
    }
    raw
}

/// Writes `TTBR0_EL1`, and waits until the CPU uses the new value (ISB).
///
/// # Safety
/// As for [`read_ttbr0`]. The tables are valid and stay so until another value is written; entries
/// cached under the ASID agree with them, or are invalidated before an access goes through them.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn write_ttbr0(value: Ttbr) {
    // SAFETY: the caller's promise. The compiler is told that it may touch memory, so that no
    // access moves across it.
    unsafe {
        core::arch::asm!("msr ttbr0_el1, {0}", "isb", in(reg) value.raw(),
            options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asid::AsidWidth;

    #[test]
    fn fields_are_where_the_manual_has_them() {
        for bit in 0..64 {
            let root = RootFrame::new(1 << bit, 52);
            assert_eq!(root.is_ok(), (12..52).contains(&bit), "bit {bit}");
            let Ok(root) = root else { continue };
            let expected = if bit < 48 { 1u64 << bit } else { 1 << (bit - 48 + 2) };
            assert_eq!(Ttbr::new(root, Asid::ZERO, false).raw(), expected);
            assert_eq!(Ttbr::new(root, Asid::ZERO, true).raw(), expected | 1);
        }
        for raw in [0, 1, 0xff, 0x100, 0xffff] {
            let asid = Asid::new(raw, AsidWidth::BITS_16).unwrap();
            let root = RootFrame::new(0x1000, 48).unwrap();
            assert_eq!(Ttbr::new(root, asid, false).raw(), u64::from(raw) << 48 | 0x1000);
        }
    }
}

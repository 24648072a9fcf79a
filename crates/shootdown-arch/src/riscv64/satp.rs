//! `satp`: which tables the hart walks, under which ASID.
//!
//! | bits | field | |
//! |---|---|---|
//! | 63:60 | MODE | 0 Bare, 8 Sv39, 9 Sv48, 10 Sv57; others are reserved |
//! | 59:44 | ASID | only as many low bits as are implemented |
//! | 43:0 | PPN | page number of the root table, which is 4 KiB and aligned |
//!
//! With MODE Bare the other fields must be zero. A write with a MODE that the hart lacks changes
//! *nothing*, the root included: read back what you wrote when you find out which modes there are.
//! (Privileged, `satp`.)
//!
//! A write orders nothing and invalidates nothing: a tag that changes hands is fenced by itself
//! (`regime.rs` says when).

use core::fmt;

use super::asid::SHIFT;
use crate::asid::Asid;

const PAGE_SHIFT: u32 = 12;
const MODE_SHIFT: u32 = 60;

/// The shape of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Three levels, 39-bit addresses.
    Sv39,
    /// Four levels, 48-bit addresses.
    Sv48,
    /// Five levels, 57-bit addresses.
    Sv57,
}

impl Mode {
    /// All of them, smallest first.
    pub const ALL: [Self; 3] = [Self::Sv39, Self::Sv48, Self::Sv57];

    /// The number in the MODE field.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Sv39 => 8,
            Self::Sv48 => 9,
            Self::Sv57 => 10,
        }
    }

    /// Bits of a virtual address.
    #[must_use]
    pub const fn address_bits(self) -> u32 {
        match self {
            Self::Sv39 => 39,
            Self::Sv48 => 48,
            Self::Sv57 => 57,
        }
    }

    /// Can the address be translated? The bits above the mode's must repeat its top bit. (A fence
    /// that names another address does nothing: there is no entry for it.)
    #[must_use]
    pub const fn is_valid(self, address: u64) -> bool {
        let shift = 64 - self.address_bits();
        ((address << shift) as i64 >> shift) as u64 == address
    }

    const fn of_number(number: u64) -> Option<Self> {
        match number {
            8 => Some(Self::Sv39),
            9 => Some(Self::Sv48),
            10 => Some(Self::Sv57),
            _ => None,
        }
    }
}

/// The frame of a root table: a multiple of 4 KiB, within the physical addresses of the hart.
pub type RootFrame = crate::root::RootFrame<56>;

/// A value of `satp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Satp(u64);

/// A value that software must not write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SatpError {
    /// The MODE is reserved.
    Mode(u8),
    /// MODE is Bare and another field is not zero.
    Bare(u64),
}

impl fmt::Display for SatpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(number) => write!(f, "satp mode {number} is reserved; use 0, 8, 9 or 10"),
            Self::Bare(raw) => write!(f, "satp {raw:#x} is Bare with other fields; clear them"),
        }
    }
}

impl core::error::Error for SatpError {}

impl Satp {
    /// No translation.
    pub const BARE: Self = Self(0);

    /// Tables of a mode under an ASID.
    #[must_use]
    pub const fn new(mode: Mode, asid: Asid, root: RootFrame) -> Self {
        Self(
            (mode.number() as u64) << MODE_SHIFT
                | (asid.get() as u64) << SHIFT
                | root.address() >> PAGE_SHIFT,
        )
    }

    /// A value as found in the register.
    ///
    /// # Errors
    /// [`SatpError`] for what software must not write.
    pub const fn decode(raw: u64) -> Result<Self, SatpError> {
        let mode = raw >> MODE_SHIFT;
        #[allow(clippy::cast_possible_truncation)] // 4 bits
        match mode {
            0 if raw != 0 => Err(SatpError::Bare(raw)),
            0 => Ok(Self(raw)),
            _ if Mode::of_number(mode).is_some() => Ok(Self(raw)),
            _ => Err(SatpError::Mode(mode as u8)),
        }
    }

    /// The value with ones in the whole ASID field: what a probe writes.
    #[must_use]
    pub const fn probe(self) -> u64 {
        self.0 | 0xffff << SHIFT
    }

    /// The mode; `None` when translation is off.
    #[must_use]
    pub const fn mode(self) -> Option<Mode> {
        Mode::of_number(self.0 >> MODE_SHIFT)
    }

    /// The ASID.
    #[must_use]
    pub const fn asid(self) -> Asid {
        Asid::of_satp(self.0)
    }

    /// The root table.
    #[must_use]
    pub const fn root(self) -> RootFrame {
        RootFrame::of_number(self.0)
    }

    /// The register's value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Reads `satp`.
///
/// # Safety
/// The hart is in supervisor mode, and `mstatus.TVM` does not trap the access.
#[cfg(target_arch = "riscv64")]
#[must_use]
#[inline(always)]
pub unsafe fn read_satp() -> u64 {
    let raw: u64;
    // SAFETY: the register may be read (the caller's promise); reading it changes nothing.
    unsafe { core::arch::asm!("csrr {0}, satp", out(reg) raw, options(nomem, nostack)) };
    raw
}

/// Writes `satp`. Nothing is invalidated or ordered by it.
///
/// # Safety
/// As for [`read_satp`]. The mode exists on this hart; the tables are valid, map the code that
/// runs, and stay so until another value is written; entries cached under the ASID agree with them,
/// or are invalidated before an access goes through them.
#[cfg(target_arch = "riscv64")]
#[inline(always)]
pub unsafe fn write_satp(value: Satp) {
    // SAFETY: the caller's promise. The compiler is told that it may touch memory, so that no
    // access moves across it.
    unsafe { core::arch::asm!("csrw satp, {0}", in(reg) value.raw(), options(nostack)) };
}

/// Finds out how many bits an ASID has: writes ones, reads them back, restores the register, and
/// fences, as entries may have been cached under the ASID of ones.
///
/// # Errors
/// [`super::ProbeError`] when what came back is no width.
///
/// # Safety
/// As for [`write_satp`] with the tables that are loaded now; interrupts are off.
#[cfg(target_arch = "riscv64")]
pub unsafe fn probe_asid_width() -> Result<super::AsidWidth, super::ProbeError> {
    // SAFETY: supervisor mode (the caller's promise). The same tables stay loaded all the time.
    unsafe {
        let before = Satp(read_satp());
        write_satp(Satp(before.probe()));
        let read = read_satp();
        write_satp(before);
        super::fence(super::Fence::ALL);
        super::AsidWidth::of_probe(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asid::AsidWidth;

    #[test]
    fn fields_are_where_the_manual_has_them_and_read_back() {
        for (mode, number) in Mode::ALL.into_iter().zip(8u64..) {
            for asid in [0, 1, 0x1ff, 0x8000, 0xffff] {
                for page in [0, 1, 0x8_0000, (1u64 << 44) - 1] {
                    let asid = Asid::new(asid, AsidWidth::BITS_16).unwrap();
                    let root = RootFrame::new(page << 12, 56).unwrap();
                    let satp = Satp::new(mode, asid, root);
                    let fields =
                        (satp.raw() >> 60, satp.raw() >> 44 & 0xffff, satp.raw() << 20 >> 20);
                    assert_eq!(fields, (number, u64::from(asid.get()), page));
                    assert_eq!((satp.mode(), satp.asid(), satp.root()), (Some(mode), asid, root));
                    assert_eq!(Satp::decode(satp.raw()), Ok(satp));
                    assert_eq!(satp.probe() & !(0xffff << 44), satp.raw() & !(0xffff << 44));
                    assert_eq!(AsidWidth::of_probe(satp.probe()), Ok(AsidWidth::BITS_16));
                }
            }
        }
        assert_eq!(Satp::decode(0), Ok(Satp::BARE));
        assert_eq!(Satp::BARE.mode(), None);
    }

    #[test]
    fn what_must_not_be_written_is_refused() {
        for bit in 0..60 {
            assert_eq!(Satp::decode(1 << bit), Err(SatpError::Bare(1 << bit)));
        }
        for mode in 1..16u8 {
            let got = Satp::decode(u64::from(mode) << 60);
            assert_eq!(got.is_ok(), (8..=10).contains(&mode));
            assert!(got.is_ok() || got == Err(SatpError::Mode(mode)));
        }
    }

    #[test]
    fn an_address_is_valid_when_its_high_bits_repeat_the_top_one() {
        for mode in Mode::ALL {
            let bits = mode.address_bits();
            let half = 1u64 << (bits - 1);
            for (address, valid) in [
                (0, true),
                (half - 1, true),
                (half, false),
                (half << 1, false),
                (half.wrapping_neg() - 1, false),
                (half.wrapping_neg(), true),
                (u64::MAX, true),
            ] {
                assert_eq!(mode.is_valid(address), valid, "{mode:?} {address:#x}");
            }
        }
    }
}

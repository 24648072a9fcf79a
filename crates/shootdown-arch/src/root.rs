//! Root tables: one page frame each, within the physical addresses that a register's format holds.

use core::fmt;

/// The frame of a root table: 4 KiB aligned, below 2 to the power of `BITS`, which is what the
/// register that names it has room for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RootFrame<const BITS: u8>(u64);

/// Why an address is no root frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RootError {
    /// Not a multiple of 4096.
    Misaligned(u64),
    /// Beyond the physical addresses of this CPU, or of the format.
    TooHigh {
        /// The address.
        address: u64,
        /// The width it was checked against.
        physical_bits: u8,
    },
}

impl fmt::Display for RootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned(address) => {
                write!(f, "{address:#x} is not the start of a page; a table fills one 4 KiB frame")
            }
            Self::TooHigh { address, physical_bits } => {
                write!(f, "{address:#x} does not fit the {physical_bits} physical address bits")
            }
        }
    }
}

impl core::error::Error for RootError {}

impl<const BITS: u8> RootFrame<BITS> {
    /// The widest physical address the format holds.
    pub const MAX_PHYSICAL_BITS: u8 = BITS;

    /// The frame at a physical address, on a CPU with this many physical address bits. A CPU that
    /// claims more than the format holds gets what the format holds.
    ///
    /// # Errors
    /// [`RootError`] when the address is not page aligned or too high.
    pub const fn new(address: u64, physical_bits: u8) -> Result<Self, RootError> {
        if address & 0xfff != 0 {
            return Err(RootError::Misaligned(address));
        }
        let bits = if physical_bits < BITS { physical_bits } else { BITS };
        if address >> bits != 0 {
            return Err(RootError::TooHigh { address, physical_bits: bits });
        }
        Ok(Self(address))
    }

    /// The frame whose number is in the low bits of a register; bits beyond the format are others'
    /// fields.
    pub(crate) const fn of_number(bits: u64) -> Self {
        Self((bits << 12) & ((1 << BITS) - 1))
    }

    /// The physical address.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly_the_frames_below_the_limit<const BITS: u8>() {
        for bit in 0..64 {
            let frame = RootFrame::<BITS>::new(1 << bit, BITS);
            assert_eq!(frame.is_ok(), (12..BITS).contains(&bit), "bit {bit}");
        }
        for bit in 0..12 {
            let address = 0x1_0000 | 1 << bit;
            let refused = Err(RootError::Misaligned(address));
            assert_eq!(RootFrame::<BITS>::new(address, BITS), refused);
        }
        for bits in 32..BITS {
            let address = 1 << bits;
            let refused = Err(RootError::TooHigh { address, physical_bits: bits });
            assert_eq!(RootFrame::<BITS>::new(address, bits), refused);
            let frame = RootFrame::<BITS>::new(address, bits + 1);
            assert_eq!(frame.map(RootFrame::address), Ok(address));
        }
        assert!(RootFrame::<BITS>::new(1 << BITS, BITS + 4).is_err());
    }

    #[test]
    fn a_frame_is_aligned_and_fits_the_cpu_and_the_format() {
        exactly_the_frames_below_the_limit::<52>();
        exactly_the_frames_below_the_limit::<56>();
    }
}

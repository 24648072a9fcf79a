//! Firmware's description of IOMMUs: the ACPI tables DMAR, IVRS and IORT.
//!
//! The crate `acpi` finds tables and checks their checksums, and of these three it parses only the
//! header. So the host finds a table with it, and passes its bytes, header included, to
//! [`dmar::Dmar`], [`ivrs::Ivrs`] or [`iort::Iort`].
//!
//! Parsers are total: for any bytes they end, read nothing outside, and do not panic. A block whose
//! length is less than its own head, or more than is left, ends the iteration, since the begin of
//! the next block is unknown; [`Blocks::is_whole`] reports whether that has happened.

pub mod dmar;
pub mod iort;
pub mod ivrs;

use core::fmt;

/// Why bytes are no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TableError {
    /// They are fewer than its head.
    Short,
    /// They have another table's signature.
    Signature([u8; 4]),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the table ends within its own head"),
            Self::Signature(signature) => {
                write!(f, "the table is another one: {}", signature.escape_ascii())
            }
        }
    }
}

impl core::error::Error for TableError {}

/// Bytes of any content, read by offsets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub fn from(self, at: usize) -> Bytes<'a> {
        Bytes(self.0.get(at..).unwrap_or(&[]))
    }

    /// The table's head, of `head` bytes, and the bytes behind it; no more than its header
    /// declares.
    fn table(self, signature: [u8; 4], head: usize) -> Result<(Bytes<'a>, Bytes<'a>), TableError> {
        let found = self.array::<4>(0).ok_or(TableError::Short)?;
        if found != signature {
            return Err(TableError::Signature(found));
        }
        let length = self.u32(4).ok_or(TableError::Short)? as usize;
        let whole = Bytes(self.0.get(..length).unwrap_or(self.0));
        if whole.0.len() < head {
            return Err(TableError::Short);
        }
        Ok((whole, whole.from(head)))
    }
}

/// The position of a block's length, and the least length.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Reads the length of the block from its bytes; `None`: it has none.
    pub length: fn(Bytes<'_>) -> Option<usize>,
    /// Bytes of its head.
    pub head: usize,
}

/// Blocks of different lengths, one behind the other.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    rest: Bytes<'a>,
    layout: Layout,
}

impl<'a> Blocks<'a> {
    pub(crate) const fn new(rest: Bytes<'a>, layout: Layout) -> Self {
        Self { rest, layout }
    }

    /// Whether the blocks end where the bytes do. If not, the table is damaged, and the bytes
    /// behind the last block were not read.
    #[must_use]
    pub fn is_whole(mut self) -> bool {
        while self.next().is_some() {}
        self.rest.0.is_empty()
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = (self.layout.length)(self.rest)?;
        if length < self.layout.head {
            return None; // Nor would it end.
        }
        let block = self.rest.0.get(..length)?;
        self.rest = self.rest.from(length);
        Some(block)
    }
}

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Memory that a device always needs, since firmware or the device itself continues to use it. Map
/// it one to one in the device's domain before the device is admitted, and hand out no address in
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// The first byte.
    pub first: u64,
    /// The last byte (inclusive).
    pub last: u64,
    /// Whether it may be read.
    pub read: bool,
    /// Whether it may be written.
    pub write: bool,
}

impl Reserved {
    /// `length` bytes from `first` on; `None` if there are none, or they go beyond all addresses.
    const fn of_length(first: u64, length: u64, read: bool, write: bool) -> Option<Self> {
        if length == 0 {
            return None;
        }
        match first.checked_add(length - 1) {
            Some(last) => Some(Self { first, last, read, write }),
            None => None,
        }
    }

    /// The pages of 2^`granule` bytes that it lies in, for `Space::without` and `Domain::map_at`.
    /// `None` if page 0 is one of them.
    #[must_use]
    pub const fn pages(&self, granule: u32) -> Option<shootdown_dma::IovaRange> {
        shootdown_dma::IovaRange::of_bytes(self.first, self.last, granule)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// A table with this signature: its header, then these bytes.
    pub fn table(signature: &[u8; 4], behind: &[u8]) -> Vec<u8> {
        let length = 36 + behind.len();
        let mut table = vec![0; 36];
        table[..4].copy_from_slice(signature);
        table[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        table.extend(behind);
        table
    }

    #[test]
    fn a_header_says_how_long_the_table_is() {
        let mut bytes = table(b"DMAR", &[7; 20]);
        let (whole, behind) = Bytes(&bytes).table(*b"DMAR", 48).unwrap();
        assert_eq!((whole.0.len(), behind.0), (56, &[7; 8][..]));
        bytes.extend([9; 4]); // behind it
        assert_eq!(Bytes(&bytes).table(*b"DMAR", 48).unwrap().1.0, &[7; 8]);
        bytes[4] = 47;
        assert_eq!(Bytes(&bytes).table(*b"DMAR", 48).err(), Some(TableError::Short));
        let other = Bytes(&bytes).table(*b"IVRS", 48).err();
        assert_eq!(other, Some(TableError::Signature(*b"DMAR")));
        assert_eq!(Bytes(&[]).table(*b"IVRS", 48).err(), Some(TableError::Short));
    }

    #[test]
    fn reserved_memory_has_a_last_byte() {
        let all = Reserved::of_length(u64::MAX, 1, true, true).unwrap();
        assert_eq!((all.first, all.last), (u64::MAX, u64::MAX));
        assert_eq!(Reserved::of_length(u64::MAX, 2, true, true), None);
        assert_eq!(Reserved::of_length(0x1000, 0, true, true), None);
        let pages = Reserved::of_length(0xe_ffff, 2, true, true).unwrap().pages(12).unwrap();
        assert_eq!((pages.first(), pages.pages()), (0xef, 2));
    }
}

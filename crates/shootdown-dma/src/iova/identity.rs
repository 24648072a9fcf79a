//! Identity addresses, which need no allocator: the page's own number, prefixed by the rights.
//!
//! **The idea** (Peleg and others, 2015): the I/O address of a page is its physical address, so
//! nothing is allocated, searched or freed. But the same page may be mapped twice, once for reading
//! and once for writing, and an I/O page table has one entry for an address. So the rights are part
//! of the address: the space is divided into *zones* of 2^s pages, and a page has an address in
//! each.
//!
//! | zone | holds |
//! |---|---|
//! | 0 | what the fallback allocator hands out |
//! | 1, 2, 3 | pages of 4 KiB to be read, written, read and written |
//! | 5, 6, 7 | the same as leaves of 2 MiB, if there are such |
//! | 9, 10, 11 | the same as leaves of 1 GiB, if there are such |
//!
//! Each size has zones of its own, because an address that is first a small page and then within a
//! large one would have to be invalidated in between ("break before make"). Zones are as large as
//! possible. Their size is a power of two, so that shifts and masks encode and decode, and at least
//! an entry of the top table, so that zones share no page tables. Zone 0 holds what narrow devices
//! reach, and with it the window of interrupts.
//!
//! What does not fit gets a reason ([`Unfit`]) and goes to the fallback allocator. The address
//! alone tells which of the two it is ([`Layout::decode`]), so unmapping needs no lookup.
//!
//! Pages may also have 16 or 64 KiB, as the tables have; the larger zones are for tables of 4 KiB
//! pages.
//!
//! This file has the layout only; the page table has the entries, and counts the mappings of a
//! page.
//!
//! - **P3** Decoding an encoded page gives the page, the rights and the size; zones are disjoint.
//!
//! **What the device learns:** physical addresses.

use core::fmt;

use super::space::Space;
use crate::addr::{IovaRange, Rights};

/// Sizes of leaves: 512 times each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LeafSize {
    /// A page: 4 KiB.
    Page,
    /// 512 pages: 2 MiB.
    Large,
    /// 512 × 512 pages: 1 GiB.
    Huge,
}

impl LeafSize {
    /// All, from the smallest.
    pub const ALL: [Self; 3] = [Self::Page, Self::Large, Self::Huge];

    /// Pages of a leaf.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << (9 * self as u32)
    }
}

/// The zone of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In zone 0: an address of the fallback allocator.
    Fallback,
    /// In the zone of these rights and this size: the physical pages from `first` on, as many as
    /// the range has.
    Identity {
        /// The physical page.
        first: u64,
        /// The rights of the zone.
        rights: Rights,
        /// The leaves of the zone.
        size: LeafSize,
    },
}

/// Why pages have no identity address, and get one from the fallback allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unfit {
    /// There are no pages, or their numbers wrap.
    Empty,
    /// They lie beyond the end of a zone: the machine has more memory than a zone has room for.
    AboveZone,
    /// The device cannot emit the address: its mask is too narrow.
    AboveLimit,
    /// The hardware does not translate the address.
    Reserved,
    /// They do not begin and end at a leaf of this size.
    Unaligned,
    /// The layout has no zones for leaves of this size.
    NoSuchSize,
    /// The page table has no entry that can be written but not read (Arm's first stage).
    NoWriteOnly,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no pages, or past the last page",
            Self::AboveZone => "the memory is above what an identity zone holds; use the fallback",
            Self::AboveLimit => "the device cannot address an identity zone; use the fallback",
            Self::Reserved => "the identity address is not translated; use the fallback",
            Self::Unaligned => "not a whole number of leaves; use a smaller size",
            Self::NoSuchSize => "the layout has no zones of this size; use a smaller one",
            Self::NoWriteOnly => "there are no write-only entries; use the fallback",
        })
    }
}

impl core::error::Error for Unfit {}

/// There are too few addresses for the zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooNarrow;

impl fmt::Display for TooNarrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a zone would be smaller than an entry of the top table; use fewer sizes, or no identity")
    }
}

impl core::error::Error for TooNarrow {}

/// How a space is divided into zones.
///
/// ```
/// use shootdown_dma::Rights;
/// use shootdown_dma::iova::identity::{LeafSize, Layout, Place};
///
/// // 48 bits of address, pages of 4 KiB; an entry of the top table is 512 GiB.
/// let layout = Layout::new(36, 27, LeafSize::Page)?;
/// assert_eq!(layout.zone_pages(), 1 << 34); // 64 TiB
/// let range = layout.encode(0x1234, 2, Rights::Read, LeafSize::Page)?;
/// assert_eq!(range.first(), (1 << 34) + 0x1234);
/// let place = Place::Identity { first: 0x1234, rights: Rights::Read, size: LeafSize::Page };
/// assert_eq!(layout.decode(range), Some(place));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout<'a> {
    /// A zone has 2^shift pages.
    shift: u32,
    largest: LeafSize,
    limit: u64,
    reserved: &'a [IovaRange],
    write_only: bool,
}

const fn rights_zone(rights: Rights) -> u64 {
    match rights {
        Rights::Read => 1,
        Rights::Write => 2,
        Rights::ReadWrite => 3,
    }
}

impl<'a> Layout<'a> {
    /// Zones for page numbers of `width` bits, with leaves up to `largest`; an entry of the top
    /// table covers 2^`top` pages.
    ///
    /// # Errors
    /// [`TooNarrow`] if a zone would be smaller than such an entry, or than a leaf.
    pub const fn new(width: u32, top: u32, largest: LeafSize) -> Result<Self, TooNarrow> {
        let bits = match largest {
            LeafSize::Page => 2,
            LeafSize::Large => 3,
            LeafSize::Huge => 4,
        };
        if width > 62 || width < bits + top || width < bits + 9 * largest as u32 {
            return Err(TooNarrow);
        }
        Ok(Self { shift: width - bits, largest, limit: u64::MAX, reserved: &[], write_only: true })
    }

    /// The same for a device that emits no page number above `limit`.
    #[must_use]
    pub const fn below(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// The same, if its limit is not lower already.
    pub(crate) const fn at_most(self, limit: u64) -> Self {
        if limit < self.limit { self.below(limit) } else { self }
    }

    /// The same with addresses that are not translated.
    #[must_use]
    pub const fn without(self, reserved: &'a [IovaRange]) -> Self {
        Self { reserved, ..self }
    }

    /// The same for page tables whose entries can't be written without being read.
    #[must_use]
    pub const fn without_write_only(self) -> Self {
        Self { write_only: false, ..self }
    }

    /// The largest leaves that have zones.
    #[must_use]
    pub const fn largest(&self) -> LeafSize {
        self.largest
    }

    /// Pages of a zone: memory above that many pages has no identity addresses.
    #[must_use]
    pub const fn zone_pages(&self) -> u64 {
        1 << self.shift
    }

    /// The last page of the last zone: tables must resolve it.
    #[must_use]
    pub const fn last_page(&self) -> u64 {
        // Four zones for each size.
        ((self.largest as u64 + 1) << (self.shift + 2)) - 1
    }

    /// Zone 0, for the fallback allocator.
    #[must_use]
    pub const fn fallback(&self) -> Space<'a> {
        Space::below(self.zone_pages()).without(self.reserved)
    }

    /// The address of physical pages for these rights, in leaves of this size.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn encode(
        &self,
        first: u64,
        pages: u64,
        rights: Rights,
        size: LeafSize,
    ) -> Result<IovaRange, Unfit> {
        if size > self.largest {
            return Err(Unfit::NoSuchSize);
        }
        if rights == Rights::Write && !self.write_only {
            return Err(Unfit::NoWriteOnly);
        }
        if (first | pages) & (size.pages() - 1) != 0 {
            return Err(Unfit::Unaligned);
        }
        let last =
            pages.checked_sub(1).and_then(|more| first.checked_add(more)).ok_or(Unfit::Empty)?;
        if last >= self.zone_pages() {
            return Err(Unfit::AboveZone);
        }
        let sizes = (size as u64) << 2;
        let zone = sizes | rights_zone(rights);
        let range = IovaRange::new((zone << self.shift) + first, pages).ok_or(Unfit::Empty)?;
        if range.last() > self.limit {
            return Err(Unfit::AboveLimit);
        }
        if self.reserved.iter().any(|r| r.overlaps(range)) {
            return Err(Unfit::Reserved);
        }
        Ok(range)
    }

    /// The place of a range; `None` if it is in no zone, or in more than one.
    #[must_use]
    pub const fn decode(&self, range: IovaRange) -> Option<Place> {
        let zone = range.first() >> self.shift;
        if range.last() >> self.shift != zone {
            return None;
        }
        let size = match zone >> 2 {
            0 => LeafSize::Page,
            1 => LeafSize::Large,
            2 => LeafSize::Huge,
            _ => return None,
        };
        if size as u8 > self.largest as u8 {
            return None;
        }
        let rights = match zone & 3 {
            1 => Rights::Read,
            2 => Rights::Write,
            3 => Rights::ReadWrite,
            _ if zone == 0 => return Some(Place::Fallback),
            _ => return None,
        };
        let first = range.first() & (self.zone_pages() - 1);
        if (first | range.pages()) & (size.pages() - 1) != 0 {
            return None;
        }
        Some(Place::Identity { first, rights, size })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;
    use crate::iova::space::HYPERTRANSPORT;

    const RIGHTS: [Rights; 3] = [Rights::Read, Rights::Write, Rights::ReadWrite];

    /// Every page of every zone of small layouts, ranges of up to three leaves: P3.
    pub(crate) fn decodes_what_was_encoded() {
        for (width, top, largest) in
            [(4, 1, LeafSize::Page), (6, 2, LeafSize::Page), (13, 4, LeafSize::Large)]
        {
            let reserved = [IovaRange::new(5 << (width - 3), 2).unwrap()];
            let layout = Layout::new(width, top, largest).unwrap().without(&reserved);
            let mut owners = BTreeMap::new();
            for size in LeafSize::ALL.into_iter().filter(|s| *s <= largest) {
                let leaf = size.pages();
                for first in
                    (0..layout.zone_pages() + 2 * leaf).step_by(usize::try_from(leaf).unwrap())
                {
                    for (rights, leaves) in
                        RIGHTS.into_iter().flat_map(|r| (1..4).map(move |n| (r, n)))
                    {
                        let got = layout.encode(first, leaves * leaf, rights, size);
                        let fits = first + leaves * leaf <= layout.zone_pages();
                        let Ok(range) = got else {
                            let free = |r: &IovaRange| {
                                let zone = (size as u64) << 2 | rights_zone(rights);
                                let at = (zone
                                    << (width - if largest == LeafSize::Page { 2 } else { 3 }))
                                    + first;
                                !r.overlaps(IovaRange::new(at, leaves * leaf).unwrap())
                            };
                            assert!(!fits || !reserved.iter().all(free), "{got:?} at {first}");
                            continue;
                        };
                        assert!(fits && range.pages() == leaves * leaf);
                        assert!(range.last() <= layout.last_page() && range.last() < 1 << width);
                        assert!(!range.overlaps(reserved[0]));
                        let place = Place::Identity { first, rights, size };
                        assert_eq!(layout.decode(range), Some(place), "P3");
                        assert!(!range.overlaps(fallback(&layout)), "P3: zone 0");
                        for page in range.first()..=range.last() {
                            let owner = (rights, size, page - range.first() + first);
                            assert_eq!(*owners.entry(page).or_insert(owner), owner, "P3: disjoint");
                        }
                    }
                }
            }
            // And back: what decodes encodes to the same, or is reserved.
            for page in 1..1u64 << (width + 1) {
                let range = IovaRange::new(page, 1).unwrap();
                match layout.decode(range) {
                    Some(Place::Identity { first, rights, size: LeafSize::Page }) => {
                        let back = layout.encode(first, 1, rights, LeafSize::Page);
                        assert!(back == Ok(range) || back == Err(Unfit::Reserved));
                    }
                    Some(Place::Fallback) => assert!(page < layout.zone_pages()),
                    Some(place) => panic!("{place:?} is no page"),
                    None => assert!(
                        page >= layout.zone_pages()
                            && !matches!(owners.get(&page), Some((_, LeafSize::Page, _)))
                    ),
                }
            }
        }
    }

    fn fallback(layout: &Layout<'_>) -> IovaRange {
        let space = layout.fallback();
        IovaRange::new(space.first, space.last - space.first + 1).unwrap()
    }

    #[test]
    fn decoding_inverts_encoding() {
        decodes_what_was_encoded();
    }

    pub(crate) fn masks_are_kept() {
        let layout = Layout::new(36, 27, LeafSize::Huge).unwrap().below((1 << 33) + 9);
        let encode = |first| layout.encode(first, 1, Rights::Write, LeafSize::Page);
        assert_eq!(layout.zone_pages(), 1 << 32);
        assert_eq!(encode(9).map(IovaRange::last), Ok((1 << 33) + 9));
        assert_eq!(encode(10), Err(Unfit::AboveLimit));
    }

    #[test]
    fn what_does_not_fit_says_why() {
        masks_are_kept();
        let layout = Layout::new(36, 27, LeafSize::Large).unwrap();
        let encode = |first, pages, size| layout.encode(first, pages, Rights::Read, size);
        assert_eq!(encode(0, 0, LeafSize::Page), Err(Unfit::Empty));
        assert_eq!(encode(u64::MAX, 2, LeafSize::Page), Err(Unfit::Empty));
        assert_eq!(encode(1 << 33, 1, LeafSize::Page), Err(Unfit::AboveZone));
        assert_eq!(encode(0, 512, LeafSize::Huge), Err(Unfit::NoSuchSize));
        assert_eq!(encode(0, 511, LeafSize::Large), Err(Unfit::Unaligned));
        assert_eq!(encode(1, 512, LeafSize::Large), Err(Unfit::Unaligned));
        let arm = layout.without_write_only();
        assert_eq!(arm.encode(1, 1, Rights::Write, LeafSize::Page), Err(Unfit::NoWriteOnly));
        // 39 bits of address: a zone is 128 GiB, and the hole of HyperTransport beyond the width.
        let narrow = Layout::new(27, 18, LeafSize::Page).unwrap();
        assert_eq!(narrow.zone_pages() << 12, 128 << 30);
        assert_eq!(Layout::new(27, 26, LeafSize::Page), Err(TooNarrow));
        assert_eq!(Layout::new(63, 27, LeafSize::Page), Err(TooNarrow));
        // 42 bits: the hole is in the zone for reading.
        let holes = [HYPERTRANSPORT];
        let amd = Layout::new(30, 18, LeafSize::Page).unwrap().without(&holes);
        assert_eq!(
            amd.encode(0, 1, Rights::Read, LeafSize::Page).map(IovaRange::first),
            Ok(1 << 28)
        );
        let wide: Vec<_> = RIGHTS
            .map(|r| {
                Layout::new(29, 18, LeafSize::Page).unwrap().without(&holes).encode(
                    0x7d0_0000,
                    1,
                    r,
                    LeafSize::Page,
                )
            })
            .into();
        assert_eq!(wide[0], Err(Unfit::Reserved), "0xfd0_0000 is zone 1 of 2^27 pages");
        assert!(wide[1].is_ok() && wide[2].is_ok());
    }
}

//! What devices may reach, given all that their caches hold.
//!
//! The caches are somebody else's: of a hostile IOMMU that forgets nothing, or of one as it is
//! built. What has to be true of them is the same.

use shootdown_dma::{IovaRange, PhysAddr};

use super::Invariant;

/// A cached translation of `pages` pages, in measured and in hunted IOMMUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cached {
    /// The tag of the domain that it is for.
    pub domain: u16,
    /// Page number of the first.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Physical address of the first, in bytes.
    pub to: u64,
    /// The device may read.
    pub reads: bool,
    /// The device may write.
    pub writes: bool,
}

impl Cached {
    /// Is it used for any of these addresses?
    #[must_use]
    pub const fn overlaps(&self, range: IovaRange) -> bool {
        self.first <= range.last() && range.first() < self.first + self.pages
    }

    /// The end of the memory that it leads to.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.to + (self.pages << 12)
    }

    /// Does it lead to this page of memory?
    #[must_use]
    pub fn reaches(&self, page: PhysAddr) -> bool {
        (self.to..self.end()).contains(&page.0)
    }
}

/// What is broken, and how.
pub type Finding = (Invariant, String);

/// No device reaches this page of memory: `promise`.
///
/// # Errors
/// One does.
pub fn out_of_reach(
    mut usable: impl Iterator<Item = Cached>,
    page: PhysAddr,
    promise: Invariant,
) -> Result<(), Finding> {
    match usable.find(|cached| cached.reaches(page)) {
        Some(Cached { first, .. }) => {
            Err((promise, format!("a device can still reach {page:?}, by page {first:#x}")))
        }
        None => Ok(()),
    }
}

/// No device reaches this memory by these addresses.
///
/// # Errors
/// One does.
pub fn revoked(
    mut usable: impl Iterator<Item = Cached>,
    range: IovaRange,
    first: PhysAddr,
) -> Result<(), Finding> {
    let end = first.0 + (range.pages() << 12);
    let old = |c: &Cached| c.overlaps(range) && first.0 < c.end() && c.to < end;
    match usable.find(old) {
        Some(Cached { first, to, .. }) => {
            Err((Invariant::Revocation, format!("page {first:#x} still leads to {to:#x}")))
        }
        None => Ok(()),
    }
}

/// These addresses lead to `first` and what follows it, and nowhere else.
///
/// # Errors
/// Something else is cached for them.
pub fn leads_to(
    usable: impl Iterator<Item = Cached>,
    range: IovaRange,
    first: PhysAddr,
) -> Result<(), Finding> {
    let right = |c: &Cached| {
        let offset = (c.first.wrapping_sub(range.first())) << 12;
        c.to == first.0.wrapping_add(offset)
    };
    match usable.filter(|c| c.overlaps(range)).find(|cached| !right(cached)) {
        Some(Cached { first, to, .. }) => {
            Err((Invariant::RangeReuse, format!("page {first:#x} still leads to {to:#x}")))
        }
        None => Ok(()),
    }
}

/// A page-table page is given back: nobody walks to it. `walk`: the first page of a way that leads
/// there.
///
/// # Errors
/// Somebody does.
pub fn unlinked(walk: Option<u64>, table: PhysAddr) -> Result<(), Finding> {
    match walk {
        Some(first) => Err((
            Invariant::TableReuse,
            format!("the IOMMU can still walk {table:?}, which was freed, from page {first:#x}"),
        )),
        None => Ok(()),
    }
}

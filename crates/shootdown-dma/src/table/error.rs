//! What can be wrong with a request, and what is to be done then.

use core::fmt;

use crate::addr::IovaRange;

/// Why pages were not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapErrorKind {
    /// The range is not within what the table resolves.
    OutOfRange,
    /// The physical range is not aligned to a page, or goes past what the format can name.
    BadAddress,
    /// Other memory is mapped there (or the same, but not by counted use).
    AlreadyMapped,
    /// The page has as many users as can be counted: as its entry counts, if there is no side word
    /// [beside](super::TableMemory::side) it, or no memory for that; a million otherwise.
    CountFull,
    /// There is no memory for a table.
    NoMemory,
}

/// Pages were not mapped. What is mapped is as it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapError {
    /// Why.
    pub kind: MapErrorKind,
    /// The first page that could not be mapped.
    pub page: u64,
    /// Pages that had been mapped and were unmapped again: a device may have used them, so
    /// invalidate them (leaf entries only) before they are used again.
    pub undone: Option<IovaRange>,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = self.page;
        match self.kind {
            MapErrorKind::OutOfRange => write!(f, "page {page:#x} is beyond the table's reach"),
            MapErrorKind::BadAddress => {
                write!(f, "page {page:#x}: the physical address is not aligned, or too large")
            }
            MapErrorKind::AlreadyMapped => {
                write!(f, "page {page:#x} is mapped already; unmap it first")
            }
            MapErrorKind::CountFull => {
                write!(f, "page {page:#x} is used too often to count; map it at another address")
            }
            MapErrorKind::NoMemory => {
                write!(f, "no memory for a table to map page {page:#x}; try again later")
            }
        }
    }
}

impl core::error::Error for MapError {}

/// Why pages were not unmapped. What is mapped is as it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnmapError {
    /// The range is not within what the table resolves.
    OutOfRange,
    /// Nothing is mapped at this page: unmapped twice, or never mapped.
    NotMapped {
        /// The page.
        page: u64,
    },
    /// The range has only a part of the superpage that this page belongs to.
    PartOfSuperpage {
        /// The page.
        page: u64,
    },
    /// The range begins or ends within a mapping: this page, which is mapped, is not where one
    /// begins, or ends. (Of what was mapped as [`Part::Middle`](super::Part) only, every page
    /// is of that kind.)
    Inside {
        /// The page.
        page: u64,
    },
    /// The range has more than one mapping; the second begins at this page.
    Several {
        /// The page.
        page: u64,
    },
    /// The page is mapped by counted use: [release](super::Walker::release) it instead.
    Counted {
        /// The page.
        page: u64,
    },
    /// The page is not mapped by counted use: [unmap](super::Walker::unmap) it instead.
    NotCounted {
        /// The page.
        page: u64,
    },
}

impl fmt::Display for UnmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("the range is beyond the table's reach"),
            Self::NotMapped { page } => {
                write!(f, "page {page:#x} is not mapped; was it unmapped before?")
            }
            Self::PartOfSuperpage { page } => {
                write!(f, "page {page:#x} is in a superpage; unmap all of that")
            }
            Self::Inside { page } => {
                write!(f, "page {page:#x} is within a mapping; unmap all of that")
            }
            Self::Several { page } => {
                write!(f, "another mapping begins at page {page:#x}; unmap them one by one")
            }
            Self::Counted { page } => write!(f, "page {page:#x} is counted; release it"),
            Self::NotCounted { page } => write!(f, "page {page:#x} is not counted; unmap it"),
        }
    }
}

impl core::error::Error for UnmapError {}

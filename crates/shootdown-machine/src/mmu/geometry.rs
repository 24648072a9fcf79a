//! Shapes: which TLB arrays a CPU has, of what size, for which pages, and its walk caches.

use shootdown::Stride;

/// One TLB array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// How many entries.
    pub entries: u16,
    /// How many of them an address may be in; 0, or as many as there are entries, for all.
    pub ways: u16,
    /// Which page sizes it holds, by [`Stride`]: 4 KiB, 2 MiB, 1 GiB.
    pub holds: [bool; 3],
}

impl Array {
    /// `entries` in sets of `ways`, for pages of these sizes.
    #[must_use]
    pub fn new(entries: u16, ways: u16, sizes: &[Stride]) -> Self {
        let mut holds = [false; 3];
        for size in sizes {
            holds[*size as usize] = true;
        }
        Self { entries, ways, holds }
    }

    pub(crate) const fn fully_associative(self) -> bool {
        self.ways == 0 || self.ways == self.entries
    }
}

/// What a single-page invalidation of the loaded tag does to the walk caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpperLevels {
    /// Drops all of the tag's walk-cache entries, whatever the address (x86 INVLPG; Intel SDM vol.
    /// 3A section 4.10.4.1).
    #[default]
    AllOfTag,
    /// Drops those on the path of the address (AMD with EFER.TCE set).
    Path,
    /// Drops those on the path, and none when asked for leaves only (Arm `TLBI VALE1`).
    PathUnlessLeafOnly,
}

/// Data TLBs and walk caches of one CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlbGeometry {
    /// First level. Every page size is held by exactly one array.
    pub l1: Vec<Array>,
    /// Second level. A page size is held by one array or by none.
    pub l2: Vec<Array>,
    /// Entries of the walk caches for level 4, 3 and 2 entries (PML4E, PDPTE, PDE); 0 for none.
    pub walk_cache: [u16; 3],
    /// What a single-page invalidation does to them.
    pub upper_levels: UpperLevels,
    /// Lines of table entries (eight each) that a walk finds near (first-level data cache): a
    /// power of two, or 0 for none.
    pub near_lines: u32,
    /// Lines of table entries that a walk finds at a typical distance (second-level data cache).
    pub typical_lines: u32,
}

/// Assumed where nothing is known: a quarter of a 32 KiB first-level data cache.
pub const NEAR_LINES: u32 = 128;
/// Assumed where nothing is known: a quarter of a 1 MiB second-level cache.
pub const TYPICAL_LINES: u32 = 4096;

const K4: Stride = Stride::Page4K;
const M2: Stride = Stride::Page2M;
const G1: Stride = Stride::Page1G;

impl TlbGeometry {
    /// Skylake client (CPUID dumps: 64 4-way, 32 4-way, 4 4-way, 1536 12-way, 16 4-way; walk caches
    /// assumed). For tests and examples; profiles state their own.
    #[must_use]
    pub fn skylake() -> Self {
        Self {
            l1: vec![Array::new(64, 4, &[K4]), Array::new(32, 4, &[M2]), Array::new(4, 4, &[G1])],
            l2: vec![Array::new(1536, 12, &[K4, M2]), Array::new(16, 4, &[G1])],
            walk_cache: [4, 8, 32],
            upper_levels: UpperLevels::AllOfTag,
            near_lines: NEAR_LINES,
            typical_lines: TYPICAL_LINES,
        }
    }

    /// Zen 4 (CPUID dumps: 72 fully associative for all sizes, 3072; 12 ways and walk caches
    /// assumed).
    #[must_use]
    pub fn zen4() -> Self {
        Self {
            l1: vec![Array::new(72, 0, &[K4, M2, G1])],
            l2: vec![Array::new(3072, 12, &[K4, M2]), Array::new(64, 0, &[G1])],
            walk_cache: [16, 32, 64],
            ..Self::skylake()
        }
    }

    /// Checks that the shapes can be built.
    ///
    /// # Errors
    /// The first one that can't.
    pub fn check(&self) -> Result<(), GeometryError> {
        for (level, arrays) in [(1, &self.l1), (2, &self.l2)] {
            for a in arrays {
                if a.entries == 0 || a.entries > 1 << 14 {
                    return Err(GeometryError::Entries { entries: a.entries });
                }
                if !a.fully_associative() && !a.entries.is_multiple_of(a.ways) {
                    return Err(GeometryError::Ways { entries: a.entries, ways: a.ways });
                }
            }
            for size in [K4, M2, G1] {
                let holders = arrays.iter().filter(|a| a.holds[size as usize]).count();
                if holders > 1 || (level == 1 && holders == 0) {
                    return Err(GeometryError::Holders { level, size, holders });
                }
            }
        }
        if let Some(entries) = self.walk_cache.into_iter().find(|n| *n > 1 << 14) {
            return Err(GeometryError::Entries { entries });
        }
        for lines in [self.near_lines, self.typical_lines] {
            if lines != 0 && !lines.is_power_of_two() {
                return Err(GeometryError::Lines { lines });
            }
        }
        Ok(())
    }
}

/// A geometry that can't be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Too few or too many entries.
    #[error("a TLB array of {entries} entries can't be built; give 1 to 16384")]
    Entries {
        /// How many.
        entries: u16,
    },
    /// The ways don't divide the entries.
    #[error("{entries} TLB entries can't be cut into sets of {ways}")]
    Ways {
        /// Its entries.
        entries: u16,
        /// Its ways.
        ways: u16,
    },
    /// A page size with no place in the first level, or with several in one level.
    #[error("{holders} arrays of TLB level {level} hold {size:?}; give one")]
    Holders {
        /// 1 or 2.
        level: u8,
        /// Which pages.
        size: Stride,
        /// How many arrays hold them.
        holders: usize,
    },
    /// A number of lines that is no power of two.
    #[error("{lines} lines of table entries; give a power of two, or 0 for none")]
    Lines {
        /// How many.
        lines: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_shapes_are_refused() {
        let ok = TlbGeometry::skylake();
        assert_eq!(ok.check(), Ok(()));
        assert_eq!(TlbGeometry::zen4().check(), Ok(()));
        let none = TlbGeometry { l2: vec![Array::new(0, 0, &[K4])], ..ok.clone() };
        assert_eq!(none.check(), Err(GeometryError::Entries { entries: 0 }));
        let uneven = TlbGeometry { l2: vec![Array::new(64, 5, &[K4])], ..ok.clone() };
        assert_eq!(uneven.check(), Err(GeometryError::Ways { entries: 64, ways: 5 }));
        let homeless = TlbGeometry { l1: vec![Array::new(64, 4, &[K4, M2])], ..ok.clone() };
        let expected = GeometryError::Holders { level: 1, size: G1, holders: 0 };
        assert_eq!(homeless.check(), Err(expected));
        let twice = TlbGeometry { l2: vec![ok.l2[0], ok.l2[0]], ..ok.clone() };
        let expected = GeometryError::Holders { level: 2, size: K4, holders: 2 };
        assert_eq!(twice.check(), Err(expected));
        let lines = TlbGeometry { near_lines: 100, ..ok };
        assert_eq!(lines.check(), Err(GeometryError::Lines { lines: 100 }));
    }
}

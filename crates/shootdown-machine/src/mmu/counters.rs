//! What an MMU counts.

/// Counters of one CPU's MMU, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MmuCounters {
    /// Found in the first level.
    pub l1_hits: u64,
    /// Missed in the first level, found in the second.
    pub l2_hits: u64,
    /// Missed in both: a walk was started (`dtlb_load_misses.miss_causes_a_walk` and its like).
    pub walks: u64,
    /// Walks that were started because the dirty bit had to be set or a cached right was too
    /// small.
    pub assists: u64,
    /// Walks that began at a cached PML4 entry, PDPT entry, PD entry.
    pub walk_cache_hits: [u64; 3],
    /// Walks that failed from a walk cache and were done again from the root.
    pub rewalks: u64,
    /// Table entries read, by where their line was found: near, at a typical distance, far.
    pub table_reads: [u64; 3],
    /// Translations installed.
    pub refills: u64,
    /// Accesses that ended in a fault.
    pub faults: u64,
    /// Tags loaded with their entries kept.
    pub loads_kept: u64,
    /// Tags loaded empty.
    pub loads_flushed: u64,
    /// Requests to invalidate a range under a tag.
    pub range_invalidations: u64,
    /// The single-page instructions they took (one per stride).
    pub page_invalidations: u64,
    /// Requests to invalidate a whole tag.
    pub tag_invalidations: u64,
    /// Requests to invalidate a kernel range.
    pub kernel_invalidations: u64,
    /// Requests to invalidate everything.
    pub full_invalidations: u64,
}

impl MmuCounters {
    /// Every counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("l1_hits", self.l1_hits),
            ("l2_hits", self.l2_hits),
            ("walks", self.walks),
            ("assists", self.assists),
            ("walk_cache_hits_pml4e", self.walk_cache_hits[0]),
            ("walk_cache_hits_pdpte", self.walk_cache_hits[1]),
            ("walk_cache_hits_pde", self.walk_cache_hits[2]),
            ("rewalks", self.rewalks),
            ("table_reads_near", self.table_reads[0]),
            ("table_reads_typical", self.table_reads[1]),
            ("table_reads_far", self.table_reads[2]),
            ("refills", self.refills),
            ("faults", self.faults),
            ("loads_kept", self.loads_kept),
            ("loads_flushed", self.loads_flushed),
            ("range_invalidations", self.range_invalidations),
            ("page_invalidations", self.page_invalidations),
            ("tag_invalidations", self.tag_invalidations),
            ("kernel_invalidations", self.kernel_invalidations),
            ("full_invalidations", self.full_invalidations),
        ]
        .into_iter()
    }

    /// Adds another CPU's counts.
    pub fn add(&mut self, other: &Self) {
        self.l1_hits += other.l1_hits;
        self.l2_hits += other.l2_hits;
        self.walks += other.walks;
        self.assists += other.assists;
        self.rewalks += other.rewalks;
        for i in 0..3 {
            self.walk_cache_hits[i] += other.walk_cache_hits[i];
            self.table_reads[i] += other.table_reads[i];
        }
        self.refills += other.refills;
        self.faults += other.faults;
        self.loads_kept += other.loads_kept;
        self.loads_flushed += other.loads_flushed;
        self.range_invalidations += other.range_invalidations;
        self.page_invalidations += other.page_invalidations;
        self.tag_invalidations += other.tag_invalidations;
        self.kernel_invalidations += other.kernel_invalidations;
        self.full_invalidations += other.full_invalidations;
    }

    /// What was counted since `earlier`, a copy of these counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let three = |a: [u64; 3], b: [u64; 3]| [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
        Self {
            l1_hits: self.l1_hits - earlier.l1_hits,
            l2_hits: self.l2_hits - earlier.l2_hits,
            walks: self.walks - earlier.walks,
            assists: self.assists - earlier.assists,
            walk_cache_hits: three(self.walk_cache_hits, earlier.walk_cache_hits),
            rewalks: self.rewalks - earlier.rewalks,
            table_reads: three(self.table_reads, earlier.table_reads),
            refills: self.refills - earlier.refills,
            faults: self.faults - earlier.faults,
            loads_kept: self.loads_kept - earlier.loads_kept,
            loads_flushed: self.loads_flushed - earlier.loads_flushed,
            range_invalidations: self.range_invalidations - earlier.range_invalidations,
            page_invalidations: self.page_invalidations - earlier.page_invalidations,
            tag_invalidations: self.tag_invalidations - earlier.tag_invalidations,
            kernel_invalidations: self.kernel_invalidations - earlier.kernel_invalidations,
            full_invalidations: self.full_invalidations - earlier.full_invalidations,
        }
    }
}

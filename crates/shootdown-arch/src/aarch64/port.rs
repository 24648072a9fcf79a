//! What a kernel decides at boot, and what it therefore declares to the core.
//!
//! The *repeat* errata are mended where a broadcast is completed ([`Completion`]), so they are not
//! declared. User and kernel halves under two ASIDs (kernel page-table isolation) are not supported
//! by this port.

use shootdown::facts::{Broadcast, Errata, Facts, SplitTables, TagScope};

use super::barrier::Completion;
use super::cover::Shape;
use super::features::Features;
use super::granule::Granule;
use super::tlbi::Domain;
use crate::asid::AsidWidth;

/// What the kernel chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The tables' granule.
    pub granule: Granule,
    /// `TCR_EL1.DS`: 52-bit addresses with 4 or 16 KiB pages.
    pub lpa2: bool,
    /// `TCR_EL1.AS`: ASIDs of 16 bits. Counts only if the CPUs have them.
    pub wide_asids: bool,
    /// Strides beyond which the core asks for a whole tag.
    pub ceiling: u32,
    /// TLBIs beyond which a plan falls back to the whole ASID. Not a matter of speed: a CPU issues
    /// them with interrupts off.
    pub max_operations: u64,
    /// A hypervisor may make local operations broadcasts (`HCR_EL2.FB`). A guest can't know and
    /// says `true`.
    pub hypervisor_may_upgrade: bool,
    /// Some CPU has one of the *repeat* errata.
    pub repeat: bool,
}

impl Options {
    /// 4 KiB pages, the widest ASIDs, Linux's limit of operations (512, one table of pages), bare
    /// metal without errata.
    pub const DEFAULT: Self = Self {
        granule: Granule::K4,
        lpa2: false,
        wide_asids: true,
        ceiling: 512,
        max_operations: 512,
        hypervisor_may_upgrade: false,
        repeat: false,
    };
}

/// The means in use, the same on every CPU of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    pub(super) shape: Shape,
    pub(super) asids: AsidWidth,
    pub(super) max_operations: u64,
    repeat: bool,
    facts: Facts,
}

impl Port {
    /// Decides. `features` must hold for every CPU: on a mixed system, [what all
    /// have](Features::and).
    #[must_use]
    pub fn new(features: &Features, options: Options) -> Self {
        let asids = if options.wide_asids { features.asids } else { AsidWidth::BITS_8 };
        let facts = Facts {
            tag_scope: TagScope::System,
            tag_bits: asids.bits(),
            broadcast: Broadcast::Tlbi { ranges: features.ranges },
            // A completion ends with DSB and ISB.
            invalidate_serializes: true,
            fault_forgets: false,
            hypervisor_may_upgrade: options.hypervisor_may_upgrade,
            split_tables: SplitTables::No,
            ceiling: options.ceiling,
            kick_all: false,
            errata: Errata::default(),
        };
        let Options { granule, lpa2, max_operations, repeat, .. } = options;
        let shape = Shape { granule, lpa2, ranges: features.ranges };
        Self { shape, asids, max_operations, repeat, facts }
    }

    /// What to declare to the core.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The ASIDs in force: what `TCR_EL1.AS` must say.
    #[must_use]
    pub const fn asids(&self) -> AsidWidth {
        self.asids
    }

    /// What completes the TLBIs of a domain.
    #[must_use]
    pub const fn completion(&self, domain: Domain) -> Completion {
        Completion::new(domain, self.repeat)
    }
}

//! What a port declares about its hardware.
//!
//! The rest of the crate never asks which architecture it runs on; it asks for a fact. A port
//! states its facts once, at boot, from CPUID, ID registers or a device tree. A port with a wrong
//! fact is broken: the safety of the whole crate depends on the facts, which is why
//! [`crate::Regime`] is an `unsafe trait`.

use core::fmt;

/// What a tag means.
///
/// Cached entries of upper levels of the tables must carry the tag just as cached leaves do, so
/// that invalidating a tag, or loading it empty, removes both. All architectures here guarantee it
/// (Intel SDM vol. 3 4.10, AMD APM vol. 2 5.5.1, Arm ARM on TLBI, RISC-V Privileged on SFENCE.VMA).
/// Where hardware does not, declare [`TagScope::None`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TagScope {
    /// No tags: loading a root removes every non-global entry of this CPU.
    None,
    /// A tag names the space that this CPU last used it for (x86 PCID).
    PerCpu,
    /// A tag names the same space on every CPU (Arm and RISC-V ASID).
    System,
}

/// Hardware that can invalidate on other CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Broadcast {
    /// There is none: other CPUs must be interrupted.
    None,
    /// Arm `TLBI …IS`; completion by `DSB ISH`.
    Tlbi {
        /// Range instructions exist (FEAT_TLBIRANGE).
        ranges: bool,
    },
    /// AMD `INVLPGB`; completion by `TLBSYNC` on the same CPU (AMD APM vol. 3).
    Invlpgb {
        /// How many pages one instruction can name (CPUID 8000_0008 EDX\[15:0\] + 1).
        max_pages: u16,
    },
}

/// User and kernel halves in separate tables (page-table isolation).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SplitTables {
    /// One table; kernel entries may be global.
    No,
    /// Two tables under two paired tags; no global entries.
    Yes {
        /// One page can be invalidated under a tag that is not loaded (x86 INVPCID type 0).
        /// Without it the whole user half is invalidated on the next return to user mode.
        invalidate_other_tag: bool,
    },
}

/// Known defects that change what the software must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Errata {
    /// A completed sync may leave accesses in flight; issue the invalidation and the sync again
    /// (Arm 1286807, 2441007, 2441009 and others).
    pub repeat_sync: bool,
    /// An entry may survive one invalidation; invalidate again when the first is over.
    pub survives_once: bool,
    /// The hardware reports a broadcast complete while accesses are still in flight; only an
    /// interrupt of the CPUs concerned ends them (Arm 4193714).
    pub completes_early: bool,
    /// A single-page invalidation spares global entries while tags are on (Intel Alder Lake and
    /// others): tags must stay off.
    pub page_spares_globals: bool,
}

/// Everything a port declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What a tag means here.
    pub tag_scope: TagScope,
    /// Width of a tag in bits (12 for PCID, 8 or 16 for ASID); 0 without tags.
    pub tag_bits: u8,
    /// Remote invalidation in hardware.
    pub broadcast: Broadcast,
    /// Invalidation instructions order later translations after themselves (x86: yes). If not, the
    /// responder executes a fence.
    pub invalidate_serializes: bool,
    /// A page fault removes what the faulting CPU had cached of the address, non-leaf entries
    /// included (x86: SDM 3A 4.10.4.1). If not, [`crate::spurious_fault`] invalidates it.
    pub fault_forgets: bool,
    /// A hypervisor may turn local invalidations into broadcasts (safe, but not cheap).
    pub hypervisor_may_upgrade: bool,
    /// Separate user and kernel tables.
    pub split_tables: SplitTables,
    /// Number of strides above which one full invalidation is cheaper than one per stride.
    pub ceiling: u32,
    /// [`crate::Platform::kick`] raises an interrupt on all other CPUs at the cost of one (x86 ICR
    /// shorthand "all excluding self").
    pub kick_all: bool,
    /// Known defects.
    pub errata: Errata,
}

/// Facts that contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FactsError {
    /// Tags have a scope but no width, or a width but no scope.
    TagWidth,
    /// The errata concern broadcasts, and the hardware has none.
    ErrataOfBroadcast,
    /// Hardware broadcasts by tag, and a tag does not mean the same on every CPU.
    BroadcastScope,
    /// `page_spares_globals` is set while tags are on.
    TagsForbiddenByErratum,
    /// A ceiling of 0 would make every flush full; declare at least 1.
    Ceiling,
}

impl fmt::Display for FactsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TagWidth => {
                "tag_scope and tag_bits disagree; give both (4 to 16 bits for a CPU's own tags, 2 to 16 for machine-wide ones, one more with split tables) or neither"
            }
            Self::ErrataOfBroadcast => {
                "repeat_sync, survives_once and completes_early need Broadcast::Tlbi"
            }
            Self::BroadcastScope => {
                "Broadcast::Tlbi names a tag on every CPU at once: declare TagScope::System, or Broadcast::None"
            }
            Self::TagsForbiddenByErratum => {
                "page_spares_globals is set: declare TagScope::None and tag_bits 0"
            }
            Self::Ceiling => "ceiling is 0; declare at least 1 stride",
        })
    }
}

impl core::error::Error for FactsError {}

impl Facts {
    /// An x86-64 CPU without tags and without split tables: the safe minimum with which to start a
    /// port.
    pub const X86_64_MINIMUM: Self = Self {
        tag_scope: TagScope::None,
        tag_bits: 0,
        broadcast: Broadcast::None,
        invalidate_serializes: true,
        fault_forgets: false,
        hypervisor_may_upgrade: false,
        split_tables: SplitTables::No,
        ceiling: 33,
        kick_all: false,
        errata: Errata {
            repeat_sync: false,
            survives_once: false,
            completes_early: false,
            page_spares_globals: false,
        },
    };

    /// Checks that the facts can be true together.
    ///
    /// # Errors
    /// The first contradiction found.
    pub const fn check(&self) -> Result<(), FactsError> {
        let split = matches!(self.split_tables, SplitTables::Yes { .. });
        match self.tag_scope {
            TagScope::None if self.tag_bits != 0 => return Err(FactsError::TagWidth),
            TagScope::PerCpu if self.tag_bits < 4 || self.tag_bits > 16 => {
                return Err(FactsError::TagWidth);
            }
            TagScope::System if self.tag_bits < 2 || self.tag_bits > 16 => {
                return Err(FactsError::TagWidth);
            }
            TagScope::PerCpu if split && self.tag_bits < 5 => return Err(FactsError::TagWidth),
            TagScope::System if split && self.tag_bits < 3 => return Err(FactsError::TagWidth),
            TagScope::PerCpu | TagScope::System if self.errata.page_spares_globals => {
                return Err(FactsError::TagsForbiddenByErratum);
            }
            _ => {}
        }
        let machine_wide = matches!(self.tag_scope, TagScope::System);
        if matches!(self.broadcast, Broadcast::Tlbi { .. }) && !machine_wide {
            return Err(FactsError::BroadcastScope);
        }
        let Errata { repeat_sync, survives_once, completes_early, .. } = self.errata;
        let broken = repeat_sync || survives_once || completes_early;
        let broadcast = matches!(self.broadcast, Broadcast::Tlbi { .. });
        if broken && !broadcast {
            return Err(FactsError::ErrataOfBroadcast);
        }
        if self.ceiling == 0 {
            return Err(FactsError::Ceiling);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let ok = Facts::X86_64_MINIMUM;
        assert_eq!(ok.check(), Ok(()));
        assert_eq!(Facts { tag_bits: 12, ..ok }.check(), Err(FactsError::TagWidth));
        let pcid = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..ok };
        assert_eq!(pcid.check(), Ok(()));
        assert_eq!(Facts { tag_bits: 2, ..pcid }.check(), Err(FactsError::TagWidth));
        let errata = Errata { page_spares_globals: true, ..Errata::default() };
        assert_eq!(Facts { errata, ..pcid }.check(), Err(FactsError::TagsForbiddenByErratum));
        assert_eq!(Facts { ceiling: 0, ..ok }.check(), Err(FactsError::Ceiling));
        let broadcast = Broadcast::Tlbi { ranges: false };
        let arm = Facts { tag_scope: TagScope::System, tag_bits: 16, broadcast, ..ok };
        assert_eq!(arm.check(), Ok(()));
        assert_eq!(Facts { tag_bits: 1, ..arm }.check(), Err(FactsError::TagWidth));
        assert_eq!(Facts { tag_bits: 17, ..arm }.check(), Err(FactsError::TagWidth));
        let split_tables = SplitTables::Yes { invalidate_other_tag: true };
        assert_eq!(Facts { split_tables, tag_bits: 2, ..arm }.check(), Err(FactsError::TagWidth));
        assert_eq!(Facts { broadcast, ..pcid }.check(), Err(FactsError::BroadcastScope));
    }
}

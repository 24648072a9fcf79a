//! What the hostile hardware is like.

use super::powers::{Power, Powers};
use crate::hostile::{Rules, Shape};

/// What the hardware is like; part of the world, not of the adversary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Levels of a table tree.
    pub levels: u8,
    /// Entries of a table, log2.
    pub index_bits: u8,
    /// Table pages there are.
    pub tables: u16,
    /// Frames there are.
    pub frames: u32,
    /// Removals of other CPUs' entries work by broadcast too, and local ones can be late.
    pub architecture: Architecture,
}

/// Whose rules the MMU follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Architecture {
    /// Intel and AMD.
    #[default]
    X86_64,
    /// Arm.
    Aarch64,
    /// RISC-V.
    RiscV64,
}

impl Default for Setup {
    /// Two levels of four entries: 16 pages a tree.
    fn default() -> Self {
        Self {
            levels: 2,
            index_bits: 2,
            tables: 12,
            frames: 16,
            architecture: Architecture::X86_64,
        }
    }
}

impl Setup {
    /// The rules of the MMUs under an adversary with these powers.
    pub(super) fn rules(&self, powers: Powers) -> Rules {
        use crate::hostile::{Aarch64, Fills, Late, RiscV, WalkCache};
        let shape = Shape::new(self.levels, self.index_bits).unwrap_or_else(|e| panic!("{e}"));
        let mut rules = match self.architecture {
            Architecture::X86_64 => Rules::x86_64(shape),
            Architecture::Aarch64 => {
                Rules::aarch64(shape, Aarch64 { ets2: true, ha: true, hd: true })
            }
            Architecture::RiscV64 => {
                Rules::riscv64(shape, RiscV { svadu: true, ..RiscV::default() })
            }
        };
        rules.provenance = true;
        if !powers.has(Power::Speculation) {
            rules.fills = Fills::OnAccess;
        }
        if !powers.has(Power::WalkCaches) {
            rules.walk_cache = WalkCache::None;
        }
        rules.late = if powers.has(Power::LateInvalidation) { Late::Always } else { Late::Never };
        rules.errata.survives_once = powers.has(Power::SurvivesOnce);
        rules.errata.early_sync = powers.has(Power::EarlySync);
        rules.errata.page_spares_globals = powers.has(Power::PageSparesGlobals);
        rules
    }
}

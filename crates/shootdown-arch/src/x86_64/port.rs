//! What a kernel decides at boot: which of the CPU's means are used.
//!
//! A [`Port`] joins what CPUID says ([`Features`]) with what the kernel chose ([`Options`]) and
//! answers two questions: which [`Facts`] to declare to the core, and (in `plan.rs`) which
//! instructions carry out a request. Both come from the same value, so they can't disagree.
//!
//! | fact | is declared when |
//! |---|---|
//! | tags | the CPU has PCIDs *and* global pages (without `CR4.PGE` there would be no way to drop everything where INVPCID is missing), the kernel wants them, and INVLPG spares no globals |
//! | broadcast | the CPU has INVLPGB, the kernel wants it, and the tables are not split (a broadcast would have to name both halves, of which the core invalidates one late) |
//! | page under another tag | tags, and INVPCID |

use shootdown::facts::{Broadcast, Errata, Facts, SplitTables, TagScope};

use super::cpuid::Features;
use super::invlpgb::InvlpgbLimits;
use super::linear::LinearWidth;
use super::pcid::Pcid;

/// What the kernel chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Use PCIDs if the CPU has them. Every CPU must then have set `CR4.PCIDE`
    /// ([`super::Cr4::with_pcide`]) before it loads its first space.
    pub tags: bool,
    /// Use INVLPGB if the CPU has it.
    pub broadcast: bool,
    /// User and kernel halves in separate tables (page-table isolation).
    pub split_tables: bool,
    /// `CR4.LA57` is set.
    pub la57: bool,
    /// INVLPG may spare global entries while PCIDs are on: see [`Features::may_spare_globals`].
    pub page_spares_globals: bool,
    /// Strides beyond which one full invalidation is cheaper.
    pub ceiling: u32,
    /// The kernel's `kick` can reach all other CPUs at the cost of one.
    pub kick_all: bool,
}

impl Options {
    /// Everything the CPU has, one set of tables, four levels.
    pub const DEFAULT: Self = Self {
        tags: true,
        broadcast: true,
        split_tables: false,
        la57: false,
        page_spares_globals: false,
        ceiling: Facts::X86_64_MINIMUM.ceiling,
        kick_all: false,
    };
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The means in use, the same on every CPU of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    pub(super) tags: bool,
    pub(super) split: bool,
    pub(super) invpcid: bool,
    pub(super) pge: bool,
    pub(super) width: LinearWidth,
    pub(super) broadcast: Option<InvlpgbLimits>,
    facts: Facts,
}

impl Port {
    /// Decides. `features` must hold for every CPU: on a mixed system, what all of them have.
    #[must_use]
    pub fn new(features: &Features, options: Options) -> Self {
        let spares = options.page_spares_globals;
        let tags = options.tags && features.pcid && features.pge && !spares;
        let width = if options.la57 { LinearWidth::Bits57 } else { LinearWidth::Bits48 };
        let pages = features.invlpgb.filter(|_| options.broadcast && !options.split_tables);
        let broadcast = pages.map(|max_pages| InvlpgbLimits {
            max_pages: max_pages.min(u32::from(u16::MAX)),
            pcide: tags,
            nested: features.invlpgb_nested,
            asids: features.asids,
            width,
        });
        let facts = Facts {
            tag_scope: if tags { TagScope::PerCpu } else { TagScope::None },
            tag_bits: if tags { Pcid::BITS } else { 0 },
            broadcast: match broadcast {
                // Capped above, so that both agree.
                Some(limits) => Broadcast::Invlpgb {
                    max_pages: u16::try_from(limits.max_pages).unwrap_or(u16::MAX),
                },
                None => Broadcast::None,
            },
            split_tables: if options.split_tables {
                SplitTables::Yes { invalidate_other_tag: tags && features.invpcid }
            } else {
                SplitTables::No
            },
            ceiling: options.ceiling,
            kick_all: options.kick_all,
            fault_forgets: true,
            errata: Errata { page_spares_globals: spares, ..Errata::default() },
            ..Facts::X86_64_MINIMUM
        };
        Self {
            tags,
            split: options.split_tables,
            invpcid: features.invpcid,
            pge: features.pge,
            width,
            broadcast,
            facts,
        }
    }

    /// What to declare to the core.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// PCIDs are in use: `CR4.PCIDE` is set on every CPU.
    #[must_use]
    pub const fn tags(&self) -> bool {
        self.tags
    }
}

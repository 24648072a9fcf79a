//! What a kernel decides at boot, and what it therefore declares to the core.
//!
//! | fact | why |
//! |---|---|
//! | tags mean the same on every hart | ASIDs could be used per hart as well; the versioned allocator needs no loop over harts when a space ends |
//! | no tags below 2 bits | one ASID is the kernel's; what is left is no help |
//! | invalidation does not serialize | SFENCE.VMA orders walks, not ordinary loads (Privileged, SFENCE.VMA) |
//! | walk caches are tagged | a fence by ASID removes entries of every level |

use shootdown::facts::{Broadcast, Facts, SplitTables, TagScope};

use super::satp::Mode;
use crate::asid::{Asid, AsidWidth};

/// What the harts have and the kernel chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The tables.
    pub mode: Mode,
    /// The narrowest ASID of all harts ([`AsidWidth::of_probe`]); [`AsidWidth::NONE`] to do
    /// without.
    pub asids: AsidWidth,
    /// Every hart has Svinval (`svinval` in the ISA string).
    pub svinval: bool,
    /// Strides beyond which one full invalidation is cheaper.
    pub ceiling: u32,
}

impl Options {
    /// Sv39 without ASIDs and extensions: true of every hart that translates. The ceiling is
    /// Linux's for RISC-V (64 entries).
    pub const MINIMUM: Self =
        Self { mode: Mode::Sv39, asids: AsidWidth::NONE, svinval: false, ceiling: 64 };
}

/// The means in use, the same on every hart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    mode: Mode,
    asids: AsidWidth,
    pub(super) svinval: bool,
    facts: Facts,
}

/// The fewest ASID bits worth using.
const LEAST_BITS: u8 = 2;

impl Port {
    /// Decides.
    #[must_use]
    pub const fn new(options: Options) -> Self {
        let tags = options.asids.bits() >= LEAST_BITS;
        let asids = if tags { options.asids } else { AsidWidth::NONE };
        let facts = Facts {
            tag_scope: if tags { TagScope::System } else { TagScope::None },
            tag_bits: asids.bits(),
            broadcast: Broadcast::None,
            invalidate_serializes: false,
            fault_forgets: false,
            hypervisor_may_upgrade: false,
            split_tables: SplitTables::No,
            ceiling: options.ceiling,
            kick_all: false,
            errata: Facts::X86_64_MINIMUM.errata, // none
        };
        Self { mode: options.mode, asids, svinval: options.svinval, facts }
    }

    /// What to declare to the core.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The tables.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The ASIDs in use.
    #[must_use]
    pub const fn asids(&self) -> AsidWidth {
        self.asids
    }

    /// The ASID of a core's tag; `None` when there is no such ASID.
    #[must_use]
    pub const fn asid_of(&self, tag: shootdown::Tag) -> Option<Asid> {
        match Asid::of_tag(tag, self.asids) {
            Ok(asid) => Some(asid),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_declared_where_there_are_enough() {
        for bits in 0..=16 {
            let asids = AsidWidth::new(bits).unwrap();
            let port = Port::new(Options { asids, ..Options::MINIMUM });
            let facts = port.facts();
            if bits >= 2 {
                assert_eq!((facts.tag_scope, facts.tag_bits), (TagScope::System, bits));
                assert_eq!(port.asids(), asids);
            } else {
                assert_eq!((facts.tag_scope, facts.tag_bits), (TagScope::None, 0));
                assert_eq!(port.asids(), AsidWidth::NONE);
                assert_eq!(facts.check(), Ok(()));
            }
            assert_eq!((facts.broadcast, facts.invalidate_serializes), (Broadcast::None, false));
        }
    }
}

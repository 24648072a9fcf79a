//! What the ID registers say, and the library's regime over it.
//!
//! The regime is `shootdown-arch`'s. Here is what it asks of a kernel ([`Boot`]): features, which
//! are decided once, by the first CPU, and a root that maps nothing. TCR_EL1 is set accordingly by
//! each CPU on its way up.
//!
//! With `tags=off` the same instructions are declared as less than they are: no ASIDs, no
//! broadcast. Every space then runs under ASID 0, each load of a root forgets it, and other CPUs
//! are interrupted, as on a machine without TLBI's inner shareable forms.

use aarch64_cpu::registers::{
    ID_AA64ISAR0_EL1, ID_AA64MMFR0_EL1, ID_AA64MMFR1_EL1, ID_AA64MMFR2_EL1, Readable,
};
use shootdown::Tag;
use shootdown::facts::{Broadcast, Facts, TagScope};
use shootdown::regime::{Invalidate, Reach};
use shootdown::tags::generations::Generations;
use shootdown_arch::aarch64::{ArmRegime, AsidWidth, Boot, Options, Port, RootFrame};
use spin::Once;

use super::boot::empty_root;
use crate::arch::Features;

/// What CPUs can do with tables that is optional, and is turned on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offered {
    /// ASIDs of 16 bits (`TCR_EL1.AS`).
    pub wide_asids: bool,
    /// Hardware sets the access flag (`TCR_EL1.HA`).
    pub accessed: bool,
    /// Hardware turns DBM into write permission (`TCR_EL1.HD`).
    pub dirty: bool,
}

struct Decided {
    offered: Offered,
    port: Port,
    facts: Facts,
    tags: Option<Tags>,
    features: Features,
}

static DECIDED: Once<Decided> = Once::new();

/// Room for 2^16 ASIDs.
pub type Tags = Generations<1024, { crate::MAX_CPUS as usize }>;

/// Physical addresses that the boot tables and TCR_EL1 have room for.
const PHYSICAL_BITS: u8 = 40;

fn decided() -> &'static Decided {
    DECIDED.get().expect("the first CPU decides before it does anything else")
}

impl Offered {
    /// What the ID registers of this CPU say.
    pub(super) fn here() -> Self {
        let updates = ID_AA64MMFR1_EL1.read(ID_AA64MMFR1_EL1::HAFDBS);
        let wide_asids = shootdown_features().asids == AsidWidth::BITS_16;
        Self { wide_asids, accessed: updates >= 1, dirty: updates >= 2 }
    }

    /// What the first CPU has, and all must have.
    pub(super) fn of_all() -> Self {
        decided().offered
    }
}

fn shootdown_features() -> shootdown_arch::aarch64::Features {
    shootdown_arch::aarch64::Features::decode(
        ID_AA64MMFR0_EL1.get(),
        ID_AA64MMFR2_EL1.get(),
        ID_AA64ISAR0_EL1.get(),
    )
}

/// On the first CPU, once.
pub(super) fn decide(tags: bool) {
    DECIDED.call_once(|| {
        let offered = Offered::here();
        let port = Port::new(&shootdown_features(), Options::DEFAULT);
        let bits = port.asids().bits();
        let without = || Facts {
            tag_scope: TagScope::None,
            tag_bits: 0,
            broadcast: Broadcast::None,
            ..*port.facts()
        };
        let features = Features {
            tags,
            broadcast: tags,
            sets_accessed_dirty: offered.accessed && offered.dirty,
        };
        let allocator = || Generations::new(bits, false, crate::MAX_CPUS);
        Decided {
            offered,
            port,
            facts: if tags { *port.facts() } else { without() },
            tags: tags.then(|| allocator().expect("more ASIDs than CPUs")),
            features,
        }
    });
}

/// What the suite may ask for.
pub fn features() -> &'static Features {
    &decided().features
}

/// The allocator of ASIDs, if they are used.
pub fn tags() -> Option<&'static Tags> {
    decided().tags.as_ref()
}

/// What the regime asks of a kernel.
pub struct Kernel;

// SAFETY: 1. `decide` ran before the first call, from the ID registers of the first CPU; the others
// are refused if theirs differ (`smp::arrived`), and TCR_EL1 is set from the same values
// (`boot::aarch64_enter`), A1 and DS clear. 2. `EMPTY` maps nothing, and the upper half's blocks
// are global. 3. The image runs at EL1; QEMU's CPUs are in one inner shareable domain; no
// handler but the kick's touches TTBR0_EL1.
unsafe impl Boot for Kernel {
    fn port() -> &'static Port {
        &decided().port
    }

    fn kernel_root() -> RootFrame {
        root(empty_root())
    }
}

/// The regime of `shootdown-arch`.
type Arm = ArmRegime<Kernel>;

/// The library's regime on this hardware: `shootdown-arch`'s, with what was decided at boot for its
/// facts.
pub struct Regime;

// SAFETY: all is `ArmRegime`'s, which keeps the promises with what it declares. Without tags less
// is declared: 2. and 5.: every root is loaded under ASID 0 and with `keep == false`, and the
// kernel's maps nothing and forgets what was there.
unsafe impl shootdown::Regime for Regime {
    type Root = RootFrame;

    fn facts() -> &'static Facts {
        &decided().facts
    }

    unsafe fn load(root: RootFrame, tag: Tag, keep: bool) {
        // SAFETY: the caller's promise.
        unsafe { <Arm as shootdown::Regime>::load(root, tag, keep) }
    }

    fn load_kernel() {
        <Arm as shootdown::Regime>::load_kernel();
        if decided().tags.is_none() {
            Self::invalidate(Invalidate::Tag(Tag(0)), Reach::Local);
            Self::sync(Reach::Local);
        }
    }

    fn publish() {
        <Arm as shootdown::Regime>::publish();
    }

    fn invalidate(what: Invalidate, reach: Reach) {
        <Arm as shootdown::Regime>::invalidate(what, reach);
    }

    fn sync(reach: Reach) {
        <Arm as shootdown::Regime>::sync(reach);
    }
}

/// The root over a table.
pub(super) fn root(frame: u64) -> RootFrame {
    RootFrame::new(frame, PHYSICAL_BITS).expect("memory ends at 2 GiB")
}

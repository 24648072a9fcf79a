//! What the architectures' instructions remove: exactly what the manuals promise and nothing more.
//!
//! | constructor | leaves | globals | walk caches | source |
//! |---|---|---|---|---|
//! | [`invlpg`](Invalidation::invlpg) | the page, current PCID | the page, any PCID | all of the current PCID | Intel SDM 3A 4.10.4.1 |
//! | [`invlpg_tce`](Invalidation::invlpg_tce) | same | same | those above the page | AMD APM vol. 2, EFER.TCE |
//! | [`invpcid_address`](Invalidation::invpcid_address) | the page, that PCID | no | those above the page | SDM, INVPCID type 0 |
//! | [`tag`](Invalidation::tag) | that tag | no | that tag | INVPCID type 1; MOV CR3 with bit 63 clear; TLBI ASIDE1; SFENCE.VMA x0, asid |
//! | [`everything`](Invalidation::everything) | all | yes | all | INVPCID type 2; CR4.PGE toggled; TLBI VMALLE1; SFENCE.VMA x0, x0 |
//! | [`everything_but_globals`](Invalidation::everything_but_globals) | all | no | all | INVPCID type 3 |
//! | [`tlbi_va`](Invalidation::tlbi_va) | pages, that ASID | pages | above the pages, that ASID | Arm ARM, TLBI VAE1, RVAE1 |
//! | [`tlbi_va_last`](Invalidation::tlbi_va_last) | same | same | no | TLBI VALE1, RVALE1 |
//! | [`tlbi_va_any`](Invalidation::tlbi_va_any) | pages, any ASID | pages | above the pages, any ASID | TLBI VAAE1 |
//! | [`tlbi_va_any_last`](Invalidation::tlbi_va_any_last) | same | same | no | TLBI VAALE1 |
//! | [`sfence_address`](Invalidation::sfence_address) | page, any ASID | page | no | Privileged 12.2.1, SFENCE.VMA va, x0 |
//! | [`sfence_address_asid`](Invalidation::sfence_address_asid) | page, that ASID | no | no | SFENCE.VMA va, asid |
//!
//! and what the library's seam promises of its requests ([`shootdown::Invalidate`]), which is less
//! than any instruction does: [`range`](Invalidation::range), [`tag`](Invalidation::tag),
//! [`kernel`](Invalidation::kernel), [`everything`](Invalidation::everything).

use shootdown::Tag;

use super::{Invalidation, Owners, Pages, Walks};

impl Invalidation {
    const fn new(pages: Pages, owners: Owners, globals: bool, walks: Walks) -> Self {
        Self { pages, owners, globals, walks }
    }

    /// x86 INVLPG under `current`.
    #[must_use]
    pub const fn invlpg(page: u32, current: Tag) -> Self {
        Self::new(Pages::one(page), Owners::Tag(current), true, Walks::All)
    }

    /// AMD INVLPG with EFER.TCE.
    #[must_use]
    pub const fn invlpg_tce(page: u32, current: Tag) -> Self {
        Self::new(Pages::one(page), Owners::Tag(current), true, Walks::Covering)
    }

    /// x86 INVPCID type 0.
    #[must_use]
    pub const fn invpcid_address(page: u32, tag: Tag) -> Self {
        Self::new(Pages::one(page), Owners::Tag(tag), false, Walks::Covering)
    }

    /// Everything under a tag but global entries.
    #[must_use]
    pub const fn tag(tag: Tag) -> Self {
        Self::new(Pages::ALL, Owners::Tag(tag), false, Walks::All)
    }

    /// Everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self::new(Pages::ALL, Owners::Any, true, Walks::All)
    }

    /// Everything under every tag but global entries.
    #[must_use]
    pub const fn everything_but_globals() -> Self {
        Self::new(Pages::ALL, Owners::Any, false, Walks::All)
    }

    /// Arm TLBI VAE1 and its range form.
    #[must_use]
    pub const fn tlbi_va(pages: Pages, asid: Tag) -> Self {
        Self::new(pages, Owners::Tag(asid), true, Walks::Covering)
    }

    /// Arm TLBI VALE1 and its range form.
    #[must_use]
    pub const fn tlbi_va_last(pages: Pages, asid: Tag) -> Self {
        Self::new(pages, Owners::Tag(asid), true, Walks::None)
    }

    /// Arm TLBI VAAE1.
    #[must_use]
    pub const fn tlbi_va_any(pages: Pages) -> Self {
        Self::new(pages, Owners::Any, true, Walks::Covering)
    }

    /// Arm TLBI VAALE1.
    #[must_use]
    pub const fn tlbi_va_any_last(pages: Pages) -> Self {
        Self::new(pages, Owners::Any, true, Walks::None)
    }

    /// RISC-V SFENCE.VMA with an address.
    #[must_use]
    pub const fn sfence_address(page: u32) -> Self {
        Self::new(Pages::one(page), Owners::Any, true, Walks::None)
    }

    /// RISC-V SFENCE.VMA with an address and an ASID.
    #[must_use]
    pub const fn sfence_address_asid(page: u32, asid: Tag) -> Self {
        Self::new(Pages::one(page), Owners::Tag(asid), false, Walks::None)
    }

    /// The seam's range under a tag: what every port has to do, and no more.
    #[must_use]
    pub const fn range(tag: Tag, pages: Pages, leaf_only: bool) -> Self {
        let walks = if leaf_only { Walks::None } else { Walks::Covering };
        Self::new(pages, Owners::Tag(tag), false, walks)
    }

    /// The seam's kernel range: leaves, global ones included, under the loaded tag.
    #[must_use]
    pub const fn kernel(pages: Pages, loaded: Tag) -> Self {
        Self::new(pages, Owners::Tag(loaded), true, Walks::None)
    }
}

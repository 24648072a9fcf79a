//! Page-table entries in the x86-64 format.

use crate::mmu::addr::{Frame, TableId};

/// What may be done through a translation. Everything present may be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Perms {
    /// Stores are allowed.
    pub write: bool,
    /// User mode may use it.
    pub user: bool,
    /// It survives a change of tag (kernel pages only).
    pub global: bool,
}

impl Perms {
    /// A private page of a program.
    pub const USER_RW: Self = Self { write: true, user: true, global: false };
    /// A page that a program may only read.
    pub const USER_RO: Self = Self { write: false, user: true, global: false };
    /// A page of the kernel, in every tag.
    pub const KERNEL_RW: Self = Self { write: true, user: false, global: true };

    /// Does going from `self` to `to` take something away? Globalness is no right: changing it
    /// counts as taking away because the cached entry answers to other invalidations than the
    /// new one.
    pub(crate) const fn narrowed_by(self, to: Self) -> bool {
        (self.write && !to.write) || (self.user && !to.user) || self.global != to.global
    }
}

/// A page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pte(pub u64);

impl Pte {
    /// Nothing there.
    pub const EMPTY: Self = Self(0);
    /// What a freed table is filled with: absent, and recognisable in a dump.
    pub const POISON: Self = Self(0x0bad_7ab1_e000_0000);

    const P: u64 = 1;
    const W: u64 = 1 << 1;
    const U: u64 = 1 << 2;
    pub(crate) const A: u64 = 1 << 5;
    pub(crate) const D: u64 = 1 << 6;
    const PS: u64 = 1 << 7;
    const G: u64 = 1 << 8;
    const FRAME: u64 = 0x000f_ffff_ffff_f000;

    /// A leaf. `large` for 2 MiB and 1 GiB.
    pub(crate) const fn leaf(frame: Frame, large: bool, perms: Perms) -> Self {
        let mut bits = Self::P | (frame.0 as u64) << 12;
        if large {
            bits |= Self::PS;
        }
        Self(bits).with_perms(perms)
    }

    /// A pointer to the next table. Rights are decided at the leaf.
    pub(crate) const fn table(id: TableId) -> Self {
        Self(Self::P | Self::W | Self::U | (id.0 as u64) << 12)
    }

    pub(crate) const fn with_perms(self, perms: Perms) -> Self {
        let mut bits = self.0 & !(Self::W | Self::U | Self::G);
        if perms.write {
            bits |= Self::W;
        }
        if perms.user {
            bits |= Self::U;
        }
        if perms.global {
            bits |= Self::G;
        }
        Self(bits)
    }

    /// Does the walker follow it?
    #[must_use]
    pub const fn present(self) -> bool {
        self.0 & Self::P != 0
    }

    /// Set by the walker on first use.
    #[must_use]
    pub const fn accessed(self) -> bool {
        self.0 & Self::A != 0
    }

    /// Set by the walker on the first store.
    #[must_use]
    pub const fn dirty(self) -> bool {
        self.0 & Self::D != 0
    }

    /// A leaf of 2 MiB or 1 GiB (meaningless in the last level, where every entry is a leaf).
    #[must_use]
    pub const fn large(self) -> bool {
        self.0 & Self::PS != 0
    }

    /// The rights.
    #[must_use]
    pub const fn perms(self) -> Perms {
        Perms {
            write: self.0 & Self::W != 0,
            user: self.0 & Self::U != 0,
            global: self.0 & Self::G != 0,
        }
    }

    /// The frame of a leaf.
    #[must_use]
    pub const fn frame(self) -> Frame {
        Frame(((self.0 & Self::FRAME) >> 12) as u32)
    }

    /// The table a non-leaf points to.
    pub(crate) const fn next(self) -> TableId {
        TableId(((self.0 & Self::FRAME) >> 12) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_keep_frame_and_rights() {
        let pte = Pte::leaf(Frame(0xdead_beef), true, Perms::USER_RW);
        assert!(pte.present() && pte.large() && !pte.accessed() && !pte.dirty());
        assert_eq!((pte.frame(), pte.perms()), (Frame(0xdead_beef), Perms::USER_RW));
        assert_eq!(pte.with_perms(Perms::KERNEL_RW).perms(), Perms::KERNEL_RW);
        assert!(!Pte::POISON.present() && !Pte::EMPTY.present());
    }

    #[test]
    fn narrowing_is_any_right_taken_away() {
        assert!(Perms::USER_RW.narrowed_by(Perms::USER_RO));
        assert!(!Perms::USER_RO.narrowed_by(Perms::USER_RW));
        assert!(Perms::USER_RW.narrowed_by(Perms { user: false, ..Perms::USER_RW }));
    }
}

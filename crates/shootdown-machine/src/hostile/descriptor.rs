//! What a page-table word says: one packed format for all architectures.
//!
//! The machine's tables are ours, so their words need not look like any manual's. What matters is
//! which facts a walker reads from them, and those are few:
//!
//! | bit here | x86-64 | AArch64 (stage 1) | RISC-V |
//! |---|---|---|---|
//! | `PRESENT` | P | bit 0, valid | V |
//! | `LEAF` | PS (last level: always) | block or page | any of R, W, X |
//! | `WRITE` | R/W | AP\[2\] = 0 (`db` in herd) | W |
//! | `USER` | U/S | AP\[1\] | U |
//! | `EXEC` | not XD | not UXN/PXN | X |
//! | `ACCESSED` | A | AF | A |
//! | `DIRTY` | D | not used: `WRITE` with `DBM` is dirty | D |
//! | `GLOBAL` | G | not nG | G |
//! | `DBM` | not used | DBM: hardware may turn read-only into writable | not used |
//! | `ATTRIBUTES` | PAT index | AttrIndx | PBMT |
//! | `SOFTWARE` | ignored bits | ignored bits | RSW |
//! | target | frame, or the next table | same | same |
//!
//! A present leaf can be read. Table descriptors carry rights too, and the walker takes the
//! intersection along the path (x86: SDM vol. 3A 4.6; Arm: APTable and XNTable). RISC-V tables have
//! no rights: [`Descriptor::table`] gives all of them, which is the same.

use std::fmt;

use super::{Frame, TableId};

/// A page-table word as a walker reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Descriptor(u64);

impl Descriptor {
    /// Nothing there.
    pub const ABSENT: Self = Self(0);
    /// What a freed table page should be filled with: a leaf with every right to [`Frame::POISON`],
    /// so that a walker which still reads the page makes something nobody can overlook.
    pub const POISON: Self = Self(
        Self::PRESENT
            | Self::LEAF
            | Self::WRITE
            | Self::USER
            | Self::EXEC
            | Self::ACCESSED
            | Self::DIRTY
            | (Frame::POISON.0 as u64) << Self::TARGET_SHIFT,
    );

    /// The walker goes on, or has found a leaf.
    pub const PRESENT: u64 = 1;
    /// A leaf, not a table.
    pub const LEAF: u64 = 1 << 1;
    /// Stores are allowed.
    pub const WRITE: u64 = 1 << 2;
    /// User mode is allowed.
    pub const USER: u64 = 1 << 3;
    /// Fetches are allowed.
    pub const EXEC: u64 = 1 << 4;
    /// Used since software last cleared the bit.
    pub const ACCESSED: u64 = 1 << 5;
    /// Written since software last cleared the bit.
    pub const DIRTY: u64 = 1 << 6;
    /// Valid under every tag.
    pub const GLOBAL: u64 = 1 << 7;
    /// Hardware may set `WRITE` at a store (Arm, FEAT_HAFDBS).
    pub const DBM: u64 = 1 << 8;
    /// Memory attributes: four kinds, meaning nothing here except that changing them needs care.
    pub const ATTRIBUTES: u64 = 3 << 9;
    /// For software: the walker ignores them.
    pub const SOFTWARE: u64 = 0xf << 11;

    const RIGHTS: u64 = Self::WRITE | Self::USER | Self::EXEC;
    const TARGET_SHIFT: u32 = 16;
    const TARGET: u64 = 0xffff_ffff << Self::TARGET_SHIFT;

    /// A leaf that has been accessed, may only be read, and only by the kernel. Add bits with
    /// [`Descriptor::with`].
    #[must_use]
    pub const fn leaf(frame: Frame) -> Self {
        Self(Self::PRESENT | Self::LEAF | Self::ACCESSED | (frame.0 as u64) << Self::TARGET_SHIFT)
    }

    /// A private page of a program: user, writable, accessed and dirty (so that no hardware update
    /// is due when it is used).
    #[must_use]
    pub const fn user_rw(frame: Frame) -> Self {
        Self::leaf(frame).with(Self::USER | Self::WRITE | Self::DIRTY)
    }

    /// A page that a program may read, accessed.
    #[must_use]
    pub const fn user_ro(frame: Frame) -> Self {
        Self::leaf(frame).with(Self::USER)
    }

    /// A page of the kernel in every tag: writable, global, accessed and dirty.
    #[must_use]
    pub const fn kernel_rw(frame: Frame) -> Self {
        Self::leaf(frame).with(Self::GLOBAL | Self::WRITE | Self::DIRTY)
    }

    /// The next table, with all rights and accessed: what is allowed is decided at the leaf.
    #[must_use]
    pub const fn table(table: TableId) -> Self {
        Self(Self::PRESENT | Self::RIGHTS | Self::ACCESSED | (table.0 as u64) << Self::TARGET_SHIFT)
    }

    /// The word with this pattern, as memory holds it.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The pattern.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// With these bits set.
    #[must_use]
    pub const fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    /// With these bits clear.
    #[must_use]
    pub const fn without(self, bits: u64) -> Self {
        Self(self.0 & !bits)
    }

    /// Are all these bits set?
    #[must_use]
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Does the walker see anything?
    #[must_use]
    pub const fn present(self) -> bool {
        self.has(Self::PRESENT)
    }

    /// The frame of a leaf.
    #[must_use]
    pub const fn frame(self) -> Frame {
        Frame((self.0 >> Self::TARGET_SHIFT) as u32)
    }

    /// With another frame.
    #[must_use]
    pub const fn to_frame(self, frame: Frame) -> Self {
        Self(self.0 & !Self::TARGET | (frame.0 as u64) << Self::TARGET_SHIFT)
    }

    /// The table a non-leaf names.
    #[must_use]
    pub const fn next(self) -> TableId {
        TableId((self.0 >> Self::TARGET_SHIFT) as u16)
    }

    /// The rights in this word alone.
    #[must_use]
    pub const fn rights(self) -> Rights {
        Rights((self.0 & Self::RIGHTS) as u8)
    }

    /// Is it the same translation except for the bits that hardware sets by itself?
    #[must_use]
    pub const fn same_but_for(self, other: Self, bits: u64) -> bool {
        (self.0 ^ other.0) & !bits == 0
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.present() {
            return write!(f, "absent({:#x})", self.0);
        }
        if self.has(Self::LEAF) {
            write!(f, "leaf({}", self.frame())?;
        } else {
            write!(f, "table({}", self.next())?;
        }
        let names = [
            (Self::WRITE, "w"),
            (Self::USER, "u"),
            (Self::EXEC, "x"),
            (Self::ACCESSED, "a"),
            (Self::DIRTY, "d"),
            (Self::GLOBAL, "g"),
            (Self::DBM, "m"),
        ];
        f.write_str(" ")?;
        for (bit, name) in names {
            f.write_str(if self.has(bit) { name } else { "-" })?;
        }
        f.write_str(")")
    }
}

/// What may be done through a path of words: the intersection of their rights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Everything: where a walk starts.
    pub const ALL: Self = Self(Descriptor::RIGHTS as u8);

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    /// What both allow.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Stores.
    #[must_use]
    pub const fn write(self) -> bool {
        self.0 & Descriptor::WRITE as u8 != 0
    }

    /// User mode.
    #[must_use]
    pub const fn user(self) -> bool {
        self.0 & Descriptor::USER as u8 != 0
    }

    /// Fetches.
    #[must_use]
    pub const fn exec(self) -> bool {
        self.0 & Descriptor::EXEC as u8 != 0
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |on, name| if on { name } else { "-" };
        write!(f, "r{}{}{}", bit(self.write(), "w"), bit(self.exec(), "x"), bit(self.user(), "u"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_what_it_was_made_of() {
        let d = Descriptor::user_rw(Frame(7));
        assert!(d.present() && d.has(Descriptor::LEAF | Descriptor::ACCESSED));
        assert_eq!(d.frame(), Frame(7));
        assert_eq!(d.to_frame(Frame(9)).frame(), Frame(9));
        assert!(d.rights().write() && d.rights().user() && !d.rights().exec());
        assert_eq!(Descriptor::from_bits(d.bits()), d);
        let t = Descriptor::table(TableId(3));
        assert!(!t.has(Descriptor::LEAF));
        assert_eq!((t.next(), t.rights()), (TableId(3), Rights::ALL));
    }

    #[test]
    fn poison_is_present_and_conspicuous() {
        assert!(Descriptor::POISON.has(Descriptor::PRESENT | Descriptor::LEAF));
        assert_eq!(Descriptor::POISON.frame(), Frame::POISON);
        assert!(!Descriptor::ABSENT.present());
    }

    #[test]
    fn hardware_bits_do_not_make_another_translation() {
        let d = Descriptor::user_rw(Frame(1));
        let clean = d.without(Descriptor::DIRTY);
        assert!(d.same_but_for(clean, Descriptor::DIRTY));
        assert!(!d.same_but_for(clean.to_frame(Frame(2)), Descriptor::DIRTY));
    }

    #[test]
    fn rights_only_shrink_along_a_path() {
        let user = Descriptor::user_ro(Frame(1)).rights();
        assert_eq!(Rights::ALL.and(user), user);
        assert_eq!(format!("{user:?}"), "r--u");
    }
}

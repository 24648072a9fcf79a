//! Which changes of the model kernel's entries need a flush.

use shootdown::Change;
use shootdown::elide::Cached;

use crate::hostile::Descriptor;

/// What changing a leaf demands: the same question that `shootdown-arch` answers for real entries.
pub(super) fn demand(old: Descriptor, new: Descriptor) -> Change {
    /// Cleared by software, set by hardware or by a fault.
    const RECORDS: u64 = Descriptor::ACCESSED | Descriptor::DIRTY;
    const GIVES: u64 = Descriptor::WRITE | Descriptor::EXEC | Descriptor::DBM;
    if !old.present() {
        return if new.present() { Change::New } else { Change::Nothing };
    }
    let taken = old.without(new.bits());
    let same = old.same_but_for(new, RECORDS | GIVES | Descriptor::SOFTWARE);
    if !new.present() || !same || taken.bits() & (GIVES | Descriptor::DIRTY) != 0 {
        return Change::Flush(Cached::Leaf);
    }
    if taken.has(Descriptor::ACCESSED) {
        return Change::Accessed;
    }
    if old.same_but_for(new, Descriptor::SOFTWARE) { Change::Nothing } else { Change::Upgrade }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::Frame;

    #[test]
    fn taking_away_demands_a_flush_and_giving_does_not() {
        let (writable, plain) = (Descriptor::user_rw(Frame(1)), Descriptor::user_ro(Frame(1)));
        let flush = Change::Flush(Cached::Leaf);
        assert_eq!(demand(Descriptor::ABSENT, plain), Change::New);
        assert_eq!(demand(plain, Descriptor::ABSENT), flush);
        assert_eq!((demand(plain, writable), demand(writable, plain)), (Change::Upgrade, flush));
        assert_eq!(demand(writable, writable.without(Descriptor::DIRTY)), flush);
        assert_eq!(demand(plain, plain.to_frame(Frame(2))), flush);
        assert_eq!(demand(plain, plain.without(Descriptor::USER)), flush);
        assert_eq!(demand(plain, plain.without(Descriptor::ACCESSED)), Change::Accessed);
        assert_eq!(demand(plain, plain.with(1 << 11)), Change::Nothing);
    }
}

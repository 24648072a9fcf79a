//! What CPUs share of shared memory: for exhaustive searches, which need not take steps where
//! nobody could notice.
//!
//! Most of what lies in shared memory is not shared in a small world: a CPU's own cell that nobody
//! else comes by, a list of devices that nobody changes. An access to a word that one CPU only
//! uses, or that nobody writes, commutes with all that others do, and no value but the newest can
//! be read there; so it need not be a step. Which words these are is not known before, but a search
//! can find out: it begins with what some schedules have shown, and as soon as a word turns out to
//! be shared that it took for private, it begins again, with that word among the shared ones. A
//! search that ends without that has taken a step at every access to every word that two CPUs use
//! and one writes, in every schedule.
//!
//! A word of a table that devices walk is shared if it ever says something to them: the IOMMU is
//! the other one. By all others of the table nothing is mapped in any schedule. They only take part
//! in its coming and going (512 tombstones at once, which say nothing to a walker), and the order
//! of these is not explored: `loom` does that, on tables of four entries. (Interrupts are not
//! thought of here: a world that has them takes all steps.)

use super::memory::MAX_CPUS;

const WRITTEN: u16 = 1 << MAX_CPUS;
const SHARED: u16 = WRITTEN << 1;
const CPUS: u16 = WRITTEN - 1;

/// What is known of the words of shared memory, from one run to the next.
#[derive(Debug, Default)]
pub struct Sharing {
    /// By the word's offset: the CPUs that use it, and whether it is written, and shared.
    words: Vec<u16>,
    learning: bool,
    grown: bool,
}

/// What an access is to a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// Nobody could notice it.
    Private,
    /// Nobody could notice it, unless what is written [means something](Sharing::meant) to devices.
    Quiet,
    /// A step.
    Shared,
    /// One that was taken for private before: what was searched so far is worth nothing.
    News,
}

impl Sharing {
    /// Nothing is known yet: runs from now on [learn](Self::has_learnt).
    #[must_use]
    pub fn learning() -> Self {
        Self { learning: true, ..Self::default() }
    }

    /// From now on, a word that turns out to be shared ends the run.
    pub const fn has_learnt(&mut self) {
        (self.learning, self.grown) = (false, false);
    }

    /// Has it turned out, since runs learn no more, that a word is shared? Then search again.
    #[must_use]
    pub const fn has_grown(&self) -> bool {
        self.grown
    }

    /// An access to the word at this offset; `table`: devices walk it.
    pub(super) fn access(&mut self, offset: usize, cpu: u8, write: bool, table: bool) -> Access {
        if self.words.len() <= offset {
            self.words.resize(offset + 1, 0);
        }
        let word = &mut self.words[offset];
        *word |= 1 << cpu;
        if write {
            *word |= WRITTEN;
        }
        if *word & SHARED != 0 {
            return Access::Shared;
        }
        let several = (*word & CPUS).count_ones() > 1;
        if table {
            return if write { Access::Quiet } else { Access::Private };
        }
        if !(several && *word & WRITTEN != 0) {
            return Access::Private;
        }
        *word |= SHARED;
        self.grown = !self.learning;
        if self.learning { Access::Shared } else { Access::News }
    }

    /// What was written to the word means something to devices. `true`: that is news, and the run
    /// is over.
    pub(super) fn meant(&mut self, offset: usize) -> bool {
        let word = &mut self.words[offset];
        let news = *word & SHARED == 0 && !self.learning;
        *word |= SHARED;
        self.grown |= news;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_shared_when_two_use_it_and_one_writes() {
        let mut sharing = Sharing::learning();
        assert_eq!(sharing.access(8, 0, true, false), Access::Private);
        assert_eq!(sharing.access(16, 0, false, false), Access::Private);
        assert_eq!(sharing.access(16, 1, false, false), Access::Private, "nobody writes it");
        assert_eq!(sharing.access(24, 0, true, true), Access::Quiet);
        assert!(!sharing.meant(24), "devices walk it, and nothing was searched yet");
        sharing.has_learnt();
        assert_eq!(sharing.access(24, 0, false, false), Access::Shared);
        assert!(!sharing.has_grown());
        assert_eq!(sharing.access(8, 1, false, false), Access::News);
        assert!(sharing.has_grown());
        assert!(sharing.access(32, 0, true, true) == Access::Quiet && sharing.meant(32));
    }
}

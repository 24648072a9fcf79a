//! How much a run has the machine do.

use serde::{Deserialize, Serialize};

/// How much a run has the machine do, what happens during the boot left out. A run takes more of it
/// than it must where the library invalidates, interrupts or waits without need: no promise is
/// broken by that, and somebody pays for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Interrupts raised, and barriers that other CPUs are made to pass.
    pub interrupts: u64,
    /// Invalidations, of whatever size, on one CPU or on all.
    pub invalidations: u64,
    /// Those of a whole tag or of everything; loads of a root that keep nothing are among them.
    pub whole: u64,
    /// Those that the hardware broadcasts, or a hypervisor does for others.
    pub remote: u64,
    /// Fences.
    pub fences: u64,
    /// Atomic operations that read and write.
    pub updates: u64,
    /// Commands for IOMMUs.
    pub commands: u64,
    /// Steps of all kinds that others could notice.
    pub steps: u64,
}

impl Work {
    /// Each kind with its name.
    #[must_use]
    pub const fn kinds(&self) -> [(&'static str, u64); 8] {
        [
            ("interrupts", self.interrupts),
            ("invalidations", self.invalidations),
            ("whole", self.whole),
            ("remote", self.remote),
            ("fences", self.fences),
            ("updates", self.updates),
            ("commands", self.commands),
            ("steps", self.steps),
        ]
    }

    /// The kind of which there is most more than in `usual`, in proportion: its name, the usual
    /// number and this one.
    #[must_use]
    pub fn more_than(&self, usual: &Self) -> Option<(&'static str, u64, u64)> {
        let both = self.kinds().into_iter().zip(usual.kinds());
        let more = both.filter(|((_, now), (_, usual))| now > usual);
        more.map(|((name, now), (_, usual))| (name, usual, now))
            .max_by_key(|(_, usual, now)| (now - usual) * 1_000 / usual.max(&1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_that_grows_most_is_named() {
        let usual = Work { steps: 100, interrupts: 2, ..Work::default() };
        assert_eq!(usual.more_than(&usual), None);
        let more = Work { steps: 110, interrupts: 4, fences: 0, ..Work::default() };
        assert_eq!(more.more_than(&usual), Some(("interrupts", 2, 4)));
        let less = Work { steps: 90, ..Work::default() };
        assert_eq!(less.more_than(&usual), None);
    }
}

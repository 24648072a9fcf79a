//! What a CPU's own caches hold, where that matters.
//!
//! Ownership of a line ([`lines`](super::lines)) says whether it has to come from another CPU. A
//! line that has not, but was not used for long, comes from the last-level cache instead of the
//! CPU's own. What the library shares on the CPU side is small beside a cache, so that this is left
//! out there; a tree of tens of thousands of mappings is not.
//!
//! Each CPU has sets of [`WAYS`] lines, of which the one that was used longest ago goes.

/// Ways of a set: those of the second-level caches of Intel since Haswell.
const WAYS: usize = 8;

/// No line.
const NONE: u32 = u32::MAX;

/// The own caches of all CPUs.
pub struct OwnCaches {
    /// By CPU, by set: lines, the one used last in front.
    lines: Vec<[u32; WAYS]>,
    sets: usize,
}

impl OwnCaches {
    /// Caches of `capacity` lines for each of `cpus` CPUs.
    pub fn new(cpus: u32, capacity: u32) -> Self {
        let sets = (capacity as usize / WAYS).max(1);
        Self { lines: vec![[NONE; WAYS]; sets * cpus as usize], sets }
    }

    /// A CPU uses a line: did its own caches have it? They have it afterwards.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // lines are numbered in 32 bits
    pub fn touch(&mut self, cpu: u32, line: usize) -> bool {
        let set = &mut self.lines[cpu as usize * self.sets + line % self.sets];
        let number = line as u32;
        let at = set.iter().position(|l| *l == number);
        set[..=at.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = number;
        at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes() {
        let mut own = OwnCaches::new(2, 16);
        // Lines of one set: 0, 2, 4 ...
        assert!((0..8).all(|n| !own.touch(0, 2 * n)));
        assert!(own.touch(0, 0));
        assert!(!own.touch(0, 16));
        assert!(own.touch(0, 0) && !own.touch(0, 2), "2 was the oldest");
        assert!(!own.touch(1, 0), "each CPU has its own");
        assert!(!own.touch(0, 1) && own.touch(0, 1), "another set");
    }
}

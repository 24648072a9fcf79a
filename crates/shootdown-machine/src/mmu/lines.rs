//! Where a walk finds a table entry: a small model of the data caches as far as they hold page
//! tables.
//!
//! Eight entries share a 64-byte line. Each CPU remembers the lines its walker touched in two
//! direct-mapped directories, a small and a large one, standing for the table entries' share of the
//! first- and second-level data caches. A read costs "near" when its line is in the small one,
//! "typical" when only in the large one, "far" otherwise, and enters both. A page walked with walk
//! caches warm therefore costs one read; eight neighbouring pages share one distant read. Not
//! modelled: other CPUs' stores into tables making the line distant again.

/// Where a line of table entries was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Distance {
    /// In the first-level data cache.
    #[default]
    Near = 0,
    /// In the second-level data cache.
    Typical = 1,
    /// Farther away, or in memory.
    Far = 2,
}

/// The two directories.
#[derive(Debug)]
pub(crate) struct Lines {
    /// Line number + 1; 0 for none.
    near: Vec<u32>,
    typical: Vec<u32>,
}

impl Lines {
    /// Sizes are powers of two or 0.
    pub(crate) fn new(near: u32, typical: u32) -> Self {
        Self { near: vec![0; near as usize], typical: vec![0; typical as usize] }
    }

    #[inline]
    pub(crate) fn read(&mut self, line: u32) -> Distance {
        let name = line.wrapping_add(1);
        if Self::enter(&mut self.near, name) {
            return Distance::Near;
        }
        if Self::enter(&mut self.typical, name) { Distance::Typical } else { Distance::Far }
    }

    /// Was it there? It is now.
    #[inline]
    fn enter(directory: &mut [u32], name: u32) -> bool {
        let n = directory.len();
        if n == 0 {
            return false;
        }
        // Lines of one table are neighbours: the low bits spread them without conflict. The high
        // bits are mixed in so that the same page of different tables doesn't always
        // collide.
        let place =
            &mut directory[(name ^ (name >> 6).wrapping_mul(0x9e37_79b1) >> 7) as usize & (n - 1)];
        let hit = *place == name;
        *place = name;
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_near_by_use_and_goes_when_displaced() {
        let mut lines = Lines::new(4, 64);
        assert_eq!(lines.read(7), Distance::Far);
        assert_eq!(lines.read(7), Distance::Near);
        for other in 100..108 {
            lines.read(other);
        }
        assert_eq!(lines.read(7), Distance::Typical);
        let mut none = Lines::new(0, 0);
        none.read(7);
        assert_eq!(none.read(7), Distance::Far);
    }
}

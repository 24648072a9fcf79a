//! A small generator, and odds.
//!
//! Splitmix64: one addition and a few multiplications per number, no tables, every seed is a good
//! seed, and the numbers are the same on every host.

/// Numbers that depend on the seed alone.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// The increment of splitmix64: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64: every bit of the result depends on every bit of `z`.
pub(super) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// For run number `run` of a search: runs of one search, and searches with neighbouring seeds,
    /// have nothing in common.
    #[must_use]
    pub const fn of_run(seed: u64, run: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(STEP)) ^ run))
    }

    /// 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// One of `0..n`; 0 if there is none. Skewed by less than n / 2^64.
    pub const fn below(&mut self, n: usize) -> usize {
        ((self.next() as u128 * n as u128) >> 64) as usize
    }
}

/// How likely something is, in 65536ths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Odds(u32);

impl Odds {
    /// It does not happen.
    pub const NEVER: Self = Self(0);
    /// It happens whenever it can.
    pub const ALWAYS: Self = Self(1 << 16);

    /// Once in `n` times; never for 0 and for more than 65536.
    #[must_use]
    pub const fn one_in(n: u32) -> Self {
        match 65536u32.checked_div(n) {
            Some(share) => Self(share),
            None => Self::NEVER,
        }
    }

    /// Does it happen? `bits` are 16 random bits.
    #[must_use]
    pub const fn hit(self, bits: u16) -> bool {
        (bits as u32) < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odds_are_kept() {
        for n in [1, 2, 3, 16, 256] {
            let mut rng = Rng::new(u64::from(n));
            let odds = Odds::one_in(n);
            let hits = (0..100_000).filter(|_| odds.hit(rng.next() as u16)).count();
            let wanted = 100_000 / n as usize;
            assert!(hits.abs_diff(wanted) <= wanted / 8 + 1, "1 in {n}: {hits}");
        }
        assert!(!Odds::NEVER.hit(0) && Odds::ALWAYS.hit(u16::MAX) && !Odds::one_in(0).hit(0));
    }

    #[test]
    fn below_reaches_everything_and_nothing_else() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        for _ in 0..5000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn runs_of_one_seed_differ_from_those_of_the_next() {
        let mut firsts: Vec<u64> = (0..40)
            .flat_map(|seed| (0..40).map(move |run| Rng::of_run(seed, run).next()))
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 1600);
    }
}

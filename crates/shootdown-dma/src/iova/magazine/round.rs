//! A magazine: a stack of addresses of blocks of one size.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Blocks of a magazine: with the count it is 1 KiB (Bonwick and Adams 2001 call them rounds).
pub(super) const ROUNDS: usize = 127;

/// On lines of its own (pairs, as hardware prefetches): a magazine belongs to one CPU at a time.
#[repr(align(128))]
struct Body {
    len: usize,
    rounds: [u64; ROUNDS],
}

/// A magazine.
pub(super) struct Magazine(Box<[Body; 1]>);

impl Magazine {
    /// An empty one; `None` if there is no memory.
    pub(super) fn new() -> Option<Self> {
        #[cfg(test)]
        if tests::NO_MEMORY.get() {
            return None;
        }
        let mut body: Vec<Body> = Vec::new();
        body.try_reserve_exact(1).ok()?;
        body.push(Body { len: 0, rounds: [0; ROUNDS] });
        Some(Self(Box::try_from(body).ok()?))
    }

    #[inline]
    fn body(&mut self) -> &mut Body {
        &mut self.0[0]
    }

    pub(super) fn rounds(&self) -> &[u64] {
        let body = &self.0[0];
        body.rounds.get(..body.len).unwrap_or(&body.rounds)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[0].len == 0
    }

    /// Puts a block on top, if it holds less than `most`.
    #[inline]
    pub(super) fn push(&mut self, block: u64, most: usize) -> bool {
        let body = self.body();
        if body.len >= most {
            return false;
        }
        let Some(round) = body.rounds.get_mut(body.len) else { return false };
        *round = block;
        body.len += 1;
        true
    }

    /// Takes the topmost block, if it is not above `highest`.
    #[inline]
    pub(super) fn top(&mut self, highest: u64) -> Option<u64> {
        let body = self.body();
        let top = body.len.wrapping_sub(1);
        let block = body.rounds.get(top).copied().filter(|block| *block <= highest)?;
        body.len = top;
        Some(block)
    }

    /// Takes the topmost block that is not above `highest`.
    #[inline]
    pub(super) fn pop(&mut self, highest: u64) -> Option<u64> {
        let body = self.body();
        let top = body.len.wrapping_sub(1);
        match body.rounds.get(top) {
            Some(block) if *block <= highest => {
                body.len = top;
                Some(*block)
            }
            _ => self.dig(highest),
        }
    }

    /// Takes the topmost block that is low enough, from below others.
    #[cold]
    fn dig(&mut self, highest: u64) -> Option<u64> {
        let at = self.rounds().iter().rposition(|block| *block <= highest)?;
        let body = self.body();
        let block = body.rounds[at];
        body.len -= 1;
        body.rounds[at] = body.rounds[body.len];
        Some(block)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    std::thread_local! {
        /// There is no memory for magazines, in this thread.
        pub(in super::super) static NO_MEMORY: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
    }

    #[test]
    fn a_magazine_is_a_kibibyte_of_whole_lines() {
        assert_eq!((size_of::<Body>(), align_of::<Body>()), (1024, 128));
    }

    #[test]
    fn pops_what_was_pushed_last_below_the_limit() {
        let mut magazine = Magazine::new().unwrap();
        for block in 1..=127 {
            assert!(magazine.push(block, ROUNDS));
        }
        assert!(!magazine.push(128, ROUNDS));
        assert_eq!(magazine.pop(u64::MAX), Some(127));
        assert_eq!(magazine.pop(100), Some(100));
        assert_eq!(magazine.pop(0), None);
        let mut left = magazine.rounds().to_vec();
        left.sort_unstable();
        assert_eq!(left, (1..=126).filter(|b| *b != 100).collect::<Vec<_>>());
        while magazine.pop(u64::MAX).is_some() {}
        assert!(magazine.is_empty());
        assert!(magazine.push(1, 1) && !magazine.push(2, 1));
    }
}

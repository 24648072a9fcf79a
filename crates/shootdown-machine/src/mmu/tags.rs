//! Tags and the contexts that stand for them.
//!
//! Invalidating a whole tag must cost the same however much is cached under it. So entries are not
//! found by tag but by *context*: a number that a tag is given when it is loaded for the first time
//! and that is replaced whenever everything under the tag is invalidated. What carries the old
//! number is never found again. Leaf entries and walk-cache entries have separate contexts, because
//! a single-page invalidation empties the walk caches of a tag but not its TLB.
//!
//! # Invariants
//! I1: two live contexts never share a number. I2: numbers are not reused while an entry may carry
//! them: when they run out, the arrays are emptied first ([`Exhausted`]).

use shootdown::Tag;

use crate::mmu::Root;
use crate::mmu::array::{CONTEXT_BITS, Liveness, context_of};
use crate::oracle::Epoch;

/// All numbers have been used: empty the arrays, then [`Contexts::restart`].
#[derive(Debug)]
pub(crate) struct Exhausted;

/// How many contexts can be alive at once. A real CPU may forget a tag at any time; this one does
/// when more are in use (the core remembers about six).
const LIVE: usize = 256;

/// The contexts of one kind of entry.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// `live[c % LIVE] == c` for a live context `c`; 0 for none.
    live: Box<[u32]>,
    last: u32,
    deaths: u64,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self { live: vec![0; LIVE].into_boxed_slice(), last: 0, deaths: 0 }
    }

    pub(crate) fn allocate(&mut self) -> Result<u32, Exhausted> {
        loop {
            self.last += 1;
            if self.last >= 1 << CONTEXT_BITS {
                return Err(Exhausted);
            }
            let place = &mut self.live[self.last as usize % LIVE];
            if *place == 0 {
                *place = self.last;
                return Ok(self.last);
            }
        }
    }

    pub(crate) fn kill(&mut self, context: u32) {
        self.live[context as usize % LIVE] = 0;
        self.deaths += 1;
    }

    /// Starts over. No array may hold an entry.
    pub(crate) fn restart(&mut self) {
        self.live.fill(0);
        self.last = 0;
        self.deaths += 1;
    }
}

impl Liveness for Contexts {
    #[inline]
    fn alive(&self, key: u64) -> bool {
        let context = context_of(key);
        self.live[context as usize % LIVE] == context
    }

    #[inline]
    fn deaths(&self) -> u64 {
        self.deaths
    }
}

/// What a CPU has under a tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagState {
    pub(crate) tag: Tag,
    /// The context of its leaf entries.
    pub(crate) context: u32,
    /// The context of its walk-cache entries.
    pub(crate) walk_context: u32,
    /// The tables its entries were made from.
    pub(crate) owner: Root,
    /// Something was cached under it since it was last invalidated.
    pub(crate) used: bool,
    /// The same for the walk caches.
    pub(crate) walk_used: bool,
    /// When it was last loaded.
    pub(crate) loaded: Epoch,
}

/// More tags than this and the least recently loaded one is forgotten; leaves room for the contexts
/// of global entries and of the tag being loaded.
pub(crate) const MAX_TAGS: usize = LIVE - 8;

#[cfg(test)]
mod tests {
    use shootdown::{CpuId, Stride, VaRange};

    use super::*;
    use crate::mmu::array::key;
    use crate::mmu::{Access, CpuMmu, Found, Memory, Perms, TlbGeometry};

    const VA: u64 = 0x1000;

    fn one_page() -> (Memory, Root, CpuMmu) {
        let mut mem = Memory::new(16);
        let root = mem.new_space().unwrap();
        let frame = mem.alloc(Stride::Page4K).unwrap();
        mem.map(root, VA, frame, Stride::Page4K, Perms::USER_RW).unwrap();
        (mem, root, CpuMmu::new(CpuId(0), &TlbGeometry::zen4()).unwrap())
    }

    fn is_cached(cpu: &mut CpuMmu, mem: &mut Memory) -> bool {
        !matches!(cpu.translate(mem, VA, Access::UserRead).unwrap().found, Found::Walk(_))
    }

    #[test]
    fn when_numbers_run_out_everything_is_forgotten_and_it_goes_on() {
        let (mut mem, root, mut cpu) = one_page();
        cpu.load(&mem, root, Tag(1), false).unwrap();
        cpu.contexts.last = (1 << CONTEXT_BITS) - 3;
        cpu.walk_contexts.last = (1 << CONTEXT_BITS) - 5;
        for _ in 0..20 {
            assert!(!is_cached(&mut cpu, &mut mem));
            assert!(is_cached(&mut cpu, &mut mem));
            cpu.invalidate_range(Tag(1), VaRange::new(VA, 1, Stride::Page4K).unwrap(), false);
            assert!(!is_cached(&mut cpu, &mut mem));
            cpu.invalidate_tag(Tag(1));
        }
        assert!(cpu.contexts.last < 100 && cpu.walk_contexts.last < 100);
    }

    #[test]
    fn more_tags_than_places_are_forgotten_not_mixed_up() {
        let (mut mem, root, mut cpu) = one_page();
        for tag in 1..=2 * LIVE as u16 {
            cpu.load(&mem, root, Tag(tag), false).unwrap();
            assert!(!is_cached(&mut cpu, &mut mem));
        }
        for tag in [1, 2 * LIVE as u16] {
            cpu.load(&mem, root, Tag(tag), true).unwrap();
            assert_eq!(is_cached(&mut cpu, &mut mem), tag != 1);
        }
    }

    #[test]
    fn a_context_lives_until_killed_and_numbers_do_not_come_back() {
        let mut c = Contexts::new();
        let a = c.allocate().unwrap();
        let b = c.allocate().unwrap();
        assert!(a != b && c.alive(key(5, 0, a)) && c.alive(key(5, 0, b)));
        c.kill(a);
        assert!(!c.alive(key(5, 0, a)) && c.alive(key(5, 0, b)));
        // Around the table of live ones: b's place is skipped, a's number never returns.
        for _ in 0..3 * LIVE {
            let n = c.allocate().unwrap();
            assert!(n != a && n as usize % LIVE != b as usize % LIVE);
            c.kill(n);
        }
    }
}

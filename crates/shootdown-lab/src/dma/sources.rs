//! What is measured: where addresses come from, and how pages are counted.

use shootdown_dma::Policy;
use shootdown_dma::iova::arena::{self, Arena};
use shootdown_dma::iova::identity::{Layout, LeafSize};
use shootdown_dma::iova::magazine::{self, Magazines};
use shootdown_dma::iova::ring::Ring;
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::iova::{Space, Want};

use super::host::{Addresses, Nothing};
use super::{Bench, SPACE, config};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// The tree alone.
    Tree,
    /// Magazines before the tree.
    Magazines,
    /// The same, without the promise that threads are alone with their numbers.
    Unpromised,
    /// The same with one reference for 2 MiB of memory that were allocated together, as kernels
    /// count them.
    Together,
    /// A pool for each CPU, and a large one.
    Arena,
    /// 262,144 pages in order, round and round.
    Ring,
    /// The page's own number.
    Identity,
    /// All of memory, mapped once.
    Window,
}

/// Pages of the ring.
const RING: u64 = 1 << 18;

/// The logarithm of pages that are allocated together: 2 MiB.
const TOGETHER: u32 = 9;

impl From {
    /// All, each with the policies under which it is measured.
    pub fn cases() -> impl Iterator<Item = (Self, Policy)> {
        use Policy::{Bypass, Deferred, Lazy, Strict};
        const ALL: &[(From, &[Policy])] = &[
            (From::Tree, &[Strict, Deferred, Lazy]),
            (From::Magazines, &[Strict, Deferred, Lazy]),
            (From::Unpromised, &[Strict, Deferred, Lazy]),
            // Only then pages are held.
            (From::Together, &[Deferred]),
            (From::Arena, &[Strict, Deferred, Lazy]),
            (From::Ring, &[Strict, Deferred, Lazy]),
            (From::Identity, &[Strict, Deferred, Lazy]),
            (From::Window, &[Bypass]),
        ];
        ALL.iter().flat_map(|(from, policies)| policies.iter().map(|policy| (*from, *policy)))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Magazines => "magazines",
            Self::Unpromised => "magazines (no promise)",
            Self::Together => "magazines, memory held by 2 MiB",
            Self::Arena => "arena",
            Self::Ring => "ring",
            Self::Identity => "identity",
            Self::Window => "static window",
        }
    }

    /// Its name, and the policy's.
    #[must_use]
    pub fn label(self, policy: Policy) -> String {
        format!("{}, {policy}", self.name())
    }

    /// A domain for so many threads.
    ///
    /// # Panics
    /// Without memory.
    #[must_use]
    pub fn bench(self, policy: Policy, threads: usize) -> Bench {
        let tree = |space: Space<'_>| Tree::new(&space).expect("a space");
        let config = config(policy, threads, self != Self::Unpromised);
        let order = if self == Self::Together { TOGETHER } else { 0 };
        let (config, addresses) = match self {
            Self::Tree => (config, Addresses::Tree(tree(SPACE))),
            Self::Magazines | Self::Unpromised | Self::Together => {
                let mut magazines = magazine::Config::for_cpus(threads);
                magazines.pinned = config.pinned;
                let magazines = Magazines::new(tree(SPACE), &magazines);
                (config, Addresses::Magazines(magazines.expect("a space, and memory")))
            }
            Self::Arena => {
                let pools = Arena::new(&SPACE, &arena::Layout::pools(threads), Nothing);
                (config, Addresses::Arena(pools.expect("a space, and memory")))
            }
            Self::Ring => {
                let ring = Want::pages(RING).map(|want| Ring::new(tree(SPACE), 0, &want));
                (config, Addresses::Ring(ring.expect("not zero").expect("a space, and memory")))
            }
            Self::Identity => {
                let layout = Layout::new(27, 18, LeafSize::Page).expect("39 bits are enough");
                (config.identity(layout), Addresses::Tree(tree(layout.fallback())))
            }
            Self::Window => (config.trusted(), Addresses::Tree(tree(SPACE))),
        };
        Bench::new(config, addresses, order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::Shape;
    use crate::dma::host::become_cpu;

    /// Whatever is measured does the work: each reference comes back, and nothing is refused.
    #[test]
    fn all_map_and_unmap() {
        become_cpu(0);
        for (from, policy) in From::cases() {
            let bench = from.bench(policy, 1);
            let shapes = [Shape::Page, Shape::Again, Shape::Chance, Shape::Ring(256)];
            for shape in shapes.into_iter().chain([Shape::Range(256), Shape::Linked(64)]) {
                bench.pairs(shape, 0, 300);
            }
            let counts = bench.domain().counts();
            assert_eq!(counts.maps, counts.unmaps - 300, "{}", from.label(policy));
            bench.end();
        }
    }

    /// F1: what is put off is told in batches, never page by page; and no more is held than may be.
    #[test]
    fn invalidations_are_batched() {
        become_cpu(0);
        for (from, policy) in From::cases().filter(|(_, policy)| *policy != Policy::Strict) {
            let bench = from.bench(policy, 1);
            for shape in [Shape::Page, Shape::Ring(256), Shape::Range(256)] {
                let before = (bench.commands(), bench.domain().counts().unmaps);
                bench.pairs(shape, 0, if shape == Shape::Range(256) { 200 } else { 4_000 });
                let unmaps = bench.domain().counts().unmaps - before.1;
                let commands = bench.commands() - before.0;
                assert!(
                    commands <= unmaps / 16 + 16,
                    "{}, {}: {commands} commands for {unmaps}",
                    from.label(policy),
                    shape.name()
                );
                let (_, held) = bench.domain().deferred();
                assert!(held <= shootdown_dma::domain::Limits::DEFAULT.held_pages * 3, "{held}");
            }
            bench.end();
        }
    }
}

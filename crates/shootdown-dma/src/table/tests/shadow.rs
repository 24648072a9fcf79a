//! Any sequence of operations, in every format, against a map of pages.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Map { first: u64, pages: u64, by: u64, rights: Rights },
    UnmapMapped(usize),
    Unmap { first: u64, pages: u64 },
    UnmapWrong { first: u64, pages: u64 },
    Acquire { page: u64, rights: Rights },
    Release(u64),
    Sweep,
    Settle(usize),
    Limit(usize),
}

/// Boundaries of tables with 2^`bits` entries.
fn boundaries(bits: u32) -> [u64; 6] {
    let n = 1u64 << bits;
    [n, 2 * n, n * n, n * n + n, 2 * n * n - n, 2 * n * n]
}

/// Pages around them.
fn page(bits: u32) -> impl Strategy<Value = u64> {
    (0..6usize, -3i64..4).prop_map(move |(at, by)| boundaries(bits)[at].saturating_add_signed(by))
}

fn length(bits: u32) -> impl Strategy<Value = u64> {
    let n = 1u64 << bits;
    prop_oneof![6 => 1..6u64, 2 => n - 2..n + 3, 1 => Just(2 * n), 1 => Just((8 * n).min(0x4000))]
}

fn rights() -> impl Strategy<Value = Rights> {
    prop_oneof![Just(Rights::Read), Just(Rights::Write), Just(Rights::ReadWrite)]
}

fn op(bits: u32) -> impl Strategy<Value = Op> {
    // Memory that lies as the addresses do, so that superpages fit, or does not.
    let phys = prop_oneof![Just(0u64), Just(0x4_0000), Just(7)];
    prop_oneof![
        6 => (page(bits), length(bits), phys, rights()).prop_map(|(first, pages, by, rights)| {
            Op::Map { first, pages, by, rights }
        }),
        5 => any::<usize>().prop_map(Op::UnmapMapped),
        2 => (page(bits), length(bits)).prop_map(|(first, pages)| Op::Unmap { first, pages }),
        2 => (page(bits), length(bits)).prop_map(|(first, pages)| Op::UnmapWrong { first, pages }),
        4 => (page(bits), rights()).prop_map(|(page, rights)| Op::Acquire { page, rights }),
        3 => page(bits).prop_map(Op::Release),
        3 => Just(Op::Sweep),
        3 => any::<usize>().prop_map(Op::Settle),
        1 => (0..3usize).prop_map(Op::Limit),
    ]
}

fn run<F: Manual>(format: F, coherent: bool, ops: &[Op]) {
    let last = (1 << format.page_bits()) - 1;
    let eyes: Vec<u64> = boundaries(F::INDEX)
        .iter()
        .flat_map(|n| (n - 4)..(n + 5))
        .filter(|page| *page <= last)
        .collect();
    let mut world = World::new(format, coherent, &eyes);
    let mut mapped: Vec<(u64, u64)> = Vec::new();
    for op in ops {
        match *op {
            Op::Map { first, pages, by, rights } => {
                let phys = (first + by) << F::GRANULE;
                if world.map(first, pages, phys, rights) {
                    mapped.push((first, pages));
                }
            }
            Op::UnmapMapped(n) if !mapped.is_empty() => {
                let (first, pages) = mapped.swap_remove(n % mapped.len());
                // Parts of it may have been unmapped.
                let _ = world.unmap(first, pages);
            }
            Op::UnmapMapped(_) => {}
            Op::Unmap { first, pages } => drop(world.unmap_part(first, pages)),
            Op::UnmapWrong { first, pages } => drop(world.unmap(first, pages)),
            Op::Acquire { page, rights } => {
                let _ = world.acquire(page, (page << F::GRANULE) + 0x100_0000_0000, rights);
            }
            Op::Release(page) => drop(world.release(page)),
            Op::Sweep => drop(world.sweep()),
            Op::Settle(n) => world.settle(n),
            Op::Limit(budget) => world.pages.limit(budget),
        }
        if !matches!(op, Op::Limit(_)) {
            world.pages.limit(usize::MAX);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vtd_maps_what_its_shadow_has(coherent: bool, levels in 3..=5u32, big: bool, ops in prop::collection::vec(op(9), 1..40)) {
        run(VtdSecondLevel::new(levels, big, big).unwrap(), coherent, &ops);
    }

    #[test]
    fn amd_maps_what_its_shadow_has(coherent: bool, levels in 3..=5u32, big: bool, ops in prop::collection::vec(op(9), 1..40)) {
        run(AmdV1::new(levels, big).unwrap(), coherent, &ops);
    }

    #[test]
    fn arm_stage_1_maps_what_its_shadow_has(coherent: bool, levels in 3..=4u32, ops in prop::collection::vec(op(9), 1..40)) {
        run(ArmStage1::new(levels, 1).unwrap(), coherent, &ops);
    }

    #[test]
    fn arm_stage_2_maps_what_its_shadow_has(coherent: bool, levels in 3..=4u32, ops in prop::collection::vec(op(9), 1..40)) {
        run(ArmStage2::new(levels).unwrap(), coherent, &ops);
    }

    #[test]
    fn larger_granules_map_what_their_shadow_has(
        coherent: bool, more in 0..2u32, ops in prop::collection::vec(op(11), 1..30),
    ) {
        run(ArmStage1::<14>::with_granule(3 + more, 1).unwrap(), coherent, &ops);
        run(ArmStage2::<14>::for_width(45 + 3 * more).unwrap(), coherent, &ops);
    }

    #[test]
    fn largest_granules_map_what_their_shadow_has(
        coherent: bool, more in 0..2u32, ops in prop::collection::vec(op(13), 1..16),
    ) {
        run(ArmStage1::<16>::with_granule(2 + more, 1).unwrap(), coherent, &ops);
        run(ArmStage2::<16>::for_width(44 + 4 * more).unwrap(), coherent, &ops);
    }

    #[test]
    fn concatenated_roots_map_what_their_shadow_has(
        coherent: bool, bits in 40..=44u32, ops in prop::collection::vec(op(9), 1..40),
    ) {
        run(ArmStage2::<12>::for_width(bits).unwrap(), coherent, &ops);
        run(AmdV1::new(6, true).unwrap(), coherent, &ops);
    }

    #[test]
    fn amd_with_all_sizes_maps_what_its_shadow_has(
        coherent: bool, levels in 3..=6u32, big: bool, ops in prop::collection::vec(op(9), 1..40),
    ) {
        run(AmdV1::new(levels, big).unwrap().sized(), coherent, &ops);
    }
}

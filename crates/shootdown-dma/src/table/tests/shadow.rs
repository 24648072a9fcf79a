//! Any sequence of operations, in every format, against a map of pages.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Map { first: u64, pages: u64, phys: u64, rights: Rights },
    UnmapMapped(usize),
    Unmap { first: u64, pages: u64 },
    UnmapWrong { first: u64, pages: u64 },
    Acquire { page: u64, rights: Rights },
    Release(u64),
    Sweep,
    Settle(usize),
    Limit(usize),
}

/// Pages around the boundaries of tables.
fn page() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        Just(0x200u64),
        Just(0x400),
        Just(0x4_0000),
        Just(0x4_0200),
        Just(0x7_fe00),
        Just(0x8_0000)
    ];
    (near, -3i64..4).prop_map(|(near, by)| near.saturating_add_signed(by))
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1..6u64, 2 => 510..515u64, 1 => Just(0x400u64), 1 => Just(0x1000u64)]
}

fn rights() -> impl Strategy<Value = Rights> {
    prop_oneof![Just(Rights::Read), Just(Rights::Write), Just(Rights::ReadWrite)]
}

fn op() -> impl Strategy<Value = Op> {
    // Memory that lies as the addresses do, so that superpages fit, or does not.
    let phys = prop_oneof![Just(0u64), Just(0x4000_0000), Just(0x7000)];
    prop_oneof![
        6 => (page(), length(), phys, rights()).prop_map(|(first, pages, by, rights)| {
            Op::Map { first, pages, phys: (first << 12) + by, rights }
        }),
        5 => any::<usize>().prop_map(Op::UnmapMapped),
        2 => (page(), length()).prop_map(|(first, pages)| Op::Unmap { first, pages }),
        2 => (page(), length()).prop_map(|(first, pages)| Op::UnmapWrong { first, pages }),
        4 => (page(), rights()).prop_map(|(page, rights)| Op::Acquire { page, rights }),
        3 => page().prop_map(Op::Release),
        3 => Just(Op::Sweep),
        3 => any::<usize>().prop_map(Op::Settle),
        1 => (0..3usize).prop_map(Op::Limit),
    ]
}

fn run<F: Format>(format: F, coherent: bool, ops: &[Op]) {
    let near = [0x200u64, 0x400, 0x4_0000, 0x4_0200, 0x7_fe00, 0x8_0000, 0x8_0200];
    let eyes: Vec<u64> = near.iter().flat_map(|n| (n - 4)..(n + 5)).collect();
    let mut world = World::new(format, coherent, &eyes);
    let mut mapped: Vec<(u64, u64)> = Vec::new();
    for op in ops {
        match *op {
            Op::Map { first, pages, phys, rights } => {
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
                let _ = world.acquire(page, (page << 12) + 0x10_0000_0000, rights);
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
    fn vtd_maps_what_its_shadow_has(coherent: bool, levels in 3..=5u32, big: bool, ops in prop::collection::vec(op(), 1..40)) {
        run(VtdSecondLevel::new(levels, big, big).unwrap(), coherent, &ops);
    }

    #[test]
    fn amd_maps_what_its_shadow_has(coherent: bool, levels in 3..=5u32, big: bool, ops in prop::collection::vec(op(), 1..40)) {
        run(AmdV1::new(levels, big).unwrap(), coherent, &ops);
    }

    #[test]
    fn arm_stage_1_maps_what_its_shadow_has(coherent: bool, levels in 3..=4u32, ops in prop::collection::vec(op(), 1..40)) {
        run(ArmStage1::new(levels, 1).unwrap(), coherent, &ops);
    }

    #[test]
    fn arm_stage_2_maps_what_its_shadow_has(coherent: bool, levels in 3..=4u32, ops in prop::collection::vec(op(), 1..40)) {
        run(ArmStage2::new(levels).unwrap(), coherent, &ops);
    }
}

use std::vec::Vec;

use super::*;

fn cpus(n: u32) -> Vec<CpuTag> {
    (0..n).map(|_| CpuTag::new()).collect()
}

fn spaces(n: usize) -> Vec<SpaceTag> {
    (0..n).map(|_| SpaceTag::new()).collect()
}

fn activate(g: &Generations<1, 4>, cpu: u32, space: &SpaceTag, cpus: &[CpuTag]) -> Activated {
    let wait = || unreachable!("nobody is to be waited for");
    // SAFETY: the tests' CPUs are values, and each test has one set of them.
    let done = unsafe { g.activate(CpuId(cpu), space, cpus, wait) };
    // SAFETY: as above.
    unsafe { cpus[cpu as usize].loaded() };
    done
}

fn deactivate(cpu: &CpuTag) {
    // SAFETY: as in `activate`.
    unsafe { cpu.deactivate() };
}

fn pin(g: &Generations<1, 4>, space: &SpaceTag, cpus: &[CpuTag]) -> Result<Tag, TagsError> {
    // SAFETY: as in `activate`.
    unsafe { g.pin(space, cpus, || ()) }
}

fn unpin(g: &Generations<1, 4>, space: &SpaceTag) {
    // SAFETY: there is no device.
    unsafe { g.unpin(space, || ()) };
}

#[test]
fn the_first_use_in_a_generation_flushes_and_later_ones_do_not() {
    let g = Generations::<1, 4>::new(3, false, 2).unwrap();
    let (cpus, spaces) = (cpus(2), spaces(2));
    let first = activate(&g, 0, &spaces[0], &cpus);
    assert_eq!(first, Activated { tag: Tag(1), flush: true, rolled_over: false });
    let again = activate(&g, 0, &spaces[1], &cpus);
    assert_eq!(again, Activated { tag: Tag(2), flush: false, rolled_over: false });
    assert!(activate(&g, 1, &spaces[0], &cpus).flush, "this CPU has not flushed yet");
}

#[test]
fn a_running_space_keeps_its_tag_through_two_rollovers() {
    let g = Generations::<1, 4>::new(2, false, 2).unwrap();
    let (cpus, spaces) = (cpus(2), spaces(9));
    let running = activate(&g, 1, &spaces[0], &cpus).tag;
    let mut rollovers = 0;
    for space in &spaces[1..] {
        let now = activate(&g, 0, space, &cpus);
        assert_ne!(now.tag, running, "another space gets the tag of a running one");
        rollovers += u32::from(now.rolled_over);
        assert_eq!(g.tag_of(&spaces[0]), Some(running));
    }
    assert!(rollovers >= 2);
    let back = activate(&g, 0, &spaces[0], &cpus);
    assert_eq!(back.tag, running, "one space, two CPUs, one tag");
}

#[test]
fn an_old_space_does_not_take_the_number_of_a_running_one() {
    let g = Generations::<1, 4>::new(2, false, 1).unwrap();
    let (cpus, spaces) = (cpus(1), spaces(8));
    let old = activate(&g, 0, &spaces[0], &cpus).tag;
    // Roll over until another space runs under the same number.
    let other = (1..).find(|i| activate(&g, 0, &spaces[i % 7 + 1], &cpus).tag == old).unwrap();
    let runs = &spaces[other % 7 + 1];
    while generation_of(runs.id()) == g.generation() {
        g.locked(|| (), |wait| g.roll_over(&cpus[..], wait));
    }
    g.locked(|| (), |wait| g.renew(&spaces[0], &cpus[..], wait, || ()));
    assert_ne!(g.tag_of(&spaces[0]), g.tag_of(runs));
}

#[test]
fn an_inactive_guest_holds_no_tag() {
    let g = Generations::<1, 4>::new(2, false, 2).unwrap();
    let (cpus, spaces) = (cpus(2), spaces(6));
    let held = activate(&g, 1, &spaces[0], &cpus).tag;
    deactivate(&cpus[1]);
    let reused = spaces[1..].iter().any(|s| activate(&g, 0, s, &cpus).tag == held);
    assert!(reused);
    // It is not trusted when it comes back: its space gets another number if need be, and it
    // flushes.
    let back = activate(&g, 1, &spaces[0], &cpus);
    assert!(back.flush);
    assert_ne!(Some(back.tag), g.tag_of(&spaces[5]));
}

#[test]
fn a_pinned_tag_stays_and_pins_run_out_in_time() {
    let g = Generations::<1, 4>::new(3, false, 2).unwrap();
    let (cpus, spaces) = (cpus(2), spaces(12));
    let pinned: Vec<Tag> = spaces[..4].iter().map(|s| pin(&g, s, &cpus).unwrap()).collect();
    assert_eq!(pin(&g, &spaces[4], &cpus), Err(TagsError::NoPinLeft));
    for space in &spaces[5..] {
        let tag = activate(&g, 0, space, &cpus).tag;
        assert!(!pinned.contains(&tag));
    }
    for (space, tag) in spaces.iter().zip(&pinned) {
        assert_eq!(activate(&g, 1, space, &cpus).tag, *tag);
    }
    unpin(&g, &spaces[0]);
    assert!(pin(&g, &spaces[4], &cpus).is_ok());
}

#[test]
fn pairs_are_even_and_halve_the_tags() {
    let g = Generations::<1, 4>::new(4, true, 2).unwrap();
    let (cpus, spaces) = (cpus(2), spaces(3));
    for (space, tag) in spaces.iter().zip([2, 4, 6]) {
        assert_eq!(activate(&g, 0, space, &cpus).tag, Tag(tag));
    }
    let few = Generations::<1, 4>::new(3, true, 3);
    assert_eq!(few.map(|_| ()), Err(TagsError::TooFew { tags: 3, cpus: 3 }));
}

#[test]
fn impossible_sizes_are_refused() {
    let refused = |bits, cpus| Generations::<1, 4>::new(bits, false, cpus).map(|_| ()).unwrap_err();
    assert_eq!(refused(1, 1), TagsError::Width(1));
    assert_eq!(refused(7, 1), TagsError::Width(7));
    assert_eq!(refused(4, 5), TagsError::TooManyCpus(5));
    assert_eq!(refused(2, 3), TagsError::TooFew { tags: 3, cpus: 3 });
}

/// Everything a wrong allocator could do to a TLB, at random, at tiny widths: on each CPU every tag
/// has entries of one space only, and a space that is active anywhere has one tag.
#[test]
fn no_tag_ever_serves_two_spaces() {
    const CPUS: u32 = 3;
    const SPACES: usize = 9;
    let mut random = 7u64;
    let mut next = move |n: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[allow(clippy::cast_possible_truncation)] // an index
        let value = (random >> 33) as usize;
        value % n
    };
    let mut rollovers = 0;
    for bits in [3, 4] {
        let g = Generations::<1, 4>::new(bits, false, CPUS).unwrap();
        let (cpus, spaces) = (cpus(CPUS), spaces(SPACES));
        // Per CPU and tag: whose entries; and what each CPU runs.
        let mut entries = [[None; 16]; CPUS as usize];
        let mut runs: [Option<(usize, Tag)>; CPUS as usize] = [None; CPUS as usize];
        let mut pinned: Option<(usize, Tag)> = None;
        for _ in 0..40_000 {
            let (cpu, space) = (next(CPUS as usize), next(SPACES));
            match next(20) {
                0 => {
                    deactivate(&cpus[cpu]);
                    runs[cpu] = None;
                }
                1 => match pinned.take() {
                    Some((space, _)) => unpin(&g, &spaces[space]),
                    None => {
                        if let Ok(tag) = pin(&g, &spaces[space], &cpus) {
                            pinned = Some((space, tag));
                        }
                    }
                },
                _ => {
                    #[allow(clippy::cast_possible_truncation)] // 3
                    let done = activate(&g, cpu as u32, &spaces[space], &cpus);
                    rollovers += u32::from(done.rolled_over);
                    if done.flush {
                        entries[cpu] = [None; 16];
                    }
                    runs[cpu] = Some((space, done.tag));
                    let tag = done.tag.0 as usize;
                    assert!(entries[cpu][tag].is_none_or(|s| s == space), "I1");
                }
            }
            // A CPU that runs may walk at any time.
            for (cpu, run) in runs.iter().enumerate() {
                if let Some((space, tag)) = *run {
                    let entry = &mut entries[cpu][tag.0 as usize];
                    assert!(entry.is_none_or(|s| s == space), "I1");
                    *entry = Some(space);
                    assert_eq!(g.tag_of(&spaces[space]), Some(tag), "I3");
                }
            }
            for (i, a) in runs.iter().flatten().enumerate() {
                for b in runs.iter().flatten().skip(i + 1) {
                    assert_eq!(a.0 == b.0, a.1 == b.1, "I2, I3");
                }
            }
            if let Some((space, tag)) = pinned {
                assert_eq!(g.tag_of(&spaces[space]), Some(tag), "I4");
            }
        }
    }
    assert!(rollovers > 1000);
}

//! Every invariant of the oracle has a test here in which one step of the protocol is left out and
//! the oracle says so, and one in which nothing is left out and it says nothing.

use shootdown::{CpuId, Stride, Tag, VaRange};
use shootdown_machine::mmu::{
    Access, CpuMmu, KERNEL_BASE, Memory, Perms, Root, TlbGeometry, Trap, UpperLevels,
};
use shootdown_machine::oracle::{Event, Invariant, Stamp, Timelines, Violation, ViolationReport};

const VA: u64 = 0x40_0000;
const PAGE: Stride = Stride::Page4K;

/// Two CPUs that run one space with one page at [`VA`], which both have used.
struct Scene {
    mem: Memory,
    root: Root,
    cpus: [CpuMmu; 2],
}

fn scene(geometry: &TlbGeometry) -> Scene {
    let mut mem = Memory::new(1 << 16);
    let root = mem.new_space().unwrap();
    let frame = mem.alloc(PAGE).unwrap();
    mem.map(root, VA, frame, PAGE, Perms::USER_RW).unwrap();
    let cpus = [0, 1].map(|i| {
        let mut cpu = CpuMmu::new(CpuId(i), geometry).unwrap();
        cpu.load(&mem, root, Tag(1), false).unwrap();
        cpu.translate(&mut mem, VA, Access::UserWrite).unwrap();
        cpu
    });
    Scene { mem, root, cpus }
}

fn skylake() -> Scene {
    scene(&TlbGeometry::skylake())
}

fn page(va: u64) -> VaRange {
    VaRange::new(va, 1, PAGE).unwrap()
}

fn violation(outcome: Result<impl std::fmt::Debug, Trap>) -> Violation {
    match outcome {
        Err(Trap::Violation(violation)) => *violation,
        other => panic!("expected a violation, got {other:?}"),
    }
}

fn fault(outcome: Result<impl std::fmt::Debug, Trap>) {
    assert!(matches!(outcome, Err(Trap::Fault(_))), "expected a fault, got {outcome:?}");
}

#[test]
fn revocation_is_broken_by_a_missed_cpu() {
    let Scene { mut mem, root, cpus: [mut a, mut b] } = skylake();
    mem.act_as(Stamp { cpu: CpuId(0), at: 5_000 });
    let _owed = mem.unmap(root, VA).unwrap();
    let flush = mem.flush_begins(root, Some(page(VA)), false);
    a.invalidate_range(Tag(1), page(VA), true);
    // Until the flush returns the other CPU may go on.
    b.translate(&mut mem, VA, Access::UserRead).unwrap();
    mem.act_as(Stamp { cpu: CpuId(0), at: 9_000 });
    mem.flush_returns(flush);
    fault(a.translate(&mut mem, VA, Access::UserRead));
    let violation = violation(b.translate(&mut mem, VA + 8, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::Revocation);
    assert_eq!((violation.cpu, violation.root, violation.va), (CpuId(1), Some(root), Some(VA + 8)));
    let text = violation.to_string();
    assert!(text.contains("changed by cpu0 at 5 ns, flush returned to cpu0 at 9 ns"), "{text}");
}

#[test]
fn a_flush_does_not_cover_what_changes_while_it_runs() {
    let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
    let early = mem.flush_begins(root, None, false);
    let _owed = mem.unmap(root, VA).unwrap();
    mem.flush_returns(early);
    a.translate(&mut mem, VA, Access::UserRead).unwrap();
    let late = mem.flush_begins(root, None, false);
    mem.flush_returns(late);
    assert_eq!(
        violation(a.translate(&mut mem, VA, Access::UserRead)).invariant,
        Invariant::Revocation
    );
}

#[test]
fn a_use_that_was_legal_during_the_flush_does_not_excuse_one_after_it() {
    let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
    let _owed = mem.unmap(root, VA).unwrap();
    // Something else happens, so that the next access is looked at closely and found legal.
    let other = mem.alloc(PAGE).unwrap();
    mem.free(other).unwrap();
    a.translate(&mut mem, VA, Access::UserRead).unwrap();
    let flush = mem.flush_begins(root, None, false);
    mem.flush_returns(flush);
    assert_eq!(
        violation(a.translate(&mut mem, VA, Access::UserRead)).invariant,
        Invariant::Revocation
    );
}

#[test]
fn revocation_is_broken_by_a_kept_write_right() {
    let Scene { mut mem, root, cpus: [mut a, mut b] } = skylake();
    mem.protect(root, VA, Perms::USER_RO).unwrap();
    let flush = mem.flush_begins(root, None, false);
    a.invalidate_tag(Tag(1));
    mem.flush_returns(flush);
    fault(a.translate(&mut mem, VA, Access::UserWrite));
    a.translate(&mut mem, VA, Access::UserRead).unwrap();
    let violation = violation(b.translate(&mut mem, VA, Access::UserWrite));
    assert_eq!(violation.invariant, Invariant::Revocation);
}

#[test]
fn revocation_is_broken_by_a_range_that_is_too_short() {
    let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
    let frame = mem.alloc(PAGE).unwrap();
    mem.map(root, VA + 0x1000, frame, PAGE, Perms::USER_RW).unwrap();
    a.translate(&mut mem, VA + 0x1000, Access::UserRead).unwrap();
    let _owed = (mem.unmap(root, VA).unwrap(), mem.unmap(root, VA + 0x1000).unwrap());
    let both = VaRange::new(VA, 2, PAGE).unwrap();
    let flush = mem.flush_begins(root, Some(both), false);
    a.invalidate_range(Tag(1), page(VA), true);
    mem.flush_returns(flush);
    let violation = violation(a.translate(&mut mem, VA + 0x1000, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::Revocation);
}

#[test]
fn revocation_is_broken_by_a_stride_larger_than_the_pages() {
    let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
    let frame = mem.alloc(PAGE).unwrap();
    mem.map(root, VA + 0x3000, frame, PAGE, Perms::USER_RW).unwrap();
    a.translate(&mut mem, VA + 0x3000, Access::UserRead).unwrap();
    let _owed = mem.unmap(root, VA + 0x3000).unwrap();
    let table = VaRange::new(VA, 1, Stride::Page2M).unwrap();
    let flush = mem.flush_begins(root, Some(table), false);
    a.invalidate_range(Tag(1), table, true);
    mem.flush_returns(flush);
    let violation = violation(a.translate(&mut mem, VA + 0x3000, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::Revocation);
}

#[test]
fn revocation_of_a_kernel_page_is_broken_by_a_kept_global_entry() {
    let Scene { mut mem, cpus: [mut a, mut b], .. } = skylake();
    let frame = mem.alloc(PAGE).unwrap();
    mem.map(Root::KERNEL, KERNEL_BASE, frame, PAGE, Perms::KERNEL_RW).unwrap();
    a.translate(&mut mem, KERNEL_BASE, Access::KernelWrite).unwrap();
    b.translate(&mut mem, KERNEL_BASE, Access::KernelWrite).unwrap();
    let _owed = mem.unmap(Root::KERNEL, KERNEL_BASE).unwrap();
    let flush = mem.flush_begins(Root::KERNEL, Some(page(KERNEL_BASE)), false);
    a.invalidate_kernel(page(KERNEL_BASE));
    // Global entries survive this.
    b.invalidate_tag(Tag(1));
    mem.flush_returns(flush);
    fault(a.translate(&mut mem, KERNEL_BASE, Access::KernelRead));
    let violation = violation(b.translate(&mut mem, KERNEL_BASE, Access::KernelRead));
    assert_eq!(violation.invariant, Invariant::Revocation);
}

#[test]
fn a_single_page_invalidation_of_the_loaded_tag_reaches_global_entries() {
    let Scene { mut mem, cpus: [mut a, _], .. } = skylake();
    let frame = mem.alloc(PAGE).unwrap();
    mem.map(Root::KERNEL, KERNEL_BASE, frame, PAGE, Perms::KERNEL_RW).unwrap();
    let walks = |cpu: &mut CpuMmu, mem: &mut Memory| {
        cpu.translate(mem, KERNEL_BASE, Access::KernelWrite).unwrap();
        cpu.counters().walks
    };
    let first = walks(&mut a, &mut mem);
    a.invalidate_range(Tag(2), page(KERNEL_BASE), true);
    assert_eq!(walks(&mut a, &mut mem), first, "INVPCID of another tag spares it");
    a.invalidate_range(Tag(1), page(KERNEL_BASE), true);
    assert_eq!(walks(&mut a, &mut mem), first + 1, "INVLPG does not");
    // Nor does a change of tag touch it.
    let root = a.loaded().0;
    a.load(&mem, root, Tag(3), false).unwrap();
    assert_eq!(walks(&mut a, &mut mem), first + 1);
    a.invalidate_everything();
    assert_eq!(walks(&mut a, &mut mem), first + 2);
}

#[test]
fn frame_reuse_is_broken_by_freeing_before_the_flush() {
    let Scene { mut mem, root, cpus: [mut a, mut b] } = skylake();
    let gone = mem.unmap(root, VA).unwrap();
    a.invalidate_range(Tag(1), page(VA), true);
    mem.free(gone.frame).unwrap();
    let violation = violation(b.translate(&mut mem, VA, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::FrameReuse);
    assert!(violation.to_string().contains("freed before any flush"), "{violation}");
}

#[test]
fn frame_reuse_is_broken_inside_a_large_page_too() {
    let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
    let big = mem.alloc(Stride::Page2M).unwrap();
    mem.map(root, 0x80_0000, big, Stride::Page2M, Perms::USER_RW).unwrap();
    a.translate(&mut mem, 0x81_2345, Access::UserRead).unwrap();
    let gone = mem.unmap(root, 0x80_0000).unwrap();
    mem.free(gone.frame).unwrap();
    let violation = violation(a.translate(&mut mem, 0x9f_f000, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::FrameReuse);
}

/// Unmaps [`VA`] and takes its tables out of the tree.
fn unhook(mem: &mut Memory, root: Root) -> Vec<shootdown_machine::mmu::TablePage> {
    let _owed = mem.unmap(root, VA).unwrap();
    let mut tables = Vec::new();
    mem.unhook_empty_tables(root, page(VA), &mut tables);
    assert_eq!(tables.len(), 3);
    tables
}

#[test]
fn table_reuse_is_broken_by_freeing_a_table_that_a_walk_cache_leads_to() {
    let Scene { mut mem, root, cpus: [_, mut b] } = skylake();
    let tables = unhook(&mut mem, root);
    for table in tables {
        mem.free_table(table).unwrap();
    }
    let violation = violation(b.translate(&mut mem, VA + 0x1000, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::TableReuse);
    // An adversary that walks ahead of the program is caught as well.
    let Scene { mut mem, root, cpus: [_, mut b] } = skylake();
    for table in unhook(&mut mem, root) {
        mem.free_table(table).unwrap();
    }
    let violation = b.speculate(&mut mem, VA + 0x1000).unwrap_err();
    assert_eq!(violation.invariant, Invariant::TableReuse);
}

#[test]
fn table_reuse_is_broken_by_a_root_that_outlives_its_space() {
    let Scene { mut mem, root, cpus: [mut a, mut b] } = skylake();
    let tables = unhook(&mut mem, root);
    let flush = mem.flush_begins(root, None, true);
    a.invalidate_tag(Tag(1));
    b.invalidate_tag(Tag(1));
    mem.flush_returns(flush);
    for table in tables {
        mem.free_table(table).unwrap();
    }
    mem.end_space(root).unwrap();
    // Still loaded: nobody told this CPU to leave.
    let violation = violation(b.translate(&mut mem, VA, Access::UserRead));
    assert_eq!(violation.invariant, Invariant::TableReuse);
    let violation = a.load(&mem, root, Tag(1), false).unwrap_err();
    assert_eq!(violation.invariant, Invariant::TableReuse);
}

#[test]
fn walk_cache_reuse_is_broken_by_invalidating_leaves_only() {
    let geometry =
        TlbGeometry { upper_levels: UpperLevels::PathUnlessLeafOnly, ..TlbGeometry::skylake() };
    let run = |leaf_only| {
        let Scene { mut mem, root, cpus: [mut a, mut b] } = scene(&geometry);
        let _owed = unhook(&mut mem, root);
        let flush = mem.flush_begins(root, Some(page(VA)), true);
        a.invalidate_range(Tag(1), page(VA), leaf_only);
        b.invalidate_range(Tag(1), page(VA), leaf_only);
        mem.flush_returns(flush);
        b.translate(&mut mem, VA, Access::UserRead)
    };
    fault(run(false));
    assert_eq!(violation(run(true)).invariant, Invariant::WalkCacheReuse);
}

#[test]
fn a_walk_cache_may_lead_to_an_unhooked_table_until_the_flush_returns() {
    let Scene { mut mem, root, cpus: [_, mut b] } = skylake();
    let owed = unhook(&mut mem, root);
    // A flush that was not told of freed tables binds the leaves only.
    let flush = mem.flush_begins(root, Some(page(VA)), false);
    b.invalidate_range(Tag(1), page(VA), true);
    mem.flush_returns(flush);
    fault(b.translate(&mut mem, VA + 0x1000, Access::UserRead));
    assert_eq!((mem.pending(root), owed.len()), (3, 3));
}

#[test]
fn tag_reuse_is_broken_by_keeping_another_spaces_entries() {
    let Scene { mut mem, cpus: [mut a, _], .. } = skylake();
    let other = mem.new_space().unwrap();
    let violation = a.load(&mem, other, Tag(1), true).unwrap_err();
    assert_eq!(violation.invariant, Invariant::TagReuse);
    a.load(&mem, other, Tag(1), false).unwrap();
    fault(a.translate(&mut mem, VA, Access::UserRead));
}

#[test]
fn the_master_invariant_is_broken_by_keeping_a_slot_that_is_behind() {
    let run = |keep| {
        let Scene { mut mem, root, cpus: [mut a, _] } = skylake();
        let other = mem.new_space().unwrap();
        a.load(&mem, other, Tag(2), false).unwrap();
        let _owed = mem.unmap(root, VA).unwrap();
        let flush = mem.flush_begins(root, None, false);
        mem.flush_returns(flush);
        assert_eq!(a.audit(&mem, Tag(1)).unwrap_err().invariant, Invariant::Revocation);
        a.load(&mem, root, Tag(1), keep).unwrap();
        a.translate(&mut mem, VA, Access::UserRead)
    };
    fault(run(false));
    let violation = violation(run(true));
    assert_eq!(violation.invariant, Invariant::MasterInvariant);
    assert!(violation.to_string().contains("before this CPU loaded tag 1"), "{violation}");
}

#[test]
fn progress_is_reported_with_the_story_of_the_cpus_concerned() {
    let mut timelines = Timelines::new(3);
    timelines.push(
        CpuId(0),
        1_000,
        Event::FlushBegins { root: None, range: None, freed_tables: true },
    );
    timelines.push(CpuId(1), 2_000, Event::Note("unrelated", 1));
    timelines.push(CpuId(2), 3_000, Event::InterruptBegins);
    let mut violation = Violation::new(Invariant::Progress, CpuId(0), "all CPUs wait".into());
    violation.culprits.push(Stamp { cpu: CpuId(2), at: 3_000 });
    let report = ViolationReport::new(violation, 42, 4_000, &timelines).to_string();
    for part in ["\"progress\" on cpu0", "seed 42, at 4 ns", "flush of everything", "cpu2"] {
        assert!(report.contains(part), "{part} in {report}");
    }
    assert!(!report.contains("unrelated"), "{report}");
}

#[test]
fn a_legal_life_of_a_page_is_no_violation() {
    let Scene { mut mem, root, cpus: [mut a, mut b] } = skylake();
    for round in 0..100u64 {
        let gone = mem.unmap(root, VA).unwrap();
        let mut tables = Vec::new();
        if round % 3 == 0 {
            mem.unhook_empty_tables(root, page(VA), &mut tables);
        }
        let flush = mem.flush_begins(root, Some(page(VA)), !tables.is_empty());
        for cpu in [&mut a, &mut b] {
            cpu.invalidate_range(Tag(1), page(VA), tables.is_empty());
        }
        mem.flush_returns(flush);
        mem.free(gone.frame).unwrap();
        for table in tables {
            mem.free_table(table).unwrap();
        }
        fault(a.translate(&mut mem, VA, Access::UserRead));
        let frame = mem.alloc(PAGE).unwrap();
        mem.map(root, VA, frame, PAGE, Perms::USER_RO).unwrap();
        for cpu in [&mut a, &mut b] {
            assert_eq!(cpu.translate(&mut mem, VA, Access::UserRead).unwrap().frame, frame);
            fault(cpu.translate(&mut mem, VA, Access::UserWrite));
        }
        // Widening owes no flush: the next store finds the new right.
        mem.protect(root, VA, Perms::USER_RW).unwrap();
        for cpu in [&mut a, &mut b] {
            cpu.translate(&mut mem, VA, Access::UserWrite).unwrap();
        }
        assert_eq!(mem.pending(root), 0);
    }
    assert_eq!(mem.frames_owned(), 1);
}

#[test]
fn every_invariant_says_what_it_promises() {
    for invariant in Invariant::ALL {
        assert!(!invariant.sentence().is_empty() && !invariant.upheld_by().is_empty());
        let same = Invariant::ALL.iter().filter(|i| i.name() == invariant.name()).count();
        assert_eq!(same, 1);
    }
}

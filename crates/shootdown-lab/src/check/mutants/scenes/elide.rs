//! Changes without a flush, and the faults that they leave behind.

use shootdown::elide::{Cached, Change};
use shootdown::gather::{Gather, Nothing};
use shootdown::mutant::Mutant::*;
use shootdown::{Facts, Platform, Spurious, Stride, VaRange, fault_resolved, spurious_fault};
use shootdown_machine::hostile::{Descriptor, Word};
use shootdown_machine::hunt::hw::{self, Architecture};

use crate::check::mutants::kit::{enter, lazy, meet, tree, user};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED};
use crate::check::mutants::scene::Scene;

/// Hardware that remembers absent entries, and goes on doing so after a fault.
static REMEMBERS: Facts = Facts { invalidate_serializes: false, ..TAGGED };

const RISCV: Rules =
    Rules { facts: &REMEMBERS, architecture: Architecture::RiscV64, ..Rules::USUAL };

const WRITABLE: u64 = Descriptor::WRITE | Descriptor::DIRTY;

fn pages(first: u32, count: u64) -> VaRange {
    VaRange::new(u64::from(first) << 12, count, Stride::Page4K).expect("a small range")
}

/// What a change of a leaf demands, for the entries of this machine: the frame, rights, and the
/// dirty bit.
fn demand(old: Descriptor, new: Descriptor) -> Change {
    match (old.present(), new.present()) {
        (false, false) => Change::Nothing,
        (false, true) => Change::New,
        (true, true) if old.same_but_for(new, 0) => Change::Nothing,
        (true, true) if old.with(WRITABLE).same_but_for(new, 0) => Change::Upgrade,
        _ => Change::Flush(Cached::Leaf),
    }
}

/// What an entry is replaced by.
type To = fn(Descriptor) -> Descriptor;

/// Replaces entries of the first space one after the other, flushes what that demands, and says
/// that it is done.
fn update(changes: &[(u32, To)]) {
    let pin = Rig::pin();
    let mut gather = Gather::<Rig, Nothing>::new(tree(0).space);
    let mut made = Vec::new();
    for (page, to) in changes {
        let old = hw::read_entry(tree(0).word(*page));
        let (was, change) = hw::swap_entry(tree(0).word(*page), to(old));
        made.push((demand(was, to(old)), change));
        gather.updated(&pin, pages(*page, 1), demand(was, to(old))).expect("no break is needed");
    }
    if gather.finish(&pin).is_ok() {
        let revoked: Vec<_> =
            made.into_iter().filter(|(d, _)| !d.is_elided()).map(|(_, change)| change).collect();
        hw::revoked(&revoked);
    }
}

/// A right is taken away, a frame is replaced, and a dirty bit is cleared, while rights are added
/// elsewhere.
fn updated(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        meet(2);
        user();
        user();
        return;
    }
    meet(2);
    update(&[
        (0, |old| old.without(WRITABLE)),
        (1, |old| old.to_frame(hw::new_frame())),
        (4, |old| old.without(Descriptor::DIRTY)),
    ]);
    update(&[(0, |old| old.with(WRITABLE)), (2, |_| Descriptor::user_rw(hw::new_frame()))]);
}

/// A table loses a right, which a lazy CPU's walker must not go on to use.
fn table_updated(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        lazy();
        meet(2);
        return;
    }
    meet(2);
    let pin = Rig::pin();
    let (change, leaf) = tree(0).unhook_table(0);
    let mut gather = Gather::<Rig, Nothing>::new(tree(0).space);
    gather.updated(&pin, pages(0, 2), Change::Flush(Cached::Table)).expect("no break is needed");
    if gather.finish(&pin).is_ok() {
        hw::revoked(&[change]);
        hw::free_table(leaf);
    }
}

/// The frame of a page changes where old and new must not meet.
fn broken(_: u8) {
    port::come_online();
    let pin = Rig::pin();
    let mut gather = Gather::<Rig, Nothing>::new(tree(0).space);
    let told = gather.updated(&pin, pages(0, 1), Change::Break(Cached::Leaf));
    assert!(gather.finish(&pin).is_ok(), "nobody runs the space");
    assert!(told.is_err(), "errors: a change that needs a break is taken for one that does not");
}

/// Stores to a page that the tables map, until it goes through.
fn store(page: u32) {
    /// As many as hardware has reason for; the library is more patient.
    const FAULTS: u32 = 3;
    let word = tree(0).word(page);
    let mut faults = 0;
    while !hw::user_store(page) {
        faults += 1;
        assert!(faults <= FAULTS, "progress: the page may be written, and faults");
        let entry = hw::read_entry(word);
        assert!(entry.present() && entry.has(Descriptor::WRITE), "the page is mapped");
        let answer = spurious_fault(&Rig::pin(), tree(0).space, pages(page, 1), entry.bits());
        assert_eq!(answer, Spurious::Retry, "progress: the page may be written, and faults");
        hw::witness("spurious-fault");
    }
    fault_resolved::<Rig>(&Rig::pin());
}

/// A page is mapped, and a CPU that remembers its absence stores to it.
fn mapped(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        update(&[(2, |_| Descriptor::user_rw(hw::new_frame()))]);
        meet(4);
        return;
    }
    enter(0);
    user();
    meet(2);
    meet(4);
    store(2);
}

/// A CPU maps a page for itself, and nobody publishes the entry.
fn mapped_here(_: u8) {
    port::come_online();
    enter(0);
    user();
    update(&[(2, |_| Descriptor::user_rw(hw::new_frame()))]);
    store(2);
}

/// A fault that no retry helps is the program's; one that is new each time is not.
fn counted(_: u8) {
    port::come_online();
    enter(0);
    let pin = Rig::pin();
    let fault = |page, entry| spurious_fault(&pin, tree(0).space, pages(page, 1), entry);
    for round in 0..shootdown::spurious::RETRIES {
        for (page, entry) in [(0, 1), (1, 1), (1, 2)] {
            let answer = fault(page, entry);
            assert_eq!(answer, Spurious::Retry, "progress: page {page} in round {round}");
        }
    }
    let tries = (0..100).take_while(|_| fault(0, 1) == Spurious::Retry).count();
    assert_eq!(tries as u64, shootdown::spurious::RETRIES, "progress: retried without end");
    let word: Word = tree(0).word(0);
    assert!(hw::read_entry(word).present());
}

pub static SCENES: &[Scene] = &[
    Scene::new("updated", "entries change, some without a flush", 2, updated)
        .kills(&[UpdateElided]),
    Scene::new("updated-table", "an entry changes that names a table", 2, table_updated)
        .kills(&[UpdateForgetsTables]),
    Scene::new("updated-break", "an entry changes that must be broken first", 1, broken)
        .kills(&[BreakForgotten])
        .runs(100),
    Scene::new("spurious-remote", "a page is mapped that a CPU remembers as absent", 2, mapped)
        .rules(RISCV)
        .kills(&[SpuriousStays]),
    Scene::new("spurious-here", "a CPU maps a page and uses it, unpublished", 1, mapped_here)
        .rules(RISCV)
        .kills(&[SpuriousUnpublished]),
    Scene::new("spurious-counted", "one fault after the other", 1, counted)
        .kills(&[SpuriousForever, SpuriousCountsAll])
        .runs(100),
];

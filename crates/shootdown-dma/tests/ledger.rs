//! A ledger of what a unit still has, kept by somebody who knows nothing of lanes, cells, batches
//! and tokens.
//!
//! # The problem
//! The hunts and the model checker look at small worlds: a few pages, tables of four entries, two
//! or three CPUs. What goes wrong only where there is much of something (more pieces of memory than
//! fit a step, tables that go as a whole beside ones that stay, more ranges than are told one by
//! one, a call that comes from another CPU half way) needs a world that is large and simple.
//!
//! # The ledger
//! The unit remembers every translation that there ever was, of every page, until a command that
//! covers it is complete. What the command forgets is what the tables no longer say when it is
//! submitted: that is the latest that it may count for. Nothing else is needed to say what must not
//! happen:
//! - **L1** an address goes back to its allocator while the unit has an entry for it;
//! - **L2** memory is released while the unit has an entry that leads to it;
//! - **L3** a page of tables is freed while a walk may be remembered that goes through it: a
//!   command for leaves alone forgets none;
//! - **L4** a strict unmapping returns while the unit has an entry for the address;
//! - **L5** something is deferred still after timers have ticked for long enough.
//!
//! The CPU changes whenever the domain asks for its number, as where tasks are preempted at any
//! instruction; from one call to the next where the host promises that they are not.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use shootdown_dma::domain::{Config, Domain, Host, Limits, Mapping, Segment};
use shootdown_dma::invalidate::{Command, Promotion, QueueError, Ticket, Unit};
use shootdown_dma::iova::space::{INTERRUPTS, Space};
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::iova::{AllocError, Allocate, FreeError, Want};
use shootdown_dma::pinned::Pinned;
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{Decoded, Format, TableMemory, VtdSecondLevel};
use shootdown_dma::{DeviceId, DomainId, IovaRange, PhysAddr, Policy, Rights};

const ID: DomainId = DomainId(6);
const CPUS: usize = 3;
const LEVELS: u32 = 3;
/// For each level: a table is taken out, units are told, it is given back; and some that find
/// another CPU's part entered.
const TIMERS: usize = 12;

/// Pages and where they lead; first pages and tables.
type Pairs = BTreeSet<(u64, u64)>;

/// Entries that a command will have forgotten when it is complete.
#[derive(Default)]
struct Submitted {
    entries: Vec<(u64, u64)>,
    walks: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Book {
    /// Page and frame.
    entries: Pairs,
    /// First page that a table covers, and the table.
    walks: Pairs,
    submitted: Vec<Submitted>,
    completed: usize,
    /// Pages of tables in use.
    tables: BTreeSet<u64>,
    /// How often each page is held.
    held: BTreeMap<u64, u64>,
    root: u64,
    random: u64,
    /// A task stays on its CPU until its call returns.
    pinned: bool,
    cpu: usize,
}

impl Book {
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); // Knuth's, MMIX
        (self.random >> 33) % n
    }

    /// To another CPU, perhaps.
    fn moves(&mut self) {
        self.cpu = self.below(CPUS as u64) as usize;
    }

    /// What is mapped, and the tables on the way there: it is remembered.
    fn walk(&mut self) -> (Pairs, Pairs) {
        let (mut entries, mut walks) = (BTreeSet::new(), BTreeSet::new());
        if self.root != 0 {
            look(PhysAddr(self.root), LEVELS - 1, 0, &mut entries, &mut walks);
        }
        self.entries.extend(&entries);
        self.walks.extend(&walks);
        (entries, walks)
    }

    fn complete(&mut self, upto: usize) {
        // A command that is complete has forgotten what was gone when it came, unless that was
        // mapped again since.
        let (mapped, linked) = self.walk();
        while self.completed < upto.min(self.submitted.len()) {
            let Submitted { entries, walks } = std::mem::take(&mut self.submitted[self.completed]);
            for entry in entries.iter().filter(|entry| !mapped.contains(entry)) {
                self.entries.remove(entry);
            }
            for walk in walks.iter().filter(|walk| !linked.contains(walk)) {
                self.walks.remove(walk);
            }
            self.completed += 1;
        }
    }

    fn pages(&self, first: u64, last: u64) -> impl Iterator<Item = &(u64, u64)> {
        self.entries.range((first, 0)..=(last, u64::MAX))
    }
}

fn format() -> VtdSecondLevel {
    VtdSecondLevel::new(LEVELS, true, true).expect("three levels")
}

fn look(table: PhysAddr, level: u32, base: u64, entries: &mut Pairs, walks: &mut Pairs) {
    // SAFETY: a table that is linked is in use; one thread plays all CPUs.
    let slots = unsafe { &*(table.0 as *const Table) };
    for (n, slot) in (0..).zip(slots) {
        let first = base + (n << (9 * level));
        let entry = slot.load(Ordering::Relaxed);
        if entry == 0 {
            continue; // most of them
        }
        match format().decode(entry, level) {
            Decoded::Table(below) => {
                walks.insert((first, below.0));
                look(below, level - 1, first, entries, walks);
            }
            Decoded::Leaf(phys, _) => {
                let pages = 1 << (9 * level);
                entries.extend((0..pages).map(|page| (first + page, (phys.0 >> 12) + page)));
            }
            _ => {}
        }
    }
}

thread_local! {
    static BOOK: RefCell<Book> = RefCell::default();
}

fn book<R>(f: impl FnOnce(&mut Book) -> R) -> R {
    BOOK.with_borrow_mut(f)
}

struct Ledger;

// SAFETY: what is complete is forgotten.
unsafe impl Unit for Ledger {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        Ok(book(|book| {
            let (mapped, linked) = book.walk();
            let mut forgets = Submitted::default();
            for command in commands {
                let (first, last, leaf_only) = match *command {
                    Command::Pages { domain: ID, range, leaf_only } => {
                        (range.first(), range.last(), leaf_only)
                    }
                    Command::Domain(ID) | Command::All => (0, u64::MAX, false),
                    _ => continue,
                };
                let gone = |entry: &&(u64, u64)| !mapped.contains(entry);
                forgets.entries.extend(book.pages(first, last).filter(gone));
                if !leaf_only {
                    // A walk is forgotten with any page that it leads to.
                    let touched = |walk: &&(u64, u64)| walk.0 <= last && walk.0 + 511 >= first;
                    let gone = |walk: &&(u64, u64)| !linked.contains(walk);
                    forgets.walks.extend(book.walks.iter().filter(touched).filter(gone));
                }
            }
            book.submitted.push(forgets);
            Ticket(book.submitted.len() as u64)
        }))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(book(|book| {
            if book.below(3) == 0 {
                let upto = book.completed + 1;
                book.complete(upto);
            }
            Ticket(book.completed as u64)
        }))
    }
}

/// A tree that asks the ledger before it takes addresses back.
struct Addresses(Tree);

// SAFETY: the tree's promises.
unsafe impl Allocate for Addresses {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        self.0.alloc(cpu, want)
    }

    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        book(|book| {
            let stale = book.pages(range.first(), range.last()).next().copied();
            assert_eq!(stale, None, "L1: {range:?} goes back, of which the unit has a page");
        });
        self.0.free(cpu, range)
    }
}

struct Tables;

// SAFETY: pages of the heap, at their own addresses.
unsafe impl TableMemory for Tables {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        let page = unsafe { alloc_zeroed(Layout::new::<Page>()) } as u64;
        book(|book| book.tables.insert(page));
        Some(PhysAddr(page))
    }

    unsafe fn free(&self, page: PhysAddr) {
        book(|book| {
            book.walk();
            let known = book.walks.iter().find(|walk| walk.1 == page.0).copied();
            assert_eq!(known, None, "L3: a table is freed to which the unit remembers the way");
            assert!(book.tables.remove(&page.0), "freed twice");
        });
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(page.0 as *mut u8, Layout::new::<Page>()) }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

#[repr(align(4096))]
struct Page(#[allow(dead_code)] [u8; 4096]); // for its size

struct Kernel;

// SAFETY: what is released is not used again before it is mapped again.
unsafe impl Host for Kernel {
    type Addresses = Addresses;
    type Format = VtdSecondLevel;
    type Tables = Tables;
    type Unit = Ledger;
    type Pin = usize;

    fn pin(&self) -> usize {
        book(|book| {
            if !book.pinned && book.below(3) == 0 {
                book.moves();
            }
            book.cpu
        })
    }

    fn relax(&self) -> bool {
        book(|book| {
            let upto = book.completed + 1;
            book.complete(upto);
        });
        true
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let first = first.0 >> 12;
        book(|book| {
            (first..first + pages).for_each(|page| *book.held.entry(page).or_default() += 1)
        });
        true
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        let first = first.0 >> 12;
        book(|book| {
            for page in first..first + pages {
                let stale = book.entries.iter().find(|entry| entry.1 == page).copied();
                let count = book.held.get_mut(&page).expect("held");
                *count -= 1;
                assert!(stale.is_none() || *count != 0, "L2: {stale:?} leads to released memory");
            }
        });
    }
}

/// One thread plays all CPUs, in order.
fn barrier(_: usize) -> bool {
    true
}

/// What is done with one of a few buffers.
#[derive(Clone, Debug)]
enum Op {
    /// Maps so many pages in one piece; the first page of memory is a multiple of so many.
    Map(usize, u64, bool),
    /// Maps so many pieces of so many pages that do not follow each other.
    Scatter(usize, u64, u64),
    Unmap(usize),
    UnmapStrict(usize),
    /// Some time passes.
    Poll,
    /// So much time that what is deferred is to be told.
    Timer,
    /// The unit does some of what it was told.
    Complete(usize),
    Flush,
}

const BUFFERS: usize = 4;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let buffer = 0..BUFFERS;
    let op = prop_oneof![
        3 => (buffer.clone(), prop_oneof![1..4u64, 500..1030u64], any::<bool>())
            .prop_map(|(b, pages, aligned)| Op::Map(b, pages, aligned)),
        3 => (buffer.clone(), prop_oneof![2..6u64, 15..40u64], 1..3u64)
            .prop_map(|(b, pieces, pages)| Op::Scatter(b, pieces, pages)),
        5 => buffer.clone().prop_map(Op::Unmap),
        1 => buffer.prop_map(Op::UnmapStrict),
        2 => Just(Op::Poll),
        2 => Just(Op::Timer),
        3 => (1..4usize).prop_map(Op::Complete),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..24)
}

/// What the domain is made for.
#[derive(Clone, Debug)]
struct Kind {
    policy: Policy,
    pinned: bool,
    /// Two ranges are enough to forget the domain.
    promotes: bool,
    limits: Limits,
    seed: u64,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let policies = prop_oneof![Just(Policy::Strict), Just(Policy::Deferred), Just(Policy::Lazy)];
    let limits = prop_oneof![
        Just(Limits::DEFAULT),
        (2..40usize, 1..8usize, 8..64u64).prop_map(|(entries, flush_at, held_pages)| Limits {
            entries,
            flush_at: flush_at.min(entries),
            held_pages,
            ..Limits::DEFAULT
        }),
    ];
    (policies, any::<bool>(), any::<bool>(), limits, any::<u64>()).prop_map(
        |(policy, pinned, promotes, limits, seed)| Kind { policy, pinned, promotes, limits, seed },
    )
}

fn domain(kind: &Kind) -> Domain<Kernel> {
    book(|book| {
        *book = Book { random: kind.seed, pinned: kind.pinned, ..Book::default() };
    });
    let mut config = Config::new(CPUS).policy(kind.policy).limits(kind.limits);
    if kind.pinned {
        // SAFETY: one thread plays all CPUs.
        config = config.pinned(unsafe { Pinned::new(barrier) });
    }
    if kind.promotes {
        let mut promotion = Promotion::DEFAULT.with_command_ns(200).with_live(0);
        (promotion.domain_ns, promotion.refill_ns) = (300, 1000);
        config = config.promotion(promotion);
    }
    let space = Space::below(1 << 20).without(&[INTERRUPTS]);
    let tree = Addresses(Tree::new(&space).expect("memory"));
    let domain = Domain::new(Kernel, config, tree, format(), Tables, [(Ledger, ID)]);
    let domain = domain.expect("memory");
    let _attachment = domain.attach(0, DeviceId(1), false).expect("room");
    book(|book| book.root = domain.root().0);
    domain
}

/// Memory of a buffer: far from that of others, each time elsewhere.
fn memory(buffer: usize, time: u64) -> u64 {
    0x10_0000 + buffer as u64 * 0x1_0000 + time % 8 * 0x2000
}

fn play(kind: &Kind, ops: &[Op]) {
    let domain = domain(kind);
    let mut mapped: [Option<Mapping>; BUFFERS] = [const { None }; BUFFERS];
    let mut clock = 0;
    for (time, op) in (0..).zip(ops) {
        book(Book::moves);
        match *op {
            Op::Map(b, pages, aligned) if mapped[b].is_none() => {
                let first = memory(b, time) + u64::from(!aligned);
                mapped[b] = domain.map(PhysAddr(first << 12), pages << 12, Rights::ReadWrite).ok();
            }
            Op::Scatter(b, pieces, pages) if mapped[b].is_none() => {
                let piece = |n| PhysAddr((memory(b, time) + n * (pages + 1)) << 12);
                let bytes = pages << 12;
                let list: Vec<_> = (0..pieces).map(|n| Segment { phys: piece(n), bytes }).collect();
                mapped[b] = domain.map_sg(&list, Rights::ReadWrite).ok();
            }
            Op::Unmap(b) | Op::UnmapStrict(b) => {
                let Some(mapping) = mapped[b].take() else { continue };
                let (first, pages) = (mapping.addr().0 >> 12, mapping.bytes() >> 12);
                let strict = matches!(op, Op::UnmapStrict(_));
                let policy = if strict { Policy::Strict } else { kind.policy };
                book(|book| book.walk());
                domain.unmap_under(policy, mapping).expect("it is mapped");
                if policy == Policy::Strict {
                    book(|book| {
                        let stale = book.pages(first, first + pages - 1).next().copied();
                        assert_eq!(stale, None, "L4: a strict unmapping has returned");
                    });
                }
            }
            Op::Map(..) | Op::Scatter(..) => {}
            Op::Poll => domain.poll(clock).expect("the unit answers"),
            Op::Timer => {
                clock += 10 * kind.limits.window_ns;
                domain.poll(clock).expect("the unit answers");
            }
            Op::Complete(n) => book(|book| {
                let upto = book.completed + n;
                book.complete(upto);
            }),
            Op::Flush => domain.flush().expect("the unit answers"),
        }
        book(|book| book.walk());
    }
    for _ in 0..TIMERS {
        clock += 10 * kind.limits.window_ns;
        domain.poll(clock).expect("the unit answers");
        book(|book| book.complete(usize::MAX));
    }
    assert_eq!(domain.deferred(), (0, 0), "L5: what is queue after timers have ticked");
    for mapping in mapped.into_iter().flatten() {
        domain.unmap(mapping).expect("it is mapped");
    }
    domain.flush().expect("the unit answers");
    assert_eq!(domain.deferred(), (0, 0));
    // The device leaves: from now on nobody walks.
    book(|book| book.root = 0);
    // SAFETY: there is no device.
    assert!(unsafe { domain.end() }.is_ok(), "the unit answers");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_back_that_the_unit_has(kind in kinds(), ops in ops()) {
        play(&kind, &ops);
    }
}

fn held(limits: Limits) -> Kind {
    let (policy, pinned, promotes) = (Policy::Deferred, false, false);
    Kind { policy, pinned, promotes, limits, seed: 1 }
}

/// More pieces than one step of unmapping takes, and the CPU changes between steps: what goes back
/// to the allocator goes with the last.
#[test]
fn pieces_that_are_unmapped_on_several_cpus_go_back_together() {
    for seed in 0..64 {
        let kind = Kind { seed, ..held(Limits { entries: 40, ..Limits::DEFAULT }) };
        play(&kind, &[Op::Scatter(0, 34, 1), Op::Unmap(0), Op::Flush, Op::Timer]);
        // The last piece alone is enough to be told at once, where the one before it is.
        let kind = Kind { seed, ..held(Limits { entries: 40, flush_at: 17, ..Limits::DEFAULT }) };
        let mut ops = vec![Op::Scatter(0, 34, 1), Op::Unmap(0)];
        ops.extend((0..40).map(|n| if n % 2 == 0 { Op::Map(1, 1, false) } else { Op::Unmap(1) }));
        play(&kind, &ops);
    }
}

/// A table that goes as a whole, and pages of the next one.
#[test]
fn a_table_that_goes_beside_one_that_stays_is_told() {
    for pages in [512, 513, 700, 1024, 1030] {
        for policy in [Policy::Strict, Policy::Deferred] {
            let kind = Kind { policy, ..held(Limits::DEFAULT) };
            let ops = [Op::Map(0, pages, false), Op::Map(1, 3, false), Op::Unmap(0)];
            play(&kind, &ops);
        }
    }
}

/// A CPU that is idle has deferred, and the timers of others tell.
#[test]
fn what_an_idle_cpu_owes_is_settled_by_timers() {
    for seed in 0..16 {
        let kind = Kind { pinned: true, seed, ..held(Limits::DEFAULT) };
        play(&kind, &[Op::Map(0, 1, false), Op::Unmap(0), Op::Poll, Op::Timer]);
    }
}

/// Two ranges for which the domain is forgotten, and nothing else.
#[test]
fn a_domain_that_is_forgotten_for_two_ranges_is_the_right_one() {
    let limits = Limits { flush_at: 2, ..Limits::DEFAULT };
    let kind = Kind { promotes: true, ..held(limits) };
    let ops = [Op::Map(0, 1, false), Op::Map(1, 1, false), Op::Map(2, 1, false)];
    let unmaps = [Op::Unmap(0), Op::Unmap(2), Op::Complete(9), Op::Poll];
    play(&kind, &[&ops[..], &unmaps[..]].concat());
}

//! Random programs on the mock: whatever CPUs do with spaces, under every policy and every kind of
//! hardware, what was flushed is never read again.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use std::collections::BTreeMap;

use mock::*;
use proptest::prelude::*;
use shootdown::facts::Errata;
use shootdown::policy::Lazy;
use shootdown::tags::shared::Threshold;
use shootdown::{AddressSpace, Facts, Policy, Request, Stride, Ticket, VaRange, flush_everything};

const N: u32 = 4;
const SPACES: usize = 8;
const PAGES: u64 = 12;

#[derive(Clone, Copy, Debug)]
enum Op {
    Switch(u32, usize),
    Lazy(u32),
    Leave(u32),
    /// Comes back offline and online.
    Restart(u32),
    Touch(u32),
    /// Initiator, space, first page, pages, tables freed, deferred.
    Remap(u32, usize, u64, u64, bool, bool),
    Mask(u32),
    Unmask(u32),
    Everything(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let (cpu, space) = (0..N, 0..SPACES);
    prop_oneof![
        6 => (cpu.clone(), space.clone()).prop_map(|(c, s)| Op::Switch(c, s)),
        2 => cpu.clone().prop_map(Op::Lazy),
        1 => cpu.clone().prop_map(Op::Leave),
        1 => cpu.clone().prop_map(Op::Restart),
        6 => cpu.clone().prop_map(Op::Touch),
        6 => (cpu.clone(), space, 0..PAGES, 1..4u64, any::<bool>(), any::<bool>())
            .prop_map(|(c, s, p, n, f, d)| Op::Remap(c, s, p, n, f, d)),
        1 => cpu.clone().prop_map(Op::Mask),
        2 => cpu.clone().prop_map(Op::Unmask),
        1 => cpu.prop_map(Op::Everything),
    ]
}

/// What a program may still read at a page: every mapping since the last flush that returned.
#[derive(Default)]
struct Legal(BTreeMap<(u64, u64), Vec<u64>>);

impl Legal {
    fn change(&mut self, space: &AddressSpace<Mock>, page: u64, frame: u64) {
        self.0.entry((space.root(), page)).or_default().push(frame);
        map(space, page, frame);
    }

    fn flushed(&mut self, space: &AddressSpace<Mock>, pages: std::ops::Range<u64>, upto: u64) {
        for page in pages {
            let frames = self.0.entry((space.root(), page)).or_default();
            let last = *frames.last().expect("mapped");
            frames.retain(|f| *f >= upto || *f == last);
        }
    }

    fn check(&self, cpu: u32, lazy: bool) -> Result<(), TestCaseError> {
        let root = world().hw.borrow()[cpu as usize].root;
        let (Some(root), false) = (root, lazy) else { return Ok(()) };
        for page in 0..PAGES {
            let read = on_cpu(cpu, |_| access(page)).expect("all pages are mapped");
            prop_assert!(
                self.0[&(root, page)].contains(&read),
                "cpu{cpu} page {page}: {read}, {:?}, {:?}",
                world().policy.get().broadcast,
                world().facts.get().errata
            );
        }
        Ok(())
    }
}

struct Pending {
    ticket: Ticket<'static, Mock>,
    space: &'static AddressSpace<Mock>,
    pages: std::ops::Range<u64>,
    upto: u64,
}

fn run(policy: &'static Policy, facts: &'static Facts, ops: &[Op]) -> Result<(), TestCaseError> {
    boot(N, policy, facts);
    let spaces: Vec<_> = (0..SPACES).map(|_| new_space()).collect();
    let mut legal = Legal::default();
    let mut frame = 0;
    for space in &spaces {
        for page in 0..PAGES {
            frame += 1;
            legal.change(space, page, frame);
        }
    }
    let mut lazy = [false; N as usize];
    let mut pending: Vec<Pending> = Vec::new();
    for op in ops {
        match *op {
            // A kernel switches, turns lazy and goes offline with interrupts off, and takes what
            // waited before it runs user code: the mock's mask is for handlers only, so
            // it is lifted here.
            Op::Switch(cpu, s) => {
                unmask(cpu);
                switch(cpu, spaces[s]);
                lazy[cpu as usize] = false;
            }
            Op::Lazy(cpu) => {
                unmask(cpu);
                on_cpu(cpu, enter_lazy);
                lazy[cpu as usize] = true;
            }
            Op::Leave(cpu) => {
                unmask(cpu);
                on_cpu(cpu, leave);
            }
            Op::Restart(cpu) => {
                unmask(cpu);
                on_cpu(cpu, offline);
                on_cpu(cpu, boot_once);
            }
            Op::Touch(cpu) => legal.check(cpu, lazy[cpu as usize])?,
            Op::Remap(cpu, s, first, count, freed_tables, deferred) => {
                let pages = first..(first + count).min(PAGES);
                let upto = frame + 1;
                for page in pages.clone() {
                    frame += 1;
                    legal.change(spaces[s], page, frame);
                }
                let range = VaRange::covering(pages.start << 12, pages.end << 12, Stride::Page4K);
                let request = Request { freed_tables, ..Request::pages(range.unwrap()) };
                if deferred {
                    let ticket = on_cpu(cpu, |pin| spaces[s].begin_flush(pin, request)).unwrap();
                    pending.push(Pending { ticket, space: spaces[s], pages, upto });
                } else {
                    // A masked CPU would never acknowledge: it unmasks while it is waited for.
                    *world().during_wait.borrow_mut() = Some(Box::new(|| (0..N).for_each(unmask)));
                    on_cpu(cpu, |pin| spaces[s].flush(pin, request)).unwrap();
                    world().during_wait.borrow_mut().take();
                    legal.flushed(spaces[s], pages, upto);
                }
            }
            Op::Mask(cpu) => mask(cpu),
            Op::Unmask(cpu) => unmask(cpu),
            Op::Everything(cpu) => {
                *world().during_wait.borrow_mut() = Some(Box::new(|| (0..N).for_each(unmask)));
                on_cpu(cpu, flush_everything::<Mock>).unwrap();
                world().during_wait.borrow_mut().take();
            }
        }
        pending.retain_mut(|o| {
            let done = o.ticket.poll();
            if done {
                legal.flushed(o.space, o.pages.clone(), o.upto);
            }
            !done
        });
    }
    (0..N).for_each(unmask);
    prop_assert!(pending.iter_mut().all(|o| o.ticket.poll()), "unmasked CPUs have acknowledged");
    for cpu in 0..N {
        legal.check(cpu, lazy[cpu as usize])?;
    }
    Ok(())
}

static SPLIT_WITH_INVPCID: Facts = Facts {
    split_tables: shootdown::facts::SplitTables::Yes { invalidate_other_tag: true },
    ..PCID
};
static UNSPLIT_LAZY: Policy = Policy { split_lazy_line: false, ..Policy::SHOOTDOWN };
static TREES: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

const fn by(strategy: shootdown::Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}

static INTERRUPTS: Policy = Policy { broadcast: None, ..Policy::SHOOTDOWN };
static STICKY: Policy = by(shootdown::Strategy::Sticky);
static ACTIVE: Policy = by(shootdown::Strategy::Active);
static TRIM: Policy = by(shootdown::Strategy::Trim);
static SPLIT_ARM: Facts =
    Facts { tag_bits: 4, split_tables: SPLIT_WITH_INVPCID.split_tables, ..ARM };
static REPEATS: Facts =
    Facts { errata: Errata { repeat_sync: true, survives_once: true, ..ARM.errata }, ..ARM };
static EARLY: Facts = Facts { errata: Errata { completes_early: true, ..ARM.errata }, ..ARM };

/// Every flush looks whether its space should have a tag for all CPUs.
const EAGER: Threshold = Threshold { above: 1, every: 1, alone: 0 };
static EAGER_PULL: Policy = Policy { shared: EAGER, ..Policy::SHOOTDOWN };
static EAGER_PUSH: Policy = Policy { shared: EAGER, ..Policy::LINUX_6_15 };
static EAGER_TREES: Policy = Policy { shared: EAGER, ..TREES };
static EAGER_UNSPLIT: Policy = Policy { shared: EAGER, ..UNSPLIT_LAZY };
static EAGER_LEAVER: Policy = Policy { shared: EAGER, ..Policy::LINUX_5_13 };
static EAGER_BUSY: Policy = Policy { shared: EAGER, lazy: Lazy::Off, ..Policy::SHOOTDOWN };
static SELDOM: Policy = Policy {
    shared: Threshold { above: 0, every: 3, alone: 0 },
    lazy: Lazy::LeaveOnKick,
    ..Policy::SHOOTDOWN
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_was_flushed_is_never_read_again(ops in prop::collection::vec(op(), 1..200)) {
        for policy in [
            &Policy::NAIVE,
            &Policy::LINUX_4_13,
            &Policy::LINUX_4_14,
            &Policy::LINUX_5_13,
            &Policy::SHOOTDOWN,
            &UNSPLIT_LAZY,
            &TREES,
        ] {
            for facts in [&Facts::X86_64_MINIMUM, &PCID, &PTI, &SPLIT_WITH_INVPCID] {
                let ops = ops.clone();
                std::thread::scope(|s| s.spawn(move || run(policy, facts, &ops)).join().unwrap())?;
            }
        }
    }

    #[test]
    fn machine_wide_tags_that_run_out_are_never_read_under_again(
        ops in prop::collection::vec(op(), 1..300),
    ) {
        for policy in [&Policy::NAIVE, &Policy::LINUX_5_13, &INTERRUPTS, &STICKY, &TREES] {
            let ops = ops.clone();
            std::thread::scope(|s| s.spawn(move || run(policy, &RISCV, &ops)).join().unwrap())?;
        }
    }

    #[test]
    fn what_a_broadcast_covered_is_never_read_again(
        ops in prop::collection::vec(op(), 1..300),
    ) {
        for policy in [&Policy::ARM64_MAINLINE, &STICKY, &ACTIVE, &TRIM, &INTERRUPTS] {
            for facts in [&ARM, &SPLIT_ARM, &EARLY, &REPEATS] {
                if policy.check(facts).is_err() {
                    continue;
                }
                let ops = ops.clone();
                std::thread::scope(|s| s.spawn(move || run(policy, facts, &ops)).join().unwrap())?;
            }
        }
    }

    #[test]
    fn what_was_flushed_of_a_space_with_a_tag_for_all_cpus_is_never_read_again(
        ops in prop::collection::vec(op(), 1..300),
    ) {
        for policy in [
            &EAGER_PULL,
            &EAGER_PUSH,
            &EAGER_TREES,
            &EAGER_UNSPLIT,
            &EAGER_LEAVER,
            &EAGER_BUSY,
            &SELDOM,
        ] {
            let ops = ops.clone();
            std::thread::scope(|s| s.spawn(move || run(policy, &INVLPGB, &ops)).join().unwrap())?;
        }
    }

    #[test]
    fn ranges_cover_exactly_the_strides_they_touch(
        start in any::<u64>(),
        len in 1..1u64 << 40,
        stride in prop_oneof![Just(Stride::Page4K), Just(Stride::Page2M), Just(Stride::Page1G)],
    ) {
        prop_assume!(start.checked_add(len).is_some());
        let range = VaRange::covering(start, start + len, stride).unwrap();
        prop_assert!(range.start() <= start && start - range.start() < stride.bytes());
        prop_assert!(range.last() >= start + len - 1 && range.last() - (start + len - 1) < stride.bytes());
        let other = VaRange::new(start ^ 0x8000_0000, 1, Stride::Page4K).unwrap();
        let both = range.merge(&other);
        prop_assert!(both.start() <= range.start().min(other.start()));
        prop_assert!(both.last() >= range.last().max(other.last()));
        prop_assert_eq!(both.stride(), Stride::Page4K);
    }
}

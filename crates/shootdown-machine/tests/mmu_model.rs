//! The MMU and the oracle against naive models.
//!
//! `every_access_is_as_the_naive_model_says` has arrays too large to evict anything and a model
//! that is a plain map from (CPU, tag, page) to what was cached: every access must hit, walk, fault
//! or be a violation exactly when the model says so, whatever was invalidated or forgotten.
//! `a_correct_protocol_is_never_accused` has real geometries, walk caches and freed tables, and a
//! kernel that does everything right.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proptest::prelude::*;
use shootdown::{CpuId, Stride, Tag, VaRange};
use shootdown_machine::mmu::{
    Access, Array, CpuMmu, Found, Frame, Memory, Perms, Root, TlbGeometry, Trap, Unmapped,
};
use shootdown_machine::oracle::{FlushToken, Invariant};

const ALL: [Stride; 3] = [Stride::Page4K, Stride::Page2M, Stride::Page1G];
const CPUS: usize = 2;
const SPACES: usize = 2;

/// Places where pages can be: eight small ones in two tables, two large ones.
const PLACES: [(u64, Stride); 10] = [
    (0x40_0000, Stride::Page4K),
    (0x40_1000, Stride::Page4K),
    (0x40_2000, Stride::Page4K),
    (0x41_0000, Stride::Page4K),
    (0x5f_f000, Stride::Page4K),
    (0x60_0000, Stride::Page4K),
    (0x60_1000, Stride::Page4K),
    (0x7fff_ffff_f000, Stride::Page4K),
    (0x4000_0000, Stride::Page2M),
    (0x4020_0000, Stride::Page2M),
];

#[derive(Clone, Debug)]
enum Op {
    Map { space: usize, place: usize, write: bool },
    Unmap { space: usize, place: usize },
    Protect { space: usize, place: usize, write: bool },
    Replace { space: usize, place: usize },
    Access { cpu: usize, place: usize, write: bool, offset: u64 },
    Load { cpu: usize, space: usize, tag: u16, keep: bool },
    InvalidateRange { cpu: usize, tag: u16, from: usize, strides: u64, stride: Stride },
    InvalidateTag { cpu: usize, tag: u16 },
    InvalidateEverything { cpu: usize },
    FlushBegins { space: usize, place: Option<usize> },
    FlushReturns,
    Free,
}

fn stride() -> impl Strategy<Value = Stride> {
    prop_oneof![4 => Just(Stride::Page4K), 1 => Just(Stride::Page2M), 1 => Just(Stride::Page1G)]
}

fn op() -> impl Strategy<Value = Op> {
    // Mostly few places, so that things happen to one page in a row.
    let place = prop_oneof![3 => 0..3usize, 1 => 0..PLACES.len()];
    let (space, cpu) = (0..SPACES, 0..CPUS);
    let strides = prop_oneof![8 => 1u64..5, 1 => Just(512u64), 1 => Just(1_000_000u64)];
    prop_oneof![
        6 => (space.clone(), place.clone(), any::<bool>())
            .prop_map(|(space, place, write)| Op::Map { space, place, write }),
        3 => (space.clone(), place.clone()).prop_map(|(space, place)| Op::Unmap { space, place }),
        2 => (space.clone(), place.clone(), any::<bool>())
            .prop_map(|(space, place, write)| Op::Protect { space, place, write }),
        1 => (space.clone(), place.clone()).prop_map(|(space, place)| Op::Replace { space, place }),
        16 => (cpu.clone(), place.clone(), any::<bool>(), 0u64..512)
            .prop_map(|(cpu, place, write, offset)| Op::Access { cpu, place, write, offset }),
        3 => (cpu.clone(), space.clone(), 1u16..4, any::<bool>())
            .prop_map(|(cpu, space, tag, keep)| Op::Load { cpu, space, tag, keep }),
        3 => (cpu.clone(), 0u16..4, place.clone(), strides, stride()).prop_map(
            |(cpu, tag, from, strides, stride)| Op::InvalidateRange { cpu, tag, from, strides, stride }
        ),
        1 => (cpu.clone(), 0u16..4).prop_map(|(cpu, tag)| Op::InvalidateTag { cpu, tag }),
        1 => cpu.prop_map(|cpu| Op::InvalidateEverything { cpu }),
        2 => (space, proptest::option::of(place)).prop_map(|(space, place)| Op::FlushBegins { space, place }),
        2 => Just(Op::FlushReturns),
        1 => Just(Op::Free),
    ]
}

/// What a naive TLB remembers of a page.
#[derive(Clone, Copy, Debug)]
struct Cached {
    frame: Frame,
    write: bool,
    dirty: bool,
    filled: u64,
    /// Whose tables it was made from.
    space: usize,
}

/// What the tables say.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    frame: Frame,
    write: bool,
    dirty: bool,
}

#[derive(Debug, Default)]
struct Model {
    time: u64,
    mapped: BTreeMap<(usize, usize), Mapped>,
    cached: BTreeMap<(usize, u16, usize), Cached>,
    /// (space, place, when)
    pending: Vec<(usize, usize, u64)>,
    binding: BTreeMap<(usize, usize), u64>,
    freed: BTreeMap<Frame, u64>,
}

impl Model {
    fn change(&mut self, space: usize, place: usize) {
        self.time += 1;
        self.pending.push((space, place, self.time));
    }
}

struct Run {
    mem: Memory,
    roots: [Root; SPACES],
    cpus: Vec<CpuMmu>,
    /// Tag and space.
    loaded: Vec<Option<(u16, usize)>>,
    owner: BTreeMap<(usize, u16), usize>,
    flush: Option<(FlushToken, usize, Option<usize>, u64)>,
    owed: Vec<Unmapped>,
    model: Model,
}

fn huge() -> TlbGeometry {
    TlbGeometry {
        l1: vec![Array::new(64, 0, &[Stride::Page4K]), Array::new(64, 0, &ALL[1..])],
        l2: vec![],
        walk_cache: [16; 3],
        ..TlbGeometry::skylake()
    }
}

impl Run {
    fn new(geometry: &TlbGeometry) -> Self {
        let mut mem = Memory::new(1 << 20);
        let roots = [mem.new_space().unwrap(), mem.new_space().unwrap()];
        Self {
            roots,
            cpus: (0..CPUS).map(|i| CpuMmu::new(CpuId(i as u32), geometry).unwrap()).collect(),
            loaded: vec![None; CPUS],
            owner: BTreeMap::new(),
            flush: None,
            owed: Vec::new(),
            model: Model::default(),
            mem,
        }
    }

    fn map(&mut self, space: usize, place: usize, write: bool) {
        let (va, size) = PLACES[place];
        let frame = self.mem.alloc(size).unwrap();
        let perms = Perms { write, ..Perms::USER_RO };
        let outcome = self.mem.map(self.roots[space], va, frame, size, perms);
        if let Entry::Vacant(place) = self.model.mapped.entry((space, place)) {
            outcome.unwrap();
            place.insert(Mapped { frame, write, dirty: false });
        } else {
            assert!(outcome.is_err());
            self.mem.free(frame).unwrap();
            self.model.time += 1;
            self.model.freed.insert(frame, self.model.time);
        }
    }

    fn unmap(&mut self, space: usize, place: usize) -> Option<Unmapped> {
        let gone = self.mem.unmap(self.roots[space], PLACES[place].0);
        let expected = self.model.mapped.remove(&(space, place));
        assert_eq!(gone.map(|g| (g.frame, g.dirty)), expected.map(|m| (m.frame, m.dirty)));
        if gone.is_some() {
            self.model.change(space, place);
        }
        gone
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Map { space, place, write } => self.map(space, place, write),
            Op::Unmap { space, place } => {
                let gone = self.unmap(space, place);
                self.owed.extend(gone);
            }
            Op::Protect { space, place, write } => {
                let perms = Perms { write, ..Perms::USER_RO };
                let outcome = self.mem.protect(self.roots[space], PLACES[place].0, perms);
                let m = self.model.mapped.get_mut(&(space, place));
                assert_eq!(outcome.is_some(), m.is_some());
                if let Some(m) = m {
                    let narrowed = m.write && !write;
                    m.write = write;
                    if narrowed {
                        m.dirty = false;
                        self.model.change(space, place);
                    }
                }
            }
            Op::Replace { space, place } => {
                if let Some(m) = self.model.mapped.get_mut(&(space, place)) {
                    let (va, size) = PLACES[place];
                    m.frame = self.mem.alloc(size).unwrap();
                    m.dirty = false;
                    let perms = Perms { write: m.write, ..Perms::USER_RO };
                    let old = self.mem.replace(self.roots[space], va, m.frame, perms).unwrap();
                    self.owed.push(old);
                    self.model.change(space, place);
                }
            }
            Op::Access { cpu, place, write, offset } => self.access(cpu, place, write, offset),
            Op::Load { cpu, space, tag, keep } => self.load(cpu, space, tag, keep),
            Op::InvalidateRange { cpu, tag, from, strides, stride } => {
                let Ok(range) = VaRange::new(PLACES[from].0, strides, stride) else { return };
                self.cpus[cpu].invalidate_range(Tag(tag), range, true);
                self.model.cached.retain(|(c, t, place), _| {
                    let (va, size) = PLACES[*place];
                    let hit = (0..strides.min(2_000_000)).any(|i| {
                        let first = range.start() + i * stride.bytes();
                        va <= first && first < va + size.bytes()
                    });
                    !(*c == cpu && *t == tag && hit)
                });
            }
            Op::InvalidateTag { cpu, tag } => {
                self.cpus[cpu].invalidate_tag(Tag(tag));
                self.model.cached.retain(|(c, t, _), _| *c != cpu || *t != tag);
            }
            Op::InvalidateEverything { cpu } => {
                self.cpus[cpu].invalidate_everything();
                self.model.cached.retain(|(c, ..), _| *c != cpu);
            }
            Op::FlushBegins { space, place } => {
                let range = place.map(|p| VaRange::new(PLACES[p].0, 1, Stride::Page4K).unwrap());
                let token = self.mem.flush_begins(self.roots[space], range, false);
                self.flush = Some((token, space, place, self.model.time));
            }
            Op::FlushReturns => {
                if let Some((token, space, place, begun)) = self.flush.take() {
                    self.mem.flush_returns(token);
                    let binding = &mut self.model.binding;
                    self.model.pending.retain(|&(s, p, when)| {
                        let covered = s == space && place.is_none_or(|x| x == p) && when <= begun;
                        if covered {
                            binding.insert((s, p), when);
                        }
                        !covered
                    });
                }
            }
            Op::Free => {
                if let Some(gone) = self.owed.pop() {
                    self.mem.free(gone.frame).unwrap();
                    self.model.time += 1;
                    self.model.freed.insert(gone.frame, self.model.time);
                }
            }
        }
    }

    fn load(&mut self, cpu: usize, space: usize, tag: u16, keep: bool) {
        let outcome = self.cpus[cpu].load(&self.mem, self.roots[space], Tag(tag), keep);
        if !keep {
            self.model.cached.retain(|(c, t, _), _| *c != cpu || *t != tag);
        }
        if let Err(violation) = outcome {
            assert!(keep);
            assert_eq!(violation.invariant, Invariant::TagReuse);
            assert_ne!(self.owner.get(&(cpu, tag)), Some(&space));
            return;
        }
        let foreign = self
            .model
            .cached
            .iter()
            .any(|((c, t, _), e)| *c == cpu && *t == tag && e.space != space);
        assert!(!foreign, "entries of another space were kept");
        self.loaded[cpu] = Some((tag, space));
        self.owner.insert((cpu, tag), space);
    }

    fn access(&mut self, cpu: usize, place: usize, write: bool, offset: u64) {
        let Some((tag, space)) = self.loaded[cpu] else { return };
        let (va, size) = PLACES[place];
        let offset = offset << 12 & (size.bytes() - 1);
        let access = if write { Access::UserWrite } else { Access::UserRead };
        let outcome = self.cpus[cpu].translate(&mut self.mem, va + offset, access);
        let key = (cpu, tag, place);
        if let Some(c) = self.model.cached.get(&key).copied()
            && (!write || (c.write && c.dirty))
        {
            let freed = self.model.freed.get(&c.frame).is_some_and(|at| *at > c.filled);
            let stale = self.model.binding.get(&(space, place)).is_some_and(|at| *at > c.filled);
            if freed || stale {
                let Err(Trap::Violation(violation)) = outcome else {
                    panic!("{outcome:?}, but the entry is stale: {c:?}")
                };
                if !stale {
                    assert_eq!(violation.invariant, Invariant::FrameReuse);
                } else {
                    let stale = [Invariant::Revocation, Invariant::MasterInvariant];
                    assert!(stale.contains(&violation.invariant));
                }
                return;
            }
            let got = outcome.expect("a sound entry is cached");
            assert_eq!(got.found, Found::First);
            assert_eq!(got.frame.0, c.frame.0 + (offset >> 12) as u32);
            return;
        }
        self.model.cached.remove(&key);
        let m = self.model.mapped.get_mut(&(space, place));
        let Some(m) = m.filter(|m| !write || m.write) else {
            assert!(matches!(outcome, Err(Trap::Fault(_))), "{outcome:?}");
            return;
        };
        let got = outcome.expect("the tables allow it");
        assert!(matches!(got.found, Found::Walk(_)), "{got:?} was not cached");
        assert_eq!(got.frame.0, m.frame.0 + (offset >> 12) as u32);
        m.dirty |= write;
        let cached = Cached {
            frame: m.frame,
            write: m.write,
            dirty: m.dirty,
            filled: self.model.time,
            space,
        };
        self.model.cached.insert(key, cached);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_access_is_as_the_naive_model_says(ops in prop::collection::vec(op(), 1..120)) {
        let mut run = Run::new(&huge());
        for op in &ops {
            run.step(op);
        }
    }
}

#[derive(Clone, Debug)]
enum Legal {
    Map {
        space: usize,
        place: usize,
    },
    /// Unmap some places, free empty tables, flush, free.
    Zap {
        space: usize,
        places: Vec<usize>,
        tables: bool,
        whole: bool,
    },
    Clean {
        space: usize,
        place: usize,
    },
    Access {
        cpu: usize,
        place: usize,
        write: bool,
        offset: u64,
    },
    Wander {
        cpu: usize,
        place: usize,
    },
    Switch {
        cpu: usize,
        space: usize,
        keep: bool,
    },
}

fn legal() -> impl Strategy<Value = Legal> {
    let (space, place, cpu) = (0..SPACES, 0..PLACES.len(), 0..CPUS);
    prop_oneof![
        4 => (space.clone(), place.clone()).prop_map(|(space, place)| Legal::Map { space, place }),
        2 => (space.clone(), prop::collection::vec(place.clone(), 1..4), any::<bool>(), any::<bool>())
            .prop_map(|(space, places, tables, whole)| Legal::Zap { space, places, tables, whole }),
        2 => (space.clone(), place.clone()).prop_map(|(space, place)| Legal::Clean { space, place }),
        10 => (cpu.clone(), place.clone(), any::<bool>(), 0u64..512)
            .prop_map(|(cpu, place, write, offset)| Legal::Access { cpu, place, write, offset }),
        4 => (cpu.clone(), place).prop_map(|(cpu, place)| Legal::Wander { cpu, place }),
        2 => (cpu, space, any::<bool>())
            .prop_map(|(cpu, space, keep)| Legal::Switch { cpu, space, keep }),
    ]
}

/// One tag per space, and flushes reach every CPU under that tag, loaded or not.
fn flush(run: &mut Run, space: usize, range: Option<VaRange>, tables: bool) {
    let token = run.mem.flush_begins(run.roots[space], range, tables);
    for cpu in &mut run.cpus {
        let tag = Tag(space as u16 + 1);
        match range {
            Some(range) => cpu.invalidate_range(tag, range, !tables),
            None => cpu.invalidate_tag(tag),
        }
    }
    run.mem.flush_returns(token);
    let tag = Tag(space as u16 + 1);
    for cpu in &run.cpus {
        cpu.audit(&run.mem, tag).expect("after a correct flush nothing stale is cached");
    }
}

fn live(run: &mut Run, op: &Legal) {
    match op {
        Legal::Map { space, place } => run.map(*space, *place, true),
        Legal::Zap { space, places, tables, whole } => {
            let gone: Vec<_> = places.iter().filter_map(|p| run.unmap(*space, *p)).collect();
            let Some(range) = gone
                .iter()
                .map(|g| VaRange::new(g.va, 1, Stride::Page4K).unwrap())
                .reduce(|a, b| a.merge(&b))
            else {
                return;
            };
            let mut pages = Vec::new();
            if *tables {
                run.mem.unhook_empty_tables(run.roots[*space], range, &mut pages);
            }
            // Places may be far apart: a range from the first to the last is more than a CPU steps
            // over.
            let range = (!*whole && range.count() < 100_000).then_some(range);
            flush(run, *space, range, !pages.is_empty());
            assert_eq!(run.mem.pending(run.roots[*space]), 0);
            for g in gone {
                run.mem.free(g.frame).unwrap();
            }
            for page in pages {
                run.mem.free_table(page).unwrap();
            }
        }
        Legal::Clean { space, place } => {
            let va = PLACES[*place].0;
            let Some(_) = run.mem.protect(run.roots[*space], va, Perms::USER_RO) else { return };
            flush(run, *space, Some(VaRange::new(va, 1, Stride::Page4K).unwrap()), false);
            run.mem.protect(run.roots[*space], va, Perms::USER_RW).unwrap();
            if let Some(m) = run.model.mapped.get_mut(&(*space, *place)) {
                m.dirty = false;
            }
        }
        Legal::Access { cpu, place, write, offset } => {
            let Some((_, space)) = run.loaded[*cpu] else { return };
            let (va, size) = PLACES[*place];
            let offset = offset << 12 & (size.bytes() - 1);
            let access = if *write { Access::UserWrite } else { Access::UserRead };
            let outcome = run.cpus[*cpu].translate(&mut run.mem, va + offset, access);
            match (run.model.mapped.get_mut(&(space, *place)), outcome) {
                (Some(m), Ok(got)) => {
                    assert_eq!(got.frame.0, m.frame.0 + (offset >> 12) as u32);
                    m.dirty |= *write;
                }
                (None, Err(Trap::Fault(_))) => {}
                (tables, outcome) => panic!("tables: {tables:?}, access: {outcome:?}"),
            }
        }
        Legal::Wander { cpu, place } => {
            run.cpus[*cpu].speculate(&mut run.mem, PLACES[*place].0).unwrap();
        }
        Legal::Switch { cpu, space, keep } => {
            let tag = *space as u16 + 1;
            run.cpus[*cpu].load(&run.mem, run.roots[*space], Tag(tag), *keep).unwrap();
            run.loaded[*cpu] = Some((tag, *space));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_correct_protocol_is_never_accused(
        zen in any::<bool>(),
        ops in prop::collection::vec(legal(), 1..150),
    ) {
        let geometry = if zen { TlbGeometry::zen4() } else { TlbGeometry::skylake() };
        let mut run = Run::new(&geometry);
        for op in &ops {
            live(&mut run, op);
        }
    }
}

//! What the hostile hardware costs: the hunt's aim is 2 million steps per second on one core, of
//! which every step is one of these operations or none.
//!
//! Two CPUs run two spaces of four pages each, in tables of two and of three levels with four
//! entries; every entry remembers its provenance, as in a hunt.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use shootdown::{Reach, Tag};
use shootdown_machine::hostile::{
    Aarch64, Access, Descriptor, Frame, Hostile, Invalidation, Rules, Shape, TableId, TableMemory,
    Word,
};

#[derive(Clone)]
struct Flat {
    words: Vec<(Descriptor, u32)>,
}

impl TableMemory for Flat {
    fn read(&self, _cpu: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32)) {
        let (descriptor, version) = self.words[at(word)];
        see(descriptor, version);
    }
}

fn at(word: Word) -> usize {
    usize::from(word.table.0) * 4 + usize::from(word.index)
}

#[derive(Clone)]
struct World {
    hw: Hostile,
    mem: Flat,
}

/// The table that maps page 0 of a space, and the space's root.
fn leaves(space: u16, levels: u8) -> (TableId, TableId) {
    let first = space * 4;
    (TableId(first), TableId(first + u16::from(levels) - 1))
}

fn world(rules: Rules) -> World {
    let levels = rules.shape.levels();
    let mut mem = Flat { words: vec![(Descriptor::ABSENT, 0); 64] };
    for space in 0..2 {
        let (root, last) = leaves(space, levels);
        for table in root.0..last.0 {
            let next = Descriptor::table(TableId(table + 1));
            mem.words[at(Word::new(TableId(table), 0))] = (next, 1);
        }
        for index in 0..4 {
            let frame = Frame(u32::from(space) * 10 + u32::from(index));
            mem.words[at(Word::new(last, index))] = (Descriptor::user_rw(frame), 1);
        }
    }
    let mut hw = Hostile::new(rules, 2).unwrap();
    for cpu in 0..2 {
        for space in [1, 0] {
            hw.load(&mem, cpu, Some(leaves(space, levels).0), Tag(space + 1), true).unwrap();
        }
    }
    World { hw, mem }
}

fn operations(c: &mut Criterion) {
    for (name, arm, levels) in [("x86/2", false, 2), ("x86/3", false, 3), ("arm/3", true, 3)] {
        let shape = Shape::new(levels, 2).unwrap();
        let options = Aarch64 { ets2: false, ha: true, hd: true };
        let rules = if arm { Rules::aarch64(shape, options) } else { Rules::x86_64(shape) };
        let mut w = world(Rules { provenance: true, ..rules });
        let mut group = c.benchmark_group(format!("hostile/{name}"));
        let word = Word::new(leaves(0, levels).1, 0);
        let page = Invalidation::invlpg(0, Tag(1));
        group.bench_function("changed", |b| {
            b.iter(|| w.hw.changed(&w.mem, black_box(word)).unwrap());
        });
        group.bench_function("changed_unreachable", |b| {
            b.iter(|| w.hw.changed(&w.mem, black_box(Word::new(TableId(15), 0))).unwrap());
        });
        group.bench_function("remap_and_shoot_down_on_2_cpus", |b| {
            let mut version = 1;
            b.iter(|| {
                version += 1;
                let descriptor = Descriptor::user_rw(Frame(100 + version % 2));
                w.mem.words[at(word)] = (descriptor, version);
                w.hw.changed(&w.mem, word).unwrap();
                for cpu in 0..2 {
                    w.hw.invalidate(&w.mem, cpu, page, Reach::Local).unwrap();
                    w.hw.sync(cpu);
                    w.hw.context_sync(&w.mem, cpu).unwrap();
                }
            });
        });
        group.bench_function("invalidate_tag", |b| {
            b.iter(|| {
                w.hw.invalidate(&w.mem, 0, Invalidation::tag(Tag(1)), Reach::Local).unwrap();
                w.hw.sync(0);
            });
        });
        group.bench_function("switch_keep_and_back", |b| {
            b.iter(|| {
                for space in [1, 0] {
                    let root = Some(leaves(space, levels).0);
                    w.hw.load(&w.mem, 0, root, Tag(space + 1), true).unwrap();
                }
            });
        });
        let mut out = Vec::new();
        group.bench_function("outcomes", |b| {
            b.iter(|| {
                w.hw.outcomes(&w.mem, 0, black_box(2), Access::USER_WRITE, &mut out);
                black_box(out.len())
            });
        });
        let table = leaves(0, levels).1;
        group.bench_function("walkers_reach", |b| {
            b.iter(|| black_box(w.hw.walkers_reach(&w.mem, black_box(table))));
        });
        group.bench_function("clone", |b| b.iter(|| black_box(w.hw.clone())));
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        group.bench_function("hash_siphash", |b| b.iter(|| black_box(hasher.hash_one(&w.hw))));
        group.finish();
    }
}

criterion_group!(benches, operations);
criterion_main!(benches);

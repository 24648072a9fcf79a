//! What the memory side costs the host: hits in both levels, walks, a shootdown's share.
//!
//! The machine's aim is 20 million accesses per second on one core, 50 ns each, of which at most 20
//! ns are meant to be spent here.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shootdown::{CpuId, Stride, Tag, VaRange};
use shootdown_machine::mmu::{Access, CpuMmu, Memory, Perms, Root, TlbGeometry};

const VA: u64 = 0x7000_0000_0000;

struct Setup {
    mem: Memory,
    root: Root,
    cpu: CpuMmu,
}

/// `pages` mapped pages, all touched once.
fn setup(geometry: &TlbGeometry, pages: u64, size: Stride) -> Setup {
    let mut mem = Memory::new(1 << 24);
    let root = mem.new_space().unwrap();
    for i in 0..pages {
        let frame = mem.alloc(size).unwrap();
        mem.map(root, VA + i * size.bytes(), frame, size, Perms::USER_RW).unwrap();
    }
    let mut cpu = CpuMmu::new(CpuId(0), geometry).unwrap();
    cpu.load(&mem, root, Tag(1), false).unwrap();
    let mut setup = Setup { mem, root, cpu };
    touch(&mut setup, pages, size);
    setup
}

fn touch(s: &mut Setup, pages: u64, size: Stride) {
    for i in 0..pages {
        let va = VA + i * size.bytes();
        black_box(s.cpu.translate(&mut s.mem, va, Access::UserWrite).unwrap());
    }
}

fn hits(c: &mut Criterion) {
    let geometries = [("skylake", TlbGeometry::skylake()), ("zen4", TlbGeometry::zen4())];
    for (name, geometry) in &geometries {
        let mut group = c.benchmark_group(format!("translate/{name}"));
        let cases = [
            ("l1", 32, Stride::Page4K),
            ("l2", 1024, Stride::Page4K),
            ("l1_large", 16, Stride::Page2M),
            ("walk", 16_384, Stride::Page4K),
        ];
        for (case, pages, size) in cases {
            let mut s = setup(geometry, pages, size);
            group.throughput(Throughput::Elements(pages));
            group.bench_function(case, |b| b.iter(|| touch(&mut s, pages, size)));
        }
        // Something was freed since each entry was last used: the oracle looks at every one of
        // them.
        let mut s = setup(geometry, 32, Stride::Page4K);
        group.throughput(Throughput::Elements(32));
        group.bench_function("l1_verified_anew", |b| {
            b.iter(|| {
                let frame = s.mem.alloc(Stride::Page4K).unwrap();
                s.mem.free(frame).unwrap();
                touch(&mut s, 32, Stride::Page4K);
            });
        });
        group.finish();
    }
}

fn flushes(c: &mut Criterion) {
    let mut group = c.benchmark_group("flush/skylake");
    let mut s = setup(&TlbGeometry::skylake(), 512, Stride::Page4K);
    group.bench_function("unmap_invalidate_free_map_touch", |b| {
        b.iter(|| {
            let gone = s.mem.unmap(s.root, VA).unwrap();
            let range = VaRange::new(VA, 1, Stride::Page4K).unwrap();
            let flush = s.mem.flush_begins(s.root, Some(range), false);
            s.cpu.invalidate_range(Tag(1), range, true);
            s.mem.flush_returns(flush);
            s.mem.free(gone.frame).unwrap();
            let frame = s.mem.alloc(Stride::Page4K).unwrap();
            s.mem.map(s.root, VA, frame, Stride::Page4K, Perms::USER_RW).unwrap();
            touch(&mut s, 1, Stride::Page4K);
        });
    });
    for (case, strides) in
        [("invalidate_1", 1), ("invalidate_33", 33), ("invalidate_10000", 10_000)]
    {
        let range = VaRange::new(VA + (1 << 30), strides, Stride::Page4K).unwrap();
        group.bench_function(case, |b| b.iter(|| s.cpu.invalidate_range(Tag(1), range, true)));
    }
    group.bench_function("invalidate_tag_and_touch", |b| {
        b.iter(|| {
            s.cpu.invalidate_tag(Tag(1));
            touch(&mut s, 1, Stride::Page4K);
        });
    });
    let other = s.mem.new_space().unwrap();
    group.bench_function("switch_keep_twice", |b| {
        b.iter(|| {
            s.cpu.load(&s.mem, other, Tag(2), true).unwrap();
            s.cpu.load(&s.mem, s.root, Tag(1), true).unwrap();
        });
    });
    group.finish();
}

criterion_group!(benches, hits, flushes);
criterion_main!(benches);

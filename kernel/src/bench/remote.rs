//! Flushes of a space that other CPUs have loaded. They sleep, with interrupts on, so that what is
//! measured is the interrupt, the answer, and the wait.

use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::gather::Array;
use shootdown::{CpuId, Gather, Platform, Request, Stride, VaRange};

use super::measure;
use crate::arch::{Rights, paging, probe};
use crate::memory::{self, FRAME};
use crate::paging::Space;
use crate::port::{self, Kernel, quietly};
use crate::work;

/// Pages of a larger gather.
const MANY: u64 = 32;

fn page(number: u64) -> VaRange {
    VaRange::new(paging::SPACE + number * FRAME, 1, Stride::Page4K).expect("a page")
}

fn put(space: &Space, number: u64, frame: u64) {
    space.tree.set(page(number).start(), 0, paging::leaf(frame, 0, Rights::WRITE));
}

/// Takes pages out of the tables and out of all TLBs.
fn unmap(space: &Space, count: u64) {
    let mut gather = Gather::<Kernel, Array<u64, { MANY as usize }>>::new(&space.shot);
    for number in 0..count {
        let entry = space.tree.set(page(number).start(), 0, 0);
        gather.unmapped(page(number), paging::frame_of(entry, 0)).expect("room for all");
    }
    let frames = gather.finish(&Kernel::pin());
    assert!(frames.is_ok(), "a flush failed");
    // One frame for all, which goes on being used.
    frames.into_iter().for_each(|frames| frames.for_each(drop));
}

pub fn run(remotes: u32) {
    let space = Space::new();
    let frame = memory::allocate().expect("there are frames");
    let mut inside: CpuSet<1> = work::first(remotes + 1);
    inside.insert(CpuId(0));
    let enter = || {
        // SAFETY: interrupts are off, CPUs that take work are online, and the space stays in place
        // until all have left.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &space.shot) });
    };
    work::on(&inside, &enter);
    let restore = |count| {
        (0..count).for_each(|number| put(&space, number, frame));
        // Used by all, as what is in no TLB need not be forgotten.
        work::on(&inside, &|| {
            (0..count).for_each(|number| {
                let read = probe::read(page(number).start());
                debug_assert!(read.is_ok(), "a page that was mapped can't be read");
            });
        });
    };
    restore(MANY);
    let pin = Kernel::pin();
    let flush = || {
        let flushed = space.shot.flush(&pin, Request::pages(page(0)));
        assert!(flushed.is_ok(), "a flush failed");
    };
    measure(format_args!("flush-1-page-{remotes}-remotes"), flush, || restore(1));
    measure(format_args!("gather-1-page-{remotes}-remotes"), || unmap(&space, 1), || restore(1));
    measure(
        format_args!("gather-32-pages-{remotes}-remotes"),
        || unmap(&space, MANY),
        || restore(MANY),
    );
    // As `mprotect` to and fro: narrower needs a flush, wider none.
    let narrow = || {
        let at = page(0).start();
        let entry = space.tree.look(at);
        space.tree.set(at, 0, paging::read_only(entry));
        flush();
        space.tree.set(at, 0, entry);
    };
    measure(format_args!("protect-and-back-{remotes}-remotes"), narrow, || restore(1));
    let kernel = || {
        let range = VaRange::new(paging::KERNEL, 1, Stride::Page4K).expect("a page");
        let flushed = shootdown::flush_kernel::<Kernel>(&pin, range);
        assert!(flushed.is_ok(), "a flush failed");
    };
    if remotes == 0 {
        measure(format_args!("flush-kernel-page-all-cpus"), kernel, || ());
    }
    work::on(&inside, &|| port::leave());
    space.end(&pin);
    memory::free(frame);
}

//! Many pages at once: however a range is cut into operations, or becomes one that forgets more,
//! all of it must go.

use shootdown::{Platform, Stride, VaRange};

use super::stage::Stage;
use super::{Broken, Case, Outcome};
use crate::arch::{Rights, paging, probe};
use crate::memory::FRAME;
use crate::paging::Tree;
use crate::port::Kernel;

pub const CASES: &[Case] =
    &[Case::new("range-exact", range_exact), Case::new("kernel-range", kernel_range)];

/// Lengths for each try. What one of Arm's range operations covers has a unit of 2, 64, 2048 pages,
/// and may overlap another; x86 goes page by page, up to the ceiling (33, unless it was measured),
/// and forgets everything above it.
const LENGTHS: [&[u64]; 4] = [&[2, 3, 4, 5], &[31, 32, 33], &[34, 62, 63, 64, 65], &[66, 100, 127]];

/// Pages between the ranges of a try.
const APART: u64 = 256;

/// Every page of a run shows one frame, is read by those who look, unmapped, and flushed with the
/// others as one range. How many CPUs can still read one of them.
fn run_goes(
    stage: &Stage,
    tree: Tree,
    start: u64,
    length: u64,
    rights: Rights,
    flush: impl FnOnce(VaRange) -> Result<(), Broken>,
) -> Outcome {
    let (frame, stamp) = stage.frame();
    let pages = || (0..length).map(|page| start + page * FRAME);
    for at in pages() {
        stage.write(tree, at, 0, paging::leaf(frame, 0, rights));
    }
    let read = stage.premise("pages that were mapped can't be read", || {
        pages().all(|at| probe::read(at) == Ok(stamp))
    });
    for at in pages() {
        stage.write(tree, at, 0, 0);
    }
    read?;
    flush(VaRange::new(start, length, Stride::Page4K).expect("pages of the case"))?;
    Ok(stage.watch(|| pages().any(|at| probe::read(at).is_ok())))
}

/// Where the `nth` range of a try begins, from the first page of what is the case's own.
const fn start(nth: u64) -> u64 {
    (nth * APART + 7) * FRAME
}

fn lengths(stage: &Stage) -> impl Iterator<Item = (u64, u64)> {
    (0..).zip(LENGTHS[stage.number as usize % LENGTHS.len()].iter().copied())
}

/// Pages of a space.
fn range_exact(stage: &Stage) -> Outcome {
    let mut stale = 0;
    for (nth, length) in lengths(stage) {
        let start = stage.large_address() + start(nth);
        stale += run_goes(stage, stage.space.tree, start, length, Rights::READ, |range| {
            stage.flush(range)
        })?;
    }
    Ok(stale)
}

/// Pages of the kernel, which every CPU may have cached under every tag.
fn kernel_range(stage: &Stage) -> Outcome {
    let mut stale = Ok(0);
    for (nth, length) in lengths(stage) {
        let start = paging::KERNEL + 2 * crate::paging::span(1) + start(nth);
        let seen = run_goes(stage, Tree::kernel(), start, length, Rights::READ.global(), |range| {
            if stage.flushes {
                shootdown::flush_kernel::<Kernel>(&Kernel::pin(), range)?;
            }
            Ok(())
        });
        stale = seen.and_then(|seen| stale.map(|sum: u32| sum + seen));
        if stale.is_err() {
            break;
        }
    }
    shootdown::flush_everything::<Kernel>(&Kernel::pin())?;
    stale
}

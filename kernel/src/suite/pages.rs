//! Leaves of a space: unmapped, narrowed, replaced, and their accessed and dirty bits.

use core::sync::atomic::{AtomicBool, Ordering};

use shootdown::accessed::Accessed;
use shootdown::gather::Array;
use shootdown::{Gather, Platform, Stride, VaRange};

use super::stage::{Page, Stage};
use super::{Broken, Case, Outcome};
use crate::arch::{Rights, code, paging, probe};
use crate::memory;
use crate::port::{Kernel, is_late};

pub const CASES: &[Case] = &[
    Case::new("unmap", unmap),
    Case::new("unmap-deferred", unmap_deferred),
    Case::new("permission-write", permission_write),
    Case::new("permission-execute", permission_execute),
    Case::new("replace", replace),
    Case::new("code", replace_code),
    Case::new("accessed", accessed).needs(|features| features.sets_accessed_dirty),
    Case::new("accessed-later", accessed_later)
        .needs(|features| features.sets_accessed_dirty && forgets_accessed()),
    Case::new("dirty", dirty).needs(|features| features.sets_accessed_dirty),
    Case::new("gather-reuse", gather_reuse),
    Case::new("large-unmap", large_unmap).needs(|_| memory::available_large() > 0),
    Case::new("large-split", large_split).needs(|_| memory::available_large() > 0),
];

/// Those who look can read the page.
fn warm(stage: &Stage, page: Page) -> Result<(), Broken> {
    stage.premise("a page that was mapped can't be read", || probe::read(page.at) == Ok(page.stamp))
}

/// A page is unmapped and its frame freed.
fn unmap(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.unmap(&[page])?;
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// The same by a caller that does not wait, but polls.
fn unmap_deferred(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.write(stage.space.tree, page.at, 0, 0);
    if stage.flushes {
        let mut gather = Gather::<Kernel, Array<u64, 4>>::new(&stage.space.shot);
        gather.unmapped(page.range(), page.frame).expect("room for 4");
        let mut deferred = gather.defer(&Kernel::pin()).map_err(|(error, _still_pending)| error)?;
        let frames = loop {
            match deferred.poll() {
                Ok(frames) => break frames,
                Err(again) => deferred = again,
            }
            crate::arch::relax();
            assert!(!is_late(), "a deferred flush was not answered in time");
        };
        frames.for_each(|frame| stage.release(frame));
    }
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// A page may not be written any more.
fn permission_write(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    stage.premise("a page that was mapped can't be written", || {
        probe::write(page.at, page.stamp).is_ok()
    })?;
    let entry = stage.space.tree.look(page.at);
    stage.write(stage.space.tree, page.at, 0, paging::read_only(entry));
    stage.flush(page.range())?;
    let stale = stage.watch(|| probe::write(page.at, page.stamp).is_ok());
    warm(stage, page)?;
    Ok(stale)
}

/// A page of code, for functions that return their own stamp.
fn code_page(stage: &Stage, value: u32) -> u64 {
    let (frame, _) = stage.frame();
    // SAFETY: the frame is the case's own, and not mapped yet.
    unsafe { memory::at(frame).cast::<[u8; code::LEN]>().write(code::returning(value)) };
    code::written(memory::at(frame) as u64, code::LEN);
    frame
}

fn run(at: u64) -> Option<u64> {
    probe::execute(at).ok()
}

/// A page may not be executed any more.
fn permission_execute(stage: &Stage) -> Outcome {
    let (frame, at) = (code_page(stage, 7), stage.address(0));
    stage.write(stage.space.tree, at, 0, paging::leaf(frame, 0, Rights::EXECUTE));
    stage.premise("a page of code can't be executed", || run(at) == Some(7))?;
    stage.write(stage.space.tree, at, 0, paging::leaf(frame, 0, Rights::READ));
    stage.flush(VaRange::new(at, 1, Stride::Page4K).expect("a page"))?;
    Ok(stage.watch(|| run(at).is_some()))
}

/// Another frame takes the place of a page's: unmapped, flushed, mapped (break before make, as Arm
/// demands).
fn replace(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.write(stage.space.tree, page.at, 0, 0);
    stage.flush(page.range())?;
    let new = stage.map(0, Rights::WRITE);
    stage.compare(page.stamp, new.stamp, || probe::read(page.at).ok())
}

/// The same with code, which is fetched through other caches.
fn replace_code(stage: &Stage) -> Outcome {
    let (old, new) = (code_page(stage, 7), code_page(stage, 8));
    let at = stage.address(0);
    stage.write(stage.space.tree, at, 0, paging::leaf(old, 0, Rights::EXECUTE));
    stage.premise("a page of code can't be executed", || run(at) == Some(7))?;
    stage.write(stage.space.tree, at, 0, 0);
    stage.flush(VaRange::new(at, 1, Stride::Page4K).expect("a page"))?;
    stage.write(stage.space.tree, at, 0, paging::leaf(new, 0, Rights::EXECUTE));
    stage.compare(7, 8, || run(at))
}

/// Clears the accessed bit. Hardware may set others at the same time, so it is done until it holds.
fn clear(stage: &Stage, page: Page, without: fn(u64) -> u64) {
    let entry = stage.space.tree.look(page.at);
    stage.write(stage.space.tree, page.at, 0, without(entry));
}

/// Every CPU that looks uses the page, in turn, and must find the bit clear in the tables, not set
/// in an entry of its own: the use sets it. It is cleared again between them, or the first that was
/// told would cover up for all others.
fn sets_again(
    stage: &Stage,
    page: Page,
    bit: fn(u64) -> bool,
    without: fn(u64) -> u64,
    access: impl Fn() -> bool + Sync,
) -> Outcome {
    let refused = AtomicBool::new(false);
    let stale = stage.in_turn(
        || {
            if !access() {
                refused.store(true, Ordering::Relaxed);
            }
        },
        || {
            let was_set = bit(stage.space.tree.look(page.at));
            clear(stage, page, without);
            !was_set
        },
    );
    if refused.load(Ordering::Relaxed) {
        return Err(Broken::Premise("a page that is mapped can't be used"));
    }
    Ok(stale)
}

/// A page whose accessed bit was cleared is used again: the bit must be set again.
fn accessed(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    if !paging::accessed(stage.space.tree.look(page.at)) {
        return Err(Broken::Premise("the accessed bit of a page in use is clear"));
    }
    clear(stage, page, paging::without_accessed);
    stage.flush(page.range())?;
    sets_accessed_again(stage, page)
}

fn sets_accessed_again(stage: &Stage, page: Page) -> Outcome {
    let access = || probe::read(page.at) == Ok(page.stamp);
    sets_again(stage, page, paging::accessed, paging::without_accessed, access)
}

/// Does the policy ever make CPUs forget what they cached of an accessed bit?
fn forgets_accessed() -> bool {
    Kernel::policy().accessed.small != Accessed::Never
}

/// The same where the policy puts it off to the next switch of each CPU.
fn accessed_later(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    clear(stage, page, paging::without_accessed);
    if stage.flushes {
        stage.space.shot.accessed_cleared(&Kernel::pin(), page.range())?;
    }
    stage.there(|| stage.enter());
    sets_accessed_again(stage, page)
}

/// A page whose dirty bit was cleared is written again: the bit must be set again.
fn dirty(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    let store = || probe::write(page.at, page.stamp).is_ok();
    stage.premise("a page that was mapped can't be written", store)?;
    if !paging::dirty(stage.space.tree.look(page.at)) {
        return Err(Broken::Premise("the dirty bit of a page that was written is clear"));
    }
    clear(stage, page, paging::without_dirty);
    stage.flush(page.range())?;
    sets_again(stage, page, paging::dirty, paging::without_dirty, store)
}

/// Many pages are unmapped together, and their frames are somebody else's at once.
fn gather_reuse(stage: &Stage) -> Outcome {
    const PAGES: usize = 24;
    let pages: [Page; PAGES] = core::array::from_fn(|at| stage.map(at as u64, Rights::WRITE));
    for page in pages {
        warm(stage, page)?;
    }
    stage.unmap(&pages)?;
    // Freed last, handed out first: these are the same frames.
    let others: [Page; PAGES] = core::array::from_fn(|at| stage.map(32 + at as u64, Rights::WRITE));
    if !others.iter().all(|new| pages.iter().any(|old| old.frame == new.frame)) {
        return Err(Broken::Premise("the allocator hands out other frames first"));
    }
    Ok(stage.watch(|| pages.iter().any(|page| probe::read(page.at).is_ok())))
}

/// A larger page, of the frame `large`.
fn large(stage: &Stage, frame: u64) -> Page {
    let (at, stamp) = (stage.large_address(), stage.stamp());
    // One page of it is looked at, not the first.
    let inside = (9 + 31 * u64::from(stage.number)) * memory::FRAME;
    memory::fill(frame + inside, stamp);
    stage.write(stage.space.tree, at, 1, paging::leaf(frame, 1, Rights::WRITE));
    Page { at: at + inside, frame: frame + inside, stamp }
}

fn with_large(case: impl FnOnce(u64) -> Outcome) -> Outcome {
    let frame = memory::allocate_large().ok_or(Broken::Premise("memory has no frame of 2 MiB"))?;
    let outcome = case(frame);
    // Emulators keep one region in which larger pages were used, and forget all of the TLB for any
    // page in it.
    let emptied = shootdown::flush_everything::<Kernel>(&Kernel::pin());
    memory::free_large(frame);
    emptied?;
    outcome
}

/// The whole of the larger page.
fn large_range(stage: &Stage) -> VaRange {
    VaRange::new(stage.large_address(), 1, Stride::Page2M).expect("a large page")
}

/// A larger page is unmapped.
fn large_unmap(stage: &Stage) -> Outcome {
    with_large(|frame| {
        let page = large(stage, frame);
        warm(stage, page)?;
        stage.write(stage.space.tree, stage.large_address(), 1, 0);
        stage.flush(large_range(stage))?;
        Ok(stage.watch(|| probe::read(page.at).is_ok()))
    })
}

/// A larger page gives way to small ones, of which one has another frame.
fn large_split(stage: &Stage) -> Outcome {
    with_large(|frame| {
        let page = large(stage, frame);
        warm(stage, page)?;
        stage.write(stage.space.tree, stage.large_address(), 1, 0);
        stage.flush(large_range(stage))?;
        let (small, stamp) = stage.frame();
        stage.write(stage.space.tree, page.at, 0, paging::leaf(small, 0, Rights::WRITE));
        stage.compare(page.stamp, stamp, || probe::read(page.at).ok())
    })
}

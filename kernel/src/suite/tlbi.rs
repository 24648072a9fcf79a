//! Invalidations that hardware carries to other CPUs (Arm's TLBI), and deciding that it need not.
//!
//! These cases are about the regime's own promises as much as about the library's: that *local* is
//! local and *broadcast* is not, and that every kind of request removes what it names.

use shootdown::Platform;
use shootdown::cpu_set::Bits;
use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::residency::Strategy;
use shootdown::stats::Snapshot;

use super::stage::{Page, Stage};
use super::{Broken, Case, Outcome};
use crate::arch::{self, Features, Rights, paging, probe};
use crate::paging::{Space, Tree};
use crate::port::{self, Kernel, quietly};
use crate::work;

pub const CASES: &[Case] = &[
    Case::new("local-is-not-enough", local_is_not_enough).there().needs(broadcasts),
    Case::new("reach", reach).needs(broadcasts),
    Case::new("operations", operations).needs(broadcasts),
    Case::new("rollover", rollover).needs(broadcasts),
    Case::new("power-off", power_off).there(),
];

/// Hardware invalidates elsewhere, and the policy has it do so by tag.
fn broadcasts(features: &Features) -> bool {
    features.broadcast && Kernel::policy().tags
}

/// The hardware itself, below the library.
type Hardware = <Kernel as Platform>::Regime;

fn warm(stage: &Stage, page: Page) -> Result<(), Broken> {
    stage.premise("a page that was mapped can't be read", || probe::read(page.at) == Ok(page.stamp))
}

fn counts() -> Snapshot {
    Kernel::slot(arch::cpu()).expect("this CPU is online").stats()
}

/// Is anybody but this CPU among those who look?
fn has_others(stage: &Stage) -> bool {
    let me = arch::cpu();
    stage.watch(|| arch::cpu() != me) > 0
}

fn invalidate(what: Invalidate, reach: Reach) {
    Hardware::publish();
    Hardware::invalidate(what, reach);
    Hardware::sync(reach);
}

/// A page is unmapped; instead of the flush, only this CPU forgets it.
fn local_is_not_enough(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.write(stage.space.tree, page.at, 0, 0);
    if stage.flushes {
        stage.flush(page.range())?;
    } else {
        let tag = stage.space.shot.tag().ok_or(Broken::Premise("a space in use has no tag"))?;
        let what = Invalidate::Range { tag, range: page.range(), leaf_only: true };
        invalidate(what, Reach::Local);
    }
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// A flush reaches as far as it must, and no farther: where the space never ran elsewhere, nothing
/// is broadcast.
fn reach(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.write(stage.space.tree, page.at, 0, 0);
    let others = has_others(stage);
    let before = counts();
    stage.flush(page.range())?;
    let done = counts() - before;
    let strategy = Kernel::policy().broadcast;
    if let Some(strategy) = strategy.filter(|_| stage.flushes) {
        let expected = if others || strategy == Strategy::Always { (0, 1) } else { (1, 0) };
        if (done.invalidations_local, done.invalidations_broadcast) != expected {
            return Err(Broken::Wrong("a flush reached too far, or not far enough"));
        }
    }
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// Each kind of request, given to the hardware directly: pages, pages with their tables, a tag,
/// everything.
fn operations(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    stage.write(stage.space.tree, page.at, 0, 0);
    let tag = stage.space.shot.tag().ok_or(Broken::Premise("a space in use has no tag"))?;
    let range = page.range();
    let what = match stage.number % 4 {
        0 => Invalidate::Range { tag, range, leaf_only: true },
        1 => Invalidate::Range { tag, range, leaf_only: false },
        2 => Invalidate::Tag(tag),
        _ => Invalidate::Everything,
    };
    if stage.flushes {
        let reach = if has_others(stage) { Reach::Broadcast } else { Reach::Local };
        invalidate(what, reach);
    }
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// Spaces that are made in a generation at most: as many as there are tags, and some.
const GENERATION: u32 = (1 << 16) + 16;

/// All tags are given out and taken back while CPUs run under some: they keep theirs, and nobody
/// gets what is in use. Once only, as there are 65,536 tags; there is no flush that could be left
/// out.
fn rollover(stage: &Stage) -> Outcome {
    if !stage.flushes || stage.number > 0 {
        return Ok(0);
    }
    let page = stage.map(0, Rights::WRITE);
    warm(stage, page)?;
    let tag = stage.space.shot.tag();
    let before = counts().rollovers;
    let empty = Tree::new();
    for _ in 0..GENERATION {
        let space = shootdown::AddressSpace::<Kernel>::new(paging::root(empty.root()));
        // SAFETY: interrupts are off, this CPU is online, and leaves the space before it is
        // retired.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &space) });
        port::leave();
        space
            .retire(&Kernel::pin())
            .map_err(|_| Broken::Wrong("a space that nobody runs is in use"))?;
        if counts().rollovers > before {
            break;
        }
    }
    crate::memory::free(empty.root());
    if counts().rollovers == before {
        return Err(Broken::Wrong("tags did not run out"));
    }
    stage.enter();
    if has_others(stage) && stage.space.shot.tag() != tag {
        return Err(Broken::Wrong("a space that CPUs run in has another tag"));
    }
    warm(stage, page)?;
    // A space of the new generation has another page at the same address.
    let other = Space::new();
    let (frame, stamp) = stage.frame();
    stage.write(other.tree, page.at, 0, paging::leaf(frame, 0, Rights::WRITE));
    let right = stage.watch(|| {
        // SAFETY: interrupts are off, this CPU is online, and the space lives, in place, until all
        // have left it, below.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &other.shot) });
        let seen = probe::read(page.at);
        stage.enter();
        seen == Ok(stamp) && probe::read(page.at) == Ok(page.stamp)
    });
    let all = stage.watch(|| true);
    other.end(&Kernel::pin());
    if right != all {
        return Err(Broken::Wrong("a page of another space was read"));
    }
    stage.unmap(&[page])?;
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// CPUs are turned off while a page of the kernel goes, and come back: they have nothing of it.
fn power_off(stage: &Stage) -> Outcome {
    let (frame, stamp) = stage.frame();
    let at = stage.kernel_address();
    let page = Page { at, frame, stamp };
    stage.write(Tree::kernel(), at, 0, paging::leaf(frame, 0, Rights::WRITE.global()));
    let outcome = (|| {
        warm(stage, page)?;
        stage.there(|| {
            port::go_offline();
            work::power_off()
        });
        stage.write(Tree::kernel(), at, 0, 0);
        if stage.flushes {
            shootdown::flush_kernel::<Kernel>(&Kernel::pin(), page.range())?;
        }
        stage.watchers().iter().for_each(arch::power_on);
        stage.there(|| stage.enter());
        Ok(stage.watch(|| probe::read(at).is_ok()))
    })();
    stage.write(Tree::kernel(), at, 0, 0);
    shootdown::flush_everything::<Kernel>(&Kernel::pin())?;
    outcome
}

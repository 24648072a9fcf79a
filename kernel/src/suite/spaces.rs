//! CPUs that are not in the space when it changes, or only lazily.

use shootdown::{Platform, Request};

use super::stage::{Page, Stage};
use super::{Broken, Case, Outcome};
use crate::arch::{Rights, paging, probe};
use crate::memory;
use crate::paging::Space;
use crate::port::{self, Kernel, quietly};

pub const CASES: &[Case] = &[
    Case::new("lazy", lazy).there(),
    Case::new("away", away).there(),
    Case::new("other-space", other_space),
    Case::new("many-spaces", many_spaces),
];

/// A CPU that is lazy in the space is not told; it catches up when it returns.
fn lazy(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    stage.premise("a page that was mapped can't be read", || {
        probe::read(page.at) == Ok(page.stamp)
    })?;
    stage.there(port::turn_lazy);
    stage.unmap(&[page])?;
    stage.there(|| stage.enter());
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// A CPU that has left the space finds out when it comes back: its entries may have been kept under
/// a tag.
fn away(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    stage.premise("a page that was mapped can't be read", || {
        probe::read(page.at) == Ok(page.stamp)
    })?;
    stage.there(port::leave);
    stage.unmap(&[page])?;
    stage.there(|| stage.enter());
    Ok(stage.watch(|| probe::read(page.at).is_ok()))
}

/// Two spaces have different pages at one address. Each must be read in its own, whatever is kept
/// under which tag.
fn other_space(stage: &Stage) -> Outcome {
    let page = stage.map(0, Rights::WRITE);
    let other = Space::new();
    let (frame, stamp) = stage.frame();
    stage.write(other.tree, page.at, 0, paging::leaf(frame, 0, Rights::WRITE));
    let visit = || {
        // SAFETY: interrupts are off, this CPU is online, and the space lives until all have left
        // it, below.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &other.shot) });
        let seen = probe::read(page.at);
        stage.enter();
        seen == Ok(stamp)
    };
    let outcome = (|| {
        let own = || probe::read(page.at) == Ok(page.stamp);
        stage.premise("a page that was mapped can't be read", own)?;
        stage.premise("the other space's page can't be read in it", visit)?;
        if stage.watch(own) == 0 {
            return Err(Broken::Wrong("back in its space, a CPU does not read the space's page"));
        }
        // Now it changes while its entries may be kept under the tag of a space that is not loaded.
        stage.there(|| {
            // SAFETY: as above.
            quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &other.shot) });
        });
        stage.unmap(&[page])?;
        stage.there(|| stage.enter());
        Ok(stage.watch(|| probe::read(page.at).is_ok()))
    })();
    stage.there(|| stage.enter());
    debug_assert!(memory::available() > 0);
    other.end(&Kernel::pin());
    outcome
}

/// More spaces than a CPU has slots for tags: some come back to a tag that another had meanwhile.
const MANY: usize = 9;

/// Many spaces have different pages at one address, and CPUs go round. Each page must be read in
/// its own space. Then all of them go while nobody is there.
fn many_spaces(stage: &Stage) -> Outcome {
    let at = stage.address(0);
    let spaces: [(Space, Page); MANY] = core::array::from_fn(|_| {
        let (space, (frame, stamp)) = (Space::new(), stage.frame());
        stage.write(space.tree, at, 0, paging::leaf(frame, 0, Rights::WRITE));
        (space, Page { at, frame, stamp })
    });
    let enter = |space: &Space| {
        // SAFETY: interrupts are off, this CPU is online, and the spaces live, in place, until all
        // have left them, below.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &space.shot) });
    };
    let round = || {
        spaces.iter().all(|(space, page)| {
            enter(space);
            probe::read(at) == Ok(page.stamp)
        })
    };
    let outcome = (|| {
        stage.premise("a space's own page can't be read in it", round)?;
        stage.premise("a space's own page can't be read in it, the second time", round)?;
        stage.there(|| stage.enter());
        for (space, page) in &spaces {
            stage.write(space.tree, at, 0, 0);
            if stage.flushes {
                space.shot.flush(&Kernel::pin(), Request::pages(page.range()))?;
            }
        }
        // The latest first: they are the likeliest to have kept their tags.
        Ok(stage.watch(|| {
            spaces.iter().rev().any(|(space, _)| {
                enter(space);
                probe::read(at).is_ok()
            })
        }))
    })();
    stage.there(|| stage.enter());
    spaces.iter().for_each(|(space, _)| space.end(&Kernel::pin()));
    outcome
}

//! The kernel's half: pages that every space has, cached for all of them.

use shootdown::{Platform, Stride, VaRange};

use super::stage::{Page, Stage};
use super::{Case, Outcome};
use crate::arch::{Rights, paging, probe};
use crate::paging::Tree;
use crate::port::{self, Kernel, quietly};

pub const CASES: &[Case] = &[
    Case::new("kernel-unmap", unmap),
    Case::new("kernel-replace", replace),
    Case::new("kernel-everything", everything),
    Case::new("global-over-switch", over_switch),
    Case::new("offline", offline).there(),
];

/// Before any space is made: the tables under the range that every root shares.
pub fn prepare() {
    Tree::kernel().entry(paging::KERNEL, 0);
}

/// A global page of the kernel.
fn map(stage: &Stage) -> Page {
    let (frame, stamp) = stage.frame();
    let at = stage.kernel_address();
    stage.write(Tree::kernel(), at, 0, paging::leaf(frame, 0, Rights::WRITE.global()));
    Page { at, frame, stamp }
}

/// The page goes, whatever the case made of it.
fn done(stage: &Stage, page: Page, outcome: Outcome) -> Outcome {
    stage.write(Tree::kernel(), page.at, 0, 0);
    shootdown::flush_everything::<Kernel>(&Kernel::pin())?;
    outcome
}

fn flush(stage: &Stage, page: Page) -> Result<(), super::Broken> {
    if stage.flushes {
        let range = VaRange::new(page.at, 1, Stride::Page4K).expect("a page");
        shootdown::flush_kernel::<Kernel>(&Kernel::pin(), range)?;
    }
    Ok(())
}

/// Maps a page, has it read, unmaps it, and judges what `then` sees.
fn after_unmapping(stage: &Stage, then: impl FnOnce(Page) -> Outcome) -> Outcome {
    let page = map(stage);
    let read = stage
        .premise("a page of the kernel can't be read", || probe::read(page.at) == Ok(page.stamp));
    stage.write(Tree::kernel(), page.at, 0, 0);
    let outcome = read.and_then(|()| then(page));
    done(stage, page, outcome)
}

/// A page of the kernel is unmapped.
fn unmap(stage: &Stage) -> Outcome {
    after_unmapping(stage, |page| {
        flush(stage, page)?;
        Ok(stage.watch(|| probe::read(page.at).is_ok()))
    })
}

/// Its frame is replaced.
fn replace(stage: &Stage) -> Outcome {
    after_unmapping(stage, |page| {
        flush(stage, page)?;
        let new = map(stage);
        stage.compare(page.stamp, new.stamp, || probe::read(page.at).ok())
    })
}

/// Everything is flushed, as for tables of the kernel that go.
fn everything(stage: &Stage) -> Outcome {
    after_unmapping(stage, |page| {
        if stage.flushes {
            shootdown::flush_everything::<Kernel>(&Kernel::pin())?;
        }
        Ok(stage.watch(|| probe::read(page.at).is_ok()))
    })
}

/// A switch of spaces comes between the change and the look: a global entry outlives it.
fn over_switch(stage: &Stage) -> Outcome {
    after_unmapping(stage, |page| {
        flush(stage, page)?;
        stage.there(|| {
            port::leave();
            stage.enter();
        });
        Ok(stage.watch(|| probe::read(page.at).is_ok()))
    })
}

/// CPUs that are offline are not told; they forget when they come back. What is left out is the
/// coming back.
fn offline(stage: &Stage) -> Outcome {
    after_unmapping(stage, |page| {
        stage.there(port::go_offline);
        let told = flush(stage, page);
        let come = || quietly(shootdown::online).expect("it was online before");
        if stage.flushes {
            stage.there(come);
        }
        let stale = stage.watch(|| probe::read(page.at).is_ok());
        if !stage.flushes {
            stage.there(come);
        }
        stage.there(|| stage.enter());
        told.map(|()| stale)
    })
}

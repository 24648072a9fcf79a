//! Tables that go away: what their leaves cached, and what walkers cached of the tables themselves.
//!
//! The table that goes is used again at once, as a table whose every entry names a decoy: a walker
//! that still reaches it finds the decoy, which is harmless and can be told from everything else.

use shootdown::gather::Array;
use shootdown::{Gather, Platform, Stride, VaRange};

use super::stage::{Page, Stage};
use super::{Broken, Case, Outcome};
use crate::arch::{Rights, paging, probe};
use crate::memory;
use crate::paging::ENTRIES;
use crate::port::Kernel;

pub const CASES: &[Case] =
    &[Case::new("table-freed-leaf", leaf_used), Case::new("table-freed-walk", walker_used)];

/// A page was used before its table went.
fn leaf_used(stage: &Stage) -> Outcome {
    table_goes(stage, true)
}

/// It was not, but its neighbour was: only a cached entry of the table above leads to it.
fn walker_used(stage: &Stage) -> Outcome {
    table_goes(stage, false)
}

/// A page in the table that goes.
fn page(stage: &Stage, number: u64) -> Page {
    let (frame, stamp) = stage.frame();
    let at = stage.large_address() + number * memory::FRAME;
    stage.write(stage.space.tree, at, 0, paging::leaf(frame, 0, Rights::WRITE));
    Page { at, frame, stamp }
}

fn table_goes(stage: &Stage, leaf: bool) -> Outcome {
    let (tree, at) = (stage.space.tree, stage.large_address());
    let first = 60 + u64::from(stage.number) * 97;
    let (used, other) = (page(stage, first), page(stage, first + 1));
    stage.premise("a page that was mapped can't be read", || {
        probe::read(used.at) == Ok(used.stamp)
    })?;
    let table = paging::frame_of(stage.write(tree, at, 1, 0), 1);
    if stage.flushes {
        let mut gather = Gather::<Kernel, Array<u64, 4>>::new(&stage.space.shot);
        let range =
            VaRange::new(at, ENTRIES as u64, Stride::Page4K).expect("what a table translates");
        gather.table_freed(range, table).expect("room for 4");
        gather.finish(&Kernel::pin()).map_err(|(error, _still_pending)| error)?;
    }
    let (decoy, _) = stage.frame();
    let entry = paging::leaf(decoy, 0, Rights::READ);
    memory::fill(table, entry);
    let looked_at = if leaf { used } else { other };
    let stale = stage.watch(|| probe::read(looked_at.at).is_ok());
    if stage.flushes || stale == 0 {
        // Nothing may be found there, and a table that comes back is found.
        let again = page(stage, first);
        let seen = stage.watch(|| probe::read(again.at) == Ok(again.stamp));
        if stage.flushes && seen == 0 {
            return Err(Broken::Wrong("a page under a new table can't be read"));
        }
    }
    // Whoever still walks it must find the decoy, so it is freed with the other frames: after all
    // have left.
    stage.keep(table);
    Ok(stale)
}

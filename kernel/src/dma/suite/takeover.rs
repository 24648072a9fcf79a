//! A unit that is on is set up again, as by a kernel that another one has started; and it is turned
//! off, and on again.
//!
//! That is no [`Case`](super::Case): the driver that the cases use is not the unit's any more when
//! this is over. So it comes last, once, and its controls are a part of it.

use alloc::boxed::Box;

use shootdown_dma::domain::{Config, DmaAddr};

use super::{Behind, Broken, Outcome, Place, Queue, Stage};
use crate::dma::iommu::Refuses;
use crate::say;
use crate::verdict::Verdict;

/// Its name.
pub const NAME: &str = "taken-over";

/// Runs it, and says what came of it.
pub fn run<I: Refuses>(place: &Place<I>) -> Verdict {
    let stage = Stage::set(place, 0, Queue::Told);
    let outcome = take_over(&stage, place);
    stage.strike();
    let verdict = if outcome == Ok(0) { Verdict::Pass } else { Verdict::Fail };
    let name = place.iommu.name();
    match outcome {
        Ok(0) => say!("case {name}/{NAME} {verdict} its control is part of it"),
        Ok(stale) => say!("case {name}/{NAME} {verdict} old ways {stale}"),
        Err(broken) => say!("case {name}/{NAME} {verdict} {broken:?}"),
    }
    verdict
}

fn find<I: Refuses>() -> Result<I, Broken> {
    let unit = I::find_again().ok_or(Broken::Premise("the unit is gone"))?;
    unit.map_err(|why| {
        say!("dma: the unit can't be set up again: {why}");
        Broken::Wrong("a unit that is on can't be taken over")
    })
}

fn take_over<I: Refuses>(stage: &Stage<I>, place: &Place<I>) -> Outcome {
    let mut stale = 0;
    let id = stage.new_id();
    let before = stage.domain(Config::new(1), &stage.space(), id)?;
    let seat = stage.join(&before, id)?;
    let behind = Behind { stage, domain: &before };
    behind.load()?;
    let buffer = behind.map()?;
    behind.warm(buffer)?;
    // The kernel before is no more: its domain and its driver stay as they are, and nobody asks
    // them.
    let iommu: &I = Box::leak(Box::new(find()?));
    stale += u32::from(stage.lands(buffer.at, buffer.frame));
    core::mem::forget((before, seat));

    let place = Place { iommu, ..*place };
    let now = Stage::set(&place, 1, Queue::Told);
    let reaches = now.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.unmap(buffer.at, crate::memory::FRAME)?;
        Ok(u32::from(behind.reaches(buffer)?))
    });
    stale += reaches?;

    // From now on the device has what the stage before has given it last; a third driver takes
    // over, and is turned off.
    let frame = now.frame()?;
    let lands = || now.lands(DmaAddr(frame), frame);
    let third = find::<I>()?;
    stale += u32::from(lands());
    if let Err(why) = third.turn_off_now() {
        say!("dma: the unit is not turned off: {why}");
        return Err(Broken::Wrong("the unit can't be turned off"));
    }
    if lands() == I::REFUSES_WHEN_OFF {
        return Err(Broken::Premise("a unit that is off does what it should do while it is on"));
    }
    find::<I>()?;
    stale += u32::from(lands());
    now.strike();
    Ok(stale)
}

//! Queues that stand still: commands that are refused, devices that do not answer, and units that
//! have to be reset.

use shootdown_dma::domain::{Config, UnmapError};
use shootdown_dma::invalidate::{Command, QueueError, Unit};
use shootdown_dma::{DeviceId, Policy};
use shootdown_iommu::Error;

use super::{Behind, Broken, Buffer, Case, Outcome, Stage};
use crate::arch;
use crate::dma::host;
use crate::dma::iommu::{Iommu, Refuses};
use crate::dma::marred::{Mar, Rule, mar};
use crate::memory::FRAME;

pub const fn cases<I: Refuses>() -> &'static [Case<I>] {
    const {
        &[
            Case::new("refused-command", refused_command).with_control_inside(),
            Case::new("refused-wait", refused_wait).with_control_inside(),
            Case::new("refused-device", refused_device).with_control_inside(),
            Case::new("device-timeout", device_timeout).with_control_inside(),
            Case::new("stuck", stuck).with_control_inside(),
            Case::new("reset", reset).with_control_inside(),
        ]
    }
}

/// Slots that are marred: all that are written.
const ALL: u32 = u32::MAX;

/// Resets the unit.
fn renew<I: Refuses>(iommu: &I) -> Result<(), Error> {
    // SAFETY: QEMU's devices have no caches.
    unsafe { iommu.renew() }
}

/// Polls within which a queue must go on.
const POLLS: u64 = 200;

/// The time that `poll` is told in a turn: every turn is past every bound.
const fn time(turn: u64) -> u64 {
    turn << 40
}

/// A page is unmapped and given up, and the unit refuses what it is told of that. The queue stands
/// still, and the page is held.
fn stop<I: Refuses>(
    behind: &Behind<'_, I>,
    rule: Rule,
    slots: u32,
) -> Result<(Buffer, Mar), Broken> {
    let stage = behind.stage;
    // A neighbour that stays: were the table empty, the unit would be told of that as well, and
    // forget the page by chance.
    behind.map()?;
    let buffer = behind.map()?;
    behind.warm(buffer)?;
    behind.unmap(buffer.at, FRAME)?;
    stage.give_up(buffer.frame);
    let marred = mar(rule, slots);
    // Sealed and submitted here, and not looked at for errors yet.
    behind.domain.poll(time(1))?;
    if !stage.iommu.stands_still() {
        return Err(Broken::NotObservable(
            "the unit takes what it should refuse, or passes over it",
        ));
    }
    if !host::is_held(buffer.frame) {
        return Err(Broken::Wrong("the page was let go while the queue stands still"));
    }
    Ok((buffer, marred))
}

/// Polls a domain whose unit has refused something: how often was that told? To the end, though
/// what it owes is back before: nobody is to hear of it again.
pub fn refusals<I: Iommu>(behind: &Behind<'_, I>) -> Result<u32, Broken> {
    (2..POLLS).try_fold(0, |told, turn| match behind.domain.poll(time(turn)) {
        Ok(()) => Ok(told),
        Err(QueueError::Refused) => Ok(told + 1),
        Err(error) => Err(Broken::Queue(error)),
    })
}

/// Whoever polls makes the queue go on: the error is told once, whoever in the domain has found it,
/// the page is given back, and is out of reach.
fn goes_on<I: Refuses>(behind: &Behind<'_, I>, buffer: Buffer) -> Outcome {
    let told = refusals(behind)?;
    if behind.domain.deferred() != (0, 0) || host::is_held(buffer.frame) {
        return Err(Broken::Wrong("the queue does not go on"));
    }
    if told != 1 || behind.stage.iommu.stands_still() {
        return Err(Broken::Wrong("the error was not told once, or stays"));
    }
    Ok(u32::from(behind.reaches(buffer)?))
}

/// An invalidation is refused: nothing is forgotten (the control) until somebody looks.
fn refused_command<I: Refuses>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        let (buffer, marred) = stop(behind, I::COMMAND, ALL)?;
        drop(marred);
        if !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("what was refused is not what was marred"));
        }
        goes_on(behind, buffer)
    })
}

/// A wait is refused: what came before it was heard, and nobody knows, until somebody looks.
fn refused_wait<I: Refuses>(stage: &Stage<I>) -> Outcome {
    if !I::WAITS_ARE_MENDED {
        return Err(Broken::NotObservable(
            "a wait that is refused is not known for one: see 'stuck'",
        ));
    }
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        let (buffer, marred) = stop(behind, I::WAIT, 1)?;
        drop(marred);
        if stage.reaches(buffer.at, buffer.frame)? {
            return Err(Broken::Premise("what was refused is not what was marred"));
        }
        goes_on(behind, buffer)
    })
}

/// The unit refuses whatever it is to tell the device: the device is not relied on from then on.
/// Its domain gives nothing back until it is taken out; another domain's work goes on.
fn refused_device<I: Refuses>(stage: &Stage<I>) -> Outcome {
    let (id, other_id) = (stage.new_id(), stage.new_id());
    let domain = stage.domain(Config::new(1).policy(Policy::Deferred), &stage.space(), id)?;
    let other = stage.domain(Config::new(1), &stage.space(), other_id)?;
    // Nobody asks by it, but the unit is told for its sake.
    let other_attachment = other.attach(0, NOBODY, false)?;
    let attachment = stage.join_with(&domain, id, true)?;
    let behind = Behind { stage, domain: &domain };
    let stopped = behind.load().and_then(|()| stop(&behind, I::DEVICE, ALL));
    let silent = stopped.and_then(|(buffer, _marred)| {
        let others = Behind { stage, domain: &other };
        let page = others.map()?;
        // It waits; so the queue has gone on when it returns.
        others.unmap(page.at, FRAME)?;
        if stage.iommu.queue().answers(stage.device()) {
            return Err(Broken::Wrong("a device that can't be told is relied on"));
        }
        for turn in 2..POLLS {
            // That a device does not answer is told again and again.
            let _ = domain.poll(time(turn));
        }
        if !host::is_held(buffer.frame) {
            return Err(Broken::Wrong("a page was let go that a device may have cached"));
        }
        Ok(buffer)
    });
    stage.iommu.expel(stage.device());
    let evicted = domain.evict(attachment).map_err(|(error, _attachment)| Broken::Queue(error));
    let revived = stage.iommu.revive(stage.device());
    let mut polled = Ok(());
    for turn in POLLS..2 * POLLS {
        polled = domain.poll(time(turn));
    }
    let owes = domain.deferred();
    let landed =
        silent.map(|buffer| (host::is_held(buffer.frame), stage.lands(buffer.at, buffer.frame)));
    other.detach(other_attachment).map_err(|(error, _attachment)| Broken::Queue(error))?;
    stage.end(other, other_id)?;
    stage.end(domain, id)?;
    evicted?;
    let (held, landed) = landed?;
    polled?;
    if held || owes != (0, 0) || !revived {
        return Err(Broken::Wrong("a device that was taken out holds others up"));
    }
    Ok(u32::from(landed))
}

/// A function that is not there.
const NOBODY: DeviceId = DeviceId(0x3f);

/// A device that is not there is told to forget. Hardware waits for its answer, and says that there
/// is none.
fn device_timeout<I: Refuses>(stage: &Stage<I>) -> Outcome {
    let queue = stage.iommu.queue();
    let mut errors = 0;
    let ticket = queue.submit(&[Command::Device { device: NOBODY, range: None }])?;
    loop {
        match queue.completed() {
            Ok(done) if done >= ticket => break,
            Ok(_) => arch::sleep_ms(1),
            Err(QueueError::DeviceTimeout) => errors += 1,
            Err(error) => return Err(Broken::Queue(error)),
        }
        if crate::port::is_late() {
            return Err(Broken::Wrong("a device that does not answer holds the queue up"));
        }
    }
    let relied_on = queue.answers(NOBODY);
    if errors == 0 {
        return Err(Broken::NotObservable("no device has a cache, and none is waited for"));
    }
    stage.iommu.revive(NOBODY);
    if relied_on { Err(Broken::Wrong("a device that does not answer is relied on")) } else { Ok(0) }
}

/// The unit refuses every wait: nothing completes any more, and that is said; nothing is given
/// back. Then the host resets the unit, and everything goes on.
fn stuck<I: Refuses>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        let strictly = behind.map()?;
        behind.warm(strictly)?;
        let (buffer, marred) = stop(behind, I::WAIT, ALL)?;
        let is_stuck = |turn| behind.domain.poll(time(turn)) == Err(QueueError::Stuck);
        let said = (2..POLLS).any(is_stuck) && is_stuck(POLLS);
        drop(marred);
        // It is cleared, and can't be waited for.
        let owed = said.then(|| behind.unmap_under(Policy::Strict, strictly.at, FRAME));
        let owed = owed == Some(Err(UnmapError::NotComplete(QueueError::Stuck)));
        stage.give_up(strictly.frame);
        let held = [buffer, strictly].map(|buffer| host::is_held(buffer.frame));
        if let Err(error) = renew(stage.iommu) {
            crate::say!("dma: the unit was not reset: {error:?}");
            return Err(Broken::Wrong("the unit can't be reset"));
        }
        if !said {
            return Err(Broken::Wrong("nothing completes, and nobody says so"));
        }
        if !owed || held != [true; 2] {
            return Err(Broken::Wrong("a page was let go though nothing completes"));
        }
        for turn in POLLS + 1..2 * POLLS {
            behind.domain.poll(time(turn))?;
        }
        let held = [buffer, strictly].map(|buffer| host::is_held(buffer.frame));
        if held != [false; 2] || behind.domain.deferred() != (0, 0) {
            return Err(Broken::Wrong("nothing goes on after the unit was reset"));
        }
        let mut stale = u32::from(behind.reaches(buffer)?) + u32::from(behind.reaches(strictly)?);
        let new = behind.map()?;
        behind.warm(new)?;
        behind.unmap_under(Policy::Strict, new.at, FRAME)?;
        stale += u32::from(behind.reaches(new)?);
        Ok(stale)
    })
}

/// A unit is reset between an unmapping and its invalidation: it has forgotten everything, and what
/// is owed is given back.
fn reset<I: Refuses>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        if !stage.lands(buffer.at, buffer.frame) || !host::is_held(buffer.frame) {
            return Err(Broken::Premise("a page is gone before anybody was told"));
        }
        if let Err(error) = renew(stage.iommu) {
            crate::say!("dma: the unit was not reset: {error:?}");
            return Err(Broken::Wrong("the unit can't be reset"));
        }
        let stale = u32::from(behind.reaches(buffer)?);
        for turn in 1..POLLS {
            behind.domain.poll(time(turn))?;
        }
        if host::is_held(buffer.frame) {
            return Err(Broken::Wrong("nothing goes on after the unit was reset"));
        }
        Ok(stale)
    })
}

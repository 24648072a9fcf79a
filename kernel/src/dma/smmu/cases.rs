//! Cases that only an SMMU has: context descriptors, commands that are refused, and rounds of the
//! ring.

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown_dma::Policy;
use shootdown_dma::domain::Config;
use shootdown_dma::invalidate::{Command, QueueError, Unit as _};
use shootdown_dma::{DmaAddr, DomainId, IovaRange, PhysAddr};
use shootdown_iommu::RemappingUnit as _;
use shootdown_iommu::bus::Register;
use shootdown_iommu::smmu::entries::Context0;
use shootdown_iommu::smmu::registers::{CommandCons, CommandQueue, Gerror};

use super::Smmu;
use crate::dma::host::{self, Muffle};
use crate::dma::iommu::{FaultKind, Iommu, Refuses};
use crate::dma::marred::{Rule, mar};
use crate::dma::suite::refusals::refusals;
use crate::dma::suite::{Broken, Buffer, Case, Outcome, Queue, Stage};
use crate::memory::{self, FRAME};

/// Slots of the queue, by the driver's default.
const SLOTS: usize = 256;

/// The words of the device's stream table entry, and of its context descriptor.
fn words(stage: &Stage<Smmu>) -> [&'static [AtomicU64]; 2] {
    // SAFETY: what a case changes there is what it is about; the device is its own.
    let words = unsafe { stage.iommu.entry(stage.device()) };
    words.expect("the device is admitted")
}

pub const CASES: &[Case<Smmu>] = &[
    Case::new("context", context),
    Case::new("others-are-told", others_are_told).with_control_inside(),
    Case::new("refused-configuration", refused_configuration).with_control_inside(),
    Case::new("unread", unread).with_control_inside(),
    Case::new("two-errors", two_errors).with_control_inside(),
    Case::new("ranges", ranges),
    Case::new("round-bit", rounds),
];

/// "Of the secure world", which commands about the configuration of devices may claim, once each.
const SECURE: Rule = |[low, high]| match low & 0xff {
    0x01..=0x06 => [low | 1 << 10, high],
    _ => [low, high],
};

/// A context descriptor becomes invalid, while the stream's entry stays: the unit knows it until it
/// is told.
fn context(stage: &Stage<Smmu>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let (iommu, device) = (stage.iommu, stage.device());
        let [_, descriptor] = words(stage);
        let descriptor = &descriptor[0];
        let valid = Context0::new().with_valid(true).into_bits();
        let before = descriptor.fetch_and(!valid, Ordering::AcqRel);
        if stage.queue == Queue::Told {
            iommu.tell(&[Command::Config { device, domain: DomainId(0) }]);
        }
        let landed = stage.lands(buffer.at, buffer.frame);
        let recorded = stage.iommu.fault();
        descriptor.store(before, Ordering::Release);
        iommu.tell(&[Command::Config { device, domain: DomainId(0) }]);
        match recorded {
            Some(fault) if !landed && fault.kind != FaultKind::Configuration => {
                Err(Broken::Wrong("the record of a bad context descriptor is another's"))
            }
            None if !landed => Err(Broken::Wrong("a bad context descriptor left no record")),
            _ => Ok(u32::from(landed)),
        }
    })
}

/// Invalidations of another ASID and of neighbours: the unit keeps what it has (the control). Then
/// the right one is heard.
fn others_are_told(stage: &Stage<Smmu>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let [_, descriptor] = words(stage);
        let own = DomainId(Context0::from(descriptor[0].load(Ordering::Acquire)).asid());
        let other = DomainId(own.0 ^ 0x80);
        behind.unmap(buffer.at, FRAME)?;
        let page = buffer.at.0 / FRAME;
        let pages = |domain, first| {
            let range = IovaRange::new(first, 1).expect("not the first page");
            Command::Pages { domain, range, leaf_only: true }
        };
        // A page is told as two, so the neighbour is the page after the next, and the one before
        // the last.
        let told = [
            pages(other, page),
            pages(own, page + 1),
            pages(own, page - 2),
            Command::Domain(other),
        ];
        stage.iommu.tell(&told);
        if !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("the unit forgets what it was not told to forget"));
        }
        behind.domain.flush()?;
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// What the unit is told of a device's entry is two commands. Both are refused, one after the
/// other, and told as two errors.
fn refused_configuration(stage: &Stage<Smmu>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let (iommu, device) = (stage.iommu, stage.device());
        let [stream, _] = words(stage);
        let stream = &stream[0];
        let before = stream.swap(0, Ordering::AcqRel);
        let marred = mar(SECURE, u32::MAX);
        let submitted = iommu.queue().submit(&[Command::Config { device, domain: DomainId(0) }]);
        drop(marred);
        let ticket = submitted?;
        if !iommu.stands_still() || !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("the unit has taken a command that is none"));
        }
        let mut told = 0;
        for _ in 0..200 {
            match iommu.queue().completed() {
                Ok(done) if done >= ticket => break,
                Ok(_) => {}
                Err(QueueError::Refused) => told += 1,
                Err(error) => return Err(Broken::Queue(error)),
            }
        }
        let landed = stage.lands(buffer.at, buffer.frame);
        let recorded = iommu.fault().map(|fault| fault.kind);
        stream.store(before, Ordering::Release);
        iommu.tell(&[Command::Config { device, domain: DomainId(0) }]);
        if told != 2 || iommu.stands_still() {
            return Err(Broken::Wrong("an error was not told once, or stays"));
        }
        if !landed && recorded != Some(FaultKind::Configuration) {
            return Err(Broken::Wrong("a stream without an entry left no record"));
        }
        Ok(u32::from(landed))
    })
}

/// The unit can't read a command: its memory answers with an error, once. The queue stands still,
/// and reads it again.
fn unread(stage: &Stage<Smmu>) -> Outcome {
    /// Behind all that `virt` has.
    const NOWHERE: u64 = 1 << 43;
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        let registers = stage.iommu.bus();
        // A neighbour that stays: an empty table would be told of as well.
        behind.map()?;
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        let base = CommandQueue::read(registers);
        base.with_address(NOWHERE >> 5).write(registers);
        let polled = behind.domain.poll(1 << 40);
        base.write(registers);
        polled?;
        if !stage.iommu.stands_still() {
            return Err(Broken::NotObservable("the unit reads where there is nothing"));
        }
        if !host::is_held(buffer.frame) || !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Wrong("the page was let go while the queue stands still"));
        }
        let told = refusals(behind)?;
        if told != 1 || behind.domain.deferred() != (0, 0) || host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the queue does not go on, or the error was not told once"));
        }
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// An event can't be written, and a command is refused: two errors of one register. Who mends the
/// command queue leaves the other one to the host.
fn two_errors(stage: &Stage<Smmu>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        // The first is a neighbour that stays: an empty table would be told of as well.
        behind.map()?;
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let nowhere = behind.given(2) * FRAME;
        let lost = || stage.iommu.errors().event_abort();
        // An access of 64 bytes is sixteen events in QEMU; the queue has room for 128.
        (0..12).for_each(|access| stage.edu.write_to(nowhere + 64 * access, 0, 64));
        if !lost() {
            // As the specification wants it: events that find no room set a bit of EVENTQ_PROD.
            return Err(Broken::NotObservable("a full event queue is no error"));
        }
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        let marred = mar(Smmu::COMMAND, u32::MAX);
        let polled = behind.domain.poll(1 << 40);
        drop(marred);
        polled?;
        if !stage.iommu.stands_still() {
            return Err(Broken::Premise("the unit has taken a command that is none"));
        }
        let told = refusals(behind)?;
        if told != 1 || stage.iommu.stands_still() || host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the queue does not go on, or the error was not told once"));
        }
        if !lost() {
            return Err(Broken::Wrong("the library has acknowledged an error that is the host's"));
        }
        stage.clear_faults();
        let aborted = Gerror::new().with_event_abort(true);
        stage.iommu.acknowledge(aborted).map_err(|_| Broken::Wrong("nobody is at the queue"))?;
        Ok(u32::from(behind.reaches(buffer)?) + u32::from(lost()))
    })
}

/// Ranges of lengths that take one piece or several: the first page, the last and one between are
/// gone.
fn ranges(stage: &Stage<Smmu>) -> Outcome {
    const LENGTHS: [u64; 6] = [2, 3, 5, 32, 33, 71];
    let large = memory::allocate_large().ok_or(Broken::Premise("memory has no frame of 2 MiB"))?;
    let outcome = stage.with(Config::new(1), |behind| {
        let mut stale = 0;
        for length in LENGTHS {
            let at = behind.map_memory(PhysAddr(large), length * FRAME)?;
            let some = [0, length / 2, length - 1].map(|page| Buffer {
                frame: large + page * FRAME,
                at: DmaAddr(at.0 + page * FRAME),
            });
            some.iter().try_for_each(|buffer| {
                memory::fill(buffer.frame, 0);
                behind.warm(*buffer)
            })?;
            stage.change(Muffle::Everything);
            behind.unmap(at, length * FRAME)?;
            stage.listen();
            for buffer in some {
                stale += u32::from(stage.lands(buffer.at, buffer.frame));
            }
            if stage.queue != Queue::Told {
                stage.iommu.tell(&[Command::All]);
            }
        }
        Ok(stale)
    });
    memory::free_large(large);
    outcome
}

/// Ten rounds of the ring, and every invalidation of them is heard.
fn rounds(stage: &Stage<Smmu>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        // Above the index is a bit that says whether the number of rounds is odd.
        let round = || CommandCons::read(stage.iommu.bus()).position() as usize & SLOTS;
        let (mut last, mut turns) = (round(), 0);
        for _ in 0..5 * SLOTS {
            let page = behind.map()?;
            behind.unmap(page.at, FRAME)?;
            stage.give_up(page.frame);
            turns += u32::from(round() != last);
            last = round();
        }
        // A command and a SYNC for each.
        if turns < 10 {
            return Err(Broken::Wrong("the unit has not come around"));
        }
        behind.warm(buffer)?;
        stage.change(Muffle::Everything);
        behind.unmap(buffer.at, FRAME)?;
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

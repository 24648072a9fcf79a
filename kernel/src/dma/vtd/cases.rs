//! Cases that only VT-d's queue has: descriptors that are refused, and others than were asked for.

use core::sync::atomic::Ordering;

use shootdown_dma::domain::Config;
use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::Port;
use shootdown_dma::{DomainId, IovaRange, Policy};

use super::Vtd;
use super::marred::{Mar, mar};
use super::registers::FSTS;
use crate::dma::host;
use crate::dma::registers::word;
use crate::dma::suite::{Broken, Case, Outcome, Stage};
use crate::memory::FRAME;

pub const CASES: &[Case<Vtd>] = &[
    Case::new("others-are-told", others_are_told).with_control_inside(),
    Case::new("refused-command", refused_command).with_control_inside(),
    Case::new("refused-wait", refused_wait).with_control_inside(),
];

/// Neighbours, another domain and the device's entry are forgotten: the unit keeps what it has (the control). Then the page
/// alone is.
fn others_are_told(stage: &Stage<Vtd>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        let (buffer, device) = (behind.map()?, stage.device());
        behind.warm(buffer)?;
        let own =
            DomainId((word(stage.iommu.context(device) + 8).load(Ordering::Acquire) >> 8) as u16);
        let other = DomainId(own.0 ^ 0x80);
        behind.domain.unmap(buffer.at, FRAME)?;
        let page = buffer.at.0 / FRAME;
        let pages = |domain, first, pages| {
            let range = IovaRange::new(first, pages).expect("not the first page");
            Command::Pages { domain, range, leaf_only: true }
        };
        // Fewer than 256 pages, or QEMU forgets the domain; and the block of 32 next to the page's own.
        let block = (page & !31) ^ 32;
        stage.iommu.tell(&[
            pages(other, page, 1),
            pages(own, page ^ 1, 1),
            pages(own, block, 32),
            Command::Domain(other),
            Command::Config { device, domain: own },
        ]);
        if !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("the unit forgets what it was not told to forget"));
        }
        stage.iommu.tell(&[pages(own, page, 1)]);
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// FSTS: the descriptor at the head is not taken.
const IQE: u32 = 1 << 4;

/// The unit refuses a descriptor: the queue stands still (the control: nothing is forgotten, nothing is given back), and
/// goes on when somebody looks.
fn refused(stage: &Stage<Vtd>, what: Mar) -> Outcome {
    let port = stage.iommu.queue.port();
    stage.with(Config::new(1).policy(Policy::Held), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.domain.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        mar(what);
        // Sealed and submitted here, and not looked at for errors yet.
        let polled = behind.domain.poll(1 << 40);
        mar(Mar::Nothing);
        polled?;
        if port.read32(FSTS) & IQE == 0 {
            return Err(Broken::Premise("the unit has taken a descriptor that is none"));
        }
        if !host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the page was let go while the queue stands still"));
        }
        let reached = stage.lands(buffer.at, buffer.frame);
        // A command that was refused has done nothing; before a wait all commands were taken.
        if reached != (what == Mar::Commands) {
            return Err(Broken::Premise("what was refused is not what was marred"));
        }
        let mut told = 0;
        for turn in 2..200 {
            told += u32::from(behind.domain.poll(turn << 40).is_err());
            if behind.domain.owes() == (0, 0) {
                break;
            }
        }
        if behind.domain.owes() != (0, 0) || host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the queue does not go on"));
        }
        if told != 1 || port.read32(FSTS) & IQE != 0 {
            return Err(Broken::Wrong("the error was not told once, or stays"));
        }
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

fn refused_command(stage: &Stage<Vtd>) -> Outcome {
    refused(stage, Mar::Commands)
}

fn refused_wait(stage: &Stage<Vtd>) -> Outcome {
    refused(stage, Mar::Wait)
}

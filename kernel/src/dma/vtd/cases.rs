//! Cases that only VT-d has: it is told of others than it was asked for.

use core::sync::atomic::Ordering;

use shootdown_dma::domain::Config;
use shootdown_dma::invalidate::Command;
use shootdown_dma::{DomainId, IovaRange, Policy};
use shootdown_iommu::vtd::entries::ContextHigh;

use super::Vtd;
use crate::dma::iommu::Iommu;
use crate::dma::suite::{Broken, Case, Outcome, Stage};
use crate::memory::FRAME;

pub const CASES: &[Case<Vtd>] =
    &[Case::new("others-are-told", others_are_told).with_control_inside()];

/// Neighbours, another domain and the device's entry are forgotten: the unit keeps what it has (the
/// control). Then the page alone is.
fn others_are_told(stage: &Stage<Vtd>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        let (buffer, device) = (behind.map()?, stage.device());
        behind.warm(buffer)?;
        // SAFETY: it is only read.
        let entry = unsafe { stage.iommu.entry(device) }.expect("the device is admitted");
        let own = DomainId(ContextHigh::from(entry[1].load(Ordering::Acquire)).domain());
        let other = DomainId(own.0 ^ 0x80);
        behind.unmap(buffer.at, FRAME)?;
        let page = buffer.at.0 / FRAME;
        let pages = |domain, first, pages| {
            let range = IovaRange::new(first, pages).expect("not the first page");
            Command::Pages { domain, range, leaf_only: true }
        };
        // Fewer than 256 pages, or QEMU forgets the domain; and the block of 32 next to the page's
        // own.
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

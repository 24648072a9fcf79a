//! Where a device is, and by which addresses it reaches memory: domains that it changes, windows,
//! identity.

use shootdown_dma::domain::{Config, DmaAddr};
use shootdown_dma::iova::identity::{Layout, LeafSize};
use shootdown_dma::table::Format;
use shootdown_dma::{PhysAddr, Policy, Rights};

use super::{Behind, Broken, Buffer, Case, Outcome, Stage};
use crate::dma::host::Muffle;
use crate::dma::iommu::{FaultKind, Iommu};
use crate::memory::{self, FRAME};

pub const fn cases<I: Iommu>() -> &'static [Case<I>] {
    const {
        &[
            Case::new("leave", leave),
            Case::new("leave-configuration", leave_configuration),
            Case::new("leave-translations", leave_translations),
            Case::new("change-domain", change_domain),
            Case::new("id-reuse", id_reuse),
            Case::new("window", window).with_control_inside(),
            Case::new("identity", identity),
            Case::new("identity-shared", identity_shared),
        ]
    }
}

/// The device leaves its domain, whose page stays mapped; `lost` is what the control does not tell.
fn leave_with<I: Iommu>(stage: &Stage<I>, lost: Muffle) -> Outcome {
    let id = stage.new_id();
    let domain = stage.domain(Config::new(1), &stage.space(), id)?;
    let attachment = stage.join(&domain, id)?;
    let behind = Behind { stage, domain: &domain };
    let buffer = behind.give(behind.given(1), stage.frame()?, Rights::ReadWrite)?;
    let warmed = behind.load().and_then(|()| behind.warm(buffer));
    stage.change(lost);
    let left = stage.leave(&domain, attachment);
    let landed = stage.lands(buffer.at, buffer.frame);
    let recorded = if landed || !stage.iommu.records_faults() {
        Ok(())
    } else {
        stage.expect_fault(buffer.at, FaultKind::Configuration)
    };
    stage.end(domain, id)?;
    warmed.and(left).and(recorded)?;
    Ok(u32::from(landed))
}

fn leave<I: Iommu>(stage: &Stage<I>) -> Outcome {
    leave_with(stage, Muffle::Everything)
}

/// The control tells the translations, and not the entry: whoever finds the entry asks again.
fn leave_configuration<I: Iommu>(stage: &Stage<I>) -> Outcome {
    leave_with(stage, Muffle::Configurations)
}

/// The control tells the entry, and not the translations.
fn leave_translations<I: Iommu>(stage: &Stage<I>) -> Outcome {
    leave_with(stage, Muffle::Translations)
}

/// From one domain to another one, in which something else is at the same address.
fn change_domain<I: Iommu>(stage: &Stage<I>) -> Outcome {
    let (first, second) = (stage.new_id(), stage.new_id());
    moved(stage, first, second, false)
}

/// The same, where the first domain has ended and the second got its id.
fn id_reuse<I: Iommu>(stage: &Stage<I>) -> Outcome {
    let id = stage.new_id();
    moved(stage, id, id, true)
}

fn moved<I: Iommu>(
    stage: &Stage<I>,
    first: shootdown_dma::DomainId,
    second: shootdown_dma::DomainId,
    muffle_all: bool,
) -> Outcome {
    let old_domain = stage.domain(Config::new(1), &stage.space(), first)?;
    let attachment = stage.join(&old_domain, first)?;
    let old = Behind { stage, domain: &old_domain };
    let page = old.given(1);
    let buffer = old.give(page, stage.frame()?, Rights::ReadWrite)?;
    old.load()?;
    let warmed = old.warm(buffer);
    stage.change(if muffle_all { Muffle::Everything } else { Muffle::Configurations });
    let left = stage.leave(&old_domain, attachment);
    let new_domain = stage.domain(Config::new(1), &stage.space(), second)?;
    let attachment = stage.join(&new_domain, second)?;
    let new = Behind { stage, domain: &new_domain };
    let other = new.give(page, stage.frame()?, Rights::ReadWrite)?;
    let stale = stage.compare(other.at, buffer.frame, other.frame);
    stage.listen();
    stage.leave(&new_domain, attachment)?;
    stage.end(new_domain, second)?;
    stage.end(old_domain, first)?;
    warmed.and(left)?;
    stale
}

/// All of memory, one to one, for a device that is trusted. The control: without the window the
/// policy is refused.
fn window<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).trusted(), |behind| {
        let frame = stage.frame()?;
        let bypass =
            || behind.domain.map_under(Policy::Bypass, PhysAddr(frame), FRAME, Rights::ReadWrite);
        if bypass().is_ok() {
            return Err(Broken::Wrong("there is no window yet"));
        }
        // As much as the pool of frames lies in.
        let pages = (frame / FRAME + 1).next_multiple_of(1 << 18);
        let window =
            behind.domain.open_window(pages).map_err(|_| Broken::Wrong("no window is opened"))?;
        let at = bypass()?.into_raw();
        if at != DmaAddr(window.0 + frame) {
            return Err(Broken::Wrong("the window is not one to one"));
        }
        if !stage.reaches(at, frame)? {
            return Err(Broken::Wrong("the window leads elsewhere"));
        }
        behind.unmap(at, FRAME)?;
        // It stays, as promised: there is no protection.
        let stays = stage.lands(at, frame);
        if stays { Ok(0) } else { Err(Broken::Wrong("the window was closed")) }
    })
}

/// The layout of addresses that follow from the memory's.
fn layout<I: Iommu>(stage: &Stage<I>) -> Result<Layout<'static>, Broken> {
    let bits = stage.iommu.address_bits() - 12;
    // An entry of the top table: nine bits less than the tables resolve.
    let top = 9 * (stage.iommu.tables().levels() - 1);
    Layout::new(bits, top, LeafSize::Page)
        .map_err(|_| Broken::Premise("the unit translates too few bits for zones"))
}

/// Unmaps a page that so many users have mapped: it stays until the last of them is done.
fn until_the_last<I: Iommu>(behind: &Behind<'_, I>, buffer: Buffer, users: u32) -> Outcome {
    let stage = behind.stage;
    stage.change(Muffle::Everything);
    for _ in 1..users {
        behind.unmap(buffer.at, FRAME)?;
    }
    if !stage.lands(buffer.at, buffer.frame) {
        return Err(Broken::Wrong("a page in use was unmapped"));
    }
    behind.unmap(buffer.at, FRAME)?;
    memory::fill(buffer.frame, 0);
    Ok(u32::from(behind.reaches(buffer)?))
}

/// Addresses that follow from the memory's.
fn identity<I: Iommu>(stage: &Stage<I>) -> Outcome {
    let layout = layout(stage)?;
    stage.with_space(Config::new(1).identity(layout), &layout.fallback().from(0x1000), |behind| {
        let buffer = behind.map()?;
        let zone = layout.zone_pages() * FRAME;
        if buffer.at.0 % zone != buffer.frame {
            return Err(Broken::Wrong("the address does not follow from the memory's"));
        }
        behind.warm(buffer)?;
        // The same page twice: it stays until both are gone.
        let twice = behind.map_memory(PhysAddr(buffer.frame), FRAME)?;
        if twice != buffer.at {
            return Err(Broken::Wrong("the same page has two addresses"));
        }
        until_the_last(behind, buffer, 2)
    })
}

/// A page that more share than an entry counts (VT-d's counts 510, AMD-Vi's 14, Arm's 2): it stays
/// until the last of them is done.
fn identity_shared<I: Iommu>(stage: &Stage<I>) -> Outcome {
    const USERS: u32 = 600;
    let layout = layout(stage)?;
    stage.with_space(Config::new(1).identity(layout), &layout.fallback().from(0x1000), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let tables = behind.domain.table_pages();
        for _ in 1..USERS {
            let at = behind.map_memory(PhysAddr(buffer.frame), FRAME)?;
            if at != buffer.at {
                return Err(Broken::Wrong("who comes too many is sent elsewhere"));
            }
        }
        if behind.domain.table_pages() == tables {
            return Err(Broken::Premise("no side table was made"));
        }
        until_the_last(behind, buffer, USERS)
    })
}

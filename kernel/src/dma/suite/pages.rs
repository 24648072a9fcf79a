//! What is mapped: reached, taken away, replaced, narrowed, in pages of all sizes.

use shootdown_dma::domain::Config;
use shootdown_dma::{IovaRange, PhysAddr, Rights};

use super::{Behind, Broken, Case, Outcome, Queue, Stage};
use crate::dma::host::{self, Muffle};
use crate::dma::iommu::{FaultKind, Iommu};
use crate::memory::{self, FRAME};

pub const fn cases<I: Iommu>() -> &'static [Case<I>] {
    const {
        &[
            Case::new("translates", translates).with_control_inside(),
            Case::new("faults", faults).with_control_inside(),
            Case::new("faults-lost", faults_lost).with_control_inside(),
            Case::new("absence", absence),
            Case::new("unmap", unmap),
            Case::new("unmap-read", unmap_read),
            Case::new("unmap-one-of-two", unmap_one_of_two),
            Case::new("unmap-many", unmap_many),
            Case::new("replace", replace),
            Case::new("narrow", narrow),
            Case::new("superpage", superpage),
            Case::new("superpage-split", superpage_split),
            Case::new("table-freed", table_freed),
        ]
    }
}

/// A device reaches what is mapped, where it is mapped, and nothing where nothing is: not by the
/// physical address either.
fn translates<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let frame = stage.frame()?;
        let wild = shootdown_dma::DmaAddr(frame);
        if stage.lands(wild, frame) {
            return Err(Broken::Wrong("a device reaches memory by its physical address"));
        }
        let buffer = behind.map()?;
        if buffer.at.0 == buffer.frame {
            return Err(Broken::Premise("the address is the physical one, by chance"));
        }
        behind.warm(buffer)?;
        // In the middle of the page as well.
        let inside = 0x7f8;
        stage.edu.write_to(buffer.at.0 + inside, 0, 8);
        // SAFETY: within a frame of the case.
        let seen = unsafe { memory::at(buffer.frame + inside).cast::<u64>().read_volatile() };
        if seen != stage.stamp {
            return Err(Broken::Wrong("the middle of a page is not where it should be"));
        }
        behind.unmap(buffer.at, FRAME)?;
        Ok(0)
    })
}

/// What is refused is recorded: who, where, reading or writing. What is allowed is not (the
/// control).
fn faults<I: Iommu>(stage: &Stage<I>) -> Outcome {
    if !stage.iommu.records_faults() {
        return Err(Broken::NotObservable("the unit records nothing"));
    }
    stage.with(Config::new(1), |behind| {
        let (open, closed) = (behind.given(1), behind.given(2));
        let buffer = behind.give(open, stage.frame()?, Rights::Read)?;
        stage.clear_faults();
        if behind.fetch(buffer.at).is_none() || stage.iommu.fault().is_some() {
            return Err(Broken::Wrong("an access that is allowed is refused, or recorded"));
        }
        let nowhere = shootdown_dma::DmaAddr(closed << 12);
        stage.clear_faults();
        stage.edu.write_to(nowhere.0, 0, 8);
        stage.expect_fault(nowhere, FaultKind::Translation { write: true })?;
        stage.clear_faults();
        stage.edu.read(nowhere.0, 0, 8);
        stage.expect_fault(nowhere, FaultKind::Translation { write: false })?;
        stage.clear_faults();
        Ok(u32::from(stage.iommu.fault().is_some()))
    })
}

/// More accesses are refused than the unit keeps records of. When they were read it records again,
/// and it is told of what is unmapped meanwhile.
fn faults_lost<I: Iommu>(stage: &Stage<I>) -> Outcome {
    /// Of 64 bytes each, of which some units record every four: more than any log here has room
    /// for.
    const ACCESSES: u64 = 12;
    if !stage.iommu.records_faults() {
        return Err(Broken::NotObservable("the unit records nothing"));
    }
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        let nowhere = shootdown_dma::DmaAddr(behind.given(2) << 12);
        for access in 0..ACCESSES {
            stage.edu.write_to(nowhere.0 + 64 * access, 0, 64);
        }
        behind.unmap(buffer.at, FRAME)?;
        stage.expect_fault(nowhere, FaultKind::Translation { write: true })?;
        stage.clear_faults();
        let stale = behind.reaches(buffer)?;
        stage.clear_faults();
        Ok(u32::from(stale))
    })
}

/// A device asks for a page that is not there, and then it is. Only units that remember absence can
/// miss it.
fn absence<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let (page, frame) = (behind.given(1), stage.frame()?);
        if stage.reaches(shootdown_dma::DmaAddr(page << 12), frame)? {
            return Err(Broken::Premise("nothing is mapped, and it is reached"));
        }
        stage.change(Muffle::Everything);
        let before = host::told();
        let buffer = behind.give(page, frame, Rights::ReadWrite)?;
        // Only such units are told of what appears.
        let expected = u64::from(stage.queue == Queue::Told && stage.iommu.remembers_absence());
        if host::told() - before != expected {
            return Err(Broken::Wrong(
                "the unit was told of what was mapped, or not, against its nature",
            ));
        }
        Ok(u32::from(!behind.reaches(buffer)?))
    })
}

/// Unmapped; the frame is somebody else's at once.
fn unmap<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        stage.change(Muffle::Everything);
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        if stage.frame()? != buffer.frame {
            return Err(Broken::Premise("the allocator hands out another frame first"));
        }
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// The same, with a device that reads what the next owner keeps there.
fn unmap_read<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        if behind.fetch(buffer.at).is_none() {
            return Err(Broken::Premise("what is mapped is not read"));
        }
        stage.change(Muffle::Everything);
        behind.unmap(buffer.at, FRAME)?;
        memory::fill(buffer.frame, 0x5ec2_e75e_c2e7_5ec2);
        Ok(u32::from(behind.fetch(buffer.at) == Some(0x5ec2_e75e_c2e7_5ec2)))
    })
}

/// One of two neighbours is unmapped: the other stays.
fn unmap_one_of_two<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let page = behind.given(1);
        let goes = behind.give(page, stage.frame()?, Rights::ReadWrite)?;
        let stays = behind.give(page + 1, stage.frame()?, Rights::ReadWrite)?;
        behind.warm(goes)?;
        behind.warm(stays)?;
        stage.change(Muffle::Everything);
        behind.unmap_at(Behind::<I>::page(page))?;
        let stale = behind.reaches(goes)?;
        if !behind.reaches(stays)? {
            return Err(Broken::Wrong("the neighbour was unmapped as well"));
        }
        Ok(u32::from(stale))
    })
}

/// Runs a case with a large frame.
fn with_large(case: impl FnOnce(u64) -> Outcome) -> Outcome {
    let frame = memory::allocate_large().ok_or(Broken::Premise("memory has no frame of 2 MiB"))?;
    let outcome = case(frame);
    memory::free_large(frame);
    outcome
}

/// So many pages that the unit is told blocks that cover them.
fn unmap_many<I: Iommu>(stage: &Stage<I>) -> Outcome {
    with_large(|large| {
        const PAGES: u64 = 300;
        stage.with(Config::new(1), |behind| {
            let at = behind.map_memory(PhysAddr(large), PAGES * FRAME)?;
            let some = [0, 7, 131, PAGES - 1].map(|n| super::Buffer {
                frame: large + n * FRAME,
                at: shootdown_dma::DmaAddr(at.0 + n * FRAME),
            });
            some.iter().try_for_each(|buffer| {
                memory::fill(buffer.frame, 0);
                behind.warm(*buffer)
            })?;
            stage.change(Muffle::Everything);
            behind.unmap(at, PAGES * FRAME)?;
            let mut stale = 0;
            for buffer in some {
                stale += u32::from(behind.reaches(buffer)?);
            }
            Ok(stale)
        })
    })
}

/// Another frame takes the place of a page's.
fn replace<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let page = behind.given(1);
        let old = behind.give(page, stage.frame()?, Rights::ReadWrite)?;
        behind.warm(old)?;
        stage.change(Muffle::Everything);
        behind.unmap_at(Behind::<I>::page(page))?;
        let new = behind.give(page, stage.frame()?, Rights::ReadWrite)?;
        stage.compare(new.at, old.frame, new.frame)
    })
}

/// A page may be read only from now on.
fn narrow<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1), |behind| {
        let page = behind.given(1);
        let buffer = behind.give(page, stage.frame()?, Rights::ReadWrite)?;
        behind.warm(buffer)?;
        stage.change(Muffle::Everything);
        behind.unmap_at(Behind::<I>::page(page))?;
        behind.give(page, buffer.frame, Rights::Read)?;
        // QEMU's VT-d records nothing when it refuses what it has cached: where the access ends is
        // looked at, no more.
        let stale = stage.lands(buffer.at, buffer.frame);
        if behind.fetch(buffer.at).is_none() {
            return Err(Broken::Wrong("what may be read is not"));
        }
        Ok(u32::from(stale))
    })
}

/// Where a range of 2 MiB is, for the cases with such.
const LARGE_AT: u64 = 0x600;

fn large_range() -> IovaRange {
    IovaRange::new(LARGE_AT, 512).expect("not empty")
}

/// One leaf of 2 MiB.
fn superpage<I: Iommu>(stage: &Stage<I>) -> Outcome {
    with_large(|large| {
        stage.with(Config::new(1), |behind| {
            let buffers = map_large(behind, large)?;
            stage.change(Muffle::Everything);
            behind.unmap_at(large_range())?;
            let mut stale = 0;
            for buffer in buffers {
                stale += u32::from(behind.reaches(buffer)?);
            }
            Ok(stale)
        })
    })
}

/// Maps a large frame by one leaf, and lets the device use two places of it.
fn map_large<I: Iommu>(behind: &Behind<'_, I>, large: u64) -> Result<[super::Buffer; 2], Broken> {
    behind.map_at(large_range(), PhysAddr(large), Rights::ReadWrite)?;
    let buffers = [9, 400].map(|n| super::Buffer {
        frame: large + n * FRAME,
        at: shootdown_dma::DmaAddr((LARGE_AT + n) * FRAME),
    });
    // What is left of the leaf from its start: all of it.
    let leaf = behind.domain.lookup(shootdown_dma::DmaAddr(LARGE_AT * FRAME));
    if leaf.is_none_or(|(_, bytes, _)| bytes != memory::LARGE_FRAME) {
        return Err(Broken::Premise("the unit has no leaves of 2 MiB"));
    }
    for buffer in buffers {
        memory::fill(buffer.frame, 0);
        behind.warm(buffer)?;
    }
    Ok(buffers)
}

/// A leaf of 2 MiB goes, and a page of 4 KiB comes in its place.
fn superpage_split<I: Iommu>(stage: &Stage<I>) -> Outcome {
    with_large(|large| {
        stage.with(Config::new(1), |behind| {
            let [old, _] = map_large(behind, large)?;
            stage.change(Muffle::Everything);
            behind.unmap_at(large_range())?;
            let new = behind.give(old.at.0 / FRAME, stage.frame()?, Rights::ReadWrite)?;
            stage.compare(new.at, old.frame, new.frame)
        })
    })
}

/// A table goes, and its frame becomes something that looks like a table to others' memory. Only
/// units that remember where tables are can be led there.
fn table_freed<I: Iommu>(stage: &Stage<I>) -> Outcome {
    use shootdown_dma::table::Format;
    stage.with(Config::new(1), |behind| {
        // In a table of its own.
        let page = 0x4_0000 + behind.given(1);
        let canary = stage.frame()?;
        let buffer = behind.give(page, stage.frame()?, Rights::ReadWrite)?;
        behind.warm(buffer)?;
        let before = behind.domain.table_pages();
        behind.unmap_at(Behind::<I>::page(page))?;
        stage.change(Muffle::Everything);
        // The CPU's epoch slot leaves the table for another one: no table is freed that it
        // remembers.
        behind.give(behind.given(2), stage.frame()?, Rights::ReadWrite)?;
        // Far past every bound; and again, as what is found empty is freed when that is complete.
        for turn in 1..4u64 {
            behind.domain.poll(turn << 40)?;
        }
        let freed = before - behind.domain.table_pages();
        if freed == 0 {
            return Err(Broken::Premise("the empty table was not freed"));
        }
        let leaf = stage.iommu.tables().leaf(PhysAddr(canary), Rights::ReadWrite, 0);
        for _ in 0..freed {
            memory::fill(stage.frame()?, leaf);
        }
        // A neighbour in the same table, which is cached nowhere.
        let neighbour =
            super::Buffer { frame: canary, at: shootdown_dma::DmaAddr((page + 1) << 12) };
        Ok(u32::from(behind.reaches(neighbour)?))
    })
}

//! What unmapping promises: strict (`pages.rs`), strict-ish, lazy; and what becomes of addresses.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shootdown_dma::domain::{Config, DmaAddr, Limits};
use shootdown_dma::{IovaRange, PhysAddr, Policy, Rights};

use super::{Broken, Case, Outcome, Stage};
use crate::arch;
use crate::dma::host::{self, Muffle};
use crate::dma::iommu::Iommu;
use crate::memory::{self, FRAME};
use crate::work;

pub const fn cases<I: Iommu>() -> &'static [Case<I>] {
    const {
        &[
            Case::new("strict-ish", strict_ish),
            Case::new("strict-ish-full", strict_ish_full),
            Case::new("lazy", lazy),
            Case::new("lazy-addresses", lazy_addresses),
            Case::new("strict-for-once", strict_for_once),
            Case::new("rounds", rounds),
            Case::new("concurrent", concurrent).with_others(),
        ]
    }
}

/// The times that `poll` is told, in nanoseconds: the bound is between the second and the third.
const BEGIN: u64 = 1 << 40;
const BEFORE: u64 = BEGIN + 9_000_000;
const AFTER: u64 = BEGIN + 20_000_000;

/// Polls until nothing is owed. What is found then, empty tables, is told the next time that the
/// bound is over.
fn settle<I: Iommu>(domain: &super::stage::Dom<I>) -> Result<(), Broken> {
    for turn in 0..100 {
        domain.poll(AFTER + turn * (AFTER - BEGIN))?;
        if domain.deferred() == (0, 0) {
            return Ok(());
        }
        arch::relax();
    }
    Err(Broken::Wrong("what is owed is not given back"))
}

/// Unmapping returns at once, and the device may still reach the page; but nobody else has it
/// before the device can't. Its owner lets go of it meanwhile.
fn strict_ish<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Deferred), |behind| {
        behind.domain.poll(BEGIN)?;
        // A neighbour that stays: were the table empty, the unit would be told of that as well, and
        // forget the page by chance.
        behind.map()?;
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        if !host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the page was let go before the invalidation"));
        }
        if !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("the device does not reach what nobody told it to forget"));
        }
        behind.domain.poll(BEFORE)?;
        if !host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the page was let go before the invalidation"));
        }
        stage.change(Muffle::Everything);
        settle(behind.domain)?;
        if host::is_held(buffer.frame) {
            return Err(Broken::Wrong("the page is still held, though nothing is owed"));
        }
        if stage.frame()? != buffer.frame {
            return Err(Broken::Premise("the allocator hands out another frame first"));
        }
        // It is somebody else's now.
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// More than may be owed: then it is strict.
fn strict_ish_full<I: Iommu>(stage: &Stage<I>) -> Outcome {
    let limits = Limits { entries: 4, flush_at: 4, ..Limits::DEFAULT };
    stage.with(Config::new(1).policy(Policy::Deferred).limits(limits), |behind| {
        let buffers = [behind.map()?, behind.map()?, behind.map()?, behind.map()?, behind.map()?];
        for buffer in buffers {
            behind.warm(buffer)?;
        }
        stage.change(Muffle::Everything);
        for buffer in buffers {
            behind.unmap(buffer.at, FRAME)?;
        }
        if behind.domain.counts().forced_waits + behind.domain.counts().flushes == 0 {
            return Err(Broken::Wrong("the bound was passed, and nothing came of it"));
        }
        settle(behind.domain)?;
        let mut stale = 0;
        for buffer in buffers {
            stale += u32::from(behind.reaches(buffer)?);
        }
        Ok(stale)
    })
}

/// Unmapping returns at once, and the page is somebody else's: until the bound the device reaches
/// it, after that it does not.
fn lazy<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        behind.domain.poll(BEGIN)?;
        // A neighbour that stays: were the table empty, the unit would be told of that as well, and
        // forget the page by chance.
        behind.map()?;
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        behind.unmap(buffer.at, FRAME)?;
        stage.give_up(buffer.frame);
        if stage.frame()? != buffer.frame {
            return Err(Broken::Premise("the allocator hands out another frame first"));
        }
        // The window that lazy leaves open, for all to see.
        behind.domain.poll(BEFORE)?;
        if !stage.lands(buffer.at, buffer.frame) {
            return Err(Broken::Premise("the device does not reach what nobody told it to forget"));
        }
        stage.change(Muffle::Everything);
        settle(behind.domain)?;
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// Under lazy too an address is nobody's before it is forgotten: what is mapped next is elsewhere.
fn lazy_addresses<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        let old = behind.map()?;
        behind.warm(old)?;
        behind.unmap(old.at, FRAME)?;
        for _ in 0..8 {
            if behind.map()?.at == old.at {
                return Err(Broken::Wrong("an address is used again before it is forgotten"));
            }
        }
        stage.change(Muffle::Everything);
        settle(behind.domain)?;
        // Now it may be; the control shows what comes of it too early.
        let mut again = behind.map()?;
        for _ in 0..64 {
            if again.at == old.at {
                break;
            }
            again = behind.map()?;
        }
        if again.at != old.at {
            return Err(Broken::Premise("the address does not come back"));
        }
        Ok(u32::from(stage.lands(again.at, old.frame)))
    })
}

/// One buffer of a lazy domain, of which the driver has to be sure.
fn strict_for_once<I: Iommu>(stage: &Stage<I>) -> Outcome {
    stage.with(Config::new(1).policy(Policy::Lazy), |behind| {
        let buffer = behind.map()?;
        behind.warm(buffer)?;
        stage.change(Muffle::Everything);
        behind.unmap_under(Policy::Strict, buffer.at, FRAME)?;
        memory::fill(buffer.frame, 0);
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// Ten rounds of the ring, which has a page, and every invalidation of them is heard.
fn rounds<I: Iommu>(stage: &Stage<I>) -> Outcome {
    // A command of 16 bytes and a wait for each.
    const TURNS: u64 = 10 * FRAME / 32;
    stage.with(Config::new(1), |behind| {
        let buffer = behind.map()?;
        let before = host::told();
        for _ in 0..TURNS {
            let page = behind.map()?;
            behind.unmap(page.at, FRAME)?;
            stage.give_up(page.frame);
        }
        if host::told() - before < TURNS {
            return Err(Broken::Wrong("the unit was not told of every unmapping"));
        }
        behind.warm(buffer)?;
        stage.change(Muffle::Everything);
        behind.unmap(buffer.at, FRAME)?;
        Ok(u32::from(behind.reaches(buffer)?))
    })
}

/// Frames that a CPU of the next case has had behind its page, and keeps for itself.
const PAST: usize = 24;

/// Every other CPU maps frame after frame at a page of its own and unmaps it again, while the
/// device writes to all of those pages. What was unmapped is the CPU's own: no write may land
/// there.
fn concurrent<I: Iommu>(stage: &Stage<I>) -> Outcome {
    const COPIES: u32 = 12;
    let others = stage.cpus - 1;
    stage.with(Config::new(stage.cpus as usize), |behind| {
        let (over, stale, failed) =
            (AtomicBool::new(false), AtomicU32::new(0), AtomicBool::new(false));
        let page = |cpu: u32| behind.given(u64::from(cpu) + 1);
        let map = |cpu: u32, frame: u64| {
            let range = IovaRange::new(page(cpu), 1).expect("not the first page");
            behind.map_at(range, PhysAddr(frame), Rights::ReadWrite).map(|()| range)
        };
        // Warm, so that the control has something to forget; these frames are this CPU's own from
        // then on.
        let mut warm = [0; crate::MAX_CPUS as usize];
        for cpu in 1..=others {
            let frame = stage.frame()?;
            warm[cpu as usize] = frame;
            let range = map(cpu, frame)?;
            let landed = stage.lands(DmaAddr(page(cpu) * FRAME), frame);
            stage.change(Muffle::Everything);
            behind.unmap_at(range)?;
            stage.listen();
            if !landed {
                return Err(Broken::Premise("what is mapped is not reached"));
            }
            memory::fill(frame, MINE);
        }
        stage.change(Muffle::Everything);
        work::on(&work::first(stage.cpus), &|| {
            let cpu = arch::cpu().0;
            if cpu == 0 {
                for copy in 0..COPIES {
                    let at = page(1 + copy % others) * FRAME;
                    stage.edu.write_to(at + 8 * u64::from(copy), 0, 8);
                }
                over.store(true, Ordering::Relaxed);
                return;
            }
            let mut past = [0; PAST];
            for turn in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let slot = turn % PAST;
                if past[slot] == 0 {
                    past[slot] = stage.frame().unwrap_or(0);
                } else if !is_mine(past[slot]) {
                    stale.fetch_add(1, Ordering::Relaxed);
                }
                // The oldest goes through the device's hands again.
                let frame = past[slot];
                let mapped = if frame == 0 { None } else { map(cpu, frame).ok() };
                arch::sleep_ms(1);
                let unmapped = mapped.is_some_and(|range| behind.unmap_at(range).is_ok());
                if !unmapped {
                    failed.store(true, Ordering::Relaxed);
                    break;
                }
                // Mine again, and nobody else's.
                memory::fill(frame, MINE);
                arch::sleep_ms(1);
            }
            let touched = past.iter().filter(|frame| **frame != 0 && !is_mine(**frame)).count();
            stale.fetch_add(touched as u32, Ordering::Relaxed);
        });
        stage.listen();
        if failed.load(Ordering::Relaxed) {
            return Err(Broken::Wrong("a CPU could not map or unmap its page"));
        }
        let touched = warm.iter().filter(|frame| **frame != 0 && !is_mine(**frame)).count();
        Ok(stale.load(Ordering::Relaxed) + touched as u32)
    })
}

/// What a CPU fills a frame with that is its own again.
const MINE: u64 = 0x3131_3131_3131_3131;

fn is_mine(frame: u64) -> bool {
    let words = memory::at(frame).cast::<u64>();
    // SAFETY: a frame of the case, which no device may write any more, and in the control does.
    (0..FRAME as usize / 8).all(|word| unsafe { words.add(word).read_volatile() } == MINE)
}

//! Who owns which physical memory, and when it was last freed.
//!
//! Frame numbers are cut into one zone per page size, so that a large page has one record. Freed
//! units are given out again last-in first-out: a stale translation meets a new owner as soon as
//! possible.

use shootdown::Stride;

use crate::mmu::Frame;
use crate::mmu::tables::MemoryError;
use crate::oracle::Epoch;

#[derive(Clone, Copy, Debug)]
struct Unit {
    freed: Epoch,
    owned: bool,
}

#[derive(Debug, Default)]
struct Zone {
    units: Vec<Unit>,
    free: Vec<u32>,
}

/// The frame allocator.
#[derive(Debug)]
pub(crate) struct Frames {
    zones: [Zone; 3],
    /// In units of 4 KiB.
    owned: u64,
    capacity: u64,
}

/// Where each zone begins, and the log2 of its unit in frames.
const ZONES: [(u32, u32); 3] = [(0, 0), (1 << 30, 9), (1 << 31, 18)];

const fn zone_of(frame: Frame) -> usize {
    if frame.0 < ZONES[1].0 {
        0
    } else if frame.0 < ZONES[2].0 {
        1
    } else {
        2
    }
}

fn unit_of(frame: Frame) -> (usize, usize) {
    let zone = zone_of(frame);
    let (base, shift) = ZONES[zone];
    (zone, ((frame.0 - base) >> shift) as usize)
}

impl Frames {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { zones: Default::default(), owned: 0, capacity }
    }

    pub(crate) fn alloc(&mut self, size: Stride) -> Result<Frame, MemoryError> {
        let z = size as usize;
        let (base, shift) = ZONES[z];
        let frames = 1u64 << shift;
        // The zones end where the next one begins.
        let limit = if z == 2 { 1 << 13 } else { (ZONES[z + 1].0 - base) >> shift };
        let zone = &mut self.zones[z];
        if self.owned + frames > self.capacity {
            return Err(MemoryError::OutOfMemory);
        }
        let unit = match zone.free.pop() {
            Some(unit) => unit,
            None if zone.units.len() < limit as usize => {
                zone.units.push(Unit { freed: Epoch(0), owned: false });
                zone.units.len() as u32 - 1
            }
            None => return Err(MemoryError::OutOfMemory),
        };
        zone.units[unit as usize].owned = true;
        self.owned += frames;
        Ok(Frame(base + (unit << shift)))
    }

    /// Is this the first frame of a unit that somebody owns?
    pub(crate) fn check(&self, frame: Frame) -> Result<Stride, MemoryError> {
        let (z, unit) = unit_of(frame);
        let (base, shift) = ZONES[z];
        let whole = (frame.0 - base) & ((1 << shift) - 1) == 0;
        match self.zones[z].units.get(unit) {
            Some(u) if u.owned && whole => Ok([Stride::Page4K, Stride::Page2M, Stride::Page1G][z]),
            _ => Err(MemoryError::NotOwned(frame)),
        }
    }

    pub(crate) fn free(&mut self, frame: Frame, now: Epoch) -> Result<(), MemoryError> {
        self.check(frame)?;
        let (z, unit) = unit_of(frame);
        let zone = &mut self.zones[z];
        zone.units[unit] = Unit { freed: now, owned: false };
        zone.free.push(unit as u32);
        self.owned -= 1 << ZONES[z].1;
        Ok(())
    }

    /// When the unit that holds this frame was last freed; the beginning of time if never.
    #[inline]
    pub(crate) fn freed(&self, frame: Frame) -> Epoch {
        let (z, unit) = unit_of(frame);
        self.zones[z].units.get(unit).map_or(Epoch(0), |u| u.freed)
    }

    pub(crate) fn owned(&self) -> u64 {
        self.owned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_owned_once_and_freed_once() {
        let mut frames = Frames::new(512 + 2);
        let a = frames.alloc(Stride::Page4K).unwrap();
        let big = frames.alloc(Stride::Page2M).unwrap();
        assert_eq!(frames.check(big), Ok(Stride::Page2M));
        assert_eq!(frames.check(Frame(big.0 + 1)), Err(MemoryError::NotOwned(Frame(big.0 + 1))));
        let b = frames.alloc(Stride::Page4K).unwrap();
        assert_ne!(a, b);
        assert_eq!(frames.alloc(Stride::Page4K), Err(MemoryError::OutOfMemory));
        frames.free(a, Epoch(9)).unwrap();
        assert_eq!(frames.free(a, Epoch(9)), Err(MemoryError::NotOwned(a)));
        assert_eq!(frames.alloc(Stride::Page4K), Ok(a), "the last one freed is the next one given");
        frames.free(big, Epoch(11)).unwrap();
        assert_eq!(frames.freed(Frame(big.0 + 511)), Epoch(11), "all of a large page is freed");
        assert_eq!(frames.owned(), 2);
    }
}

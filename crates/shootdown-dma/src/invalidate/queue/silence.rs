//! Devices that do not acknowledge invalidations.

use crate::addr::DeviceId;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// How often a queue has to stop because a device does not acknowledge until the device counts as
/// silent: once may be the link, three times is the device. *Assumed.*
pub const STRIKES: u64 = 3;

/// Devices that are counted one by one at a time. All others share one count.
const ROOM: usize = 8;

const USED: u64 = 1 << 63;

/// Strikes, by device: `USED`, count (from bit 32), device.
///
/// A device is struck each time that it has not acknowledged. If the unit does not name the device,
/// it is struck when its command was issued alone (`recover.rs`). A device that finds no room
/// shares the count of the others. When that count reaches [`STRIKES`], no device is relied on any
/// more, until [all](Self::forgive_all) were reset.
///
/// Changed with the publisher's lock only; read by any CPU. A device is marked (Release) before
/// what was left of its submission is submitted again without it, and the mark is read (Acquire)
/// after a ticket was seen complete: a CPU that sees the ticket sees the mark.
#[derive(Debug)]
pub(super) struct Silence {
    any: AtomicBool,
    all: AtomicBool,
    struck: [AtomicU64; ROOM],
    /// The common count of the others: as `struck`, without a device.
    others: AtomicU64,
}

/// The number of strikes.
const fn strikes(word: u64) -> u64 {
    (word >> 32) & 3
}

impl Silence {
    pub fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            all: AtomicBool::new(false),
            struck: core::array::from_fn(|_| AtomicU64::new(0)),
            others: AtomicU64::new(0),
        }
    }

    fn find(&self, device: DeviceId) -> Option<&AtomicU64> {
        self.struck.iter().find(|word| {
            let word = word.load(Ordering::Relaxed);
            word & USED != 0 && word as u32 == device.0
        })
    }

    pub fn is_silent(&self, device: DeviceId) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        self.all.load(Ordering::Acquire)
            || self
                .find(device)
                .is_some_and(|word| strikes(word.load(Ordering::Acquire)) >= STRIKES)
    }

    /// Called with the lock: the device has not acknowledged.
    pub fn strike(&self, device: DeviceId) {
        self.mark(device, 1);
    }

    /// Called with the lock: the unit can't invalidate the device's cache.
    pub fn silence(&self, device: DeviceId) {
        self.mark(device, STRIKES);
    }

    fn mark(&self, device: DeviceId, more: u64) {
        let mark = |word| (strikes(word) + more).min(STRIKES) << 32;
        let free = || self.struck.iter().find(|word| word.load(Ordering::Relaxed) == 0);
        match self.find(device).or_else(free) {
            Some(word) => {
                let marked = mark(word.load(Ordering::Relaxed)) | USED | u64::from(device.0);
                word.store(marked, Ordering::Release);
            }
            None => {
                let others = mark(self.others.load(Ordering::Relaxed));
                self.others.store(others, Ordering::Relaxed);
                if strikes(others) >= STRIKES {
                    self.all.store(true, Ordering::Release);
                }
            }
        }
        self.any.store(true, Ordering::Release);
    }

    /// Called with the lock: the device was reset or removed. `false`: no device is relied on, and
    /// that does not change.
    pub fn forgive(&self, device: DeviceId) -> bool {
        if self.all.load(Ordering::Relaxed) {
            return false;
        }
        if let Some(word) = self.find(device) {
            word.store(0, Ordering::Release);
        }
        true
    }

    /// Called with the lock: all devices were reset or removed.
    pub fn forgive_all(&self) {
        self.struck.iter().for_each(|word| word.store(0, Ordering::Release));
        self.others.store(0, Ordering::Relaxed);
        self.all.store(false, Ordering::Release);
        self.any.store(false, Ordering::Release);
    }
}

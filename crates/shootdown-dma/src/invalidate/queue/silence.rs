//! Devices that do not answer.

use crate::addr::DeviceId;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Unanswered invalidations after which a device is silent: one may be the link, three are the device. *Assumed.*
pub const STRIKES: u64 = 3;

/// Devices that are kept in mind at a time; if there are more, none is relied on.
const ROOM: usize = 8;

const USED: u64 = 1 << 63;

/// Strikes, by device: `USED`, count (from bit 32), device.
///
/// Changed with the publisher's lock only; read by anyone. A device is marked (Release) before what was left of it is
/// submitted again without it, and read (Acquire) after a ticket was seen complete: who sees the ticket sees the mark.
#[derive(Debug)]
pub(super) struct Silence {
    any: AtomicBool,
    all: AtomicBool,
    struck: [AtomicU64; ROOM],
}

impl Silence {
    pub fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            all: AtomicBool::new(false),
            struck: core::array::from_fn(|_| AtomicU64::new(0)),
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
        let strikes = |word: &AtomicU64| (word.load(Ordering::Acquire) & !USED) >> 32;
        self.all.load(Ordering::Acquire)
            || self.find(device).is_some_and(|word| strikes(word) >= STRIKES)
    }

    /// With the lock: it has not answered, so many times.
    pub fn strike(&self, device: DeviceId, times: u64) {
        let free = || self.struck.iter().find(|word| word.load(Ordering::Relaxed) == 0);
        match self.find(device).or_else(free) {
            Some(word) => {
                let strikes = (word.load(Ordering::Relaxed) & !USED) >> 32;
                let strikes = (strikes + times).min(STRIKES);
                word.store(USED | strikes << 32 | u64::from(device.0), Ordering::Release);
            }
            None => self.all.store(true, Ordering::Release),
        }
        self.any.store(true, Ordering::Release);
    }

    /// With the lock: it was reset or removed.
    pub fn forgive(&self, device: DeviceId) {
        if let Some(word) = self.find(device) {
            word.store(0, Ordering::Release);
        }
    }
}

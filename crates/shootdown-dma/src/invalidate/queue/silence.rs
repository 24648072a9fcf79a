//! Devices that do not answer.

use crate::addr::DeviceId;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Times that a queue stood still for want of a device's answer, after which the device is silent: once may be the link, three
/// times is the device. *Assumed.*
pub const STRIKES: u64 = 3;

/// Devices that are kept in mind at a time. The others are struck together.
const ROOM: usize = 8;

const USED: u64 = 1 << 63;

/// Strikes, by device: `USED`, the time of the last one (from bit 34), count (from bit 32), device.
///
/// Most units do not say which device has not answered; then each that was told is struck, once, however often it was told. A device
/// that finds no room is one of the others: if there were as many times with others as make a device silent, no device is
/// relied on.
///
/// Changed with the publisher's lock only; read by anyone. A device is marked (Release) before what was left of it is
/// submitted again without it, and read (Acquire) after a ticket was seen complete: who sees the ticket sees the mark.
#[derive(Debug)]
pub(super) struct Silence {
    any: AtomicBool,
    all: AtomicBool,
    struck: [AtomicU64; ROOM],
    /// Of the others together: as `struck`, without a device.
    others: AtomicU64,
    /// Times that the queue stood still.
    times: AtomicU64,
}

/// How often was it struck?
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
            times: AtomicU64::new(0),
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

    /// With the lock: these have not answered, or one of them has not.
    pub fn strike(&self, devices: impl Iterator<Item = DeviceId>) {
        let time = (self.times.load(Ordering::Relaxed) + 1) & ((USED >> 34) - 1);
        self.times.store(time, Ordering::Relaxed);
        devices.for_each(|device| self.mark(device, |word| struck(word, time)));
    }

    /// With the lock: it can't be told.
    pub fn silence(&self, device: DeviceId) {
        self.mark(device, |word| word | STRIKES << 32);
    }

    fn mark(&self, device: DeviceId, mark: impl FnOnce(u64) -> u64) {
        let free = || self.struck.iter().find(|word| word.load(Ordering::Relaxed) == 0);
        match self.find(device).or_else(free) {
            Some(word) => {
                let before = word.load(Ordering::Relaxed);
                word.store(mark(before) | USED | u64::from(device.0), Ordering::Release);
            }
            None => {
                let others = mark(self.others.load(Ordering::Relaxed));
                self.others.store(others, Ordering::Relaxed);
                if strikes(others) >= STRIKES || without!(OthersAllSilent) {
                    self.all.store(true, Ordering::Release);
                }
            }
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

/// Once more, if it was not at this time already.
fn struck(word: u64, time: u64) -> u64 {
    let last = (word & !USED) >> 34;
    if last == time && !without!(StruckByCommand) {
        return word;
    }
    let strikes = (strikes(word) + 1).min(STRIKES);
    word & (USED | 0xffff_ffff) | time << 34 | strikes << 32
}

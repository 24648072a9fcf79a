//! Hardware that acts on its own: a coroutine beside those of the CPUs.
//!
//! A device is neither interrupted nor does it compute: it does something at certain times, and
//! these are known or made earlier by somebody who rings. So its coroutine sleeps until the next of
//! them, and is roused; the queue of the engine puts what it does in the order of time with all
//! that CPUs do.

use std::sync::atomic::Ordering;

use shootdown::sync::Access;

use super::cpu::NEVER;
use super::{Vector, suspend, with};
use crate::time::Time;

/// Sleeps until then, or until [`rouse`]d. Returns the time.
pub(crate) fn sleep(until: Time) -> Time {
    with(|e| {
        let cpu = e.current;
        if until.ps() != NEVER {
            let at = until.ps().max(e.me().time);
            e.enqueue(cpu, at);
        }
    });
    suspend();
    super::now()
}

/// Makes a sleeper go on at `at` at the latest.
pub(crate) fn rouse(agent: u32, at: Time) {
    with(|e| {
        if e.current != agent {
            e.wake_by(agent, at.ps());
        }
    });
}

/// Interrupts a CPU by a message that arrives at `at`.
pub(crate) fn message(target: u32, at: Time) {
    with(|e| e.pend(target, Vector::Wake, at.ps()));
}

/// A device has stored to this address now: copies of the line are void, the last-level cache has
/// it, and whoever waits for it looks again.
pub(crate) fn device_stored(addr: usize) {
    with(|e| {
        let Some(line) = e.arena.line(addr) else { return };
        e.lines[line].renew();
        let now = e.me().time;
        e.written(line, now);
    });
}

/// The lines of this memory are read, or read and written, by code whose accesses are not traced
/// one by one.
pub(crate) fn touch(addr: usize, bytes: usize, write: bool) {
    for line in (addr >> 6)..=((addr + bytes.max(1) - 1) >> 6) {
        let addr = addr.max(line << 6);
        super::memory::access(addr, Access::Load, Ordering::Relaxed);
        if write {
            super::memory::access(addr, Access::Store, Ordering::Relaxed);
        }
    }
}

//! Memory that is too small, and where its pages go: the lists that reclaim works on, and the
//! devices.
//!
//! All of it is the laboratory's notebook, which takes no virtual time and touches no simulated
//! line: what it would cost is part of the time that [`swapout`](super) fits.

use std::collections::VecDeque;

use shootdown_machine::Time;

/// Devices, all used alike: the author of the published test names three in the same months (commit
/// ec8acf20afb8). What they were is *assumed*: the largest that his employer made then.
const DEVICES: usize = 3;
/// What a device takes for a request of a page, whatever else it does: 4096 bytes at 1.3 GB/s,
/// which is more than its 535 thousand requests a second allow. (Fusion-io ioDrive2, 1.2 TB,
/// specifications of October 2011.)
const SERVICE: Time = Time::from_ns(3_151);
/// From then until a write is done, and a page is read (the same specifications: 15 and 68 us).
const WRITE_LATENCY: Time = Time::from_ns(15_000 - 3_151);
const READ_LATENCY: Time = Time::from_ns(68_000 - 3_151);
/// Requests that wait for a device at most, *assumed*: the block layer's default.
const DEPTH: usize = 128;

/// One device.
#[derive(Default)]
struct Device {
    /// When it has served all that it was given.
    free_at: Time,
    /// When each write will be done, the next one first.
    done_at: VecDeque<Time>,
}

/// Where a page is, and who may need it.
pub struct Memory {
    free: u64,
    /// Pages that were used lately, and pages that may go, each in the order of their coming.
    pub active: VecDeque<u64>,
    pub inactive: VecDeque<u64>,
    devices: [Device; DEVICES],
    next: usize,
}

/// No device takes another request before then.
#[derive(Debug)]
pub struct Busy(pub Time);

impl Memory {
    /// So many free frames.
    pub fn new(frames: u64) -> Self {
        Self {
            free: frames,
            active: VecDeque::new(),
            inactive: VecDeque::new(),
            devices: Default::default(),
            next: 0,
        }
    }

    /// What was written out by now is free.
    pub fn settle(&mut self, now: Time) {
        for device in &mut self.devices {
            while device.done_at.front().is_some_and(|done| *done <= now) {
                device.done_at.pop_front();
                self.free += 1;
            }
        }
    }

    /// Free frames.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Takes a frame; where there is none, says when the next is written out, if any is.
    pub fn take(&mut self) -> Result<(), Option<Time>> {
        match self.free {
            0 => Err(self.devices.iter().filter_map(|d| d.done_at.front().copied()).min()),
            _ => {
                self.free -= 1;
                Ok(())
            }
        }
    }

    /// Takes up to so many pages off the front of a list.
    pub fn isolate(list: &mut VecDeque<u64>, pages: usize) -> Vec<u64> {
        list.drain(..pages.min(list.len())).collect()
    }

    /// Gives a page to the next device, which frees its frame when it is done.
    ///
    /// # Errors
    /// Its queue is full until then.
    pub fn write_out(&mut self, now: Time) -> Result<(), Busy> {
        self.settle(now);
        let device = &mut self.devices[self.next];
        if device.done_at.len() >= DEPTH {
            return Err(Busy(device.done_at[0]));
        }
        device.free_at = device.free_at.max(now) + SERVICE;
        device.done_at.push_back(device.free_at + WRITE_LATENCY);
        self.next = (self.next + 1) % DEVICES;
        Ok(())
    }

    /// Reads a page back; says when it is there.
    pub fn read_in(&mut self, now: Time) -> Time {
        let device = &mut self.devices[self.next];
        device.free_at = device.free_at.max(now) + SERVICE;
        self.next = (self.next + 1) % DEVICES;
        device.free_at + READ_LATENCY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_devices_write_as_fast_as_they_can_and_no_faster() {
        let mut memory = Memory::new(0);
        let (mut now, pages) = (Time::ZERO, 3_000);
        for _ in 0..pages {
            while let Err(Busy(until)) = memory.write_out(now) {
                now = until;
            }
        }
        let last = SERVICE * (pages / DEVICES as u64) + WRITE_LATENCY;
        memory.settle(Time::from_ps(last.ps() - 1));
        assert!(memory.free() < pages);
        memory.settle(last);
        assert_eq!(memory.free(), pages);
    }

    #[test]
    fn a_frame_is_free_when_its_page_is_written() {
        let mut memory = Memory::new(1);
        memory.take().expect("one frame");
        assert_eq!(memory.take(), Err(None));
        memory.write_out(Time::from_us(5)).expect("an empty queue");
        let done = Time::from_us(5 + 15);
        assert_eq!(memory.take(), Err(Some(done)));
        memory.settle(done);
        assert_eq!(memory.take(), Ok(()));
    }
}

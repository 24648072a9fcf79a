//! The stream table: an entry and a context descriptor for each stream.
//!
//! Entries lie in blocks, each followed by the context descriptors of its streams. A table of one
//! level is one block. In a table of two levels, a block is made when the first of its 256 streams
//! is admitted, and stays.

use core::sync::atomic::Ordering;

use shootdown_dma::sync::AtomicU64;
use shootdown_dma::{DeviceId, PhysAddr};

use crate::bus::{Bus, Register};
use crate::error::{AdmitError, Error};
use crate::memory::{Kept, Memory, Pages};

use super::entries::{ENTRY, Level1Stream};
use super::registers::{StreamTable, StreamTableShape};

/// Bits of a stream's number that the second level resolves.
pub(super) const SPLIT: u32 = 8;

/// Words of an entry, and of a context descriptor.
const WORDS: usize = ENTRY / 8;

/// The table.
pub(super) struct Streams<M: Memory> {
    memory: M,
    /// Bits of streams' numbers.
    bits: u32,
    two_level: bool,
    /// The first level, or the one block.
    top: Kept<M>,
}

/// A stream's entry, and its context descriptor with its address.
pub(super) struct Stream<'a> {
    pub entry: &'a [AtomicU64],
    pub context: &'a [AtomicU64],
    pub context_at: PhysAddr,
}

impl<M: Memory + Clone> Streams<M> {
    /// A table for streams of `bits` bits, all of which are refused. It has two levels, where the
    /// unit supports that and the table is large enough.
    pub fn new(memory: M, bits: u32, two_level: bool) -> Result<Self, Error> {
        let two_level = two_level && bits > SPLIT;
        let bytes = if two_level { 8 << (bits - SPLIT) } else { (2 * ENTRY) << bits };
        let top = Pages::of_bytes(memory.clone(), bytes)?;
        memory.write_back(top.words());
        Ok(Self { memory, bits, two_level, top: top.keep() })
    }

    /// Tells the unit of it.
    pub fn place<B: Bus>(&self, bus: &B) {
        StreamTable::new().with_address(self.top.address().0 >> 6).write(bus);
        let shape = StreamTableShape::new().with_bits(self.bits);
        let shape = if self.two_level { shape.with_two_level(1).with_split(SPLIT) } else { shape };
        shape.write(bus);
    }

    /// How many streams a block is for.
    const fn block(&self) -> usize {
        1 << if self.two_level { SPLIT } else { self.bits }
    }

    fn number(&self, device: DeviceId) -> Option<usize> {
        (u64::from(device.0) < 1 << self.bits).then_some(device.0 as usize)
    }

    fn stream_in(&self, block: PhysAddr, number: usize) -> Stream<'_> {
        let count = self.block();
        // SAFETY: a block, which stays as long as the unit is on: entries, then as many context
        // descriptors.
        let words = unsafe { self.memory.words(block, 2 * count * WORDS) };
        let at = |number: usize| &words[number * WORDS..(number + 1) * WORDS];
        let within = number % count;
        Stream {
            entry: at(within),
            context: at(count + within),
            context_at: PhysAddr(block.0 + ((count + within) * ENTRY) as u64),
        }
    }

    fn level_1(&self, number: usize) -> &AtomicU64 {
        self.top.word(number >> SPLIT)
    }

    /// The stream, if it has a place.
    pub fn find(&self, device: DeviceId) -> Option<Stream<'_>> {
        let number = self.number(device)?;
        if !self.two_level {
            return Some(self.stream_in(self.top.address(), number));
        }
        // ORDERING: Acquire, with the Release in `make`: the block's zeros.
        let level_1 = Level1Stream::from_bits(self.level_1(number).load(Ordering::Acquire));
        (level_1.span() != 0).then(|| self.stream_in(PhysAddr(level_1.table() << 6), number))
    }

    /// The same, with a place made for it. One caller at a time.
    pub fn make<B: Bus>(&self, bus: &B, device: DeviceId) -> Result<Stream<'_>, AdmitError> {
        let number = self.number(device).ok_or(AdmitError::NoSuchDevice)?;
        if let Some(stream) = self.find(device) {
            return Ok(stream);
        }
        let block = Pages::of_bytes(self.memory.clone(), (2 * ENTRY) << SPLIT)
            .map_err(|_| AdmitError::NoMemory)?;
        self.memory.write_back(block.words());
        let block = block.keep().address();
        bus.barrier();
        let level_1 = Level1Stream::new().with_span(SPLIT + 1).with_table(block.0 >> 6);
        let word = self.level_1(number);
        // ORDERING: Release, with the Acquire in `find`.
        word.store(level_1.into_bits(), Ordering::Release);
        self.memory.write_back(core::slice::from_ref(word));
        Ok(self.stream_in(block, number))
    }

    /// Takes all of its memory back.
    ///
    /// # Safety
    /// The unit is off.
    pub unsafe fn release(self) {
        const PAGES: usize = ((2 * ENTRY) << SPLIT) / crate::memory::PAGE;
        if self.two_level {
            for word in &self.top.words()[..1 << (self.bits - SPLIT)] {
                let level_1 = Level1Stream::from_bits(word.load(Ordering::Acquire));
                if level_1.span() != 0 {
                    // SAFETY: allocated by `make`, and the unit, which alone knew it, is off.
                    unsafe { self.memory.free(PhysAddr(level_1.table() << 6), PAGES) };
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.top.release() };
    }
}

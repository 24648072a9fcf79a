//! Shared memory as the adversary sees it: which values a load may return, and when a store is
//! seen.
//!
//! Three models, one store of *locations*. A location is a word of shared memory (an atomic of the
//! library by its address, or an entry of a page table), numbered in the order of first use. It has
//! a history of *messages*: the values it held, oldest first.
//!
//! | model | store | load | fence |
//! |---|---|---|---|
//! | [`Memory::Sc`] | visible at once | the newest value | nothing |
//! | [`Memory::Tso`] | goes to the CPU's buffer; the oldest leaves at any later step | the newest of the own buffer, else memory | empties the buffer |
//! | [`Memory::Weak`] | appended to the history with the view it releases | any message not older than what the CPU's view says of the location; acquiring joins its view | joins views; sequentially consistent fences share one |
//!
//! A *view* says for each location which message is the oldest that may still be read. That is the
//! operational form of release/acquire with relaxed accesses and fences (Kang et al., "A Promising
//! Semantics for Relaxed-Memory Concurrency", POPL 2017, without promises): all that C++ and Rust
//! allow except that a load can't see a store that its own CPU makes later, and stores of different
//! CPUs to one location are ordered as they are made. Sequentially consistent *accesses* count as
//! fenced on both sides, which is stronger than the language (the library has none).
//!
//! Walkers are observers of their own. Under `Weak` they read what was *published* or newer,
//! whatever the views say (Arm: a store is seen by walkers after `DSB ISHST`; RISC-V: after a
//! fence). Under `Tso` they read memory, past all buffers.

mod marks;
mod news;
#[cfg(test)]
mod tests;
mod view;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::powers::Memory;
use view::{View, at, join, raise};

/// Number of a location, from 1.
pub type Location = u32;

/// The location that stands for the order of sequentially consistent fences.
pub const FENCES: Location = u32::MAX;

/// Locations that stand for what is no word of memory: what IOMMUs have, and things of the world
/// ([`hw::thing`](super::hw::thing)).
pub const IOMMUS: Location = FENCES - 64;
/// See there; further ones are below.
pub const THINGS: Location = IOMMUS - 1;

/// How many CPUs a hunt can have.
pub const MAX_CPUS: usize = 8;

/// One value of a location's history.
#[derive(Clone, Copy, Debug)]
struct Message {
    value: u64,
    /// What reading it with acquire makes known: a slice of the pool.
    view: (u32, u32),
}

#[derive(Default, Debug)]
struct History {
    messages: Vec<Message>,
    /// The oldest message that walkers may read.
    published: u32,
    /// Hash of the order in which messages were made.
    order: u64,
    /// Visible changes; under `Weak` the number of the newest message.
    writes: u32,
    /// Its first value is not known yet.
    unknown: bool,
}

/// A store that waits in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Buffered {
    /// Where to.
    pub location: Location,
    /// What.
    pub value: u64,
    /// Native memory, if the location has some.
    pub native: Option<(*mut (), u8)>,
}

#[derive(Default, Debug)]
struct Observer {
    /// What this CPU may no longer read below.
    now: View,
    /// What an acquire fence would add.
    on_acquire: View,
    /// What a relaxed store releases (since the last release fence).
    on_release: View,
    buffer: VecDeque<Buffered>,
    /// Locations loaded since the last turn of a wait loop.
    watched: Vec<Location>,
    /// For each location in `watched` the number of the value seen last, plus 1; 0 for others.
    seen: Vec<u32>,
}

/// The shared memory of one run.
#[derive(Debug)]
pub struct SharedMemory {
    model: Memory,
    histories: Vec<History>,
    used: usize,
    observers: Vec<Observer>,
    fenced: View,
    fences: u64,
    /// What a CPU learns that is given a page: all that those knew who gave pages back.
    freed: View,
    frees: u64,
    pool: Vec<u32>,
    /// Hash of the values that memory holds.
    content: u64,
    /// A swap that changes nothing is something that is waited for.
    pub swaps_wait: bool,
}

impl SharedMemory {
    /// Empty memory.
    pub fn new(model: Memory) -> Self {
        Self {
            model,
            histories: Vec::new(),
            used: 0,
            observers: (0..MAX_CPUS).map(|_| Observer::default()).collect(),
            fenced: View::new(),
            fences: 0,
            freed: View::new(),
            frees: 0,
            pool: Vec::new(),
            content: 0,
            swaps_wait: false,
        }
    }

    /// Forgets everything but the room it has.
    pub fn reset(&mut self, model: Memory) {
        self.model = model;
        for history in &mut self.histories[..self.used] {
            history.messages.clear();
            history.published = 0;
            history.order = 0;
            history.writes = 0;
            history.unknown = false;
        }
        self.used = 0;
        for observer in &mut self.observers {
            observer.now.clear();
            observer.on_acquire.clear();
            observer.on_release.clear();
            observer.buffer.clear();
            observer.watched.clear();
            observer.seen.clear();
        }
        self.fenced.clear();
        self.fences = 0;
        self.freed.clear();
        self.frees = 0;
        self.pool.clear();
        self.content = 0;
        self.swaps_wait = false;
    }

    /// The model in force.
    pub fn model(&self) -> Memory {
        self.model
    }

    /// A new location, which holds `value`.
    pub fn locate(&mut self, value: u64) -> Location {
        if self.used == self.histories.len() {
            self.histories.push(History::default());
        }
        let history = &mut self.histories[self.used];
        history.messages.push(Message { value, view: (0, 0) });
        self.used += 1;
        #[allow(clippy::cast_possible_truncation)] // far fewer than 2^32
        let location = self.used as Location;
        self.content ^= cell(location, value);
        location
    }

    /// A new location; what it holds is told by the first access ([`settle`](Self::settle)).
    pub fn locate_unknown(&mut self) -> Location {
        let location = self.locate(0);
        self.histories[location as usize - 1].unknown = true;
        location
    }

    /// What memory held before the first access to a location.
    pub fn settle(&mut self, location: Location, value: u64) {
        let history = &mut self.histories[location as usize - 1];
        if history.unknown {
            history.unknown = false;
            history.messages[0].value = value;
            self.content ^= cell(location, 0) ^ cell(location, value);
        }
    }

    fn history(&self, location: Location) -> &History {
        &self.histories[location as usize - 1]
    }

    fn newest(&self, location: Location) -> (u32, Message) {
        let messages = &self.history(location).messages;
        #[allow(clippy::cast_possible_truncation)] // a run makes fewer than 2^32 steps
        ((messages.len() - 1) as u32, *messages.last().expect("a location holds a value"))
    }

    /// The newest value anyone could see.
    pub fn value(&self, location: Location) -> u64 {
        self.newest(location).1.value
    }

    /// How many values a load by `cpu` may return.
    pub fn choices(&self, cpu: u8, location: Location) -> usize {
        match self.model {
            Memory::Sc | Memory::Tso => 1,
            Memory::Weak => {
                let floor = at(&self.observers[cpu as usize].now, location);
                (self.newest(location).0 - floor) as usize + 1
            }
        }
    }

    /// Sets the first value, before the CPUs run.
    pub fn set(&mut self, location: Location, value: u64) {
        self.replace(location, value);
        self.histories[location as usize - 1].writes = 0;
    }

    /// The number of the write that this CPU has just made.
    pub fn version_of_last_store(&self, cpu: u8, location: Location) -> u32 {
        let buffer = &self.observers[cpu as usize].buffer;
        let waiting = buffer.iter().filter(|b| b.location == location).count();
        #[allow(clippy::cast_possible_truncation)] // bounded by the length of a run
        let waiting = waiting as u32;
        self.history(location).writes + waiting
    }

    /// A load of the `back`-th newest value. Returns it and the number of its message.
    pub fn load(
        &mut self,
        cpu: u8,
        location: Location,
        order: Ordering,
        back: usize,
    ) -> (u64, u32) {
        match self.model {
            Memory::Sc => {
                self.watch(cpu, location, self.history(location).writes);
                (self.value(location), 0)
            }
            Memory::Tso => {
                self.watch(cpu, location, self.history(location).writes);
                let observer = &self.observers[cpu as usize];
                let own = observer.buffer.iter().rev().find(|b| b.location == location);
                (own.map_or_else(|| self.value(location), |b| b.value), 0)
            }
            Memory::Weak => {
                let (newest, _) = self.newest(location);
                #[allow(clippy::cast_possible_truncation)] // at most `choices`
                let number = newest - back as u32;
                self.watch(cpu, location, number);
                let message = self.history(location).messages[number as usize];
                self.see(cpu, location, number, message, order);
                (message.value, number)
            }
        }
    }

    fn see(&mut self, cpu: u8, location: Location, number: u32, message: Message, order: Ordering) {
        let Self { observers, pool, .. } = self;
        let observer = &mut observers[cpu as usize];
        raise(&mut observer.now, location, number);
        let (start, end) = message.view;
        if start == end {
            return;
        }
        let view = &pool[start as usize..end as usize];
        match order {
            Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst => {
                join(&mut observer.now, view)
            }
            _ => join(&mut observer.on_acquire, view),
        }
    }

    /// A store. Under `Tso` it goes to the buffer, and `true` says that memory is not to be written
    /// yet.
    pub fn store(
        &mut self,
        cpu: u8,
        location: Location,
        value: u64,
        order: Ordering,
        native: Option<(*mut (), u8)>,
    ) -> bool {
        match self.model {
            Memory::Sc => {
                self.replace(location, value);
                false
            }
            Memory::Tso => {
                let buffer = &mut self.observers[cpu as usize].buffer;
                buffer.push_back(Buffered { location, value, native });
                true
            }
            Memory::Weak => {
                self.append(cpu, location, value, order, (0, 0));
                false
            }
        }
    }

    /// A read-modify-write: the newest value, and what was written over it, if anything. The own
    /// buffer was drained before.
    pub fn rmw(&mut self, cpu: u8, location: Location, new: Option<u64>, order: Ordering) {
        let same = self.swaps_wait && new == Some(self.value(location));
        if new.is_none() {
            // It failed, and was a load: of a lock, perhaps, that is waited for.
            self.watch(cpu, location, self.history(location).writes);
        }
        match self.model {
            Memory::Sc | Memory::Tso => {
                if let Some(new) = new {
                    self.replace(location, new);
                }
            }
            Memory::Weak => {
                let (number, message) = self.newest(location);
                self.see(cpu, location, number, message, order);
                if let Some(new) = new {
                    self.append(cpu, location, new, order, message.view);
                }
            }
        }
        if same {
            self.watch(cpu, location, self.history(location).writes);
        }
    }

    /// One value only is kept where none but the newest can be read.
    fn replace(&mut self, location: Location, value: u64) {
        let old = self.value(location);
        self.content ^= cell(location, old) ^ cell(location, value);
        let history = &mut self.histories[location as usize - 1];
        history.writes += 1;
        history.messages.last_mut().expect("a location holds a value").value = value;
    }

    fn append(
        &mut self,
        cpu: u8,
        location: Location,
        value: u64,
        order: Ordering,
        continues: (u32, u32),
    ) {
        let (newest, _) = self.newest(location);
        let number = newest + 1;
        let releases = matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst);
        let Self { observers, pool, histories, .. } = self;
        let observer = &mut observers[cpu as usize];
        raise(&mut observer.now, location, number);
        let view: &[u32] = if releases { &observer.now } else { &observer.on_release };
        let start = pool.len();
        pool.extend_from_slice(view);
        // A release sequence: who reads the last of it reads them all.
        let (from, to) = (continues.0 as usize, continues.1 as usize);
        for i in from..to {
            let other = pool[i];
            match pool.get_mut(start + i - from) {
                Some(mine) => *mine = (*mine).max(other),
                None => pool.push(other),
            }
        }
        #[allow(clippy::cast_possible_truncation)] // bounded by the length of a run
        let view = (start as u32, pool.len() as u32);
        let history = &mut histories[location as usize - 1];
        history.messages.push(Message { value, view });
        history.writes = number;
        history.order = mix(history.order ^ u64::from(cpu) << 56 ^ value);
        self.content ^= cell(location, history.order);
    }

    /// A fence.
    pub fn fence(&mut self, cpu: u8, order: Ordering) {
        if self.model != Memory::Weak {
            return;
        }
        let observer = &mut self.observers[cpu as usize];
        if matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst) {
            let known = std::mem::take(&mut observer.on_acquire);
            join(&mut observer.now, &known);
            observer.on_acquire = known;
        }
        if order == Ordering::SeqCst {
            join(&mut observer.now, &self.fenced);
            join(&mut self.fenced, &observer.now);
            self.fences = mix(self.fences ^ (u64::from(cpu) + 1));
        }
        if matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst) {
            observer.on_release.clone_from(&observer.now);
        }
    }

    /// Has this CPU stores in its buffer?
    pub fn buffered(&self, cpu: u8) -> usize {
        self.observers[cpu as usize].buffer.len()
    }

    /// Where the oldest store of the buffer goes.
    pub fn oldest(&self, cpu: u8) -> Option<Buffered> {
        self.observers[cpu as usize].buffer.front().copied()
    }

    /// The oldest store becomes visible.
    pub fn drain_one(&mut self, cpu: u8) -> Option<Buffered> {
        let buffered = self.observers[cpu as usize].buffer.pop_front()?;
        self.replace(buffered.location, buffered.value);
        Some(buffered)
    }

    /// Values of a page-table entry that a walker may read now, with their versions, newest first.
    pub fn walker_reads(&self, location: Location, out: &mut dyn FnMut(u64, u32)) {
        let history = self.history(location);
        if self.model != Memory::Weak {
            out(history.messages[0].value, history.writes);
            return;
        }
        for number in (history.published..=history.writes).rev() {
            out(history.messages[number as usize].value, number);
        }
    }

    /// Everything this CPU stored to the location, or knows to be stored, is seen by walkers from
    /// now on.
    pub fn publish(&mut self, cpu: u8, location: Location) {
        let known = at(&self.observers[cpu as usize].now, location);
        let history = &mut self.histories[location as usize - 1];
        history.published = history.published.max(known);
    }

    /// Everything that `from` knows now, for [`receive`](Self::receive): an interrupt carries it.
    pub fn knowledge(&self, from: u8) -> Vec<u32> {
        match self.model {
            Memory::Weak => self.observers[from as usize].now.clone(),
            _ => Vec::new(),
        }
    }

    /// The CPU learns what another knew.
    pub fn receive(&mut self, cpu: u8, knowledge: &[u32]) {
        join(&mut self.observers[cpu as usize].now, knowledge);
    }

    /// The CPU gives a page back: the allocator's lock is released with what the CPU knows. Its
    /// buffer is empty (the lock's store comes after all that it holds).
    pub fn release_page(&mut self, cpu: u8) {
        if self.model == Memory::Weak {
            join(&mut self.freed, &self.observers[cpu as usize].now);
            self.frees = mix(self.frees ^ (u64::from(cpu) + 1));
        }
    }

    /// The CPU is given a page: the allocator's lock was taken for it.
    pub fn acquire_page(&mut self, cpu: u8) {
        let Self { observers, freed, .. } = self;
        join(&mut observers[cpu as usize].now, freed);
    }

    /// Hash of what memory holds (what each CPU knows follows from what it did).
    pub fn hash(&self) -> u64 {
        let buffers = self.observers.iter().fold(0, |h, o| mix(h ^ o.buffer.len() as u64));
        // What a wait loop of each CPU would take for news.
        let news = self.observers.iter().zip(0u64..).fold(0, |h, (o, cpu)| {
            o.watched.iter().fold(h, |h, l| {
                let newer = self.history(*l).writes + 1 - o.seen[*l as usize];
                h ^ mix(mix(cpu << 32 ^ u64::from(*l)) ^ u64::from(newer))
            })
        });
        self.content ^ buffers ^ news ^ self.fences.rotate_left(17) ^ self.frees.rotate_left(41)
    }
}

/// A good 64-bit mixer (the finalizer of splitmix64).
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn cell(location: Location, value: u64) -> u64 {
    mix(mix(u64::from(location)) ^ value)
}

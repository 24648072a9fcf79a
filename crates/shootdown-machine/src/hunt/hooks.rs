//! What the library's atomics do in a hunt: each access is a step, and its value comes from the
//! memory model.
//!
//! Memory outside of the hunt's shared region (stacks) and parts of it that one CPU has for itself
//! ([`hw::own`](super::hw::own)) take no part: their accesses are made natively. An interrupt can
//! still come before an access to a CPU's own part, when one is pending: its handler reads the same
//! memory.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use shootdown::sync::Access;

use super::choice::Point;
use super::machine::{Hunt, is_hunting, relax, step, stop, with};
use super::memory::{FENCES, Location};
use super::powers::Memory;
use super::promises::violation;
use super::{End, sharing};
use crate::oracle::Invariant;

/// What the announcement of an access needs to know.
enum Plan {
    /// Not shared memory, or not running yet.
    Native,
    /// A CPU's own.
    Own,
    /// Shared.
    Shared(Location),
    /// Of a table, and shared with devices only.
    Quiet(Location),
    /// Shared, and taken for private so far: the run is over.
    Over,
}

/// An access is announced. `true`: ask for its value.
pub fn access(addr: usize, access: Access, order: Ordering) -> bool {
    if !is_hunting() || matches!(access, Access::CountLoad | Access::CountStore) {
        return false;
    }
    if access == Access::Plain {
        plain(addr);
        return false;
    }
    let plan = with(|h| {
        let Some(offset) = h.arena.offset(addr).filter(|_| h.running) else {
            return Plan::Native;
        };
        if h.arena.is_own(offset) {
            h.me().own_accesses += 1;
            return Plan::Own;
        }
        let table = h.io_tables.is_some_and(|tables| tables.has(addr));
        let cpu = h.current;
        let write = access != Access::Load;
        let seen = h.sharing.as_mut().map(|s| s.access(offset, cpu, write, table));
        match seen {
            Some(sharing::Access::Private) => return Plan::Native,
            Some(sharing::Access::News) => {
                h.end.get_or_insert(End::Abandoned);
                return Plan::Over;
            }
            Some(sharing::Access::Shared | sharing::Access::Quiet) | None => {}
        }
        let quiet = seen == Some(sharing::Access::Quiet);
        let mut location = h.arena.location(offset);
        if location == 0 {
            location = h.memory.locate_unknown();
            h.arena.set_location(offset, location);
        }
        if quiet { Plan::Quiet(location) } else { Plan::Shared(location) }
    });
    let location = match plan {
        Plan::Native => return false,
        Plan::Own => {
            if with(|h| h.me().pending && h.me().irqs_on) {
                step(0, false, false);
            }
            return false;
        }
        Plan::Shared(location) => location,
        Plan::Quiet(location) => {
            with(|h| {
                h.me().location = location;
                h.me().order = order;
            });
            return true;
        }
        Plan::Over => stop(),
    };
    let (write, drains) = match access {
        Access::Load | Access::CountLoad | Access::Plain => (false, false),
        Access::Store | Access::CountStore => (true, order == Ordering::SeqCst),
        Access::Rmw => (true, true),
    };
    let drains =
        drains && with(|h| h.memory.model() == Memory::Tso && h.memory.buffered(h.current) != 0);
    // A store that goes to a buffer changes nothing that others see.
    let write = write && (access == Access::Rmw || with(|h| h.memory.model() != Memory::Tso));
    let fenced = order == Ordering::SeqCst && with(|h| h.memory.model()) != Memory::Sc;
    // Devices walk at every store to their tables.
    let walked = write && with(|h| h.io_word(addr).is_some());
    step(location, write, drains || fenced || walked);
    alive(addr);
    with(|h| {
        if drains {
            h.drain(h.current);
        }
        if order == Ordering::SeqCst {
            h.memory.fence(h.current, order);
        }
        h.me().location = location;
        h.me().order = order;
    });
    true
}

/// A plain read is a step where it matters when it comes: of what is given back one day.
fn plain(addr: usize) {
    let location = with(|h| {
        let offset = h.arena.offset(addr).filter(|at| h.running && h.arena.is_mortal(*at))?;
        let mut location = h.arena.location(offset);
        if location == 0 {
            location = h.memory.locate_unknown();
            h.arena.set_location(offset, location);
        }
        Some(location)
    });
    if let Some(location) = location {
        step(location, false, false);
        alive(addr);
    }
}

/// What is read ahead must be there: whoever asks for it refers to it.
pub fn prefetch(addr: usize) {
    if is_hunting() {
        alive(addr);
    }
}

/// Nobody uses what was given back.
fn alive(addr: usize) {
    let gone = with(|h| h.arena.offset(addr).is_some_and(|at| h.arena.is_gone(at)));
    if gone {
        let what = with(|h| h.arena.name_of(addr));
        violation(Invariant::SpaceReuse, format!("{what} is used after it was given back"));
    }
}

/// The value of the load announced last.
pub fn load(addr: usize, newest: u64) -> u64 {
    let value = with(|h| {
        let (cpu, location, order) = (h.current, h.me().location, h.me().order);
        h.memory.settle(location, newest);
        let back = h.pick_value(location)?;
        let (value, number) = h.memory.load(cpu, location, order, back);
        h.saw(u64::from(location) ^ value.rotate_left(20) ^ u64::from(number) << 40);
        if h.bounds.record {
            let old = if back == 0 { "" } else { " (not the newest)" };
            let name = h.arena.name_of(addr);
            let value = h.arena.value_of(addr, value);
            h.note(|| format!("reads {name} = {value}{old}"));
        }
        Some(value)
    });
    value.unwrap_or_else(|| stop())
}

impl Hunt {
    /// A word is overwritten: if devices read it, and find something else from now on, they share
    /// it.
    fn meant(&mut self, addr: usize, old: u64, new: u64) {
        let Some(sharing) = self.sharing.as_mut() else { return };
        let table = self.io_tables.is_some_and(|tables| tables.has(addr));
        if let Some(offset) = self.arena.offset(addr).filter(|_| table)
            && self.iommu.differ(old, new)
            && sharing.meant(offset)
        {
            self.end.get_or_insert(End::Abandoned);
        }
    }

    /// How far back a load of this location goes; `None` when the run is over.
    pub(super) fn pick_value(&mut self, location: Location) -> Option<usize> {
        let cpu = self.current;
        match self.memory.choices(cpu, location) {
            1 => Some(0),
            count => self.choose(&Point::Value { cpu, count }),
        }
    }
}

/// The store announced last. `true`: it is in a buffer, and memory is not to be written.
pub fn store(at: *mut (), width: u8, old: u64, new: u64) -> bool {
    with(|h| {
        let (cpu, location, order) = (h.current, h.me().location, h.me().order);
        h.memory.settle(location, old);
        h.saw(u64::from(location) ^ 0x5707e);
        if h.bounds.record {
            let name = h.arena.name_of(at as usize);
            let new = h.arena.value_of(at as usize, new);
            h.note(|| format!("writes {name} = {new}"));
        }
        h.meant(at as usize, old, new);
        let buffered = h.memory.store(cpu, location, new, order, Some((at, width)));
        if !buffered {
            h.io_written(at as usize, new);
        }
        if order == Ordering::SeqCst {
            h.drain(cpu);
            h.memory.fence(cpu, order);
        }
        buffered
    })
}

/// What the read-modify-write announced last did.
pub fn rmw(addr: usize, old: u64, new: Option<u64>) {
    with(|h| {
        let (cpu, location, order) = (h.current, h.me().location, h.me().order);
        h.memory.settle(location, old);
        h.memory.rmw(cpu, location, new, order);
        h.works(|work| work.updates += 1);
        if let Some(new) = new {
            h.meant(addr, old, new);
            h.io_written(addr, new);
        }
        h.saw(u64::from(location) ^ old.rotate_left(20) ^ 0x4a3);
        if h.bounds.record {
            let name = h.arena.name_of(addr);
            let old = h.arena.value_of(addr, old);
            let new = new.map(|new| h.arena.value_of(addr, new));
            h.note(|| match new {
                Some(new) => format!("swaps {name}: {old} -> {new}"),
                None => format!("finds {name} = {old}, and does not swap"),
            });
        }
        if order == Ordering::SeqCst {
            h.memory.fence(cpu, order);
        }
    });
}

/// A fence.
pub fn fence(order: Ordering) {
    if !is_hunting() || !with(|h| h.running) {
        return;
    }
    match with(|h| h.memory.model()) {
        Memory::Sc => {}
        Memory::Tso => {
            if order == Ordering::SeqCst && with(|h| h.memory.buffered(h.current) != 0) {
                step(0, false, true);
                with(|h| h.drain(h.current));
            }
        }
        Memory::Weak => {
            if order == Ordering::SeqCst {
                step(FENCES, true, false);
            }
            with(|h| {
                h.memory.fence(h.current, order);
                h.saw(0xfe7ce);
            });
        }
    }
    with(|h| {
        h.works(|work| work.fences += 1);
        h.note(|| format!("fence ({order:?})"));
    });
}

/// What is in a cell is about to be used by whoever is alone with it. That is no step, since
/// entering the cell was one; but what the cell holds follows from who was in it, in which order,
/// and what this CPU does next follows from what it holds.
pub fn touch(addr: usize, write: bool) {
    if is_hunting() && !with(|h| h.touch(addr, write)) {
        stop();
    }
}

/// Room that CPUs share; `None`: nothing is hunted in this thread.
pub fn place(layout: Layout) -> Option<NonNull<u8>> {
    is_hunting().then(|| with(|h| h.arena.alloc(layout)))
}

/// A turn of a loop that waits for another CPU: this CPU goes on when something that it has read
/// has changed.
pub fn spin() {
    if is_hunting() && with(|h| h.running) {
        relax();
    }
}

/// Writes a buffered store to native memory.
pub(super) fn write_native(at: *mut (), width: u8, value: u64) {
    #[allow(clippy::cast_possible_truncation)] // the value has this width
    // SAFETY: `at` came from an atomic of this width in the hunt's shared region, which outlives
    // the run; CPUs of a hunt run on one thread.
    unsafe {
        match width {
            1 => (*at.cast::<AtomicBool>()).store(value != 0, Ordering::Relaxed),
            2 => (*at.cast::<AtomicU16>()).store(value as u16, Ordering::Relaxed),
            4 => (*at.cast::<AtomicU32>()).store(value as u32, Ordering::Relaxed),
            _ => (*at.cast::<AtomicU64>()).store(value, Ordering::Relaxed),
        }
    }
}

//! The hostile hardware, as code under test uses it.
//!
//! These functions reach the machine that runs in this thread; elsewhere they panic. A port of the
//! library (a `Platform` and a `Regime`) for hunts is written with them, and so is the kernel that
//! calls it. During [`World::boot`](super::World::boot) they may be used too; then nothing is a
//! step.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use shootdown::{CpuId, Reach, Tag};

pub(super) use super::memory::mix;

pub use super::guest::{Forget, enter_guest, forget_on, leave_guest, virtual_cpus};
pub use super::promises::{
    check_deferred, check_gone, deferred, kernel_code, latest, reused, revoked, seal,
    software_reads, unseal, user_code, user_store, violation,
};
pub use super::setup::{Architecture, Setup};

use super::choice::Point;
use super::machine::{self, step, stop, with};

use super::memory::THINGS;
use super::powers::{Memory, Power};
use crate::hostile::{Descriptor, Frame, TableId, Word};

/// A write to a page-table entry, to be named when it is revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a change that takes rights away is to be named when its flush has returned"]
pub struct Change {
    /// Which entry.
    pub word: Word,
    /// Which write of it.
    pub(super) version: u32,
}

/// What to invalidate on a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Entries of these pages, first and last, under a tag; non-leaf entries too unless
    /// `leaf_only`.
    Pages {
        /// Under this tag.
        tag: Tag,
        /// The first page.
        first: u32,
        /// The last page.
        last: u32,
        /// Leaves only.
        leaf_only: bool,
    },
    /// Entries of these pages under the loaded tag, and global ones.
    Kernel {
        /// The first page.
        first: u32,
        /// The last page.
        last: u32,
    },
    /// Everything under a tag, but no global entries.
    Tag(Tag),
    /// Everything.
    Everything,
}

// ---------------------------------------------------------------- setting up

/// Says what the hardware is like. First of all, in `boot`.
///
/// # Panics
/// While CPUs run, or when the shape is impossible.
pub fn setup(setup: Setup) {
    with(|h| {
        assert!(!h.running, "the hardware does not change while it runs");
        let cpus = h.cpus.len();
        h.mmu.set_up(setup, h.powers, cpus);
    });
}

/// A value in the memory that CPUs share. It stays there, undropped, until the run is over.
///
/// # Panics
/// When the shared memory is full.
pub fn place<T>(value: T) -> NonNull<T> {
    let at = with(|h| h.arena.alloc(Layout::new::<T>())).cast::<T>();
    // SAFETY: fresh room of this layout in the arena.
    unsafe { at.write(value) };
    at
}

/// Runs `f` as another CPU, while the world boots.
///
/// # Panics
/// While CPUs run.
pub fn boot_as(cpu: CpuId, f: impl FnOnce()) {
    let become_cpu = |cpu: u8| {
        with(|h| {
            assert!(!h.running && usize::from(cpu) < h.cpus.len(), "CPUs run by themselves");
            std::mem::replace(&mut h.current, cpu)
        })
    };
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
    let before = become_cpu(cpu.0 as u8);
    f();
    become_cpu(before);
}

/// Part of the shared memory that only one CPU uses: its accesses are no steps.
pub fn own(at: NonNull<u8>, len: usize) {
    with(|h| h.arena.set_own(at.as_ptr() as usize, len));
}

/// Part of the shared memory, in whole lines, that is [given back](given_back) one day: plain reads
/// of it are steps too.
pub fn is_given_back(at: NonNull<u8>, len: usize) {
    with(|h| h.arena.set_mortal(at.as_ptr() as usize, len, false));
}

/// It is, now: whoever touches it breaks a promise (`Invariant::SpaceReuse`).
pub fn given_back(at: NonNull<u8>, len: usize) {
    step(0, false, true);
    with(|h| {
        h.saw(0x9011e);
        h.note(|| "gives memory back".to_owned());
        h.arena.set_mortal(at.as_ptr() as usize, len, true);
    });
}

/// Names part of the shared memory for timelines. The innermost name counts.
pub fn name(at: NonNull<u8>, len: usize, name: impl FnOnce() -> String) {
    with(|h| {
        if h.bounds.record {
            h.arena.name(at.as_ptr() as usize, len, name());
        }
    });
}

// ---------------------------------------------------------------- CPUs and interrupts

/// The executing CPU.
#[must_use]
pub fn this_cpu() -> CpuId {
    CpuId(u32::from(with(|h| h.current)))
}

/// Are interrupts taken?
#[must_use]
pub fn irqs_are_on() -> bool {
    with(|h| h.me().irqs_on)
}

/// Is the executing code an interrupt handler?
#[must_use]
pub fn in_interrupt() -> bool {
    with(|h| h.me().in_interrupt)
}

/// Takes interrupts from now on, or no more; says what it was before. A handler can't turn them on.
pub fn set_irqs(on: bool) -> bool {
    let (before, pending) = with(|h| {
        let me = h.me();
        let before = std::mem::replace(&mut me.irqs_on, on && !me.in_interrupt);
        me.own_accesses += 1;
        (before, me.pending && me.irqs_on)
    });
    if pending {
        step(0, false, false);
    }
    before
}

/// Runs `f` with interrupts off.
pub fn without_irqs<R>(f: impl FnOnce() -> R) -> R {
    let before = set_irqs(false);
    let result = f();
    set_irqs(before);
    result
}

/// Raises the interrupt of a CPU, which will know then what this CPU knows now. `false`: it failed
/// ([`Power::FailingKicks`]), and nothing was raised.
#[must_use]
pub fn kick(target: CpuId) -> bool {
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
    let to = target.0 as u8;
    // Where the target is when it becomes pending matters to each of its steps.
    step(machine::pending_bit(to), true, true);
    let failed = with(|h| {
        h.drain(h.current);
        if !h.powers.has(Power::FailingKicks) {
            return Some(false);
        }
        h.choose(&Point::Fault { power: Power::FailingKicks }).map(|c| c == 1)
    });
    let Some(failed) = failed else { stop() };
    with(|h| {
        h.saw(0x41c4 ^ u64::from(to) << 16 ^ u64::from(failed) << 24);
        let how = if failed { "fails to interrupt" } else { "interrupts" };
        h.note(|| format!("{how} {target}"));
        if !failed {
            h.works(|work| work.interrupts += 1);
            h.raise(to);
        }
    });
    !failed
}

/// A turn of a wait loop: lets others go on. Comes back when something that this CPU loaded since
/// the last turn has changed, or after an interrupt.
pub fn relax() {
    machine::relax();
}

// ---------------------------------------------------------------- memory management

/// A table page, with what it was left with. It was given back under the allocator's lock, and the
/// lock was taken since: this CPU knows what those knew who gave pages back.
///
/// # Panics
/// When all are in use.
#[must_use]
pub fn new_table() -> TableId {
    step(0, false, true);
    with(|h| {
        h.memory.acquire_page(h.current);
        let table = h.mmu.new_table();
        h.saw(0x7ab1e ^ u64::from(table.0) << 24);
        table
    })
}

/// A table page is given back: anyone may use it for anything. No walker may reach it.
pub fn free_table(table: TableId) {
    step(0, false, true);
    check(|h| {
        h.drain(h.current);
        h.memory.release_page(h.current);
        h.note(|| format!("frees {table}"));
        h.mmu.free_table(&h.memory, table)
    });
}

/// A frame.
///
/// # Panics
/// When all are in use.
#[must_use]
pub fn new_frame() -> Frame {
    step(0, false, true);
    with(|h| {
        h.memory.acquire_page(h.current);
        let frame = h.mmu.new_frame();
        h.saw(0xf4a3e ^ u64::from(frame.0) << 24);
        frame
    })
}

/// A frame is given back: anyone may use it for anything.
pub fn free_frame(frame: Frame) {
    step(0, false, true);
    with(|h| {
        h.drain(h.current);
        h.memory.release_page(h.current);
        h.mmu.free_frame(frame);
        h.note(|| format!("frees {frame}"));
    });
}

/// What a page-table entry says.
#[must_use]
pub fn read_entry(word: Word) -> Descriptor {
    let location = with(|h| h.mmu.location(&mut h.memory, word));
    step(location, false, false);
    let value = with(|h| {
        let back = h.pick_value(location)?;
        let cpu = h.current;
        let (value, number) = h.memory.load(cpu, location, Ordering::Acquire, back);
        h.saw(u64::from(location) ^ value.rotate_left(20) ^ u64::from(number) << 40);
        let value = Descriptor::from_bits(value);
        h.note(|| format!("reads {word}: {value:?}"));
        Some(value)
    });
    value.unwrap_or_else(|| stop())
}

/// Writes a page-table entry.
pub fn write_entry(word: Word, to: Descriptor) -> Change {
    let location = with(|h| h.mmu.location(&mut h.memory, word));
    step(location, true, true);
    with(|h| {
        let (cpu, running) = (h.current, h.running);
        if running {
            h.saw(u64::from(location) ^ 0x5707e);
            h.memory.store(cpu, location, to.bits(), Ordering::Release, None);
        } else {
            h.memory.set(location, to.bits());
        }
        h.note(|| format!("writes {word} = {to:?}"));
        h.written(word, to, location)
    })
}

/// Replaces a page-table entry in one step, and says what it was.
pub fn swap_entry(word: Word, to: Descriptor) -> (Descriptor, Change) {
    let location = with(|h| h.mmu.location(&mut h.memory, word));
    step(location, true, true);
    with(|h| {
        let cpu = h.current;
        h.drain(cpu);
        let old = h.memory.value(location);
        if h.running {
            h.memory.rmw(cpu, location, Some(to.bits()), Ordering::AcqRel);
        } else {
            h.memory.set(location, to.bits());
        }
        h.saw(u64::from(location) ^ old.rotate_left(20) ^ 0x4a3);
        let old = Descriptor::from_bits(old);
        h.note(|| format!("swaps {word}: {old:?} -> {to:?}"));
        (old, h.written(word, to, location))
    })
}

/// Clears the accessed bit of an entry that is there; says what it is, and which change that was.
///
/// The walker sets the bit again on the next walk, so the entry reads the same: what counts is
/// which translations come from before.
pub fn age_entry(word: Word) -> Option<(Descriptor, Change)> {
    let now = read_entry(word);
    if !now.present() {
        return None;
    }
    let change = exchange_entry(word, now, now).ok()?;
    with(|h| h.mmu.aging(change));
    Some((now, change))
}

/// Replaces a page-table entry if it is `from`.
///
/// # Errors
/// What it is, when it is something else.
pub fn exchange_entry(word: Word, from: Descriptor, to: Descriptor) -> Result<Change, Descriptor> {
    let location = with(|h| h.mmu.location(&mut h.memory, word));
    step(location, true, true);
    with(|h| {
        let cpu = h.current;
        h.drain(cpu);
        let old = h.memory.value(location);
        h.saw(u64::from(location) ^ old.rotate_left(20) ^ 0xca5);
        if old != from.bits() {
            h.memory.rmw(cpu, location, None, Ordering::AcqRel);
            return Err(Descriptor::from_bits(old));
        }
        h.memory.rmw(cpu, location, Some(to.bits()), Ordering::AcqRel);
        h.note(|| format!("swaps {word}: {from:?} -> {to:?}"));
        Ok(h.written(word, to, location))
    })
}

// ---------------------------------------------------------------- translation

/// The root and the tag that this CPU has loaded.
#[must_use]
pub fn loaded() -> Option<(TableId, Tag)> {
    with(|h| h.mmu.loaded[h.current as usize].map(|l| (l.root, l.tag)))
}

/// Makes the walker of this CPU use the tables under `root`, with new entries under `tag`; without
/// `keep`, entries under the tag are gone first.
pub fn load_root(root: TableId, tag: Tag, keep: bool) {
    own_step();
    with(|h| {
        h.drain(h.current);
        if h.me().pending {
            h.witness("interrupt-crosses-switch");
        }
        h.saw(0x1084 ^ u64::from(root.0) << 16 ^ u64::from(tag.0) << 32 ^ u64::from(keep));
        h.works(|work| work.whole += u64::from(!keep));
        let how = if keep { "keeping its entries" } else { "empty" };
        h.note(|| format!("loads {root} under tag {}, {how}", tag.0));
        h.mmu.load(&h.memory, h.current, root, tag, keep);
    });
}

/// Loads tables without a user half under tag 0, keeping its entries or not.
pub fn load_kernel(root: TableId, keep: bool) {
    own_step();
    with(|h| {
        h.drain(h.current);
        h.saw(0x1085);
        h.note(|| format!("loads the kernel's tables, {root}"));
        h.mmu.load(&h.memory, h.current, root, Tag(0), keep);
    });
}

/// This CPU is powered off until it loads a root: nothing walks, and what is cached stays.
pub fn halt() {
    own_step();
    with(|h| {
        h.drain(h.current);
        h.saw(0x4a17);
        h.note(|| "is powered off".to_owned());
        h.mmu.halt(&h.memory, h.current);
    });
}

/// Page-table stores of this CPU are seen by all walkers from now on, where that needs saying
/// ([`Memory::Weak`]).
pub fn publish() {
    if with(|h| h.memory.model()) != Memory::Weak {
        return;
    }
    step(0, false, true);
    with(|h| {
        h.mmu.publish(&mut h.memory, h.current);
        h.saw(0x9b11);
        h.note(|| "publishes its page-table stores".to_owned());
    });
}

/// Removes entries of this CPU.
pub fn invalidate(target: Target) {
    own_step();
    remove(target, Reach::Local);
}

/// Removes entries of every CPU; a [`Target::Kernel`] under every tag.
pub fn broadcast(target: Target) {
    // What every CPU may do next depends on it.
    step(0, false, true);
    remove(target, Reach::Broadcast);
}

fn remove(target: Target, reach: Reach) {
    with(|h| {
        h.drain(h.current);
        h.saw(if reach == Reach::Local { 0x1417 } else { 0x1418 });
        h.works(|work| {
            work.invalidations += 1;
            work.whole += u64::from(matches!(target, Target::Tag(_) | Target::Everything));
            work.remote += u64::from(reach != Reach::Local);
        });
        h.note(|| {
            let everywhere = if reach == Reach::Local { "" } else { " on every CPU" };
            let what = match target {
                Target::Pages { tag, first, last, leaf_only } => {
                    let what = if leaf_only { ", leaves only" } else { "" };
                    format!("pages {first} to {last} under tag {}{what}", tag.0)
                }
                Target::Kernel { first, last } => format!("kernel pages {first} to {last}"),
                Target::Tag(tag) => format!("tag {}", tag.0),
                Target::Everything => "everything".to_owned(),
            };
            format!("invalidates {what}{everywhere}")
        });
        h.mmu.invalidate(&h.memory, h.current, target, reach);
    });
}

/// As [`sync`], for what was [`broadcast`].
pub fn sync_broadcast() {
    step(0, false, true);
    with(|h| {
        h.drain(h.current);
        h.saw(0x54d);
        h.mmu.sync(&h.memory, h.current);
    });
}

/// Waits until the removals issued by this CPU are complete, and forgets what it translated ahead
/// (AArch64: DSB, then ISB).
pub fn sync() {
    own_step();
    with(|h| {
        h.drain(h.current);
        h.saw(0x54c);
        h.mmu.sync(&h.memory, h.current);
    });
}

// ---------------------------------------------------------------- the oracle

/// Something worth having seen happened: a check that never sees it proves nothing.
pub fn witness(name: &'static str) {
    with(|h| h.witness(name));
}

/// Tells the timeline, if one is recorded.
pub fn note(text: impl FnOnce() -> String) {
    with(|h| h.tell(text));
}

/// The executing CPU has read this of what CPUs share outside of atomics
/// ([`World::state`](super::World::state)).
pub fn saw(what: u64) {
    with(|h| h.saw(what));
}

/// The executing CPU is about to use one of the things that CPUs share outside of atomics, by its
/// number: a step, where others may go on.
pub fn thing(number: u32) {
    step(THINGS - number, true, false);
}

/// One of `count` possibilities, for programs that are not determined themselves; 0 is the
/// plainest.
#[must_use]
pub fn choose(count: usize) -> usize {
    if count < 2 {
        return 0;
    }
    let chosen = with(|h| {
        let chosen = h.choose(&Point::Value { cpu: h.current, count })?;
        h.saw(chosen as u64 ^ 0xc400);
        Some(chosen)
    });
    chosen.unwrap_or_else(|| stop())
}

/// A step that concerns this CPU's MMU only. Writes to tables, and what is said about them, depend
/// on every step, so two such steps of different CPUs may be exchanged. It waits for the CPU's
/// stores.
pub(super) fn own_step() {
    step(0, false, with(|h| h.memory.buffered(h.current) != 0));
}

/// Stops the CPU, and the run, when a promise is broken.
pub(super) fn check(f: impl FnOnce(&mut machine::Hunt) -> Result<(), super::mmu::Broken>) {
    let broken = with(|h| match f(h) {
        Ok(()) => false,
        Err((invariant, details)) => {
            h.broken(invariant, h.current, details);
            true
        }
    });
    if broken && with(|h| h.running) {
        stop();
    }
}

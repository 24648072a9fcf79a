//! Context switch and lazy mode.
//!
//! A CPU is *active* in a space, *lazy* in it (it runs a kernel thread and keeps the last space
//! loaded), *kernel-only*, or *between* two spaces. It publishes this in one word (`state/cpu.rs`);
//! an initiator decides from that word whether the CPU must be notified of a change. Both sides
//! store, then load what the other stored. These are store-buffering shapes, which need a full
//! fence on **both** sides. A read-modify-write is no substitute in Rust.
//!
//! # Orderings (the four Dekker pairs)
//! | pair | this side | the flusher's side (`ops/flush/mod.rs`) | what it guarantees |
//! |---|---|---|---|
//! | D1 | store *switching* (and own bit in the set); **fence**; load generation ([`switch_to`]) | table stores, generation; **fence**; load set, load state | the CPU sees the new generation, or the flusher sees the CPU |
//! | D2 | store *switching* over *lazy*; **fence**; load generation ([`switch_to`], same space) | generation; **fence**; load state | the CPU catches up by itself, or the flusher notifies it |
//! | D3 | store *not lazy*, then (Release) store the space | load state (Acquire), then load lazy | the lazy flag that is read is no older than the space that is read. With the split lazy line both are one word, and the order holds by itself |
//! | D4 | join the online set; **fence**; empty the TLB (`cpu::online`); leave the set; **fence**; look for requests (`cpu::offline`) | change; **fence**; load online set (`flush_kernel`); post; **fence**; load online set (`call::post`) | a CPU that comes or goes is notified, or has nothing to invalidate |
//!
//! (The original's fourth pair orders the assignment of a broadcast tag against a switching CPU.
//! Here that pair is S1 and S2 in [`tags::shared`](crate::tags::shared), whose switching side is
//! the fence of D1.)
//!
//! # Costs
//! A switch to a remembered, current space touches three lines (this CPU's private and shared line,
//! the space's first line), executes one full fence, and loads the root. Under machine-wide tags it
//! touches the CPU's tag line too.
//!
//! # Other switches
//! `versioned`: the tag comes from a machine-wide allocator. `broadcast`: hardware invalidates on
//! every CPU, so a switch has nothing to catch up with. `shared`: the space has a global tag, where
//! other spaces have slots.

mod broadcast;
mod shared;
mod versioned;

use crate::base::cpu_set::Mask;
use crate::base::ids::{CpuId, Generation, Tag};
use crate::base::sync::{Ordering, compiler_fence, fence};
use crate::ops::come_by;
use crate::ops::respond;
use crate::port::facts::SplitTables;
use crate::port::family::{self, machine_wide, tags_on, user_tag};
use crate::port::platform::{Pinned, Platform};
use crate::port::policy::{Lazy, Leave};
use crate::port::regime::Regime;
use crate::state::cpu::{Loaded, PerCpu};
use crate::state::range_log::Steps;
use crate::state::space::AddressSpace;
use crate::tags::slots::{self, Remembered, Slot};

/// What a switch did to the TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Switched {
    /// The space was loaded already and its entries are current.
    Same,
    /// The space was loaded already, lazily, and some or all of its entries had to be invalidated.
    CaughtUp,
    /// A remembered tag was loaded; its entries are kept.
    Kept,
    /// A remembered tag was loaded; the ranges it missed were invalidated.
    Replayed,
    /// The tag was loaded without any entries.
    Flushed,
}

/// How the kernel must load the user half on its way to user mode (split tables).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the user half must be loaded as this says"]
pub struct UserEntry {
    /// The tag of the user half.
    pub tag: Tag,
    /// Keep the entries under that tag; if `false`, they must be gone when user code runs.
    pub keep: bool,
}

#[inline]
fn slots_in_use<P: Platform>(ids: &[crate::base::sync::AtomicU64]) -> u8 {
    if !tags_on::<P>() {
        return 1;
    }
    #[allow(clippy::cast_possible_truncation)] // at most MAX_SLOTS
    P::policy().slots.clamp(1, ids.len() as u8)
}

#[allow(clippy::large_enum_variant)] // lives on the stack for the length of one switch
enum Plan {
    Keep,
    Replay(Steps),
    Flush,
}

/// Makes `next` the space of this CPU.
///
/// # Safety
/// 1. Interrupts are off.
/// 2. `next` stays alive and in place, with valid tables, until this CPU has switched away from it
///    *and* [`AddressSpace::retire`] has returned `Ok`. (A CPU that turns lazy keeps it loaded.)
/// 3. `next` has not been retired, and is not being retired.
/// 4. The caller is not a handler that interrupted a function of this library, nor a function that
///    [`call_on`](crate::call_on) runs.
/// 5. This CPU is [online](crate::online).
pub unsafe fn switch_to<P: Platform>(pin: &P::Pin, next: &AddressSpace<P>) -> Switched {
    let cpu = pin.cpu();
    let me = PerCpu::<P>::here(pin);
    let order = me.order();
    let loaded = me.loaded();
    let lazy = me.is_lazy(loaded, order);

    if loaded.id() == next.id().get() {
        let same = if lazy {
            leave_lazy(cpu, me, loaded, next)
        } else {
            me.stats.switches_same.inc();
            Some(Switched::Same)
        };
        if let Some(outcome) = same {
            come_by::honour(me, next);
            come_by::come_by(cpu, me, next);
            return outcome;
        }
    }

    if let Some(strategy) = family::strategy::<P>() {
        // SAFETY: this function's contract.
        return unsafe { broadcast::switch_to(pin, me, next, strategy) };
    }
    let policy = P::policy();
    let ids = me.private.ids.as_ref();
    let n = slots_in_use::<P>(ids);
    let unsplit = lazy && !policy.split_lazy_line;
    if unsplit {
        me.set_lazy(loaded, false); // ORDERING: D3: before the store of `next` below
    }
    // ORDERING: D1, with the fence below. Relaxed: a CPU that reads this value relies on nothing
    // that was stored before it
    me.shared.loaded.store(Loaded::SWITCHING.0, Ordering::Relaxed);
    // A non-maskable kick that comes before this store may take this CPU out of a set, so look at
    // the slots after it.
    compiler_fence(Ordering::SeqCst);
    let versioned = machine_wide::<P>();
    // Before the fence: a flusher that reads the space's tag after it has changed the tables reads
    // this tag, or this CPU sees its change.
    let tag = if versioned { versioned::activate(pin, me, next, || ()) } else { Tag(0) };
    let found = slots::find(ids, n, next.id());
    let joins = !found.is_some_and(|(_, remembered)| remembered.is_member());
    if joins {
        next.residency.cpus.insert(cpu);
    }
    fence(Ordering::SeqCst); // ORDERING: D1, with the fence in `flush::find`
    if family::shared::<P>().is_some() {
        if let Some(tag) = next.shared_tag().tag() {
            // SAFETY: this function's contract; the fence of D1 was before the tag was read.
            return unsafe { shared::switch_to(cpu, me, next, tag) };
        }
        // `acked` is not `EVERY` from here on, so `loaded_tag` is the slot's, also for replayed
        // steps.
        me.shared.acked.store(0, Ordering::Relaxed);
    }
    let want = next.generation();

    let tags_on = tags_on::<P>();
    let order = me.order();
    let (slot, plan, order) = match found {
        Some((slot, _)) if tags_on => (slot, plan_for(me, slot, next, want), order),
        Some((slot, _)) => (slot, Plan::Flush, order),
        None => {
            let (slot, order) = order.victim(policy.victim, n);
            if !slots::read(ids, slot).is_empty() {
                me.stats.evictions.inc();
            }
            (slot, Plan::Flush, order)
        }
    };
    let empty = matches!(plan, Plan::Flush);
    let aged = come_by::must_flush(me, next, slot, joins, empty);
    let plan = if aged { Plan::Flush } else { plan };
    let remembered = Remembered::new(next.id(), true);
    if slots::read(ids, slot) != remembered {
        slots::write(ids, slot, remembered);
    }

    let tag = if versioned { tag } else { slot.tag(tags_on) };
    let keep = !matches!(plan, Plan::Flush);
    // SAFETY: the tables are valid (this function's contract 2). With `keep`, the slot's entries
    // are current to the generation just read, or are invalidated below before this function
    // returns; interrupts are off, so no access through them comes between. `plan_for` keeps no tag
    // of a space that freed tables in the meantime.
    unsafe { P::Regime::load(next.root(), tag, keep) };
    if versioned {
        me.tag.set_tag(tag);
        // SAFETY: the root was loaded just now (contract 2 of `Regime`: no walk through the
        // previous one is left).
        unsafe { me.tag.loaded() };
    }
    let outcome = match plan {
        Plan::Keep => Switched::Kept,
        Plan::Replay(steps) => {
            respond::invalidate_steps(me, slot, &steps);
            me.stats.switches_replayed.inc();
            Switched::Replayed
        }
        Plan::Flush => {
            let split = matches!(P::Regime::facts().split_tables, SplitTables::Yes { .. });
            if split {
                me.mark_user_half_pending(slot);
            }
            me.stats.switches_flushed.inc();
            Switched::Flushed
        }
    };
    if me.generation_of(slot) != want {
        me.set_generation_of(slot, want);
    }
    if policy.leave == Leave::AtSwitch {
        leave_set(me, cpu);
    }
    let mut order = order.used(slot);
    if outcome == Switched::Kept {
        let (next_order, spill) = order.count_kept();
        order = next_order;
        if spill != 0 {
            me.stats.switches_kept.add(spill);
        }
    }
    me.set_order(order);
    me.private.space.store(core::ptr::from_ref(next).cast_mut(), Ordering::Relaxed);
    // ORDERING: Release, with the Acquire in `flush::acknowledge::is_done`: the previous space was
    // left before
    me.shared.acked.store(want.0, Ordering::Release);
    // ORDERING: Release, with the Acquire in `remote_view`: a CPU that sees the space sees `acked`
    me.shared.loaded.store(next.id().get(), Ordering::Release);
    outcome
}

/// Decides what to do with the entries of a remembered space whose generation is `want` now.
fn plan_for<P: Platform>(
    me: &PerCpu<P>,
    slot: Slot,
    next: &AddressSpace<P>,
    want: Generation,
) -> Plan {
    let have = me.generation_of(slot);
    if have == want {
        return Plan::Keep;
    }
    if !P::policy().range_log {
        return Plan::Flush;
    }
    match next.log.read(have, want) {
        // With freed tables, a cached non-leaf entry could be walked as soon as the root is loaded.
        Some(steps)
            if !steps.freed_tables()
                && steps.strides().is_some_and(|n| n <= u64::from(P::Regime::facts().ceiling)) =>
        {
            Plan::Replay(steps)
        }
        _ => Plan::Flush,
    }
}

/// Returns from lazy mode in the same space, then catches up. `None` when a non-maskable handler
/// made the CPU leave the space just before.
fn leave_lazy<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    loaded: Loaded,
    next: &AddressSpace<P>,
) -> Option<Switched> {
    let unsplit = !P::policy().split_lazy_line;
    if unsplit {
        me.set_lazy(loaded, false); // ORDERING: D3
    }
    // With *switching* published, a non-maskable kick returns `Served::Again` and changes nothing
    // here.
    me.shared.loaded.store(Loaded::SWITCHING.0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    me.space()?;
    fence(Ordering::SeqCst); // ORDERING: D2, with the fence in `flush::find`
    let slot = me.order().current();
    let shared = family::shared::<P>().is_some() && me.runs_shared();
    let broadcast = family::strategy::<P>().is_some() || shared;
    let current = broadcast || me.generation_of(slot) == next.generation();
    if current {
        me.stats.lazy_exits_current.inc();
    } else {
        me.stats.lazy_exits_stale.inc();
        respond::catch_up(cpu, me, None, false, None);
    }
    // ORDERING: Release, with the Acquire in `remote_view`
    me.shared.loaded.store(next.id().get(), Ordering::Release);
    Some(if current { Switched::Same } else { Switched::CaughtUp })
}

/// Marks this CPU as lazy: it runs a kernel thread from now on and keeps its space loaded. Flushes
/// of leaf entries do not interrupt it until it returns with [`switch_to`].
///
/// # Safety
/// 1. As [`leave`].
/// 2. Until this CPU has called [`switch_to`], it makes no access through the space's user
///    addresses, and runs no user code.
pub unsafe fn enter_lazy<P: Platform>(pin: &P::Pin) {
    if P::policy().lazy == Lazy::Off {
        return;
    }
    let me = PerCpu::<P>::here(pin);
    let loaded = me.loaded();
    if loaded == Loaded::KERNEL || me.is_lazy(loaded, me.order()) {
        return;
    }
    me.set_lazy(loaded, true);
    me.stats.lazy_entries.inc();
}

/// Loads the kernel's own tables: this CPU no longer uses any space (deep idle, a CPU that goes
/// offline). Entries under remembered tags stay, and are checked when their space is loaded again.
///
/// # Safety
/// 1. Interrupts are off.
/// 2. The caller is not a handler that interrupted a function of this library, nor a function that
///    [`call_on`](crate::call_on) runs, unless this CPU is lazy: when this returns the space may be
///    freed, and the interrupted code may be using it.
pub unsafe fn leave<P: Platform>(pin: &P::Pin) {
    unload(PerCpu::<P>::here(pin), pin.cpu());
}

/// Leaves the loaded space, if there is one. The CPU itself calls it, with interrupts off.
#[inline(never)]
pub(crate) fn unload<P: Platform>(me: &PerCpu<P>, cpu: CpuId) {
    if me.loaded() == Loaded::KERNEL {
        return;
    }
    // With *switching* published, a non-maskable kick changes nothing here, and `retire` waits.
    me.shared.loaded.store(Loaded::SWITCHING.0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    P::Regime::load_kernel();
    me.set_order(me.order().with_lazy(false));
    match family::strategy::<P>() {
        Some(strategy) => broadcast::left(me, strategy),
        None if P::policy().leave == Leave::WhenAsked => {}
        None => leave_set(me, cpu),
    }
    if machine_wide::<P>() {
        me.tag.set_tag(Tag(0));
        // SAFETY: the kernel's own tables were loaded above, under a tag that no space has
        // (contract 5 of `Regime`).
        unsafe { me.tag.deactivate() };
    }
    me.private.space.store(core::ptr::null_mut(), Ordering::Relaxed);
    // ORDERING: Release, with the Acquire in `remote_view`: the root was replaced before (no walk
    // through the old one is in flight: contract of `load_kernel`)
    me.shared.loaded.store(Loaded::KERNEL.0, Ordering::Release);
    me.stats.leaves.inc();
}

/// Takes this CPU out of the set of the space that `private.space` still names. When the CPU is out
/// of the set, the owner may free the space, so this is the last access to it.
fn leave_set<P: Platform>(me: &PerCpu<P>, cpu: CpuId) {
    if let Some(prev) = me.space() {
        forget_membership(me, prev);
        prev.residency.cpus.remove(cpu);
    }
}

/// Notes in the slot of `space`, if there is one, that this CPU is not in the space's set.
#[inline(never)]
pub(crate) fn forget_membership<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>) {
    let ids = me.private.ids.as_ref();
    #[allow(clippy::cast_possible_truncation)] // at most MAX_SLOTS
    let found = slots::find(ids, ids.len() as u8, space.id());
    if let Some((slot, _)) = found {
        slots::write(ids, slot, Remembered::new(space.id(), false));
    }
}

/// Says how to load the user half of the loaded space's tables on the way to user mode. If an
/// invalidation of that half is pending, this call hands it to the caller (once).
///
/// Call it on every path that returns to user mode. Without split tables the result is always to
/// keep the entries.
///
/// # Safety
/// With split tables:
/// 1. Interrupts are off, and stay off until user code runs.
/// 2. The caller loads the user half as the result says before user code runs.
/// 3. No other function of this library runs on this CPU in between. If a non-maskable handler
///    calls one there, it makes the return path start again, with this call.
pub unsafe fn return_to_user<P: Platform>(pin: &P::Pin) -> UserEntry {
    let me = PerCpu::<P>::here(pin);
    let slot = me.order().current();
    let tag = user_tag::<P>(me.loaded_tag(slot));
    let SplitTables::Yes { .. } = P::Regime::facts().split_tables else {
        return UserEntry { tag, keep: true };
    };
    let pending = me.rare.user_half_pending.load(Ordering::Relaxed);
    let bit = 1 << slot.0;
    if pending & bit == 0 {
        return UserEntry { tag, keep: tags_on::<P>() };
    }
    me.rare.user_half_pending.store(pending & !bit, Ordering::Relaxed);
    me.stats.user_half_flushes.inc();
    UserEntry { tag, keep: false }
}

pub(crate) use shared::move_over;
pub(crate) use versioned::Everyone;

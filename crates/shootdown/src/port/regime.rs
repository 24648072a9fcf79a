//! The hardware's half of the seam: what a CPU can do to its translations.
//!
//! Every invalidation in this crate is the fixed invalidation sequence *publish; invalidate…;
//! sync*: [`Regime::publish`] makes table stores visible to walkers, [`Regime::invalidate`] removes
//! entries, [`Regime::sync`] waits until the removal is complete. On x86 the first and last are
//! empty for local work; they exist so that no caller can leave them out where they are needed. The
//! functions at the end of this file issue the middle and the end of the sequence on real hardware:
//! with its errata, and where it does not order translations after the sequence by itself.

use crate::base::ids::{Tag, VaRange};
use crate::base::sync::{Ordering, fence};
use crate::port::facts::Facts;

/// How far an invalidation reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// This CPU.
    Local,
    /// Every CPU, by hardware (only where [`Facts::broadcast`] says so).
    Broadcast,
}

/// What to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidate {
    /// The entries of `range` under `tag`, cached non-leaf entries included unless `leaf_only`.
    Range {
        /// The tag of the entries.
        tag: Tag,
        /// The addresses.
        range: VaRange,
        /// Cached non-leaf entries may stay: no table page was freed.
        leaf_only: bool,
    },
    /// Every non-global entry under the tag, cached non-leaf entries included.
    Tag(Tag),
    /// The leaf entries of a kernel range, global ones included, under the loaded tag; with
    /// [`Reach::Broadcast`], under every tag. It may leave non-leaf entries that are cached under
    /// other tags: tables of the kernel's own half are freed only after [`Invalidate::Everything`].
    Kernel(VaRange),
    /// Every entry of every tag, global ones included.
    Everything,
}

/// The operations of a translation regime.
///
/// # Safety
/// The safety of everything else rests on these guarantees:
/// 1. After `invalidate(what, reach); sync(reach)` no CPU within reach uses a translation covered
///    by `what` that was cached before the call, and no walk that began before the call installs
///    one. For [`Invalidate::Range`] with `leaf_only` this holds for leaf entries.
/// 2. `load` with `keep == false` behaves as `invalidate(Tag(tag), Local)` after the root is in
///    force. When `load` returns, no walk through the previous root is in flight on this CPU.
/// 3. `facts` is constant and true of every CPU of the system.
/// 4. Everything here may be called with interrupts off or on, and may be interrupted by itself;
///    nothing waits for another CPU, except `sync(Reach::Broadcast)`.
/// 5. `load_kernel` loads a root under a tag that no slot has (tag 0), and no walk through the
///    previous root is in flight when it returns. Without tags, the previous space's entries are
///    gone. What was cached under tag 0 may stay.
/// 6. Walks through a root come after every load that this CPU made before `load` (x86: always;
///    Arm: a barrier before the root register's write).
/// 7. `invalidate` works for a tag that is not loaded.
/// 8. Nothing here unwinds: a CPU may have acknowledged what it is about to invalidate.
pub unsafe trait Regime: 'static {
    /// What identifies a tree of page tables to the walker (a physical address, usually).
    type Root: Copy + Send + Sync + 'static;

    /// The port's facts.
    fn facts() -> &'static Facts;

    /// Makes the walker of this CPU use `root`, with new entries cached under `tag`. With `keep`,
    /// the entries already cached under `tag` remain; otherwise they are gone when the call
    /// returns.
    ///
    /// # Safety
    /// The tables under `root` are valid and stay so until another root is loaded; with `keep`,
    /// every entry cached under `tag` on this CPU agrees with them, or is invalidated before this
    /// CPU makes an access through it, and no table page that a cached non-leaf entry names has
    /// been freed.
    unsafe fn load(root: Self::Root, tag: Tag, keep: bool);

    /// Loads the kernel's own tables, which belong to no space and have no user half.
    fn load_kernel();

    /// Makes this CPU's earlier page-table stores visible to every walker (`dsb ishst`, `fence
    /// w,w`; nothing on x86).
    fn publish();

    /// Removes entries.
    fn invalidate(what: Invalidate, reach: Reach);

    /// Waits until the removals issued by this CPU are complete within `reach`.
    fn sync(reach: Reach);
}

/// Removes entries, and does so twice where an entry may survive once. The second removal comes
/// after the first is complete (as TF-A does it for Arm 813419): two at once can count as one.
pub(crate) fn invalidate<R: Regime>(what: Invalidate, reach: Reach) {
    R::invalidate(what, reach);
    if R::facts().errata.survives_once {
        match reach {
            Reach::Local => R::sync(reach),
            Reach::Broadcast => sync_everywhere::<R>(what),
        }
        R::invalidate(what, reach);
    }
}

/// Waits until `last`, and everything removed before it, is gone on every CPU. Where a broadcast
/// may be reported complete while accesses are still in flight, it issues `last` and the sync once
/// more.
pub(crate) fn sync_everywhere<R: Regime>(last: Invalidate) {
    R::sync(Reach::Broadcast);
    if R::facts().errata.repeat_sync {
        R::invalidate(last, Reach::Broadcast);
        R::sync(Reach::Broadcast);
    }
}

/// Waits until invalidations issued on this CPU are complete, and orders later translations after
/// them.
pub(crate) fn sync_here<R: Regime>() {
    R::sync(Reach::Local);
    if !R::facts().invalidate_serializes {
        // ORDERING: the generation was read before the invalidation; translations made from now on
        // must come after it (hardware that does not order them by itself)
        fence(Ordering::SeqCst);
    }
}

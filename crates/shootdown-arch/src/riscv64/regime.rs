//! The core's [`Regime`] on real instructions.
//!
//! # Loading a root
//! `satp` names tables and ASID in one register, and writing it orders and invalidates nothing. So:
//!
//! | entries under the ASID | sequence |
//! |---|---|
//! | kept | fence rw,rw; write |
//! | dropped, another ASID is loaded | fence rw,rw; SFENCE.VMA by ASID; write |
//! | dropped, the same ASID is loaded | fence rw,rw; write; SFENCE.VMA by ASID |
//!
//! Fencing *before* the write leaves no moment at which the new root is walked with old entries
//! under its ASID. Under the same ASID the old root would fill it again in between, so there the
//! fence comes after; until then nothing but the kernel's own, global, mappings is used.
//!
//! The first fence keeps walks of the new root behind the loads before it: a root is walked only
//! while `satp` names it (Privileged, "Virtual Address Translation Process"), and the write waits
//! for the loads.
//!
//! # Walks of the old root
//! A walk that began before the write may end after it. What it leaves is cached under the ASID it
//! began with, and a later SFENCE.VMA by that ASID covers it, done or not done. The memory that it
//! reads has no effect when it is read: walkers are kept from memory that does (Privileged,
//! "Physical Memory Attributes").

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, fence as memory_fence};

use shootdown::Tag;
use shootdown::facts::Facts;
use shootdown::regime::{Invalidate, Reach, Regime};

use super::fence::{Fence, execute, fence};
use super::port::Port;
use super::satp::{RootFrame, Satp, read_satp, write_satp};
use crate::asid::Asid;

/// What a kernel settles before its first context switch.
///
/// # Safety
/// 1. `port` returns the same reference always; its options are true of every hart.
/// 2. `kernel_root` returns tables that map everything the kernel needs, forever, and nothing of
///    any space.
/// 3. Mappings of the kernel are global, and no space has a global mapping of its own.
/// 4. The kernel runs in supervisor mode, `mstatus.TVM` is clear, and no interrupt handler returns
///    with another `satp` than it found, the handler that calls the core excepted.
pub unsafe trait Boot: 'static {
    /// The means in use.
    fn port() -> &'static Port;

    /// The kernel's own tables.
    fn kernel_root() -> RootFrame;
}

/// The regime of a RISC-V kernel.
pub struct RiscvRegime<B>(PhantomData<B>);

impl<B: Boot> RiscvRegime<B> {
    fn write(root: RootFrame, tag: Tag, keep: bool) {
        let port = B::port();
        let (asid, keep) = match port.asid_of(tag) {
            // Without ASIDs, what is cached is the space before.
            Some(asid) => (asid, keep && port.asids().bits() != 0),
            // No such tag: nothing may be kept under the one used instead.
            None => (Asid::ZERO, false),
        };
        let value = Satp::new(port.mode(), asid, root);
        // ORDERING: every load before this comes before every walk through the new root.
        memory_fence(Ordering::SeqCst);
        // SAFETY: supervisor mode (`Boot`, 4); the mode is the port's (`Boot`, 1). That the tables
        // are valid and that the entries kept agree with them is the contract of `load`,
        // whose callers and `kernel_root` (`Boot`, 2) vouch for it.
        unsafe {
            let same = Asid::of_satp(read_satp()) == asid;
            if !keep && !same {
                fence(Fence::asid(asid));
            }
            write_satp(value);
            if !keep && same {
                fence(Fence::asid(asid));
            }
        }
    }
}

// SAFETY: 1. `Port::local` removes all that a request covers, which its tests hold against the
// manual; a plan ends with a fence, after which no walk that began before installs a covered entry
// (Privileged, SFENCE.VMA). 2. See the head of this file: dropped entries are fenced away, and what
// walks of the old root leave is under the old ASID, whose next fence covers it. 3. `facts` is the
// port's, constant by `Boot` 1. 4. Nothing here waits. 5. Tag 0 is no space's where there are ASIDs;
// otherwise nothing is kept. 6. The fence before the write of `satp`. 7. A fence names its ASID
// whatever `satp` holds.
unsafe impl<B: Boot> Regime for RiscvRegime<B> {
    type Root = RootFrame;

    fn facts() -> &'static Facts {
        B::port().facts()
    }

    #[inline]
    unsafe fn load(root: RootFrame, tag: Tag, keep: bool) {
        Self::write(root, tag, keep);
    }

    fn load_kernel() {
        // Only global entries matter here, and changes of those invalidate them by themselves.
        // Nothing of the kernel's tables is cached under its ASID.
        Self::write(B::kernel_root(), Tag(0), true);
    }

    #[inline]
    fn publish() {
        // ORDERING: table stores are visible to other harts before whatever tells them to walk
        // again. (For this hart the fence of `invalidate` sees to it.)
        memory_fence(Ordering::SeqCst);
    }

    #[inline]
    fn invalidate(what: Invalidate, reach: Reach) {
        match reach {
            Reach::Local => {
                for step in B::port().local(what) {
                    // SAFETY: supervisor mode (`Boot`, 4); a plan has Svinval's instructions only
                    // where every hart has them (`Boot`, 1).
                    unsafe { execute(step) }
                }
            }
            Reach::Broadcast => unreachable!("a broadcast was asked of a port that declares none"),
        }
    }

    #[inline]
    fn sync(_: Reach) {
        // A plan is complete when its last instruction is.
    }
}

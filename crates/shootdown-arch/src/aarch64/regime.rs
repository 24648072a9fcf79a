//! The core's [`Regime`] on real instructions.
//!
//! # Loading a root
//! | step | why |
//! |---|---|
//! | DSB | loads before this come before walks of the new root |
//! | TLBI ASIDE1 and its completion, unless entries are kept, if another ASID is loaded | no moment at which the new root is walked with old entries under its ASID |
//! | MSR `TTBR0_EL1`; ISB | the new root |
//! | DSB | walks of the old root that are in flight end (ISB alone does not wait for them, as Arm's architects confirmed on the Linux lists in March 2020) |
//! | TLBI ASIDE1 and its completion, unless entries are kept, if the same ASID was loaded | the old root could have filled it again |

use core::marker::PhantomData;

use shootdown::Tag;
use shootdown::facts::Facts;
use shootdown::regime::{Invalidate, Reach, Regime};

use super::barrier::{Barrier, Completing, barrier};
use super::port::Port;
use super::tlbi::{Domain, Operation, Tlbi, tlbi};
use super::ttbr::{RootFrame, Ttbr, read_ttbr0, write_ttbr0};
use crate::asid::Asid;

/// What a kernel settles before its first context switch.
///
/// # Safety
/// 1. `port` returns the same reference always; it was built from features that every CPU has, with
///    options that are true. `TCR_EL1.A1` is clear, `TCR_EL1.AS` and `DS` are as the port says.
/// 2. `kernel_root` returns tables for the lower half that map nothing, forever. The kernel runs in
///    the upper half, whose mappings are global.
/// 3. The kernel runs at EL1, or at EL2 of a host that runs in the EL2&0 regime; all CPUs are in
///    one inner shareable domain. No interrupt handler returns with another `TTBR0_EL1` than it
///    found, the handler that calls the core excepted.
pub unsafe trait Boot: 'static {
    /// The means in use.
    fn port() -> &'static Port;

    /// Tables that map nothing.
    fn kernel_root() -> RootFrame;
}

/// The regime of an AArch64 kernel.
pub struct ArmRegime<B>(PhantomData<B>);

impl<B: Boot> ArmRegime<B> {
    const fn domain(reach: Reach) -> Domain {
        match reach {
            Reach::Local => Domain::Local,
            Reach::Broadcast => Domain::Inner,
        }
    }

    fn execute(what: Tlbi) {
        // SAFETY: the exception level is right (`Boot`, 3), and a plan has range operations only
        // where every CPU has them (`Boot`, 1). The outer domain is never named here.
        unsafe { tlbi(what) }
    }

    fn forget(asid: Asid) {
        Self::execute(Tlbi { operation: Operation::Asid(asid), domain: Domain::Local });
        <Self as Regime>::sync(Reach::Local);
    }

    fn write(root: RootFrame, tag: Tag, keep: bool) {
        let port = B::port();
        let (asid, keep) = match Asid::of_tag(tag, port.asids()) {
            Ok(asid) => (asid, keep),
            // No such tag: nothing may be kept under the one used instead.
            Err(_) => (Asid::ZERO, false),
        };
        // ORDERING: every load before this comes before every walk through the new root.
        barrier(Barrier::Full(Domain::Local));
        // SAFETY: the exception level is right (`Boot`, 3).
        let same = Asid::of_ttbr(unsafe { read_ttbr0() }, port.asids()) == asid;
        if !keep && !same {
            Self::forget(asid);
        }
        // Not shared: a CPU may have entries to forget that its neighbour has not.
        let value = Ttbr::new(root, asid, false);
        // SAFETY: the exception level is right (`Boot`, 3). That the tables are valid and that the
        // entries kept agree with them is the contract of `load`, whose callers and
        // `kernel_root` (`Boot`, 2) vouch for it.
        unsafe { write_ttbr0(value) };
        // ORDERING: walks of the old root end before whatever says that it is not loaded any more.
        barrier(Barrier::Full(Domain::Local));
        if !keep && same {
            Self::forget(asid);
        }
    }
}

// SAFETY: 1. `Port::plan` removes all that a request covers, which its tests hold against the
// manual; a DSB of the domain completes it, for accesses and for walks. 2. The sequence at the head
// of this file. 3. `facts` is the port's, constant by `Boot` 1. 4. Nothing here waits except a DSB.
// 5. ASID 0 is no space's. 6. The first DSB of the sequence. 7. A TLBI names its ASID whatever is
// loaded.
unsafe impl<B: Boot> Regime for ArmRegime<B> {
    type Root = RootFrame;

    fn facts() -> &'static Facts {
        B::port().facts()
    }

    #[inline]
    unsafe fn load(root: RootFrame, tag: Tag, keep: bool) {
        Self::write(root, tag, keep);
    }

    fn load_kernel() {
        // The tables map nothing, so nothing is cached under their ASID.
        Self::write(B::kernel_root(), Tag(0), true);
    }

    #[inline]
    fn publish() {
        barrier(Barrier::Stores(Domain::Inner));
    }

    #[inline]
    fn invalidate(what: Invalidate, reach: Reach) {
        for step in B::port().plan(what, Self::domain(reach)) {
            Self::execute(step);
        }
    }

    #[inline]
    fn sync(reach: Reach) {
        for step in B::port().completion(Self::domain(reach)) {
            match step {
                Completing::Barrier(what) => barrier(what),
                Completing::Tlbi(what) => Self::execute(what),
            }
        }
    }
}

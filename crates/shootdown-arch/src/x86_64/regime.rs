//! The core's [`Regime`] on real instructions.
//!
//! A kernel names its [`Port`] and its own tables in a [`Boot`] and gets a complete regime,
//! [`X86Regime`]. What is left to the kernel is its half: interrupts, per-CPU slots, waiting.

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, compiler_fence, fence};

use shootdown::Tag;
use shootdown::facts::Facts;
use shootdown::regime::{Invalidate, Reach, Regime};

use super::cr3::{Cr3, RootFrame, read_cr3, write_cr3, write_raw};
use super::cr4::toggle_pge;
use super::invlpg::invlpg;
use super::invlpgb::{invlpgb, tlbsync};
use super::invpcid::invpcid;
use super::pcid::Pcid;
use super::plan::{Step, Steps};
use super::port::Port;

/// What a kernel settles before its first context switch.
///
/// # Safety
/// 1. `port` returns the same reference always; it was built from features that every CPU has, with
///    options that are true: every CPU runs at privilege level 0 here, has set `CR4.PCIDE` if and
///    only if [`Port::tags`], has set `CR4.LA57` if and only if the options say so, and has set
///    `CR4.PGE` where PCIDs are in use.
/// 2. `kernel_root` returns tables that map everything the kernel needs, forever, and nothing of
///    any space.
/// 3. No interrupt handler changes CR3 or CR4 and returns with another value than it found, the
///    handler that calls the core excepted.
/// 4. Linear-address masking is off (bits 62:61 of CR3 are clear).
/// 5. Where PCIDs are in use and the tables are not split, mappings of the kernel are global.
///    (Otherwise a kernel page is cached once per PCID, and INVLPG reaches only the loaded one.)
pub unsafe trait Boot: 'static {
    /// The means in use.
    fn port() -> &'static Port;

    /// The kernel's own tables.
    fn kernel_root() -> RootFrame;
}

/// The regime of an x86-64 kernel.
pub struct X86Regime<B>(PhantomData<B>);

impl<B: Boot> X86Regime<B> {
    fn run(steps: Steps) {
        for step in steps {
            // SAFETY: the plan is made for this port, which is true of this CPU (`Boot`, 1): every
            // instruction exists, runs at privilege level 0, and accepts its operands (I1). CR3 is
            // written with the value it holds, and no handler changes it or CR4 in between (`Boot`,
            // 3).
            unsafe {
                match step {
                    Step::Invlpg(address) => invlpg(address),
                    Step::Invpcid(operation) => invpcid(operation),
                    // Bit 63 reads as zero, so nothing is kept.
                    Step::ReloadCr3 => write_raw(read_cr3()),
                    Step::TogglePge => toggle_pge(),
                    Step::Invlpgb(operands) => invlpgb(operands),
                }
            }
        }
    }

    /// The value that loads `root` under `tag`.
    fn value(root: RootFrame, tag: Tag, keep: bool) -> Cr3 {
        if !B::port().tags() {
            return Cr3::untagged(root);
        }
        match Pcid::try_from(tag) {
            Ok(pcid) => Cr3::tagged(root, pcid, keep),
            // No such tag: nothing may be kept under the one used instead.
            Err(_) => Cr3::tagged(root, Pcid::ZERO, false),
        }
    }
}

// SAFETY: 1. `Port::local` and `Port::broadcast` remove all that a request covers, which their
// tests hold against the manuals; local instructions complete before the next instruction starts
// (SDM 4.10.4.1), broadcast ones at `sync`. 2. MOV to CR3 without bit 63 removes the PCID's
// entries, and it serializes, so no walk of the old root is in flight. 3. `facts` is the port's,
// constant by `Boot` 1.
// 4. Nothing here waits except TLBSYNC.
unsafe impl<B: Boot> Regime for X86Regime<B> {
    type Root = RootFrame;

    fn facts() -> &'static Facts {
        B::port().facts()
    }

    #[inline]
    unsafe fn load(root: RootFrame, tag: Tag, keep: bool) {
        // SAFETY: the value is tagged if and only if PCIDs are on; the tables and the entries kept
        // are the caller's promise, which is this function's contract.
        unsafe { write_cr3(Self::value(root, tag, keep)) }
    }

    fn load_kernel() {
        // Entries under PCID 0 may predate changes of kernel mappings that are not global.
        // SAFETY: the kernel's tables are valid forever (`Boot`, 2) and nothing is kept.
        unsafe { write_cr3(Self::value(B::kernel_root(), Tag(0), false)) }
    }

    #[inline]
    fn publish() {
        // A walker of this CPU sees its stores in order; others see them in store order. What is
        // left is the compiler.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn invalidate(what: Invalidate, reach: Reach) {
        match reach {
            Reach::Local => {
                let loaded = if B::port().tags() {
                    // SAFETY: privilege level 0 (`Boot`, 1).
                    Pcid::of_cr3(unsafe { read_cr3() })
                } else {
                    Pcid::ZERO
                };
                Self::run(B::port().local(what, loaded));
            }
            Reach::Broadcast => {
                let Some(steps) = B::port().broadcast(what) else {
                    unreachable!("a broadcast was asked of a port that declares none");
                };
                // ORDERING: INVLPGB is weakly ordered; the table stores it is about must be out of
                // the store buffer before another CPU's walker is told to forget.
                fence(Ordering::SeqCst);
                Self::run(steps);
            }
        }
    }

    #[inline]
    fn sync(reach: Reach) {
        if matches!(reach, Reach::Broadcast) {
            // SAFETY: broadcast is asked for only where the port declares INVLPGB (`Boot`, 1), and
            // the core's pin keeps the caller on the CPU that issued it.
            unsafe { tlbsync() }
        }
    }
}

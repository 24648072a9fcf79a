//! The kernel's half of the seam.
//!
//! A port implements [`Platform`] once, for a type without data, with the functions that the kernel
//! has already. The library never touches the interrupt flag, never allocates, and keeps no global
//! state of its own; it takes no locks except those inside the allocators of machine-wide tags that
//! a port makes for it. It asks for everything else that it needs through this trait.

use core::fmt;

use crate::base::cpu_set::Mask;
use crate::base::ids::CpuId;
use crate::port::paravirt::{HypercallError, PreemptedWord, RemoteFlush};
use crate::port::policy::Policy;
use crate::port::regime::Regime;
use crate::state::cpu::PerCpu;
use crate::state::system::System;
use crate::tags::broadcast::SharedTags;
use crate::tags::slots::TagSlots;
use crate::tags::versioned::Versioned;

/// The set-of-CPUs value type of a platform.
pub type CpuSetOf<P> = <<P as Platform>::Mask as Mask>::Set;

/// Proof that the holder stays on one CPU.
///
/// # Safety
/// Until the value is dropped, the code that holds it or a reference to it executes on
/// [`Pinned::cpu`] and nowhere else. The type must be neither `Send` nor `Sync`.
pub unsafe trait Pinned {
    /// The executing CPU.
    fn cpu(&self) -> CpuId;
}

/// An interrupt could not be raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KickError {
    /// The interrupt controller is not ready yet.
    NotReady,
    /// This CPU can't be reached.
    Unreachable(CpuId),
}

/// A wait has lasted too long, in the platform's judgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalled;

impl fmt::Display for KickError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => {
                f.write_str("the interrupt controller is not ready; flush after it is set up")
            }
            Self::Unreachable(cpu) => {
                write!(f, "{cpu} could not be interrupted; take it offline first")
            }
        }
    }
}

impl core::error::Error for KickError {}

/// What the kernel provides.
///
/// # Safety
/// 1. [`Platform::slot`] returns the same reference for a CPU from the moment it first returns
///    `Some`, distinct for distinct CPUs, and `Some` for every CPU that has called
///    [`crate::cpu::online`].
/// 2. A successful [`Platform::kick`] makes every CPU in `targets` call [`crate::on_kick`] after
///    the kick, once its interrupts are enabled; kicks may be merged, none is lost. Everything that
///    the kicking CPU wrote before is visible to the kicked one then.
/// 3. [`crate::on_kick`] is called before the CPU runs user code again.
/// 4. [`Platform::system`], [`Platform::policy`], [`Platform::tags`] and [`Platform::shared_tags`]
///    always return the same reference.
/// 5. With split tables, kicks are maskable. If [`crate::on_kick`] is called from a non-maskable
///    interrupt and returns [`crate::Served::Again`], it is called again before the CPU runs user
///    code (by a maskable self-interrupt, for example).
/// 6. If [`Platform::preempted`] returns a word for a CPU, it always returns the same one, and the
///    hypervisor keeps to this: it calls [`PreemptedWord::stopped`] (or does the same) only after
///    the virtual CPU has stopped. Before the CPU's first instruction after that it swaps the word
///    to 0, as [`PreemptedWord::resumes`] does. If "flush" was set, the CPU first drops all its
///    translations: of every tag, global ones, and walk caches.
/// 7. When [`Platform::flush_remote`] has returned `Ok`, no CPU of the set uses a translation of
///    what was named ([`Of`], pages) that it cached before the call, or one from a walk that began
///    before the call, under any tag: leaf entries always, non-leaf ones too with `freed_tables`.
///    That also holds for a CPU that is lazy, idle, switching or descheduled. Everything that the
///    calling CPU wrote before is visible to walks of those CPUs then, and their accesses through
///    those translations are visible to the caller.
/// 8. Nothing here unwinds: other CPUs may be waiting for what comes after.
/// 9. Non-maskable handlers call no function of this library except those that
///    [`context`](crate::context) allows there.
/// 10. A CPU that has not come [online](crate::online) yet runs no user code and uses no
///     translation that may change.
///
/// [`Of`]: crate::paravirt::Of
pub unsafe trait Platform: Sized + Send + Sync + 'static {
    /// The proof that code stays on its CPU; usually a guard that disables preemption.
    type Pin: Pinned;
    /// The operations of the hardware.
    type Regime: Regime;
    /// Sets of CPUs wide enough for the machine.
    type Mask: Mask;
    /// The tag slots of a CPU; `Slots<6>` unless measured otherwise.
    type Slots: TagSlots;
    /// The allocator of machine-wide tags: [`Generations`](crate::tags::generations::Generations)
    /// of a fitting size where a tag means the same on every CPU, [`NoTags`](crate::NoTags)
    /// elsewhere.
    type Tags: Versioned;

    /// Keeps the caller on this CPU until the result is dropped.
    fn pin() -> Self::Pin;

    /// The one [`System`] of this kernel.
    fn system() -> &'static System<Self>;

    /// The state of a CPU; `None` when it has not been booted.
    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>>;

    /// Raises the interrupt that ends in [`crate::on_kick`] on each CPU of the set. It never waits,
    /// and may be called from [`crate::on_kick`]. The set never contains the calling CPU; a CPU of
    /// it that has gone offline in the meantime is skipped without an error. Where interrupts are
    /// raised by writing a register, that write may overtake earlier stores (x2APIC, GIC): contract
    /// 2 requires a barrier before it.
    ///
    /// # Errors
    /// When a CPU can't be interrupted; some of the others may have been.
    fn kick(targets: &CpuSetOf<Self>) -> Result<(), KickError>;

    /// One turn of every wait loop: the place for a pause instruction and for a deadline. The
    /// library serves other CPUs' requests around it. It may sleep until the cache line that this
    /// CPU loaded last is written (`monitor`/`mwait`, `wfe`), if a kick ends the sleep too, even a
    /// masked one.
    ///
    /// # Errors
    /// [`Stalled`] to give up the wait; the caller gets back what is pending inside the error.
    fn relax(pin: &Self::Pin) -> Result<(), Stalled>;

    /// May the caller wait for other CPUs? `false` in interrupt handlers, with interrupts off, or
    /// while a lock is held that a target may spin on without serving.
    fn may_wait() -> bool;

    /// The mechanisms in force; constant for the life of the kernel.
    fn policy() -> &'static Policy {
        &Policy::SHOOTDOWN
    }

    /// The one allocator of machine-wide tags, made for this machine's tag width and CPUs. `None`
    /// where each CPU has tags of its own, or there are none.
    fn tags() -> Option<&'static Self::Tags> {
        None
    }

    /// Global tags for spaces that run on many CPUs, where hardware invalidates on all CPUs by a
    /// tag although each CPU has tags of its own (x86 with INVLPGB): tags above those of the slots.
    /// With `None`, the CPUs concerned are interrupted there too. The library does not call it with
    /// split tables, where CPUs record by slot which user halves are pending.
    fn shared_tags() -> Option<&'static SharedTags> {
        None
    }

    /// In a guest: the byte by which the hypervisor says whether a virtual CPU runs. A flush marks
    /// a CPU that does not run there instead of waiting for it. With `None`, the CPU is
    /// interrupted.
    fn preempted(_cpu: CpuId) -> Option<&'static PreemptedWord> {
        None
    }

    /// In a guest: asks the hypervisor to make other CPUs invalidate. It is called for flushes that
    /// [`Policy::hypercall_from`] selects, in any context, interrupts on or off. It waits for the
    /// hypervisor only, never for something that a CPU of the guest must do.
    ///
    /// # Errors
    /// When it was not done, or not on all of the CPUs: they are interrupted then.
    fn flush_remote(_flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        Err(HypercallError::NotOffered)
    }

    /// A cheap monotonic count for the wait histogram; 0 where there is none.
    fn ticks() -> u64 {
        0
    }
}

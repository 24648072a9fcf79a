//! The kernel's half of the seam.
//!
//! A port implements [`Platform`] once: a type without data that names the kernel's own means. The
//! library never touches the interrupt flag, never allocates, and keeps no global state of its own;
//! it takes no lock but those inside the allocators of machine-wide tags that a port makes for it.
//! What it needs it asks for here.

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

/// A wait went on for too long, as the platform judges it.
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
///    the kick, once its interrupts are enabled; kicks may be merged, none is lost. Whatever the
///    kicking CPU wrote before is visible to the kicked one then.
/// 3. [`crate::on_kick`] is called before the CPU runs user code again.
/// 4. [`Platform::system`], [`Platform::policy`], [`Platform::tags`] and [`Platform::shared_tags`]
///    return the same reference always.
/// 5. With split tables, kicks are maskable. Where [`crate::on_kick`] is called from a non-maskable
///    interrupt and answers [`crate::Served::Again`], it is called again before the CPU runs user
///    code (a self-interrupt that is maskable does it).
/// 6. Where [`Platform::preempted`] returns a word, it is the same for a CPU always, and the
///    hypervisor keeps to this: it calls [`PreemptedWord::stopped`] (or does the same) only after
///    the virtual CPU has stopped; before the CPU's first instruction after that it swaps the word
///    to 0, as [`PreemptedWord::resumes`] does, and if "flush" was set, the CPU first drops all its
///    translations: of every tag, global ones, and walk caches.
/// 7. When [`Platform::flush_remote`] has returned `Ok`, no CPU of the set uses a translation of
///    what was named ([`Of`], pages) that it cached before the call, or one from a walk that began
///    before the call, under whatever tag: leaf entries always, non-leaf ones too with
///    `freed_tables`. That holds for a CPU that is lazy, idle, switching or descheduled too. What
///    the calling CPU wrote before is visible to walks of those CPUs then, and their accesses
///    through those translations are visible to the caller.
///
/// 8. Nothing here unwinds: others may be waiting for what comes after.
/// 9. Non-maskable handlers call no function of this library but those that
///    [`context`](crate::context) allows there.
/// 10. A CPU that has not come [online](crate::online) yet runs no user code and uses no
///     translation that may change.
///
/// [`Of`]: crate::paravirt::Of
pub unsafe trait Platform: Sized + Send + Sync + 'static {
    /// The proof that code stays on its CPU; usually a guard that disables preemption.
    type Pin: Pinned;
    /// The hardware.
    type Regime: Regime;
    /// Sets of CPUs wide enough for the machine.
    type Mask: Mask;
    /// The tag slots of a CPU; `Slots<6>` unless measured otherwise.
    type Slots: TagSlots;
    /// The allocator of machine-wide tags: [`Generations`](crate::tags::generations::Generations)
    /// of a fitting size where a tag means the same on every CPU, [`NoTags`](crate::NoTags)
    /// elsewhere.
    type Tags: Versioned;

    /// Stays on this CPU until the result is dropped.
    fn pin() -> Self::Pin;

    /// The one [`System`] of this kernel.
    fn system() -> &'static System<Self>;

    /// The state of a CPU; `None` when it has not been booted.
    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>>;

    /// Raises the interrupt that ends in [`crate::on_kick`] on each CPU of the set. Never waits,
    /// and may be called from [`crate::on_kick`]. The set never holds the calling CPU; a CPU of it
    /// that has gone offline in the meantime is passed over without an error. Where interrupts are
    /// raised by writing a register, that write may overtake earlier stores (x2APIC, GIC): contract
    /// 2 wants a barrier before it.
    ///
    /// # Errors
    /// When a CPU can't be interrupted; some of the others may have been.
    fn kick(targets: &CpuSetOf<Self>) -> Result<(), KickError>;

    /// One turn of every wait loop. The place for a pause instruction and for a deadline. The
    /// library serves other CPUs' requests around it. It may sleep until the cache line that this
    /// CPU loaded last is written (`monitor`/`mwait`, `wfe`), if a kick ends the sleep too, even a
    /// masked one.
    ///
    /// # Errors
    /// [`Stalled`] to give up the wait; what is pending is handed back to the caller inside the
    /// error.
    fn relax(pin: &Self::Pin) -> Result<(), Stalled>;

    /// May the caller wait for other CPUs? `false` in interrupt handlers, with interrupts off, or
    /// while a lock is held that a target may spin on without serving.
    fn may_wait() -> bool;

    /// The mechanisms in force; constant for the life of the kernel.
    fn policy() -> &'static Policy {
        &Policy::SHOOTDOWN
    }

    /// The one allocator of machine-wide tags, made for this machine's tag width and CPUs. `None`
    /// where tags are each CPU's own, or there are none.
    fn tags() -> Option<&'static Self::Tags> {
        None
    }

    /// Tags for spaces that run on many CPUs, where hardware invalidates everywhere by a tag
    /// although a tag is each CPU's own (x86 with INVLPGB): tags beyond those of the slots. `None`
    /// interrupts the CPUs concerned, there too. Not asked with split tables, where CPUs know by
    /// slot which user halves they leave pending.
    fn shared_tags() -> Option<&'static SharedTags> {
        None
    }

    /// In a guest: the byte by which the hypervisor says whether a virtual CPU runs. A flush marks
    /// a CPU that does not run there instead of waiting for it. `None` interrupts it.
    fn preempted(_cpu: CpuId) -> Option<&'static PreemptedWord> {
        None
    }

    /// In a guest: has the hypervisor make other CPUs forget. Called for flushes that
    /// [`Policy::hypercall_from`] selects, in any context, interrupts on or off. It waits for the
    /// hypervisor only, never for something that a CPU of the guest must do.
    ///
    /// # Errors
    /// When it was not done, or not on all of them: they are interrupted then.
    fn flush_remote(_flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        Err(HypercallError::NotOffered)
    }

    /// A cheap monotonic count for the wait histogram; 0 where there is none.
    fn ticks() -> u64 {
        0
    }
}

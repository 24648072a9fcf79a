//! Work for other CPUs: each sleeps until it is handed a function, runs it with interrupts on, and
//! says so.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | [W1] store of the work | Release | W2 | the worker sees the closure and what it refers to |
//! | [W2] load of the work | Acquire | W1 | |
//! | [W3] store of "none" | Release | W4 | what the work did is seen by who waits, and the closure is not used again |
//! | [W4] load of it | Acquire | W3 | |

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use shootdown::CpuId;
use shootdown::cpu_set::{Bits, CpuSet};

use crate::MAX_CPUS;
use crate::arch::{self, Ipi};
use crate::port::{self, Deadline};

/// What a worker is handed: a closure on the stack of whoever waits for it.
type Work<'a> = &'a (dyn Fn() + Sync);

static SLOTS: [AtomicPtr<Work<'static>>; MAX_CPUS as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS as usize];

/// CPUs that take work, the boot CPU among them.
static READY: AtomicU32 = AtomicU32::new(1);

/// Milliseconds within which a CPU that was started must take work.
const START: u64 = 1000;

/// The life of a CPU that is not the boot CPU.
pub fn serve() -> ! {
    let slot = &SLOTS[arch::cpu().index()];
    READY.fetch_add(1, Ordering::Release);
    loop {
        arch::interrupts::off();
        let work = slot.load(Ordering::Acquire); // [W2]
        if work.is_null() {
            arch::interrupts::wait();
            continue;
        }
        arch::interrupts::on();
        // SAFETY: whoever stored it waits until the slot is empty again, and keeps the closure
        // until then (W1, W3).
        unsafe { (*work)() };
        slot.store(ptr::null_mut(), Ordering::Release); // [W3]
    }
}

/// From within work: this CPU turns off, and takes work again when it is back. For whoever waits
/// the work is done.
#[cfg(target_arch = "aarch64")]
pub fn power_off() -> ! {
    arch::interrupts::off();
    SLOTS[arch::cpu().index()].store(ptr::null_mut(), Ordering::Release); // [W3]: nothing of the closure is used below
    arch::power_off()
}

/// Waits until `cpus` CPUs take work; says whether they do.
pub fn assemble(cpus: u32) -> bool {
    let _deadline = Deadline::in_ms(START);
    while READY.load(Ordering::Acquire) < cpus {
        arch::relax();
        if port::is_late() {
            return false;
        }
    }
    true
}

/// CPUs 0 to `count` - 1.
#[must_use]
pub fn first(count: u32) -> CpuSet<1> {
    let mut set = CpuSet::EMPTY;
    (0..count).for_each(|cpu| set.insert(CpuId(cpu)));
    set
}

/// Runs `work` on each CPU of the set, at the same time; returns when all have. This CPU, if it is
/// one of them, runs it too. Interrupts are on.
///
/// # Panics
/// When a CPU does not end in time: nothing can be said about such a machine any more.
pub fn on(cpus: &CpuSet<1>, work: &(dyn Fn() + Sync)) {
    let me = arch::cpu();
    let mut others = *cpus;
    others.remove(me);
    let handed: Work<'_> = work;
    // Only the lifetime changes: this function returns, or unwinds (it can't: panics abort), after
    // the last use.
    let handed = (&raw const handed).cast::<Work<'static>>().cast_mut();
    for cpu in others.iter() {
        SLOTS[cpu.index()].store(handed, Ordering::Release); // [W1]
    }
    arch::send_ipi(Ipi::Wake, &others).expect("CPUs that take work can be interrupted");
    if cpus.contains(me) {
        work();
    }
    for cpu in others.iter() {
        // [W4]
        while !SLOTS[cpu.index()].load(Ordering::Acquire).is_null() {
            arch::relax();
            assert!(!port::is_late(), "{cpu} did not end its work in time");
        }
    }
}

//! CPUs: which there are, up, down, and up again.
//!
//! The device tree names them; PSCI starts them, one after the other, so that their numbers have no
//! gaps. A CPU that goes down ([`power_off`]) loses all it had, TLB included, and comes back
//! through the same entry.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | S1 a CPU counts itself in | Release | S2 | what it set up is seen by who waited for it |
//! | S2 waiting for it | Acquire | S1 | |

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::{CpuId, KickError};

use super::boot::{CPUS, device_tree};
use super::regime::{Offered, decide};
use super::{cpu, gic, psci, relax, ticks, ticks_per_ms};
use crate::arch::Ipi;
use crate::boot::BootInfo;
use crate::say;

/// By number: what PSCI and the GIC call it.
static AFFINITIES: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// CPUs that have come up, counted each time.
static ARRIVALS: AtomicU32 = AtomicU32::new(0);

/// Affinities of all CPUs but this one, as the device tree has them.
fn others(mut each: impl FnMut(u64)) {
    let own = cpu::affinity();
    let Some(tree) = device_tree() else { return };
    for node in tree.cpus() {
        for id in node.ids().all().map(|id| id as u64).filter(|id| *id != own) {
            each(id);
        }
    }
}

/// On the first CPU, once.
pub fn init(_: &BootInfo, tags: bool) {
    AFFINITIES[0].store(cpu::affinity(), Ordering::Relaxed);
    decide(tags);
    let mut count = 1;
    others(|_| count += 1);
    match gic::set_up(count) {
        Ok(()) => gic::join(0),
        Err(missing) => {
            say!("interrupts: {missing}");
            super::exit(crate::verdict::Verdict::Crashed.code());
        }
    }
}

/// Starts others until so many run; returns how many do.
pub fn start_cpus(limit: u32) -> u32 {
    let limit = limit.min(CPUS as u32);
    let mut running = 1;
    others(|affinity| {
        // SGIs name CPUs of a cluster by a bit of 16.
        if running >= limit || affinity & 0xff >= 16 {
            return;
        }
        AFFINITIES[running as usize].store(affinity, Ordering::Relaxed);
        match start(running) {
            Ok(()) => running += 1,
            Err(why) => {
                say!("cpus: PSCI does not start the one with affinity {affinity:#x}: {why:?}")
            }
        }
    });
    running
}

/// Milliseconds within which a CPU that PSCI has started must be there.
const START: u64 = 1000;

/// Starts the CPU with this number, and waits until it is there.
///
/// # Panics
/// When it does not come: should it come later, its number would be another's.
fn start(number: u32) -> Result<(), smccc::psci::error::Error> {
    let before = ARRIVALS.load(Ordering::Relaxed);
    psci::start(AFFINITIES[number as usize].load(Ordering::Relaxed), number as usize)?;
    let end = ticks() + START * ticks_per_ms();
    // ORDERING: [S2].
    while ARRIVALS.load(Ordering::Acquire) == before {
        relax();
        assert!(ticks() < end, "CPU {number} was started by PSCI, and does not come");
    }
    Ok(())
}

/// A CPU that is not the first has come up.
pub(super) fn arrived() {
    assert!(Offered::here() == Offered::of_all(), "this CPU has not what the first one has");
    gic::join(cpu::cpu().index());
    ARRIVALS.fetch_add(1, Ordering::Release); // [S1]
}

/// Turns this CPU off: the library must have been told before. It comes back through
/// `crate::ap_main`.
pub fn power_off() -> ! {
    super::interrupts::off();
    let why = psci::stop();
    panic!("PSCI does not turn this CPU off: {why:?}")
}

/// Waits until a CPU that goes down is off, starts it again, and waits until it is there.
///
/// # Panics
/// When PSCI refuses.
pub fn power_on(number: CpuId) {
    while !psci::is_off(AFFINITIES[number.index()].load(Ordering::Relaxed)) {
        relax();
    }
    if let Err(why) = start(number.0) {
        panic!("PSCI does not start {number} again: {why:?}");
    }
}

/// Interrupts each CPU of the set. Never waits.
///
/// # Errors
/// None here: every CPU that was started can be named by an SGI.
pub fn send_ipi(ipi: Ipi, cpus: &CpuSet<1>) -> Result<(), KickError> {
    for number in cpus.iter() {
        gic::raise(ipi, AFFINITIES[number.index()].load(Ordering::Relaxed));
    }
    Ok(())
}

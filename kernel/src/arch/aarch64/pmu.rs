//! TLB misses, by this CPU's performance counters (PMUv3, Arm ARM D13).
//!
//! `PMCEID0_EL0` and `PMCEID1_EL0` say which common events a CPU counts. Of those that tell of
//! misses the one is taken that comes nearest to "a walk that was waited for":
//!
//! | event | number |
//! |---|---|
//! | `DTLB_WALK`: an access that walked the tables | 0x34 |
//! | `L2D_TLB_REFILL`: a refill of the second level | 0x2d |
//! | `L1D_TLB_REFILL`: a refill of the first level, which the second may have served | 0x05 |
//!
//! Where retired instructions are announced they are counted first, on the same counter: if those
//! stand still, nothing that it says is believed.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

const EVENTS: [(u32, &str); 3] =
    [(0x34, "DTLB_WALK"), (0x2d, "L2D_TLB_REFILL"), (0x05, "L1D_TLB_REFILL")];

/// `INST_RETIRED`.
const RETIRED: u32 = 0x08;

static COUNTING: AtomicBool = AtomicBool::new(false);

/// Does this CPU count this common event (0 to 0x3f)?
fn has(event: u32) -> bool {
    let (low, high): (u64, u64);
    // SAFETY: reading ID registers changes nothing; `start` has seen that there is a PMU.
    unsafe {
        asm!("mrs {}, pmceid0_el0", "mrs {}, pmceid1_el0", out(reg) low, out(reg) high, options(nomem, nostack, preserves_flags));
    }
    let register = if event < 32 { low } else { high };
    register >> (event % 32) & 1 != 0
}

/// How many counters there are beside the one of cycles (PMCR_EL0.N).
fn counters() -> u64 {
    let control: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mrs {}, pmcr_el0", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control >> 11 & 0x1f
}

/// Counts the event on counter 0 from now on, at EL0 and EL1.
fn choose(event: u32) {
    // SAFETY: the counters are the kernel's, and there is one (`start`). Counting changes nothing
    // else.
    unsafe {
        asm!(
            "msr pmcntenclr_el0, {one}",
            "msr pmevtyper0_el0, {event}",
            "msr pmevcntr0_el0, xzr",
            "msr pmcntenset_el0, {one}",
            "mrs {old}, pmcr_el0",
            "orr {old}, {old}, #1",
            "msr pmcr_el0, {old}",
            "isb",
            one = in(reg) 1u64,
            event = in(reg) u64::from(event),
            old = out(reg) _,
            options(nostack),
        );
    }
    COUNTING.store(true, Ordering::Relaxed);
}

/// This CPU counts its TLB misses from now on; says what exactly, or why it can't.
///
/// # Errors
/// Why there is nothing to count with.
pub fn start() -> Result<&'static str, &'static str> {
    const TURNS: u64 = 1000;
    COUNTING.store(false, Ordering::Relaxed);
    if !super::cpu::has_pmu() || counters() == 0 {
        return Err("the ID registers announce no counters");
    }
    if has(RETIRED) {
        choose(RETIRED);
        let before = count();
        (0..TURNS).for_each(|turn| {
            core::hint::black_box(turn);
        });
        let counted = count() - before;
        COUNTING.store(false, Ordering::Relaxed);
        if counted < TURNS {
            return Err("counters are announced and stand still");
        }
    }
    let (event, name) = EVENTS.into_iter().find(|(event, _)| has(*event)).ok_or(
        "there are counters, but none of the events DTLB_WALK, L2D_TLB_REFILL, L1D_TLB_REFILL",
    )?;
    choose(event);
    Ok(name)
}

/// Did [`start`] succeed?
#[must_use]
pub fn is_counting() -> bool {
    COUNTING.load(Ordering::Relaxed)
}

/// Misses so far; 0 where [`start`] did not succeed.
#[must_use]
pub fn count() -> u64 {
    if !is_counting() {
        return 0;
    }
    let misses: u64;
    // SAFETY: reading the counter changes nothing; ISB, so that it is not read early.
    unsafe {
        asm!("isb", "mrs {}, pmevcntr0_el0", out(reg) misses, options(nomem, nostack, preserves_flags));
    }
    // Before PMUv3p5 it has 32 bits, and the upper half reads as zero: a path of the benchmark is
    // far shorter.
    misses
}

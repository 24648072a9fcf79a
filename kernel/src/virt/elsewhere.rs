//! Virtualization is taken away by a non-maskable interrupt from another CPU, wherever the
//! hypervisor's loop is just then.
//!
//! The second CPU runs a guest again and again, by an entry and all that comes with it, until it
//! learns that virtualization is gone. The first lets it get under way and interrupts it: between
//! any two instructions of the loop, or in the guest.

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::CpuId;
use shootdown::cpu_set::{Bits, CpuSet};
use shootdown_virt::teardown;

use super::checks::{Checks, Seen};
use super::host;
use crate::arch::{self, expected};
use crate::port::{self, Deadline};
use crate::work;

/// Milliseconds for one round.
const PATIENCE: u64 = 100;

/// Rounds: the interrupt comes somewhere else in each.
const ROUNDS: u32 = 16;

/// The hypervisor's loop on the second CPU, for one vendor.
pub trait Loop: Sync {
    /// Turns virtualization on, runs a guest until that fails, and unwinds; calls `turn` after each
    /// entry. `Ok(true)`: it failed because virtualization is gone. Called on the second CPU,
    /// interrupts off.
    fn run(&self, turn: &mut dyn FnMut()) -> Result<bool, &'static str>;

    /// What the interrupt does.
    fn emergency(&self) -> expected::Handler;
}

/// How often the guest ran in this round.
static TURNS: AtomicU32 = AtomicU32::new(0);
/// How the rounds ended: gone, and nothing left; and the first that did not, by its number.
static GONE: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);

/// The case.
pub fn taken_away(one: &impl Loop, checks: &mut Checks) -> Seen {
    let (first, second) = (CpuId(0), CpuId(1));
    if !arch::is_running(second) {
        return Seen::Nothing("this machine has one CPU");
    }
    expected::on_non_maskable(Some(one.emergency()));
    GONE.store(0, Ordering::Relaxed);
    WRONG.store(0, Ordering::Relaxed);
    let both = {
        let mut set = CpuSet::EMPTY;
        set.insert(first);
        set.insert(second);
        set
    };
    for round in 1..=ROUNDS {
        TURNS.store(0, Ordering::Relaxed);
        let _deadline = Deadline::in_ms(PATIENCE);
        // The other CPU is woken by an interrupt.
        arch::interrupts::on();
        work::on(&both, &|| {
            if arch::cpu() == first { interrupt(second, round) } else { run(one, round) }
        });
        arch::interrupts::off();
        teardown::cancel();
    }
    expected::on_non_maskable(None);
    checks.same("a round that ended otherwise", WRONG.load(Ordering::Relaxed), 0);
    checks.same("rounds", GONE.load(Ordering::Relaxed), ROUNDS);
    Seen::All
}

/// On the first CPU: waits until the guest has run a few times, a little longer in each round, and
/// interrupts.
fn interrupt(second: CpuId, round: u32) {
    while TURNS.load(Ordering::Relaxed) < 3 && !port::is_late() {
        arch::relax();
    }
    // No PAUSE: it would hand an emulator that runs CPUs in turns over to the guest, for long.
    (0..round * 37).for_each(|turn| {
        core::hint::black_box(turn);
    });
    // A CPU that was found above can be interrupted.
    let _ = arch::send_nmi(second);
}

/// On the second CPU.
fn run(one: &impl Loop, round: u32) {
    arch::interrupts::off();
    host::take_cr4();
    let gone = one.run(&mut || {
        TURNS.fetch_add(1, Ordering::Relaxed);
        // An emulator that runs CPUs in turns goes on to the other one here, and at the guest's
        // PAUSE.
        arch::relax();
    });
    if gone == Ok(true) {
        GONE.fetch_add(1, Ordering::Relaxed);
    } else {
        // The first that went wrong.
        let _ = WRONG.compare_exchange(0, round, Ordering::Relaxed, Ordering::Relaxed);
        // So that the first CPU does not wait in vain.
        TURNS.fetch_add(3, Ordering::Relaxed);
    }
    host::take_cr4();
    arch::interrupts::on();
}

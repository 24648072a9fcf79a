//! The other CPUs: INIT, then SIPI until they come (SDM 3A, 8.4).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ::acpi::AcpiTable;
use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::{CpuId, KickError};

use super::traps::{KICK, WAKE};
use super::{acpi, apic, clock, emergency, hardware, percpu, traps};
use crate::arch::Ipi;
use crate::boot::BootInfo;
use crate::{MAX_CPUS, say};

/// Where the others begin, in real mode: a page below 1 MiB that firmware leaves alone.
const TRAMPOLINE: u64 = 0x8000;

/// Bytes of each of their stacks.
const STACK: usize = 32 << 10;

/// Memory of a stack; only its CPU touches it.
#[repr(align(16))]
struct Stack(#[expect(dead_code, reason = "touched by pushing and popping alone")] [u8; STACK]);

static mut STACKS: [Stack; MAX_CPUS as usize] = [const { Stack([0; STACK]) }; MAX_CPUS as usize];

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
}

/// The top of the stack of the CPU that is started now.
pub static NEXT_STACK: AtomicU64 = AtomicU64::new(0);

/// CPUs that run.
static RUNNING: AtomicU32 = AtomicU32::new(1);

/// Where firmware describes the CPUs.
static TABLES: AtomicU64 = AtomicU64::new(0);

/// On the boot CPU: everything of this architecture but the other CPUs.
pub fn init(info: &BootInfo, tags: bool) {
    TABLES.store(info.tables.unwrap_or(0), Ordering::Relaxed);
    traps::init();
    traps::load();
    percpu::load(CpuId(0));
    emergency::load(CpuId(0));
    clock::init();
    apic::decide();
    percpu::this().apic_id.store(apic::init(), Ordering::Relaxed);
    hardware::decide(tags);
    hardware::enter();
}

/// Where the loader says that ACPI's tables begin.
fn tables() -> Option<u64> {
    Some(TABLES.load(Ordering::Relaxed)).filter(|at| *at != 0)
}

/// The bytes of an ACPI table.
#[must_use]
pub fn acpi_table<T: AcpiTable>() -> Option<&'static [u8]> {
    acpi::table::<T>(tables())
}

/// Starts others until `limit` CPUs run.
pub fn start_cpus(limit: u32) -> u32 {
    let Some(cpus) = acpi::cpus(tables()) else {
        say!("cpus: no ACPI table describes them; going on with one");
        return 1;
    };
    let length = (&raw const trampoline_end) as usize - (&raw const trampoline) as usize;
    // SAFETY: the page is free for the kernel (see `TRAMPOLINE`), and the code fits it.
    unsafe {
        core::ptr::copy_nonoverlapping(&raw const trampoline, TRAMPOLINE as *mut u8, length);
    }
    let me = percpu::this().apic_id.load(Ordering::Relaxed);
    for id in cpus.ids().iter().copied().filter(|id| *id != me) {
        if !apic::can_name(id) {
            say!("cpus: the one with APIC id {id} needs an x2APIC, which this machine has not");
            continue;
        }
        if RUNNING.load(Ordering::Relaxed) >= limit.min(MAX_CPUS) {
            break;
        }
        if !start(id) {
            say!("cpus: the one with APIC id {id} did not start");
        }
    }
    RUNNING.load(Ordering::Relaxed)
}

/// Starts one; `false` if it does not come.
fn start(id: u32) -> bool {
    let number = RUNNING.load(Ordering::Relaxed);
    let stack = (&raw const STACKS) as u64 + (u64::from(number) + 1) * STACK as u64;
    NEXT_STACK.store(stack, Ordering::Release);
    percpu::of(CpuId(number)).apic_id.store(id, Ordering::Relaxed);
    apic::send(id, apic::INIT);
    // Real CPUs of old need ten milliseconds; those of a hypervisor or emulator, which count every
    // instruction of the wait, none.
    clock::delay_us(if hardware::features_of_cpu().hypervisor { 200 } else { 10_000 });
    for _ in 0..20 {
        apic::send(id, apic::STARTUP | (TRAMPOLINE >> 12) as u32);
        for _ in 0..100 {
            // ORDERING: Acquire, with the Release in `arrive`: its state is whole.
            if RUNNING.load(Ordering::Acquire) != number {
                return true;
            }
            clock::delay_us(100);
        }
    }
    // It waits for a SIPI again: should it have come late, the next one has its number and its
    // stack.
    apic::send(id, apic::INIT);
    false
}

/// A CPU that was started comes here from the entry.
pub fn arrive() -> ! {
    traps::load();
    // Started one after the other: the count is this CPU's number.
    let number = CpuId(RUNNING.load(Ordering::Relaxed));
    percpu::load(number);
    emergency::load(number);
    apic::init();
    hardware::enter();
    // ORDERING: Release, with the Acquire in `start`
    RUNNING.fetch_add(1, Ordering::Release);
    crate::ap_main()
}

/// Interrupts each CPU of the set.
///
/// # Errors
/// When a CPU of the set was never started.
pub fn send_ipi(ipi: Ipi, targets: &CpuSet<1>) -> Result<(), KickError> {
    let vector = match ipi {
        Ipi::Kick => KICK,
        Ipi::Wake => WAKE,
    };
    for cpu in targets.iter() {
        if cpu.0 >= RUNNING.load(Ordering::Relaxed) {
            return Err(KickError::Unreachable(cpu));
        }
        apic::send(percpu::of(cpu).apic_id.load(Ordering::Relaxed), u32::from(vector));
    }
    Ok(())
}

/// Was this CPU started?
pub fn is_running(cpu: CpuId) -> bool {
    cpu.0 < RUNNING.load(Ordering::Relaxed)
}

/// Raises a non-maskable interrupt on one CPU.
///
/// # Errors
/// When the CPU was never started.
pub fn send_nmi(cpu: CpuId) -> Result<(), KickError> {
    if !is_running(cpu) {
        return Err(KickError::Unreachable(cpu));
    }
    apic::send(percpu::of(cpu).apic_id.load(Ordering::Relaxed), apic::NON_MASKABLE);
    Ok(())
}

//! What each CPU has of its own, found through GS.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use shootdown::CpuId;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

use crate::MAX_CPUS;

/// The state of one CPU. The kernel's assembly knows that `number` comes first.
#[repr(C, align(64))]
pub struct PerCpu {
    number: AtomicU32,
    /// Its name for the interrupt controller.
    pub apic_id: AtomicU32,
    pub recovery: Recovery,
}

/// Where a probe goes on after a fault. Only its own CPU touches it: program order is enough.
pub struct Recovery {
    armed: AtomicBool,
    rip: AtomicU64,
    rsp: AtomicU64,
    address: AtomicU64,
    present: AtomicBool,
}

impl Recovery {
    /// From now on a fault goes on at `rip`, with the stack at `rsp`.
    pub fn arm(&self, rip: u64, rsp: u64) {
        self.rip.store(rip, Ordering::Relaxed);
        self.rsp.store(rsp, Ordering::Relaxed);
        self.armed.store(true, Ordering::Relaxed);
    }

    /// The access went through.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Where to go on, once.
    pub fn take(&self) -> Option<(u64, u64)> {
        self.armed
            .swap(false, Ordering::Relaxed)
            .then(|| (self.rip.load(Ordering::Relaxed), self.rsp.load(Ordering::Relaxed)))
    }

    /// What happened.
    pub fn note(&self, address: u64, present: bool) {
        self.address.store(address, Ordering::Relaxed);
        self.present.store(present, Ordering::Relaxed);
    }

    /// What was noted last.
    pub fn noted(&self) -> crate::arch::Fault {
        crate::arch::Fault {
            address: self.address.load(Ordering::Relaxed),
            present: self.present.load(Ordering::Relaxed),
        }
    }
}

static STATES: [PerCpu; MAX_CPUS as usize] = [const {
    PerCpu {
        number: AtomicU32::new(0),
        apic_id: AtomicU32::new(0),
        recovery: Recovery {
            armed: AtomicBool::new(false),
            rip: AtomicU64::new(0),
            rsp: AtomicU64::new(0),
            address: AtomicU64::new(0),
            present: AtomicBool::new(false),
        },
    }
}; MAX_CPUS as usize];

/// The state of a CPU.
pub fn of(cpu: CpuId) -> &'static PerCpu {
    &STATES[cpu.index()]
}

/// Makes this CPU the one with this number.
pub fn load(cpu: CpuId) {
    let state = of(cpu);
    state.number.store(cpu.0, Ordering::Relaxed);
    GsBase::write(VirtAddr::new(core::ptr::from_ref(state) as u64));
}

/// The executing CPU.
pub fn cpu() -> CpuId {
    let number: u32;
    // SAFETY: GS points at this CPU's state from `load` on, which comes before anything that asks.
    unsafe {
        core::arch::asm!("mov {0:e}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly));
    }
    CpuId(number)
}

/// The state of the executing CPU.
pub fn this() -> &'static PerCpu {
    of(cpu())
}

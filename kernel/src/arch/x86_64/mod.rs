//! x86-64: PVH and Multiboot2, xAPIC and x2APIC, PCIDs where there are any.

pub mod code;
pub mod console;
pub mod crash;
pub mod expected;
pub mod interrupts;
pub mod paging;
pub mod pci;
pub mod pmu;
pub mod probe;

mod acpi;
mod apic;
mod clock;
mod cpus;
mod emergency;
mod entry;
mod hardware;
mod multiboot2;
mod percpu;
mod power;
mod pvh;
mod screen;
mod timer;
mod traps;

pub use clock::{count, start_counting, ticks, ticks_per_ms};
pub use cpus::{acpi_table, init, is_running, send_ipi, send_nmi, start_cpus};
pub use entry::image_end;
pub use hardware::{Regime, Tags, features, features_of_cpu, tags};
pub use percpu::cpu;
pub use power::exit;
pub use timer::{interrupt_after_ms, interrupt_never, sleep_ms};

/// What rustc calls this architecture.
pub const NAME: &str = "x86_64";

/// Physical memory is mapped to itself.
pub const PHYSICAL_BASE: u64 = 0;

/// Emulators have direct-mapped TLBs (Bochs: 2048 entries): a page of the kernel in the same slot
/// as a tested one would evict it, and hide a missing invalidation. Tested pages have bit 10 of
/// their number set, the kernel's clear.
#[must_use]
pub const fn usable_frame(frame: u64) -> bool {
    frame >> 12 & 1 << 10 == 0
}

/// One turn of a wait loop.
pub fn relax() {
    core::hint::spin_loop();
}

/// What was stored to memory before is seen by devices before what is stored to registers after.
pub fn barrier_for_devices() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Writes memory back from the caches, to where a device finds it that does not look into them;
/// done when it returns.
pub fn write_back(at: *const u8, bytes: usize) {
    // Lines have 64 bytes on every x86-64 CPU that was built; what CPUID says could only be less
    // work.
    const LINE: usize = 64;
    let end = at as usize + bytes;
    for line in (at as usize & !(LINE - 1)..end).step_by(LINE) {
        // SAFETY: CLFLUSH is part of SSE2, which every x86-64 CPU has, and has no effect on what is
        // read.
        unsafe { core::arch::x86_64::_mm_clflush(line as *const u8) };
    }
    barrier_for_devices();
}

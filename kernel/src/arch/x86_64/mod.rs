//! x86-64: PVH and Multiboot2, xAPIC and x2APIC, PCIDs where there are any.

pub mod code;
pub mod console;
pub mod interrupts;
pub mod paging;
pub mod probe;

mod acpi;
mod apic;
mod clock;
mod cpus;
mod entry;
mod hardware;
mod multiboot2;
mod percpu;
mod power;
mod pvh;
mod traps;

pub use clock::{ticks, ticks_per_ms};
pub use cpus::{init, send_ipi, start_cpus};
pub use entry::image_end;
pub use hardware::{Regime, Tags, features, tags};
pub use percpu::cpu;
pub use power::exit;

/// What rustc calls this architecture.
pub const NAME: &str = "x86_64";

/// Physical memory is mapped to itself.
pub const PHYSICAL_BASE: u64 = 0;

/// Emulators have direct-mapped TLBs (Bochs: 2048 entries): a page of the kernel in the same slot as a tested one would
/// evict it, and hide a missing invalidation. Tested pages have bit 10 of their number set, the kernel's clear.
#[must_use]
pub const fn usable_frame(frame: u64) -> bool {
    frame >> 12 & 1 << 10 == 0
}

/// One turn of a wait loop.
pub fn relax() {
    core::hint::spin_loop();
}

//! x86-64: PVH and Multiboot2, xAPIC and x2APIC, PCIDs where there are any.

pub mod console;
pub mod interrupts;

mod entry;
mod multiboot2;
mod power;
mod pvh;

pub use entry::image_end;
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

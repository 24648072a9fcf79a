//! AArch64: QEMU's `virt` with a GICv3, at EL1, 4 KiB pages, 48-bit addresses.
//!
//! The image runs in the upper half; the lower belongs to the spaces, so that a switch of spaces is
//! a write to `TTBR0_EL1`. What this machine can and can't show of staleness:
//! `kernel/expect/qemu-aarch64.txt`.

mod boot;
pub mod code;
pub mod console;
mod cpu;
pub mod crash;
mod exit;
mod gic;
pub mod interrupts;
pub mod paging;
pub mod pci;
pub mod pmu;
mod psci;
mod regime;
mod smp;
mod timer;
mod trap;

pub use boot::{PHYSICAL_BASE, image_end, smmu, stream_of};
pub use cpu::{
    barrier_for_devices, count, cpu, relax, start_counting, ticks, ticks_per_ms, write_back,
};
pub use exit::exit;
pub use regime::{Regime, Tags, features, tags};
pub use smp::{init, power_off, power_on, send_ipi, start_cpus};
pub use timer::sleep_ms;
pub use trap::probe;

/// What rustc calls this architecture.
pub const NAME: &str = "aarch64";

/// QEMU's TLB is direct-mapped: a page of the kernel in the same slot as a tested one would evict
/// it, and hide a missing invalidation. Tested pages have bit 10 of their number set, the kernel's
/// clear. (While QEMU's TLB is small they may meet nevertheless; it keeps eight entries that met
/// others.)
#[must_use]
pub const fn usable_frame(frame: u64) -> bool {
    frame >> 12 & 1 << 10 == 0
}

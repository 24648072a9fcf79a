//! From reset to [`crate::kmain`].
//!
//! # The protocol
//! QEMU enters `_start` on one CPU, MMU off, at EL1, or at EL2 with `virtualization=on`. The others
//! wait for PSCI, which enters `_secondary_start` with the CPU's number in x0. Both become one path
//! (`boot.s`): down to EL1, vector registers on, the boot tables in both base registers, MMU on, a
//! jump to the upper half, a stack. Then [`aarch64_enter`] loads empty tables for the lower half,
//! and turns on what the ID registers offer.
//!
//! # What is where
//! | physical | what | mapped as |
//! |---|---|---|
//! | 0 to 1 GiB | devices: GIC, UART, SMMU, PCI windows | device nGnRnE |
//! | 1 to 2 GiB | memory | write-back, inner shareable |
//! | 256 to 257 GiB | PCI configuration space (ECAM) | device nGnRnE |
//!
//! Everything is at its physical address plus [`PHYSICAL_BASE`], in blocks of 1 GiB, global. QEMU's
//! TLB keeps one region that holds all pages larger than 4 KiB that it has seen since it was
//! emptied, and an invalidation inside the region empties it. The lower half, where the spaces
//! under test are, has no such page unless a case of large pages makes one.
//!
//! QEMU leaves a device tree at the beginning of memory: how much memory there is, which CPUs, the
//! command line.

use core::arch::global_asm;
use core::cell::UnsafeCell;

use aarch64_cpu::asm::barrier;
use aarch64_cpu::registers::{ReadWriteable, TCR_EL1, TTBR0_EL1, Writeable};
use fdt::Fdt;
use shootdown_iommu::devicetree::{COMPATIBLE, of_function};

use super::regime::Offered;
use crate::boot::BootInfo;

global_asm!(include_str!("boot.s"));

/// The first address of the upper half with 48-bit addresses.
pub const PHYSICAL_BASE: u64 = 0xffff_0000_0000_0000;

/// CPUs that there are stacks for.
pub(super) const CPUS: usize = crate::MAX_CPUS as usize;
/// As `boot.s` has it.
const STACK: usize = 64 << 10;

const MEMORY: u64 = 0x4000_0000;
const ECAM: u64 = 0x40_1000_0000;
const BLOCK: u64 = 1 << 30;

/// A table: one page.
#[repr(C, align(4096))]
struct Table([u64; 512]);

#[repr(C, align(4096))]
struct Stacks(UnsafeCell<[[u8; STACK]; CPUS]>);
// SAFETY: memory that each CPU uses its own part of, by way of the stack pointer.
unsafe impl Sync for Stacks {}

#[unsafe(no_mangle)]
static BOOT_STACKS: Stacks = Stacks(UnsafeCell::new([[0; STACK]; CPUS]));

/// A block of 1 GiB: valid, accessed, global, never executed at EL0. Device memory is MAIR's entry
/// 0 and never executed; memory is entry 2, inner shareable.
const fn block(address: u64, is_device: bool) -> u64 {
    let common = address | 1 | 1 << 10 | 1 << 54;
    if is_device { common | 1 << 53 } else { common | 2 << 2 | 3 << 8 }
}

/// The table below the root `BOOT_L0`, which `boot.s` has: its entry is a sum that only the linker
/// can write.
#[unsafe(no_mangle)]
static BOOT_L1: Table = Table({
    let mut entries = [0; 512];
    entries[0] = block(0, true);
    entries[(MEMORY / BLOCK) as usize] = block(MEMORY, false);
    entries[(ECAM / BLOCK) as usize] = block(ECAM / BLOCK * BLOCK, true);
    entries
});

/// The root of the lower half when no space is loaded: maps nothing, for ever.
static EMPTY: Table = Table([0; 512]);

unsafe extern "C" {
    static BOOT_L0: Table;
    static __image_end: u8;
}

/// The physical address of something of the image.
fn physical<T>(of: *const T) -> u64 {
    of.addr() as u64 - PHYSICAL_BASE
}

/// The physical address behind the image.
#[must_use]
pub fn image_end() -> u64 {
    physical(&raw const __image_end)
}

/// The root of the upper half, which every CPU has loaded.
pub(super) fn upper_root() -> u64 {
    physical(&raw const BOOT_L0)
}

/// The root that maps nothing.
pub(super) fn empty_root() -> u64 {
    physical(&raw const EMPTY)
}

/// The device tree, if there is one.
pub(super) fn device_tree() -> Option<Fdt<'static>> {
    let start = (PHYSICAL_BASE + MEMORY) as *const u8;
    // SAFETY: memory that is mapped. What is no device tree is refused by its magic number; the
    // image's allocator begins behind the image, so that nothing has written there.
    unsafe { Fdt::from_ptr(start) }.ok()
}

/// Where the device tree says that there is an SMMUv3: its registers.
pub fn smmu() -> Option<u64> {
    let tree = device_tree()?;
    let node = tree.find_compatible(&[COMPATIBLE])?;
    node.reg()?.next().map(|region| region.starting_address as u64)
}

/// The stream that a function of PCI's first host is to the SMMUv3; `None` if it is behind none.
pub fn stream_of(function: u16) -> Option<u32> {
    let tree = device_tree()?;
    let host = tree.find_compatible(&["pci-host-ecam-generic"])?;
    let mask = host.property("iommu-map-mask").and_then(|mask| mask.as_usize());
    let map = host.property("iommu-map")?;
    of_function(map.value, mask.map(|mask| mask as u32), function).map(|found| found.stream)
}

fn boot_info() -> BootInfo {
    let Some(tree) = device_tree() else {
        return BootInfo {
            loader: "a loader that left no device tree",
            command_line: &[],
            memory: None,
            tables: None,
        };
    };
    let memory = tree.memory().regions().find_map(|region| {
        let start = region.starting_address as u64;
        let end = (start + region.size? as u64).min(MEMORY + BLOCK);
        (start..end).contains(&image_end()).then(|| image_end()..end)
    });
    BootInfo {
        loader: "a loader that left a device tree (QEMU)",
        command_line: tree.chosen().bootargs().unwrap_or("").as_bytes(),
        memory,
        tables: Some(MEMORY),
    }
}

/// `boot.s` comes here, in the upper half, on a stack of this CPU's own, with exceptions masked.
#[unsafe(no_mangle)]
extern "C" fn aarch64_enter(cpu: usize) -> ! {
    let Offered { wide_asids, accessed, dirty } = Offered::here();
    TTBR0_EL1.set(empty_root());
    TCR_EL1.modify(TCR_EL1::AS.val(wide_asids.into()));
    TCR_EL1.modify(TCR_EL1::HA.val(accessed.into()) + TCR_EL1::HD.val(dirty.into()));
    barrier::isb(barrier::SY);
    // SAFETY: it removes what was cached of the boot tables in the lower half, which is loaded no
    // more.
    unsafe {
        core::arch::asm!("tlbi vmalle1", "dsb nsh", "isb", options(nostack, preserves_flags));
    }
    if cpu == 0 {
        crate::kmain(&boot_info());
    }
    super::smp::arrived();
    crate::ap_main()
}

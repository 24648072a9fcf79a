//! What a loader tells the kernel, in no loader's format.

use core::ops::Range;

/// What the entry found out.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// Who loaded the image.
    pub loader: &'static str,
    /// The command line; empty without one.
    pub command_line: &'static [u8],
    /// Free memory behind the image, by physical address. `None` when the loader described no
    /// memory.
    pub memory: Option<Range<u64>>,
    /// Where the hardware is described: the RSDP on x86, the device tree on Arm.
    pub tables: Option<u64>,
}

/// The largest part of free memory, told by starts and sizes, that is behind `end` and below 4 GiB.
#[cfg(target_arch = "x86_64")]
pub fn best(free: impl Iterator<Item = (u64, u64)>, end: u64) -> Option<Range<u64>> {
    free.map(|(start, size)| start.max(end)..start.saturating_add(size).min(1 << 32))
        .filter(|range| range.start < range.end)
        .max_by_key(|range| range.end - range.start)
}

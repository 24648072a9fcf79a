//! What a loader tells the kernel, in no loader's format.

use core::ops::Range;

/// What the entry found out.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// Who loaded the image.
    pub loader: &'static str,
    /// The command line; empty without one.
    pub command_line: &'static [u8],
    /// Free memory behind the image, by physical address. `None` when the loader described no memory.
    pub memory: Option<Range<u64>>,
    /// Where the hardware is described: the RSDP on x86, the device tree on Arm.
    pub tables: Option<u64>,
}

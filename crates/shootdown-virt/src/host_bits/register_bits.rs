//! The bits of CR0, CR4 and EFER that this module has to know (SDM 3A 2.2.1 and 2.5, APM 2 3.1).

/// Bits of CR0.
pub mod cr0 {
    /// Protected mode.
    pub const PE: u64 = 1 << 0;
    /// WAIT obeys TS.
    pub const MP: u64 = 1 << 1;
    /// No x87 unit.
    pub const EM: u64 = 1 << 2;
    /// x87 and SSE state belongs to another task.
    pub const TS: u64 = 1 << 3;
    /// Wired to 1.
    pub const ET: u64 = 1 << 4;
    /// x87 errors are exceptions and not an external interrupt.
    pub const NE: u64 = 1 << 5;
    /// Read-only pages bind privileged writes.
    pub const WP: u64 = 1 << 16;
    /// Alignment checks.
    pub const AM: u64 = 1 << 18;
    /// No write-through.
    pub const NW: u64 = 1 << 29;
    /// Caches are off.
    pub const CD: u64 = 1 << 30;
    /// Paging.
    pub const PG: u64 = 1 << 31;
    /// The bits that a write changes. ET reads as 1; a write to any other bit below 32 has no
    /// effect.
    pub const WRITABLE: u64 = PE | MP | EM | TS | NE | WP | AM | NW | CD | PG;
}

/// Bits of CR4.
pub mod cr4 {
    /// Virtual-8086 mode extensions.
    pub const VME: u64 = 1 << 0;
    /// Virtual interrupts in protected mode.
    pub const PVI: u64 = 1 << 1;
    /// RDTSC is privileged.
    pub const TSD: u64 = 1 << 2;
    /// Debugging extensions.
    pub const DE: u64 = 1 << 3;
    /// Large pages in 32-bit paging.
    pub const PSE: u64 = 1 << 4;
    /// 64-bit page-table entries.
    pub const PAE: u64 = 1 << 5;
    /// Machine checks are exceptions. While it is clear, a machine check shuts the machine down.
    pub const MCE: u64 = 1 << 6;
    /// Global pages.
    pub const PGE: u64 = 1 << 7;
    /// RDPMC is not privileged.
    pub const PCE: u64 = 1 << 8;
    /// The kernel saves SSE state.
    pub const OSFXSR: u64 = 1 << 9;
    /// The kernel handles SSE exceptions.
    pub const OSXMMEXCPT: u64 = 1 << 10;
    /// SGDT and its like are privileged.
    pub const UMIP: u64 = 1 << 11;
    /// Five levels of page tables.
    pub const LA57: u64 = 1 << 12;
    /// VMX is on, or may be turned on.
    pub const VMXE: u64 = 1 << 13;
    /// GETSEC is on.
    pub const SMXE: u64 = 1 << 14;
    /// RDFSBASE and its like are not privileged.
    pub const FSGSBASE: u64 = 1 << 16;
    /// PCIDs.
    pub const PCIDE: u64 = 1 << 17;
    /// The kernel saves extended state: XSETBV exists.
    pub const OSXSAVE: u64 = 1 << 18;
    /// The kernel runs no code of user pages.
    pub const SMEP: u64 = 1 << 20;
    /// The kernel touches no user pages.
    pub const SMAP: u64 = 1 << 21;
    /// Protection keys of user pages: RDPKRU exists.
    pub const PKE: u64 = 1 << 22;
    /// Control-flow enforcement.
    pub const CET: u64 = 1 << 23;
    /// Protection keys of supervisor pages.
    pub const PKS: u64 = 1 << 24;
}

/// Bits of EFER.
pub mod efer {
    /// SYSCALL exists.
    pub const SCE: u64 = 1 << 0;
    /// Long mode, once paging is on.
    pub const LME: u64 = 1 << 8;
    /// Long mode is active. The CPU sets and clears it.
    pub const LMA: u64 = 1 << 10;
    /// Pages may forbid execution.
    pub const NXE: u64 = 1 << 11;
    /// SVM is on.
    pub const SVME: u64 = 1 << 12;
}

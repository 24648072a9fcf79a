//! What differs between architectures, behind one set of names.
//!
//! Each architecture is a folder that offers the same names; the rest of the kernel knows no other.
//! What is said here is the contract of both.
//!
//! # Boot
//! The entry sets up one CPU with tables that map the kernel, fills a
//! [`BootInfo`](crate::boot::BootInfo) and calls `crate::kmain(&info) -> !`, interrupts off. No
//! name below may be used before; `console` may.
//!
//! | name | promise |
//! |---|---|
//! | `NAME` | what rustc calls the architecture |
//! | `console::put(u8)` | writes one byte; works from the first instruction of `kmain` on |
//! | `exit(code: u8) -> !` | ends the machine with the code (`verdict.rs`); on a machine that has no such means, stops |
//! | `crash::lose_stack() -> !`, `crash::reset() -> !` | two bad ends, for `crash.rs`: a fault on a stack that is gone must end in a panic |
//! | `PHYSICAL_BASE` | a frame at physical address *p* is accessed at `PHYSICAL_BASE + p`, on every CPU, in every root |
//! | `image_end() -> u64` | the physical address behind the image |
//! | `usable_frame(u64) -> bool` | may the allocator hand out this frame? (`false` for frames whose addresses share TLB sets with the tested ones) |
//!
//! # CPUs and interrupts
//! | name | promise |
//! |---|---|
//! | `init(&BootInfo, tags: bool)` | on the boot CPU, once: fault handlers, per-CPU data, interrupt controller; decides the facts (without tags unless `tags`); prints what is missing |
//! | `start_cpus(limit: u32) -> u32` | starts others until `limit` CPUs run; returns how many run, this one included. Each calls `crate::ap_main() -> !`, interrupts off, CPUs numbered from 0 without gaps |
//! | `cpu() -> CpuId` | the executing CPU |
//! | `send_ipi(Ipi, &CpuSet<1>)` | interrupts each CPU of the set; never waits for them. `Ipi::Kick` ends in `crate::port::kicked()`, with interrupts off; `Ipi::Wake` does nothing but end an `interrupts::wait` |
//! | `interrupts::{on, off, enabled}` | the interrupt flag of this CPU |
//! | `interrupts::wait()` | called with interrupts off: sleeps until one arrives, handles it, returns with interrupts off. One that arrived before the call ends it at once |
//! | `relax()` | one turn of a wait loop: lets an emulator that runs CPUs in turns go on to the next |
//! | `ticks() -> u64` | a monotonic count; `ticks_per_ms() -> u64` about how fast |
//! | `sleep_ms(u32)` | lets about so many milliseconds of the machine's time pass, asleep; whoever calls it looks whether it was enough |
//!
//! # Devices
//! | name | promise |
//! |---|---|
//! | `pci::read(function, offset) -> u32`, `pci::write(function, offset, u32)` | configuration registers of the first bus |
//! | `pci::WINDOW` | physical addresses that devices' windows may be put at |
//! | `write_back(at, bytes)` | writes memory back from the caches, for devices that don't look into them |
//! | `barrier_for_devices()` | what was stored to memory before is seen by devices before what is stored to registers after |
//! | `start_counting() -> bool`, `count() -> u64` | the finest count of this CPU, for costs; instructions, where an emulator counts them. `false`: there is none |
//! | `pmu::start() -> Result<name, why>`, `pmu::is_counting()`, `pmu::count() -> u64` | this CPU's TLB misses from then on, and what exactly is counted; or why there is no such counter, and then the count stays 0 |
//!
//! # Translation
//! | name | promise |
//! |---|---|
//! | `Regime` | the core's regime on this hardware, from `shootdown-arch` |
//! | `Tags`, `tags() -> Option<&'static Tags>` | what `Platform::Tags` and `Platform::tags` are |
//! | `features() -> &'static Features` | what the suite may ask for: [`Features`] |
//! | `paging::SPACE`, `paging::KERNEL` | where the suite's pages are: in a space (1 GiB from there is the space's own), and in the kernel's half (1 GiB, the same tables in every root) |
//! | `paging::LEVELS` | levels of tables, of 512 entries of 8 bytes each |
//! | `paging::leaf(frame, level, Rights) -> u64`, `table(frame) -> u64` | entries; level 0 is the last. A leaf begins not accessed and, if writable, not dirty where hardware sets both; accessed where it doesn't |
//! | `paging::is_present(e)`, `is_table(e, level)`, `frame_of(e, level)` | what an entry says |
//! | `paging::accessed(e)`, `dirty(e)`, `without_accessed(e)`, `without_dirty(e)`, `read_only(e)` | its bits, and the entry without them |
//! | `paging::kernel_root() -> u64` | the frame of the table whose tree maps `paging::KERNEL` |
//! | `paging::new_root(frame)` | gives an empty table what every root needs |
//! | `paging::root(frame) -> <Regime as ...>::Root` | the root over this table |
//! | `probe::read(va) -> Result<u64, Fault>`, `write(va, u64)`, `execute(va) -> Result<u64, Fault>` | one access of this CPU, with a fault as an error. `execute` calls the address as a function without arguments |
//! | `code::returning(u32) -> [u8; code::LEN]` | such a function; `code::written(address, len)` after it was written makes it fetchable on this CPU and others |

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// What kind of interrupt one CPU sends another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ipi {
    /// The library's: [`crate::port::kicked`].
    Kick,
    /// The kernel's own: there is work.
    Wake,
}

/// What the hardware offers, as far as the suite asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Entries are cached under tags.
    pub tags: bool,
    /// Hardware invalidates on other CPUs.
    pub broadcast: bool,
    /// Hardware sets the accessed and the dirty bit.
    pub sets_accessed_dirty: bool,
}

/// What a leaf allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
    /// The entry is cached for all spaces.
    pub global: bool,
}

impl Rights {
    /// Loads only.
    pub const READ: Self = Self { write: false, execute: false, global: false };
    /// Loads and stores.
    pub const WRITE: Self = Self { write: true, execute: false, global: false };
    /// Loads and instruction fetches.
    pub const EXECUTE: Self = Self { write: false, execute: true, global: false };

    /// The same, cached for all spaces.
    #[must_use]
    pub const fn global(self) -> Self {
        Self { global: true, ..self }
    }
}

/// An access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address that was not to be accessed.
    pub address: u64,
    /// Some entry was present, and did not allow it.
    pub present: bool,
}

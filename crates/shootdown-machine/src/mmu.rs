//! The memory side of the machine: page tables in simulated memory, and one MMU per CPU.
//!
//! # The problem
//! A translation lives in many places at once: in the page tables, in the L1 and L2 TLB of every
//! CPU that used it (under the tag it was used with), and in parts in the walk caches. This module
//! holds all of those places, exactly as wrong as real ones may be: changing a table entry changes
//! nothing else until somebody invalidates.
//!
//! # The protocol
//! [`Memory`] is shared by all CPUs: frames, tables, spaces, and the record of who changed what and
//! which flush has returned (see [`crate::oracle`]). A [`CpuMmu`] belongs to one CPU.
//!
//! ```
//! use shootdown::{CpuId, Stride, Tag, VaRange};
//! use shootdown_machine::mmu::{Access, CpuMmu, Memory, Perms, TlbGeometry, Trap};
//!
//! let mut mem = Memory::new(1 << 20);
//! let mut cpu = CpuMmu::new(CpuId(0), &TlbGeometry::skylake()).unwrap();
//!
//! let root = mem.new_space().unwrap();
//! let frame = mem.alloc(Stride::Page4K).unwrap();
//! mem.map(root, 0x40_0000, frame, Stride::Page4K, Perms::USER_RW).unwrap();
//! cpu.load(&mem, root, Tag(1), false).unwrap();
//! assert_eq!(cpu.translate(&mut mem, 0x40_0123, Access::UserRead).unwrap().frame, frame);
//!
//! // Unhook, invalidate, free: the only legal order.
//! let gone = mem.unmap(root, 0x40_0000).unwrap();
//! let range = VaRange::new(0x40_0000, 1, Stride::Page4K).unwrap();
//! let flush = mem.flush_begins(root, Some(range), false);
//! cpu.invalidate_range(Tag(1), range, true);
//! mem.flush_returns(flush);
//! mem.free(gone.frame).unwrap();
//! assert!(matches!(cpu.translate(&mut mem, 0x40_0123, Access::UserRead), Err(Trap::Fault(_))));
//! ```
//!
//! # Invariants
//! - I1: a TLB or walk-cache entry is only ever made from a table entry that was present (and then
//!   accessed) at that moment; nothing is cached about absent ones.
//! - I2: an entry leaves only by eviction, by an invalidation that covers it, or because an access
//!   through it faulted; changing tables never touches it.
//! - I3: everything here is deterministic: no clocks, no randomness, no addresses of the host.

mod addr;
mod array;
mod counters;
mod cpu;
mod frames;
mod full;
mod geometry;
mod inspect;
mod lines;
mod memory;
mod pte;
mod set;
mod tables;
mod tags;
mod tlb;
mod translation;
mod walk_cache;
mod walker;

pub use addr::{Frame, KERNEL_BASE, KERNEL_BYTES, Root, SlotId, TableId, USER_END};
pub use counters::MmuCounters;
pub use cpu::{CpuMmu, Registers};
pub use geometry::{Array, GeometryError, NEAR_LINES, TYPICAL_LINES, TlbGeometry, UpperLevels};
pub use memory::Memory;
pub use pte::{Perms, Pte};
pub use tables::{Leaf, MapError, MemoryError, Protected, TablePage, Unmapped};
pub use translation::{Access, Distance, Fault, FaultKind, Found, Translation, Trap, Walk};

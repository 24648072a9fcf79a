//! RISC-V, 64 bits: SFENCE.VMA, Svinval, `satp`, and the remote fences of the SBI.
//!
//! Operands and plans compile on every host; the functions that execute an instruction exist only
//! where `target_arch = "riscv64"`. Chapters are cited from the RISC-V Privileged Architecture
//! ("Privileged") and the Supervisor Binary Interface specification ("SBI").
//!
//! # What differs from the other architectures
//! - A fence with an address covers *leaf* entries only. Where a table page is freed, or any other
//!   entry that is no leaf has changed, the fence must name no address (Privileged, SFENCE.VMA).
//! - "No address" and "no ASID" are said by naming register x0. A register that *holds* zero names
//!   address 0 or ASID 0. So an operand is an `Option` here, never a number with a special value.
//! - Writing `satp` neither invalidates nor orders anything (Privileged, `satp`).
//! - Nothing broadcasts. Other harts are interrupted, by the kernel or by the SBI on its behalf.

mod asid;
mod entry;
mod fence;
mod napot;
mod plan;
mod port;
#[cfg(target_arch = "riscv64")]
mod regime;
mod satp;
mod sbi;

pub use crate::asid::{Asid, AsidError, AsidWidth};
pub use crate::entry::TableLevel;
pub use crate::root::RootError;
pub use asid::ProbeError;
pub use entry::change;
pub use fence::{Fence, Instruction, Word};
pub use napot::Napot;
pub use plan::Steps;
pub use port::{Options, Port};
pub use satp::{Mode, RootFrame, Satp, SatpError};
pub use sbi::{Call, HartMask, HartMasks, RemoteFence, SbiError};

#[cfg(target_arch = "riscv64")]
pub use {
    fence::{execute, fence},
    regime::{Boot, RiscvRegime},
    satp::{probe_asid_width, read_satp, write_satp},
    sbi::call,
};

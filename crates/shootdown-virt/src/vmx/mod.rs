//! VMX: Intel's instructions for virtual machines.
//!
//! | question | file |
//! |---|---|
//! | What can this CPU do? | `capability` |
//! | Which operands does an instruction accept? | `operand`, [`field`] |
//! | What does each instruction do besides succeeding? | `instruction`, `error` |
//! | How is VMX turned on and off, and taken away in an emergency? | `cpu` |
//! | Which VMCSs are active on a CPU? | `loaded` |
//! | How is a guest entered, and why was it left? | `entry`, `exit` |
//! | How are the host's bits kept in a VMCS? | `control` |

mod capability;
#[cfg(target_arch = "x86_64")]
mod control;
mod cpu;
#[cfg(target_arch = "x86_64")]
mod entry;
mod error;
mod exit;
pub mod field;
#[cfg(target_arch = "x86_64")]
mod instruction;
#[cfg(target_arch = "x86_64")]
mod loaded;
mod operand;
mod registers;

pub use capability::{Capabilities, Controls, EptVpid, MissingControls};
pub use cpu::{Preconditions, TurnOnError};
pub use error::InstructionError;
pub use exit::{EntryError, ExitReason, is_nmi};
pub use operand::{Descriptor, Eptp, Invept, Invvpid, OperandError, RegionAddress, Revision, Vpid};
pub use registers::GuestRegisters;

#[cfg(target_arch = "x86_64")]
pub(crate) use instruction::error_number;
#[cfg(target_arch = "x86_64")]
pub use instruction::{
    Hypercall, invept, invept_raw, invvpid, invvpid_raw, vmcall, vmclear, vmclear_at, vmfunc,
    vmptrld, vmptrld_at, vmptrst, vmptrst_at, vmread, vmread_or_zero, vmread_raw, vmwrite,
    vmwrite_raw, vmxoff, vmxon, vmxon_at,
};
#[cfg(target_arch = "x86_64")]
pub use {
    cpu::{TurnOffError, emergency_off, permit_vmx, turn_off, turn_on},
    entry::{EntryFunction, enter},
    loaded::{LoadError, LoadedList, Vmcs},
};

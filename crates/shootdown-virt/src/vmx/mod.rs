//! VMX: Intel's instructions for virtual machines.
//!
//! | question | file |
//! |---|---|
//! | What can this CPU do? | `capability` |
//! | Which operands does an instruction accept? | `operand`, [`field`] |
//! | What does each instruction do besides succeeding? | `instruction`, `error` |

mod capability;
mod error;
pub mod field;
#[cfg(target_arch = "x86_64")]
mod instruction;
mod operand;

pub use capability::{Capabilities, Controls, EptVpid, Fixed, MissingControls};
pub use error::InstructionError;
pub use operand::{Descriptor, Eptp, Invept, Invvpid, OperandError, RegionAddress, Revision, Vpid};

#[cfg(target_arch = "x86_64")]
pub(crate) use instruction::error_number;
#[cfg(target_arch = "x86_64")]
pub use instruction::{
    Hypercall, invept, invept_raw, invvpid, invvpid_raw, vmcall, vmclear, vmclear_at, vmfunc,
    vmptrld, vmptrld_at, vmptrst, vmptrst_at, vmread, vmread_or_zero, vmread_raw, vmwrite,
    vmwrite_raw, vmxoff, vmxon, vmxon_at,
};

//! SVM: AMD's instructions for virtual machines.
//!
//! | question | file |
//! |---|---|
//! | Which operands does an instruction accept? | `operand` |
//! | What does each instruction do besides succeeding? | `instruction` |

#[cfg(target_arch = "x86_64")]
mod instruction;
mod operand;

pub use operand::{Asid, OperandError, TlbControl, VmcbAddress};

#[cfg(target_arch = "x86_64")]
pub use instruction::{
    clgi, invlpga, invlpga_raw, stgi, vmload, vmload_raw, vmmcall, vmsave, vmsave_raw,
};

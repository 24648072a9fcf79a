//! SVM: AMD's instructions for virtual machines.
//!
//! | question | file |
//! |---|---|
//! | Which operands does an instruction accept? | `operand` |
//! | What does each instruction do besides succeeding? | `instruction` |
//! | What may a guest do, and why was it left? | [`Vmcb`] |
//! | How is SVM turned on and off, and taken away in an emergency? | `cpu` |
//! | How is a guest entered? | `entry` |
//! | How are the host's bits kept in a VMCB? | `control` |

mod control;
mod cpu;
#[cfg(target_arch = "x86_64")]
mod entry;
#[cfg(target_arch = "x86_64")]
mod instruction;
mod operand;
mod vmcb;

pub use cpu::{Capabilities, TurnOnError};
pub use operand::{Asid, OperandError, TlbControl, VmcbAddress};
pub use vmcb::{Control, ExitCode, Save, Segment, Vmcb, intercept};

#[cfg(target_arch = "x86_64")]
pub use {
    cpu::{emergency_off, turn_off, turn_on},
    entry::{EntryError, EntryFunction, enter, vmrun_raw},
    instruction::{
        clgi, invlpga, invlpga_raw, stgi, vmload, vmload_raw, vmmcall, vmsave, vmsave_raw,
    },
};

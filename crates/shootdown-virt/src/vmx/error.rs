//! The numbers of VMfailValid (SDM vol. 3C, 31.4, table 31-1).

use core::fmt;

/// A VM-instruction error: what VMfailValid left in the field 0x4400.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstructionError(u32);

impl InstructionError {
    /// VMCLEAR's address is misaligned or too wide.
    pub const VMCLEAR_ADDRESS: Self = Self(2);
    /// VMCLEAR of the VMXON region.
    pub const VMCLEAR_VMXON_REGION: Self = Self(3);
    /// VMLAUNCH of a VMCS that was launched already.
    pub const VMLAUNCH_LAUNCHED: Self = Self(4);
    /// VMRESUME of a VMCS that was not launched.
    pub const VMRESUME_NOT_LAUNCHED: Self = Self(5);
    /// VMRESUME after VMXOFF.
    pub const VMRESUME_AFTER_VMXOFF: Self = Self(6);
    /// Entry with invalid control fields.
    pub const CONTROLS: Self = Self(7);
    /// Entry with invalid host-state fields.
    pub const HOST_STATE: Self = Self(8);
    /// VMPTRLD's address is misaligned or too wide.
    pub const VMPTRLD_ADDRESS: Self = Self(9);
    /// VMPTRLD of the VMXON region.
    pub const VMPTRLD_VMXON_REGION: Self = Self(10);
    /// VMPTRLD of a region with another revision.
    pub const VMPTRLD_REVISION: Self = Self(11);
    /// VMREAD or VMWRITE of a field that the CPU does not have.
    pub const UNSUPPORTED_FIELD: Self = Self(12);
    /// VMWRITE of a read-only field.
    pub const READ_ONLY_FIELD: Self = Self(13);
    /// VMXON in VMX root operation.
    pub const VMXON_AGAIN: Self = Self(15);
    /// Entry while events are blocked by MOV SS.
    pub const BLOCKED_BY_MOV_SS: Self = Self(26);
    /// INVEPT or INVVPID with an operand that the CPU refuses.
    pub const INVALIDATION_OPERAND: Self = Self(28);

    /// The number as it stands in the field.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// What the manual says about it; `None` for a number that it does not list.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "VMCALL in VMX root operation",
            2 => "VMCLEAR with an invalid physical address",
            3 => "VMCLEAR with the VMXON pointer",
            4 => "VMLAUNCH with a VMCS that is not clear",
            5 => "VMRESUME with a VMCS that is not launched",
            6 => "VMRESUME after VMXOFF",
            7 => "VM entry with invalid control fields",
            8 => "VM entry with invalid host-state fields",
            9 => "VMPTRLD with an invalid physical address",
            10 => "VMPTRLD with the VMXON pointer",
            11 => "VMPTRLD with another VMCS revision",
            12 => "VMREAD or VMWRITE of a field that does not exist",
            13 => "VMWRITE of a read-only field",
            15 => "VMXON in VMX root operation",
            16 => "VM entry with an invalid executive-VMCS pointer",
            17 => "VM entry with an executive VMCS that is not launched",
            18 => "VM entry with an executive-VMCS pointer that is not the VMXON pointer",
            19 => "VMCALL with a VMCS that is not clear",
            20 => "VMCALL with invalid VM-exit control fields",
            22 => "VMCALL with an incorrect MSEG revision",
            23 => "VMXOFF under the dual-monitor treatment of SMIs",
            24 => "VMCALL with invalid SMM-monitor features",
            25 => "VM entry with invalid execution controls in the executive VMCS",
            26 => "VM entry with events blocked by MOV SS",
            28 => "INVEPT or INVVPID with an invalid operand",
            _ => return None,
        })
    }
}

impl fmt::Display for InstructionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({})",
            self.0,
            self.meaning().unwrap_or("a number that the manual does not list")
        )
    }
}

//! What the hypervisor must do: the values of fields, and the outcome of an exit.

use super::access::{CrAccess, Gpr};
use super::guest::{Effects, WriteFault};

/// New bits of a field of the VMCS or the VMCB.
///
/// Only some bits of GUEST_CR0 and GUEST_CR4 belong to the hypervisor. The guest changes the others
/// without an exit, so their newest value is in the field and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the field keeps its old value until this is written"]
pub struct FieldWrite {
    bits: u64,
    value: u64,
}

impl FieldWrite {
    /// The whole field.
    pub(super) const fn whole(value: u64) -> Self {
        Self { bits: !0, value }
    }

    /// These bits of it.
    pub(super) const fn bits(bits: u64, value: u64) -> Self {
        Self { bits, value: value & bits }
    }

    /// The value to write, if it does not depend on what is in the field.
    #[must_use]
    pub const fn known(self) -> Option<u64> {
        if self.bits == !0 { Some(self.value) } else { None }
    }

    /// The value to write over `old`.
    #[must_use]
    pub const fn over(self, old: u64) -> u64 {
        old & !self.bits | self.value
    }
}

/// The outcome of a guest's access to a control register.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the guest waits for its instruction"]
pub enum Outcome<U> {
    /// Put the value into the general register, and advance RIP.
    Read {
        /// The register.
        to: Gpr,
        /// Its new value, all 64 bits.
        value: u64,
    },
    /// Write the fields, apply the effects, and advance RIP.
    Write(U, Effects),
    /// Inject #GP(0). RIP stays.
    Fault(WriteFault),
    /// The guest turned protection or paging off, and the CPU (or the hypervisor) has no
    /// unrestricted guests: emulate the guest, or end it. RIP stays.
    NeedsUnrestricted,
    /// Not a register that this module handles. RIP stays.
    Other(CrAccess),
}

impl<U> Outcome<U> {
    /// Is the instruction done, so that RIP goes to the next one? The length of the instruction is
    /// VM_EXIT_INSTRUCTION_LEN on VMX; on SVM, nRIP is the address of the next one, or use the
    /// length that was decoded.
    #[must_use]
    pub const fn advances(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Write(..))
    }
}

/// The outcome of an access that a vCPU's handler has handled
/// ([`Vmcs::control_register`](crate::vmx::Vmcs),
/// [`Vmcb::control_register`](crate::svm::Vmcb::control_register)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the guest waits for its instruction"]
pub enum Accessed {
    /// The instruction is done. If there are effects: invalidate the guest's linear translations
    /// and load its PDPTEs where they require it.
    Done(Option<Effects>),
    /// Inject #GP(0). RIP stays.
    Fault(WriteFault),
    /// Emulate the guest, or end it. RIP stays.
    NeedsUnrestricted,
    /// Not a register that is handled here. RIP stays.
    Other(CrAccess),
    /// Not an access that can be decoded. RIP stays.
    Unknown,
}

/// The host's CR3 and CR4 on the CPU that is about to enter the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostControl {
    cr3: u64,
    cr4: u64,
}

impl HostControl {
    /// Makes it from this CPU's copies ([`super::Cr4Copy::for_entry`]). Bit 63 of CR3 says how to
    /// load the register and is no part of it; it is left out.
    #[must_use]
    pub const fn new(cr3: u64, cr4: shootdown_arch::x86_64::Cr4) -> Self {
        Self { cr3: cr3 & !(1 << 63), cr4: cr4.bits() }
    }

    /// CR3, with its PCID.
    #[must_use]
    pub const fn cr3(self) -> u64 {
        self.cr3
    }

    /// CR4.
    #[must_use]
    pub const fn cr4(self) -> u64 {
        self.cr4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_are_not_written_keep_the_fields_value() {
        for bits in 0..16u64 {
            for value in 0..16u64 {
                for old in 0..16u64 {
                    let write = FieldWrite::bits(bits, value);
                    assert_eq!(write.over(old), old & !bits | value & bits);
                    assert_eq!(write.known(), None);
                }
                assert_eq!(FieldWrite::whole(value).over(bits), value);
                assert_eq!(FieldWrite::whole(value).known(), Some(value));
            }
        }
    }
}

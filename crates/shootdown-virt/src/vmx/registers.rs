//! A guest's general registers.

use core::mem::offset_of;

use crate::host_bits::Gpr;

/// The registers of a guest that the CPU does not switch by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the registers' names")]
pub struct GuestRegisters {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// VMX alone: SVM switches CR2 by the VMCB.
    pub cr2: u64,
}

impl GuestRegisters {
    /// A general register by its number in an instruction; `None` for RSP, which the VMCS or the
    /// VMCB holds.
    pub const fn gpr(&mut self, gpr: Gpr) -> Option<&mut u64> {
        Some(match gpr.number() {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            15 => &mut self.r15,
            _ => return None,
        })
    }
}

// The assembly of both entries relies on it.
const _: () = assert!(offset_of!(GuestRegisters, r15) == 14 * 8);
const _: () = assert!(offset_of!(GuestRegisters, cr2) == 15 * 8);

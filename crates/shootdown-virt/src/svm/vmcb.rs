//! The VMCB: what a guest may do, why it was left, and its state (APM vol. 2, appendix B).
//!
//! Fields have the manual's names. Only VMRUN makes the CPU read and write the VMCB, so ordinary
//! loads and stores suffice between entries.

use core::fmt;
use core::mem::offset_of;

use super::operand::{Asid, OperandError, TlbControl};

/// A segment register as a VMCB holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Segment {
    /// The selector.
    pub selector: u16,
    /// Bits 55:52 and 47:40 of the descriptor.
    pub attributes: u16,
    /// The limit, in bytes.
    pub limit: u32,
    /// The base.
    pub base: u64,
}

/// The control area (table B-1).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Control {
    /// Reads of CR0 to CR15 to intercept.
    pub cr_reads: u16,
    /// Writes of CR0 to CR15 to intercept.
    pub cr_writes: u16,
    /// Reads of debug registers to intercept.
    pub dr_reads: u16,
    /// Writes of debug registers to intercept.
    pub dr_writes: u16,
    /// Exceptions to intercept, by vector.
    pub exceptions: u32,
    /// Events and instructions to intercept: [`intercept`].
    pub intercepts: u32,
    /// More of them, VMRUN (bit 0) and VMMCALL (bit 1) among them.
    pub intercepts_svm: u32,
    /// Still more of them.
    pub intercepts_more: u32,
    reserved_018: [u8; 0x3c - 0x18],
    /// PAUSE filter threshold.
    pub pause_threshold: u16,
    /// PAUSE filter count.
    pub pause_count: u16,
    /// Physical address of the I/O permission map.
    pub iopm: u64,
    /// Physical address of the MSR permission map.
    pub msrpm: u64,
    /// Added to the TSC that the guest reads.
    pub tsc_offset: u64,
    asid: u32,
    tlb_control: u8,
    reserved_05d: [u8; 3],
    /// Virtual interrupts: V_TPR, V_IRQ (bit 8), VGIF (9), V_INTR_MASKING (24), vector (39:32).
    pub virtual_interrupt: u64,
    /// Interrupt shadow (bit 0).
    pub shadow: u64,
    exit_code: u64,
    /// EXITINFO1.
    pub exit_info_1: u64,
    /// EXITINFO2.
    pub exit_info_2: u64,
    /// EXITINTINFO: the event whose delivery the exit interrupted.
    pub exit_interrupt: u64,
    /// Nested paging (bit 0) and what is encrypted.
    pub nested: u64,
    /// AVIC APIC_BAR.
    pub apic_bar: u64,
    /// Physical address of the GHCB.
    pub ghcb: u64,
    /// EVENTINJ: the event to deliver at entry.
    pub inject: u64,
    /// nCR3: the root of the nested tables.
    pub nested_cr3: u64,
    /// LBR virtualization, virtual VMLOAD and VMSAVE.
    pub virtualize: u64,
    /// VMCB clean bits: what the CPU may take from its cache. They are of one CPU: 0 after a move.
    pub clean: u64,
    /// RIP of the next instruction, where the CPU saves it.
    pub next_rip: u64,
    reserved_0d0: [u8; 0x400 - 0xd0],
}

/// The state-save area (table B-2).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "the manual's names of registers")]
pub struct Save {
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    reserved_0a0: [u8; 0xcb - 0xa0],
    pub cpl: u8,
    reserved_0cc: [u8; 4],
    pub efer: u64,
    reserved_0d8: [u8; 0x148 - 0xd8],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved_180: [u8; 0x1d8 - 0x180],
    pub rsp: u64,
    reserved_1e0: [u8; 0x1f8 - 0x1e0],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved_248: [u8; 0x268 - 0x248],
    pub pat: u64,
    reserved_270: [u8; 0xc00 - 0x270],
}

/// A VMCB: one page.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
pub struct Vmcb {
    /// What the guest may do, and why it was left.
    pub control: Control,
    /// Its state.
    pub save: Save,
}

const _: () = assert!(size_of::<Vmcb>() == 4096);
const _: () = assert!(offset_of!(Control, pause_threshold) == 0x3c);
const _: () = assert!(offset_of!(Control, asid) == 0x58);
const _: () = assert!(offset_of!(Control, exit_code) == 0x70);
const _: () = assert!(offset_of!(Control, inject) == 0xa8);
const _: () = assert!(offset_of!(Control, next_rip) == 0xc8);
const _: () = assert!(offset_of!(Vmcb, save.tr) == 0x490);
const _: () = assert!(offset_of!(Vmcb, save.cpl) == 0x4cb);
const _: () = assert!(offset_of!(Vmcb, save.efer) == 0x4d0);
const _: () = assert!(offset_of!(Vmcb, save.cr4) == 0x548);
const _: () = assert!(offset_of!(Vmcb, save.rip) == 0x578);
const _: () = assert!(offset_of!(Vmcb, save.rsp) == 0x5d8);
const _: () = assert!(offset_of!(Vmcb, save.rax) == 0x5f8);
const _: () = assert!(offset_of!(Vmcb, save.cr2) == 0x640);
const _: () = assert!(offset_of!(Vmcb, save.pat) == 0x668);

/// Bits of [`Control::intercepts`] and [`Control::intercepts_svm`].
pub mod intercept {
    /// INTR: a physical interrupt.
    pub const INTR: u32 = 1 << 0;
    /// NMI.
    pub const NMI: u32 = 1 << 1;
    /// INIT.
    pub const INIT: u32 = 1 << 3;
    /// CPUID.
    pub const CPUID: u32 = 1 << 18;
    /// HLT.
    pub const HLT: u32 = 1 << 24;
    /// INVLPGA.
    pub const INVLPGA: u32 = 1 << 26;
    /// IN and OUT, by the permission map.
    pub const IO: u32 = 1 << 27;
    /// RDMSR and WRMSR, by the permission map.
    pub const MSR: u32 = 1 << 28;
    /// Shutdown.
    pub const SHUTDOWN: u32 = 1 << 31;
    /// VMRUN, in `intercepts_svm`: has to be set.
    pub const VMRUN: u32 = 1 << 0;
    /// VMMCALL, in `intercepts_svm`.
    pub const VMMCALL: u32 = 1 << 1;
    /// VMLOAD, VMSAVE, STGI, CLGI and SKINIT, in `intercepts_svm`.
    pub const SVM: u32 = 0b111_1100;
    /// XSETBV, in `intercepts_svm`.
    pub const XSETBV: u32 = 1 << 13;
}

/// Why a guest was left (appendix C).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExitCode(u64);

impl ExitCode {
    /// VMEXIT_INVALID: VMRUN refused the guest's state.
    pub const INVALID: Self = Self(u64::MAX);
    /// A read of CR0; of CR4 is 4 more.
    pub const CR0_READ: Self = Self(0x00);
    /// A read of CR4.
    pub const CR4_READ: Self = Self(0x04);
    /// A write of CR0.
    pub const CR0_WRITE: Self = Self(0x10);
    /// A write of CR4.
    pub const CR4_WRITE: Self = Self(0x14);
    /// Exception 0; the vector is added.
    pub const EXCEPTION: Self = Self(0x40);
    /// Exception 18, a machine check.
    pub const MACHINE_CHECK: Self = Self(0x52);
    /// A physical interrupt.
    pub const INTR: Self = Self(0x60);
    /// NMI.
    pub const NMI: Self = Self(0x61);
    /// CPUID.
    pub const CPUID: Self = Self(0x72);
    /// HLT.
    pub const HLT: Self = Self(0x78);
    /// IN or OUT.
    pub const IO: Self = Self(0x7b);
    /// RDMSR or WRMSR.
    pub const MSR: Self = Self(0x7c);
    /// Shutdown.
    pub const SHUTDOWN: Self = Self(0x7f);
    /// VMMCALL.
    pub const VMMCALL: Self = Self(0x81);
    /// A nested page fault.
    pub const NESTED_PAGE_FAULT: Self = Self(0x400);

    /// The field's value. All codes but the negative ones fit into 32 bits, and some hypervisors
    /// that run hypervisors store 32 bits of -1 too: the upper half of such a value does not
    /// count.
    #[must_use]
    pub const fn from_bits(raw: u64) -> Self {
        if raw & 0xffff_ffff == 0xffff_ffff { Self::INVALID } else { Self(raw) }
    }

    /// VMRUN has not entered the guest: VMEXIT_INVALID, and the other negative codes (VMEXIT_BUSY
    /// and its like).
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        self.0 & 0xffff_ff00 == 0xffff_ff00
    }

    /// The code.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {:#x}", self.0)
    }
}

impl Vmcb {
    /// One that is all zeros but for the intercepts that a guest needs so that it can't reach its
    /// host: VMRUN, without which VMRUN refuses it, and the other instructions of SVM, which
    /// work in a guest because its EFER.SVME is set; XSETBV, because no exit switches XCR0.
    #[must_use]
    pub const fn new() -> Self {
        // SAFETY: a VMCB is nothing but integers, for which zeros are values.
        let mut vmcb: Self = unsafe { core::mem::zeroed() };
        vmcb.control.intercepts = intercept::INVLPGA;
        vmcb.control.intercepts_svm =
            intercept::VMRUN | intercept::VMMCALL | intercept::SVM | intercept::XSETBV;
        vmcb
    }

    /// The guest's ASID; 0: none yet.
    #[must_use]
    pub const fn asid(&self) -> u32 {
        self.control.asid
    }

    /// Gives the guest an ASID.
    pub const fn set_asid(&mut self, asid: Asid) {
        /// The clean bit of the ASID (APM vol. 2, 15.15.3).
        const CLEAN: u64 = 1 << 2;
        self.control.asid = asid.get();
        self.control.clean &= !CLEAN;
    }

    /// Requests that the next VMRUN that succeeds removes entries. The request stays until then: a
    /// VMRUN that is refused has removed nothing. Of two requests the wider one stays.
    ///
    /// # Errors
    /// [`OperandError::NoFlushByAsid`].
    pub const fn flush(
        &mut self,
        what: TlbControl,
        flush_by_asid: bool,
    ) -> Result<(), OperandError> {
        match what.bits(flush_by_asid) {
            Ok(bits) => {
                if TlbControl::width(bits) > TlbControl::width(self.control.tlb_control) {
                    self.control.tlb_control = bits;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What the next VMRUN is to remove, as the field has it.
    #[must_use]
    pub const fn pending_flush(&self) -> u8 {
        self.control.tlb_control
    }

    /// Why the guest was left last.
    #[must_use]
    pub const fn exit_code(&self) -> ExitCode {
        ExitCode::from_bits(self.control.exit_code)
    }

    /// Records that VMRUN has entered the guest, and so has removed the requested entries.
    pub(super) const fn flushed(&mut self) {
        self.control.tlb_control = 0;
    }
}

impl Default for Vmcb {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_is_known_by_its_low_half() {
        assert_eq!(ExitCode::from_bits(u64::MAX), ExitCode::INVALID);
        assert_eq!(ExitCode::from_bits(0xffff_ffff), ExitCode::INVALID);
        assert_ne!(ExitCode::from_bits(0x400), ExitCode::INVALID);
        assert!(ExitCode::INVALID.is_refusal() && ExitCode::from_bits(-2i64 as u64).is_refusal());
        assert!(!ExitCode::from_bits(0x403).is_refusal());
    }

    /// What a request removes, as sets: everything, this ASID's, this ASID's but global ones.
    #[test]
    fn of_two_requests_the_wider_one_stays() {
        use TlbControl::{AllAsids, Nothing, ThisAsid, ThisAsidButGlobals};
        let narrow_to_wide = [Nothing, ThisAsidButGlobals, ThisAsid, AllAsids];
        for (i, first) in narrow_to_wide.into_iter().enumerate() {
            for (j, second) in narrow_to_wide.into_iter().enumerate() {
                let mut vmcb = Vmcb::new();
                vmcb.flush(first, true).unwrap();
                vmcb.flush(second, true).unwrap();
                let wanted = narrow_to_wide[i.max(j)].bits(true).unwrap();
                assert_eq!(vmcb.pending_flush(), wanted, "{first:?}, then {second:?}");
            }
        }
    }

    #[test]
    fn a_flush_stays_pending_until_the_guest_was_entered() {
        let mut vmcb = Vmcb::new();
        assert_eq!(vmcb.flush(TlbControl::ThisAsid, false), Err(OperandError::NoFlushByAsid));
        assert_eq!(vmcb.pending_flush(), 0);
        assert_eq!(vmcb.flush(TlbControl::ThisAsid, true), Ok(()));
        assert_eq!(vmcb.pending_flush(), 3);
        vmcb.flushed();
        assert_eq!(vmcb.pending_flush(), 0);
    }
}

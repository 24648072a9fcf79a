//! The host's bits and a VMCB: updates the fields before an entry, and handles exits of control
//! registers and EFER completely.
//!
//! [`SvmControl`] decides what must be written; this file reads and writes the VMCB.

use shootdown_arch::x86_64::Cr4;

use super::vmcb::Vmcb;
use crate::host_bits::{
    Accessed, CrAccess, Gpr, InterruptsOff, Outcome, SvmControl, SvmGuest, SvmUpdate, VmcbCr,
};
use crate::vmx::GuestRegisters;

/// EFER.LMA.
const LMA: u64 = 1 << 10;
/// L, of the attributes of CS.
const LONG: u16 = 1 << 9;

/// RDMSR and WRMSR have two bytes.
const MSR_LENGTH: u64 = 2;

impl Vmcb {
    /// Updates the fields for this CPU's CR4. Call it before each entry. When the fields are
    /// current it costs one comparison.
    #[inline]
    pub fn refresh(&mut self, control: &mut SvmControl, host: Cr4, off: &InterruptsOff) {
        if let Some(update) = control.before_entry(host, off) {
            self.store(update);
        }
    }

    /// Handles exits 0x00 to 0x1f, accesses to control registers: registers, fields and RIP are as
    /// after the instruction. `bytes` are those at the guest's RIP (the VMCB has them where the
    /// CPU has decode assists and nested paging; otherwise the hypervisor fetches up to 15).
    pub fn control_register(
        &mut self,
        control: &mut SvmControl,
        registers: &mut GuestRegisters,
        bytes: &[u8],
    ) -> Accessed {
        let now = self.guest();
        let Ok((access, length)) = CrAccess::from_instruction(bytes, now.code64) else {
            return Accessed::Unknown;
        };
        let source = access.source().map_or(0, |gpr| self.register(registers, gpr));
        let effects = match control.handle(access, source, &now) {
            Outcome::Read { to, value } => {
                self.set_register(registers, to, value);
                None
            }
            Outcome::Write(update, effects) => {
                self.store(update);
                Some(effects)
            }
            Outcome::Fault(fault) => return Accessed::Fault(fault),
            Outcome::NeedsUnrestricted => return Accessed::NeedsUnrestricted,
            Outcome::Other(access) => return Accessed::Other(access),
        };
        self.advance(length as u64);
        Accessed::Done(effects)
    }

    /// Handles RDMSR and WRMSR of EFER, which the permission map has intercepted (exit 0x7c with
    /// EFER's number in RCX).
    pub fn efer_access(
        &mut self,
        control: &mut SvmControl,
        registers: &mut GuestRegisters,
    ) -> Accessed {
        const LOW: u64 = 0xffff_ffff;
        let write = self.control.exit_info_1 & 1 != 0;
        let mut done = None;
        if write {
            let value = registers.rdx << 32 | self.save.rax & LOW;
            let now = self.guest();
            match control.write_efer(value, &now) {
                Outcome::Write(update, effects) => {
                    self.store(update);
                    done = Some(effects);
                }
                Outcome::Fault(fault) => return Accessed::Fault(fault),
                _ => return Accessed::Unknown,
            }
        } else {
            let value = control.efer(self.save.efer);
            self.save.rax = value & LOW;
            registers.rdx = value >> 32;
        }
        self.advance(MSR_LENGTH);
        Accessed::Done(done)
    }

    /// Goes on after an instruction of this length: advances RIP, and ends the interrupt shadow.
    pub const fn advance(&mut self, length: u64) {
        self.save.rip = self.save.rip.wrapping_add(length);
        self.control.shadow &= !1;
    }

    fn guest(&self) -> SvmGuest {
        let save = &self.save;
        let code64 = save.efer & LMA != 0 && save.cs.attributes & LONG != 0;
        SvmGuest { cr0: save.cr0, cr3: save.cr3, efer: save.efer, code64 }
    }

    fn store(&mut self, update: SvmUpdate<'_>) {
        for (field, write) in update.fields() {
            let to = match field {
                VmcbCr::Cr0 => &mut self.save.cr0,
                VmcbCr::Cr4 => &mut self.save.cr4,
                VmcbCr::Efer => &mut self.save.efer,
            };
            *to = write.over(*to);
            self.control.clean &= !u64::from(VmcbCr::CLEAN_BIT);
        }
        update.written();
    }

    /// A general register of the guest: RAX and RSP are the VMCB's.
    fn register(&self, registers: &mut GuestRegisters, gpr: Gpr) -> u64 {
        match (gpr.number(), registers.gpr(gpr)) {
            (0, _) => self.save.rax,
            (_, Some(register)) => *register,
            (_, None) => self.save.rsp,
        }
    }

    fn set_register(&mut self, registers: &mut GuestRegisters, gpr: Gpr, value: u64) {
        match (gpr.number(), registers.gpr(gpr)) {
            (0, _) => self.save.rax = value,
            (_, Some(register)) => *register = value,
            (_, None) => self.save.rsp = value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_bits::{Cr4Copy, Cr4Register, GuestControl, HostBits, SvmOptions, SvmRules};

    struct Register;

    impl Cr4Register for Register {
        fn read(&self) -> Cr4 {
            Cr4::from_bits(0x60)
        }
        unsafe fn write(&self, _: Cr4) {}
    }

    fn guest() -> (Vmcb, SvmControl, GuestRegisters) {
        let rules = SvmRules::new(SvmOptions {
            owned: HostBits::SVM,
            host_cr0: 0x8000_0031,
            supported_cr4: 0x6ff,
            supported_efer: 0xd01,
        });
        let start = GuestControl { cr0: 0x8000_0031, cr3: 0, cr4: 0x20, efer: 0x500, code64: true };
        let mut control = SvmControl::new(rules.unwrap(), start).unwrap();
        let mut vmcb = Vmcb::new();
        vmcb.save.cs.attributes = 0xa9b;
        // SAFETY: nothing interrupts a test.
        let off = unsafe { InterruptsOff::new() };
        let copy = Cr4Copy::new(Register);
        // SAFETY: the register is a constant.
        let host = unsafe { copy.start(&off) };
        vmcb.refresh(&mut control, host, &off);
        (vmcb, control, GuestRegisters::default())
    }

    /// MOV CR4, R and MOV R, CR4 with each of the sixteen registers, RAX and RSP in the VMCB.
    #[test]
    fn every_general_register_is_found_where_it_is() {
        for number in 0..16u8 {
            let (mut vmcb, mut control, mut registers) = guest();
            let (rex, low) = (0x40 | number >> 3, number & 7);
            match number {
                0 => vmcb.save.rax = 0x24,
                4 => vmcb.save.rsp = 0x24,
                _ => *registers.gpr(Gpr::new(number).unwrap()).unwrap() = 0x24,
            }
            vmcb.save.rip = 0x1000;
            vmcb.control.shadow = 1;
            let write = [rex, 0x0f, 0x22, 0xe0 | low];
            let done = vmcb.control_register(&mut control, &mut registers, &write);
            assert!(matches!(done, Accessed::Done(Some(_))), "{number}: {done:?}");
            assert_eq!((vmcb.save.cr4, vmcb.save.rip, vmcb.control.shadow), (0x64, 0x1004, 0));

            let (rax, rsp, before) = (vmcb.save.rax, vmcb.save.rsp, registers);
            vmcb.save.rax = 1;
            vmcb.save.rsp = 1;
            registers = GuestRegisters::default();
            let read = [rex, 0x0f, 0x20, 0xe0 | low];
            let done = vmcb.control_register(&mut control, &mut registers, &read);
            assert_eq!(done, Accessed::Done(None));
            match number {
                0 => assert_eq!((vmcb.save.rax, vmcb.save.rsp, rax), (0x24, 1, 0x24)),
                4 => assert_eq!((vmcb.save.rax, vmcb.save.rsp, rsp), (1, 0x24, 0x24)),
                _ => assert_eq!((vmcb.save.rax, vmcb.save.rsp, registers), (1, 1, before)),
            }
        }
    }

    #[test]
    fn the_guest_neither_sees_nor_clears_svme() {
        let (mut vmcb, mut control, mut registers) = guest();
        assert_eq!(vmcb.efer_access(&mut control, &mut registers), Accessed::Done(None));
        assert_eq!((vmcb.save.rax, registers.rdx), (0x500, 0));
        vmcb.control.exit_info_1 = 1;
        vmcb.save.rax = 0x501;
        let done = vmcb.efer_access(&mut control, &mut registers);
        assert!(matches!(done, Accessed::Done(Some(_))));
        assert_eq!(vmcb.save.efer, 0x1501);
        vmcb.save.rax = 0x1500;
        assert!(matches!(vmcb.efer_access(&mut control, &mut registers), Accessed::Fault(_)));
        assert_eq!(vmcb.save.efer, 0x1501);
    }
}

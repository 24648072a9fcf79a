//! The hypervisor by SVM.

use shootdown_virt::host_bits::{
    Accessed, ExtendedSwitch, GuestControl, HostBits, MachineCheck, SvmControl, SvmOptions,
    SvmRules,
};
use shootdown_virt::svm::{
    Asid, EntryError, ExitCode, Segment, TlbControl, Vmcb, VmcbAddress, intercept,
};
use shootdown_virt::vmx::GuestRegisters;

use super::{Exit, Machine, Mode, Start, frame, identity};
use crate::memory;
use crate::virt::host::{self, SvmCpu};

/// Two bits for each MSR; EFER's are set, so that the guest does not see SVME.
#[repr(align(4096))]
struct PermissionMap(#[expect(dead_code, reason = "read by the CPU")] [u8; 8192]);

static MSRS: PermissionMap = {
    let mut map = [0; 8192];
    map[0x800 + 0x80 / 4] = 0b11;
    PermissionMap(map)
};

/// Why a machine can't be made, or its guest not be entered.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "printed")]
pub enum Error {
    Entry(EntryError),
    Unable(&'static str),
}

/// A guest, and all that it needs.
pub struct SvmMachine {
    pub vmcb: &'static mut Vmcb,
    pub control: SvmControl,
    address: VmcbAddress,
    host: VmcbAddress,
    registers: GuestRegisters,
    extended: ExtendedSwitch,
    code_base: u64,
    region: u64,
    tables: [u64; 6],
    /// The guest decides about the host's bits: the negative control.
    pub without_host_bits: bool,
}

impl SvmMachine {
    /// A guest that begins so, on this CPU.
    pub fn new(cpu: &SvmCpu, start: &Start) -> Result<Self, Error> {
        let unable = Error::Unable;
        let region = frame();
        // SAFETY: the frame is new, aligned and large enough, and the machine's until it is
        // dropped.
        let vmcb = unsafe { &mut *memory::at(region).cast::<Vmcb>() };
        *vmcb = Vmcb::new();
        let rules = SvmRules::new(SvmOptions {
            owned: HostBits::SVM,
            host_cr0: host::cr0(),
            supported_cr4: 0x6ff,
            supported_efer: 0xd01,
        })
        .map_err(|_| unable("rules"))?;
        let control = SvmControl::new(rules, start.mode.control());
        let asid = Asid::new(1, cpu.capabilities.asids).map_err(|_| unable("ASIDs"))?;
        // Nested entries are walked as user accesses: present, write, user; leaves are large.
        let tables = identity(0x7, 0x87);
        vmcb.set_asid(asid);
        vmcb.flush(TlbControl::AllAsids, cpu.capabilities.flush_by_asid)
            .map_err(|_| unable("flush"))?;
        let intercepts = rules.intercepts();
        vmcb.control.cr_reads = intercepts.control_registers as u16;
        vmcb.control.cr_writes = (intercepts.control_registers >> 16) as u16;
        vmcb.control.exceptions = intercepts.exceptions;
        vmcb.control.intercepts |= intercept::INTR
            | intercept::NMI
            | intercept::HLT
            | intercept::MSR
            | intercept::SHUTDOWN;
        vmcb.control.intercepts_svm |= intercepts.instructions;
        vmcb.control.msrpm = (&raw const MSRS) as u64;
        vmcb.control.virtual_interrupt = 1 << 24; // V_INTR_MASKING: the guest's IF does not hold the host's interrupts
        vmcb.control.nested = 1;
        vmcb.control.nested_cr3 = tables[0];
        // Attributes: code (64, 32, 16 bits), data.
        let (code, data, limit) = match start.mode {
            Mode::Long => (0xa9b, 0xc93, u32::MAX),
            Mode::Protected => (0xc9b, 0xc93, u32::MAX),
            Mode::Real => (0x09b, 0x093, 0xffff),
        };
        let long = start.mode == Mode::Long;
        let base = if long { 0 } else { start.code };
        let GuestControl { cr3, .. } = start.mode.control();
        let segment = |attributes| Segment { selector: 0, attributes, limit, base };
        vmcb.save.cs = Segment { selector: if long { 8 } else { 0 }, ..segment(code) };
        vmcb.save.ds = segment(data);
        vmcb.save.es = segment(data);
        vmcb.save.ss = segment(data);
        let descriptors = host::tables();
        vmcb.save.gdtr = Segment { limit: 0x1f, base: descriptors.gdt, ..Segment::default() };
        vmcb.save.idtr = Segment { limit: 0xfff, base: start.interrupts, ..Segment::default() };
        vmcb.save.cr3 = cr3;
        vmcb.save.rip = if long { start.code } else { 0 };
        vmcb.save.rsp = start.stack;
        vmcb.save.rflags = 2;
        vmcb.save.dr6 = 0xffff_0ff0;
        vmcb.save.dr7 = 0x400;
        vmcb.save.pat = 0x7_0406_0007_0406;
        Ok(Self {
            vmcb,
            control: control.map_err(|_| unable("the guest's mode"))?,
            address: cpu.address(region),
            host: cpu.host_state(),
            registers: GuestRegisters::default(),
            extended: host::extended_of_guest(),
            code_base: base,
            region,
            tables,
            without_host_bits: false,
        })
    }

    /// Brings the VMCB in line with this CPU: one comparison when it is.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let off = host::interrupts_off();
        let cr4 =
            host::cr4_copy().for_entry(&off).map_err(|_| Error::Unable("CR4 is not known"))?;
        self.vmcb.refresh(&mut self.control, cr4, &off);
        if self.without_host_bits {
            self.vmcb.save.cr4 = self.control.cr4();
        }
        Ok(())
    }

    /// An access to a control register, or to EFER, the only MSR that exits.
    fn control_register(&mut self, code: ExitCode) -> Result<(), Error> {
        let done = if code == ExitCode::MSR {
            self.vmcb.efer_access(&mut self.control, &mut self.registers)
        } else {
            let rip = self.code_base + self.vmcb.save.rip;
            // SAFETY: the guest has fetched the instruction from there, at the address that the
            // host has it at. An instruction ends within 15 bytes, which are the
            // image's.
            let bytes = unsafe { core::slice::from_raw_parts(rip as *const u8, 15) };
            self.vmcb.control_register(&mut self.control, &mut self.registers, bytes)
        };
        match done {
            Accessed::Done(Some(effects)) if effects.invalidate => self
                .vmcb
                .flush(TlbControl::AllAsids, false)
                .map_err(|_| Error::Unable("a flush of all ASIDs")),
            Accessed::Done(_) => Ok(()),
            // #GP(0): these guests have no handler for it.
            _ => Err(Error::Unable("what the guest wrote to a control register")),
        }
    }

    /// Enters the guest once, without a look at anything.
    pub fn enter_raw(&mut self) -> Result<ExitCode, EntryError> {
        // SAFETY: SVM is on, interrupts are off, the handlers ask `fixup`; the pages are the
        // machine's and the CPU's. The guest reaches what the image keeps for it or shares
        // with it, and uses no debug registers.
        unsafe { self.vmcb.enter(self.address, &mut self.registers, self.host) }
    }
}

impl Machine for SvmMachine {
    type Error = Error;

    fn registers(&mut self) -> &mut GuestRegisters {
        self.registers.rax = self.vmcb.save.rax;
        &mut self.registers
    }

    fn enter(&mut self) -> Result<Exit, Error> {
        loop {
            self.prepare()?;
            let mut registers = host::extended_registers();
            self.extended
                .load_guest(host::extended(), &mut registers)
                .map_err(|_| Error::Unable("PKU"))?;
            let entered = self.enter_raw();
            let code = match entered {
                Ok(code) => code,
                Err(error) => {
                    self.extended.load_host(&mut registers);
                    return Err(Error::Entry(error));
                }
            };
            let off = host::interrupts_off();
            if let Some(check) = MachineCheck::from_svm(code, &off) {
                host::handle_machine_check(check, &mut self.extended);
                return Ok(Exit::MachineCheck);
            }
            self.extended.load_host(&mut registers);
            return Ok(match code {
                ExitCode::VMMCALL => {
                    self.vmcb.advance(3);
                    Exit::Call
                }
                ExitCode::CR0_READ
                | ExitCode::CR4_READ
                | ExitCode::CR0_WRITE
                | ExitCode::CR4_WRITE
                | ExitCode::MSR => {
                    self.control_register(code)?;
                    continue;
                }
                ExitCode::INTR | ExitCode::NMI => Exit::Interrupt,
                other => Exit::Other(other.bits()),
            });
        }
    }
}

impl Drop for SvmMachine {
    fn drop(&mut self) {
        self.tables.into_iter().chain([self.region]).for_each(memory::free);
    }
}

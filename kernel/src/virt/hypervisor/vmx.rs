//! The hypervisor by VMX.

use alloc::boxed::Box;
use core::pin::Pin;

use shootdown_virt::Failure;
use shootdown_virt::host_bits::{
    Accessed, EXCEPTION_INTERCEPT, ExtendedSwitch, GuestControl, HostBits, HostControl,
    MachineCheck, VmxControl, VmxOptions, VmxRules,
};
use shootdown_virt::vmx::{
    self, EntryError, Eptp, ExitReason, GuestRegisters, Invvpid, LoadError, LoadedList, Vmcs, Vpid,
    field, vmread_or_zero, vmwrite,
};

use super::{Exit, Machine, Mode, Start, frame, identity};
use crate::memory;
use crate::virt::host::{self, VmxCpu};

/// Controls: exits for interrupts and NMIs; HLT; secondary ones. EPT, VPID, unrestricted guest.
/// EFER both ways.
const PIN: u32 = 1 << 0 | 1 << 3;
const PROCESSOR: u32 = 1 << 7 | 1 << 31;
const SECONDARY: u32 = 1 << 1 | 1 << 5 | 1 << 7;
const EXIT: u32 = 1 << 9 | 1 << 20 | 1 << 21;
const ENTRY: u32 = 1 << 15;
const ENTRY_64: u32 = 1 << 9;
/// One guest runs at a time.
const VPID: u16 = 1;

/// Why a machine can't be made, or its guest not be entered.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "printed")]
pub enum Error {
    Load(LoadError),
    Vmcs(Failure),
    Entry(EntryError),
    Unable(&'static str),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Vmcs(failure)
    }
}

/// A guest, and all that it needs.
pub struct VmxMachine {
    pub vmcs: Pin<Box<Vmcs>>,
    list: &'static LoadedList,
    pub control: VmxControl,
    registers: GuestRegisters,
    extended: ExtendedSwitch,
    region: u64,
    tables: [u64; 6],
    /// What removes the guest's linear translations.
    invalidation: Invvpid,
}

impl VmxMachine {
    /// A guest that begins so, on this CPU.
    pub fn new(cpu: &VmxCpu, start: &Start) -> Result<Self, Error> {
        let unable = Error::Unable;
        let region = frame();
        // SAFETY: the frame is new.
        unsafe { memory::at(region).cast::<u32>().write(cpu.capabilities.revision().get()) };
        let address = cpu.region(region).map_err(|_| unable("a frame is no region"))?;
        let rules = VmxRules::new(VmxOptions {
            owned: HostBits::VMX,
            fixed_cr0: cpu.capabilities.cr0,
            fixed_cr4: cpu.capabilities.cr4,
            host_cr0: host::cr0(),
            guest_owned_cr0: 0,
            guest_owned_cr4: 0,
            supported_cr4: cpu.capabilities.cr4.may() & 0x17_07ff,
            unrestricted: true,
        });
        let control = VmxControl::new(rules.map_err(|_| unable("rules"))?, start.mode.control());
        // EPT entries: read, write, execute; leaves are large and write-back.
        let tables = identity(0x7, 0xb7);
        let vpid = Vpid::new(VPID).map_err(|_| unable("a VPID"))?;
        let invalidation = Invvpid::Context(vpid).on(cpu.capabilities.ept_vpid);
        let machine = Self {
            vmcs: Box::pin(Vmcs::new(address)),
            list: cpu.loaded,
            control: control.map_err(|_| unable("the guest's mode"))?,
            registers: GuestRegisters::default(),
            extended: host::extended_of_guest(),
            region,
            tables,
            invalidation: invalidation.map_err(|_| unable("INVVPID"))?,
        };
        let eptp = Eptp::new(tables[0], 4, false, cpu.physical_bits, &cpu.capabilities);
        machine.load()?;
        machine.fill(cpu, start, eptp.map_err(|_| unable("EPT"))?)?;
        Ok(machine)
    }

    /// Makes it current on this CPU.
    pub fn load(&self) -> Result<(), Error> {
        // SAFETY: VMX is on, interrupts are off in the whole suite, the machine and its frames stay
        // until `drop`.
        unsafe { self.vmcs.as_ref().load(self.list) }.map_err(Error::Load)
    }

    /// Writes the fields that stay as they are. CR0, CR3, CR4 are `control`'s, RSP and RIP of the
    /// host the entry's.
    fn fill(&self, cpu: &VmxCpu, start: &Start, eptp: Eptp) -> Result<(), Error> {
        let c = &cpu.capabilities;
        let have = |value: Result<u32, _>| value.map_err(|_| Error::Unable("controls"));
        let long = start.mode == Mode::Long;
        let GuestControl { cr3, efer, .. } = start.mode.control();
        let entry = if long { ENTRY | ENTRY_64 } else { ENTRY };
        let (tr, tables) = (host::task_register(), host::tables());
        // Access rights: code (64, 32, 16 bits), data.
        let (code, data, limit) = match start.mode {
            Mode::Long => (0xa09b, 0xc093, u32::MAX),
            Mode::Protected => (0xc09b, 0xc093, u32::MAX),
            Mode::Real => (0x009b, 0x0093, 0xffff),
        };
        let base = if long { 0 } else { start.code };
        let rip = if long { start.code } else { 0 };
        macro_rules! set {
            ($($field:ident = $value:expr;)*) => {
                // SAFETY: the VMCS is current. The host's state is this CPU's as it is; the guest's tables map memory
                // that the kernel has set aside for it or that it only reads.
                unsafe { $(vmwrite(field::$field, $value)?;)* }
            };
        }
        set! {
            PIN_CONTROLS = have(c.pin.with(PIN))?;
            PROCESSOR_CONTROLS = have(c.processor.with(PROCESSOR))?;
            SECONDARY_CONTROLS = have(c.secondary.with(SECONDARY))?;
            EXIT_CONTROLS = have(c.exit.with(EXIT))?;
            ENTRY_CONTROLS = have(c.entry.with(entry))?;
            EXCEPTION_BITMAP = EXCEPTION_INTERCEPT;
            VMCS_LINK_POINTER = u64::MAX;
            EPT_POINTER = eptp.bits();
            VPID = VPID;
            HOST_CR0 = host::cr0();
            HOST_EFER = host::efer();
            HOST_CS_SELECTOR = 0x08;
            HOST_SS_SELECTOR = 0;
            HOST_TR_SELECTOR = tr.selector;
            HOST_TR_BASE = tr.base;
            HOST_GS_BASE = host::gs_base();
            HOST_GDTR_BASE = tables.gdt;
            HOST_IDTR_BASE = tables.idt;
            GUEST_CS_ACCESS = code; GUEST_CS_LIMIT = limit; GUEST_CS_BASE = base;
            GUEST_DS_ACCESS = data; GUEST_DS_LIMIT = limit; GUEST_DS_BASE = base;
            GUEST_ES_ACCESS = data; GUEST_ES_LIMIT = limit; GUEST_ES_BASE = base;
            GUEST_SS_ACCESS = data; GUEST_SS_LIMIT = limit; GUEST_SS_BASE = base;
            GUEST_FS_ACCESS = 0x10000;
            GUEST_GS_ACCESS = 0x10000;
            GUEST_LDTR_ACCESS = 0x10000;
            GUEST_CS_SELECTOR = if long { 0x08 } else { 0 };
            GUEST_TR_ACCESS = 0x8b; GUEST_TR_LIMIT = 0x67;
            GUEST_IDTR_BASE = start.interrupts; GUEST_IDTR_LIMIT = 0xfff;
            GUEST_GDTR_BASE = tables.gdt; GUEST_GDTR_LIMIT = 0x1f;
            GUEST_CR3 = cr3;
            GUEST_EFER = efer;
            GUEST_RIP = rip;
            GUEST_RSP = start.stack;
            GUEST_RFLAGS = 2;
            GUEST_DR7 = 0x400;
        }
        Ok(())
    }

    /// Brings the VMCS in line with this CPU: one comparison when it is.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let off = host::interrupts_off();
        let cr4 =
            host::cr4_copy().for_entry(&off).map_err(|_| Error::Unable("CR4 is not known"))?;
        let now = HostControl::new(host::cr3(), cr4);
        // SAFETY: the VMCS is current, and both registers are this CPU's.
        unsafe { self.vmcs.as_ref().refresh(&mut self.control, now, &off)? };
        Ok(())
    }

    /// An access to a control register.
    fn control_register(&mut self) -> Result<(), Error> {
        // SAFETY: the VMCS is current, and the guest was left by exit 28.
        let done =
            unsafe { self.vmcs.as_ref().control_register(&mut self.control, &mut self.registers)? };
        match done {
            // SAFETY: the VMCS is current.
            Accessed::Done(Some(effects)) if effects.invalidate => unsafe {
                vmx::invvpid(self.invalidation).map_err(Error::Vmcs)
            },
            Accessed::Done(_) => Ok(()),
            // #GP(0): these guests have no handler for it, and their tables have four levels, or
            // none.
            _ => Err(Error::Unable("what the guest wrote to a control register")),
        }
    }

    /// Enters the guest once, without a look at anything.
    pub fn enter_raw(&mut self) -> Result<ExitReason, EntryError> {
        // SAFETY: the VMCS is current, `fill` and `prepare` have seen to the host's state; the
        // guests use neither extended registers nor MSRs.
        unsafe { self.vmcs.as_ref().enter(&mut self.registers) }
    }
}

impl Machine for VmxMachine {
    type Error = Error;

    fn registers(&mut self) -> &mut GuestRegisters {
        &mut self.registers
    }

    fn enter(&mut self) -> Result<Exit, Error> {
        loop {
            self.prepare()?;
            let mut registers = host::extended_registers();
            self.extended
                .load_guest(host::extended(), &mut registers)
                .map_err(|_| Error::Unable("protection keys"))?;
            let entered = self.enter_raw();
            let off = host::interrupts_off();
            // SAFETY: the VMCS is current.
            let interruption = unsafe { vmread_or_zero(field::EXIT_INTERRUPTION) };
            if let Some(check) = MachineCheck::from_vmx(entered, interruption, &off) {
                host::handle_machine_check(check, &mut self.extended);
                return Ok(Exit::MachineCheck);
            }
            self.extended.load_host(&mut registers);
            let reason = entered.map_err(Error::Entry)?;
            if reason.basic() == ExitReason::EXCEPTION_OR_NMI && vmx::is_nmi(interruption) {
                host::handle_nmi();
                return Ok(Exit::Interrupt);
            }
            return Ok(match reason.basic() {
                ExitReason::VMCALL => {
                    // SAFETY: the VMCS is current, and the guest was left by VMCALL.
                    unsafe { self.vmcs.as_ref().advance()? };
                    Exit::Call
                }
                ExitReason::CONTROL_REGISTER => {
                    self.control_register()?;
                    continue;
                }
                ExitReason::EXTERNAL_INTERRUPT => Exit::Interrupt,
                _ => Exit::Other(u64::from(reason.bits())),
            });
        }
    }
}

impl Drop for VmxMachine {
    fn drop(&mut self) {
        // SAFETY: as in `load`. After an emergency VMCLEAR faults: the list's entry goes all the
        // same, because the emergency has cleared it.
        let _ = unsafe { self.vmcs.as_ref().clear(self.list) };
        self.tables.into_iter().chain([self.region]).for_each(memory::free);
    }
}

//! What the cases and the hypervisor need of their host: this CPU's registers, its copy of CR4, VMX
//! and SVM turned on and off, and who hears of machine checks.
//!
//! The suite runs on the boot CPU with interrupts off.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown_arch::x86_64::Cr4;
use shootdown_virt::host_bits::{
    Cr4Copy, ExtendedState, ExtendedSwitch, HardwareCr4, HardwareExtended, InterruptsOff,
    MachineCheck,
};
use shootdown_virt::svm::{self, VmcbAddress};
use shootdown_virt::vmx::{
    self, Capabilities, LoadedList, OperandError, RegionAddress, TurnOnError,
};
use x86_64::instructions::tables::{sgdt, sidt};
use x86_64::registers::control::{Cr0, Cr3};
use x86_64::registers::model_specific::Msr;

use super::hypervisor::frame;
use crate::MAX_CPUS;
use crate::arch::{self, features_of_cpu};
use crate::memory;

/// CR4.
pub const VMXE: u64 = 1 << 13;
const OSXSAVE: u64 = 1 << 18;
const PKE: u64 = 1 << 22;
/// EFER.
const EFER: u32 = 0xc000_0080;

/// Each CPU's CR4 and its copy.
static CR4: [Cr4Copy<HardwareCr4>; MAX_CPUS as usize] = [const {
    // SAFETY: the kernel runs at privilege level 0.
    Cr4Copy::new(unsafe { HardwareCr4::new() })
}; MAX_CPUS as usize];

/// The copy of the executing CPU.
pub fn cr4_copy() -> &'static Cr4Copy<HardwareCr4> {
    &CR4[arch::cpu().index()]
}

/// The proof that the suite's contract gives.
pub fn interrupts_off() -> InterruptsOff {
    assert!(!arch::interrupts::enabled());
    // SAFETY: looked at above; who has the value turns them on only where it was dropped.
    unsafe { InterruptsOff::new() }
}

/// Takes this CPU's CR4 over, once for each CPU that the cases use.
pub fn begin() {
    take_cr4();
    // SAFETY: CPUID has XSAVE; state that is not enabled in XCR0 is used by nobody.
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 26 != 0 {
        change_cr4(OSXSAVE, 0);
        set_xcr0(0b11);
    }
    if core::arch::x86_64::__cpuid_count(7, 0).ecx & 1 << 3 != 0 {
        change_cr4(PKE, 0);
    }
}

/// Sets and clears bits of this CPU's CR4, and of its copy.
pub fn change_cr4(set: u64, clear: u64) {
    let off = interrupts_off();
    let new = |old: Cr4| Cr4::from_bits(old.bits() & !clear | set);
    // SAFETY: this CPU's copy; what the cases change is theirs to change (MCE, VMXE, TSD, PCE,
    // OSXSAVE, PKE).
    unsafe { cr4_copy().change(&off, new) }.expect("`begin` comes first");
}

/// CR4 by its copy.
pub fn cr4() -> u64 {
    cr4_copy().get(&interrupts_off()).expect("`begin` comes first").bits()
}

/// CR4 by the register.
pub fn cr4_register() -> u64 {
    // SAFETY: privilege level 0.
    unsafe { shootdown_arch::x86_64::read_cr4() }.bits()
}

pub fn cr0() -> u64 {
    Cr0::read_raw()
}

pub fn cr3() -> u64 {
    let (frame, low) = Cr3::read_raw();
    frame.start_address().as_u64() | u64::from(low)
}

pub fn efer() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    unsafe { Msr::new(EFER).read() }
}

pub fn gs_base() -> u64 {
    x86_64::registers::model_specific::GsBase::read().as_u64()
}

/// The task register.
pub struct TaskRegister {
    pub selector: u16,
    pub base: u64,
}

/// What TR holds, its base from the descriptor.
pub fn task_register() -> TaskRegister {
    let selector: u16;
    // SAFETY: STR reads a register.
    unsafe { asm!("str {0:x}", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    let at = (sgdt().base.as_u64() + u64::from(selector)) as *const [u64; 2];
    // SAFETY: TR was loaded from there, a descriptor of 16 bytes.
    let [low, high] = unsafe { at.read_unaligned() };
    let base = low >> 16 & 0xff_ffff | (low >> 56) << 24 | high << 32;
    TaskRegister { selector, base }
}

/// The descriptor tables.
pub struct Tables {
    pub gdt: u64,
    pub idt: u64,
}

pub fn tables() -> Tables {
    Tables { gdt: sgdt().base.as_u64(), idt: sidt().base.as_u64() }
}

fn set_xcr0(value: u64) {
    // SAFETY: OSXSAVE is set, and the value is one that every CPU with XSAVE takes.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nomem, nostack, preserves_flags));
    }
}

/// XCR0 and PKRU as they are; zeros where the CPU has not got them.
pub fn extended() -> ExtendedState {
    let cr4 = cr4_register();
    let xcr0 = if cr4 & OSXSAVE != 0 {
        let (low, high): (u32, u32);
        // SAFETY: OSXSAVE is set.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
                options(nomem, nostack, preserves_flags));
        }
        u64::from(high) << 32 | u64::from(low)
    } else {
        0
    };
    let pkru = (cr4 & PKE != 0).then(|| {
        let pkru;
        // SAFETY: PKE is set.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _,
                options(nomem, nostack, preserves_flags));
        }
        pkru
    });
    ExtendedState { xcr0, pkru }
}

/// What a guest begins with: less than the host has of either.
pub fn extended_of_guest() -> ExtendedSwitch {
    let host = extended();
    ExtendedSwitch::new(ExtendedState {
        xcr0: host.xcr0.min(1),
        pkru: host.pkru.map(|_| 0x5555_5554),
    })
}

/// The registers behind [`extended`].
pub fn extended_registers() -> HardwareExtended {
    // SAFETY: OSXSAVE and PKE are set where the CPU has them (`begin`); otherwise both states are
    // the same, and nothing is executed.
    unsafe { HardwareExtended::new() }
}

/// How many machine checks the host's handler has heard of, and what it ran with.
pub static MACHINE_CHECKS: AtomicU32 = AtomicU32::new(0);
pub static HANDLER_XCR0: AtomicU64 = AtomicU64::new(0);

/// A machine check came while a guest ran: the host's handler hears of it, with the host's XCR0 and
/// PKRU.
pub fn handle_machine_check(check: MachineCheck<'_>, guest: &mut ExtendedSwitch) {
    check.handle(guest, &mut extended_registers(), |_, _| machine_check());
}

/// The host's handler: also where the CPU calls it itself.
pub fn machine_check() {
    const MCG_STATUS: u32 = 0x17a;
    HANDLER_XCR0.store(extended().xcr0, Ordering::Relaxed);
    MACHINE_CHECKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the CPU has raised a machine check, so it has the register. With MCIP clear it can
    // raise the next.
    unsafe { Msr::new(MCG_STATUS).write(0) };
}

/// Runs the host's handler of non-maskable interrupts for one that ended a guest: on VMX the CPU
/// has not called it, and blocks the next until an IRET, which is this handler's.
pub fn handle_nmi() {
    // SAFETY: the handler is the kernel's, and returns where somebody expects the interrupt.
    unsafe { asm!("int 2") };
}

/// VMX on this CPU.
pub struct VmxCpu {
    pub capabilities: Capabilities,
    pub physical_bits: u8,
    pub loaded: &'static LoadedList,
    vmxon: u64,
}

/// Each CPU's list.
static LOADED: [LoadedList; MAX_CPUS as usize] = [const { LoadedList::new() }; MAX_CPUS as usize];

/// The list of the executing CPU.
fn loaded() -> &'static LoadedList {
    &LOADED[arch::cpu().index()]
}

impl VmxCpu {
    /// `None`: the CPU has no VMX.
    pub fn find() -> Option<Self> {
        (core::arch::x86_64::__cpuid(1).ecx & 1 << 5 != 0).then(|| {
            // SAFETY: privilege level 0, and the CPU has VMX.
            let capabilities = unsafe { Capabilities::of_this_cpu() };
            let vmxon = frame();
            // SAFETY: the frame is new.
            unsafe { memory::at(vmxon).cast::<u32>().write(capabilities.revision().get()) };
            let physical_bits = features_of_cpu().physical_bits;
            Self { capabilities, physical_bits, loaded: loaded(), vmxon }
        })
    }

    pub fn region(&self, frame: u64) -> Result<RegionAddress, OperandError> {
        RegionAddress::new(frame, self.physical_bits, &self.capabilities)
    }

    /// The page that VMXON is told.
    pub fn vmxon_region(&self) -> RegionAddress {
        self.region(self.vmxon).expect("frames are aligned, and below 4 GiB")
    }

    /// Gives back what was taken, when VMX is off.
    pub fn free(self) {
        memory::free(self.vmxon);
    }

    /// Turns VMX on.
    pub fn on(&self) -> Result<(), TurnOnError> {
        // SAFETY: privilege level 0, interrupts off, the kernel's handlers ask `fixup`; the region
        // holds the revision and is this CPU's.
        unsafe { vmx::turn_on(self.vmxon_region(), &self.capabilities, set_vmxe) }
    }

    /// Turns it off.
    pub fn off(&self) -> Result<(), vmx::TurnOffError> {
        // SAFETY: as in `on`; the list is this CPU's.
        unsafe { vmx::turn_off(self.loaded, set_vmxe) }
    }

    /// Turns VMX on again after it was taken away behind the copy of CR4.
    pub fn resume(&self) -> Result<(), TurnOnError> {
        after_emergency();
        self.on()
    }
}

/// What an NMI does in a crash: see [`vmx::emergency_off`].
pub fn vmx_emergency() {
    // SAFETY: this CPU's list. `resume` comes before the next guest.
    unsafe { vmx::emergency_off(loaded()) };
}

/// The kernel goes on after all. The emergency has changed CR4 behind its copy.
pub fn after_emergency() {
    shootdown_virt::teardown::cancel();
    take_cr4();
}

/// Makes this CPU's copy of CR4 what the register is.
pub fn take_cr4() {
    // SAFETY: this CPU's copy.
    unsafe { cr4_copy().start(&interrupts_off()) };
}

/// Puts CR4 back to what its copy says, after an exit has loaded another value: what the controls
/// provoke.
pub fn restore_cr4() {
    // SAFETY: this CPU's CR4 as the kernel wants it.
    unsafe { shootdown_arch::x86_64::write_cr4(Cr4::from_bits(cr4())) };
}

fn set_vmxe(on: bool) {
    if on { change_cr4(VMXE, 0) } else { change_cr4(0, VMXE) }
}

/// SVM on this CPU.
pub struct SvmCpu {
    pub capabilities: svm::Capabilities,
    pub physical_bits: u8,
    host_save: u64,
    host_state: u64,
}

impl SvmCpu {
    /// `None`: the CPU has no SVM.
    pub fn find() -> Option<Self> {
        let capabilities = svm::Capabilities::of_this_cpu()?;
        let physical_bits = features_of_cpu().physical_bits;
        Some(Self { capabilities, physical_bits, host_save: frame(), host_state: frame() })
    }

    pub fn address(&self, frame: u64) -> VmcbAddress {
        VmcbAddress::new(frame, self.physical_bits).expect("frames are aligned, and below 4 GiB")
    }

    /// The page for the part of the host's state that VMRUN does not save.
    pub fn host_state(&self) -> VmcbAddress {
        self.address(self.host_state)
    }

    /// Gives back what was taken, when SVM is off.
    pub fn free(self) {
        memory::free(self.host_save);
        memory::free(self.host_state);
    }

    /// Turns SVM on.
    pub fn on(&self) -> Result<(), svm::TurnOnError> {
        // SAFETY: privilege level 0, interrupts off; the page is this CPU's.
        unsafe { svm::turn_on(self.address(self.host_save)) }.map(drop)
    }

    /// Turns it off.
    pub fn off(&self) {
        // SAFETY: as in `on`.
        unsafe { svm::turn_off() };
    }
}

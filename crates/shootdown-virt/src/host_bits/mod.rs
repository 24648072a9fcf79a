//! The host's control bits in force while a guest runs.
//!
//! A few bits of CR0, CR4 and EFER belong to the machine and not to the guest. With CR4.MCE clear,
//! a machine check shuts the machine down, also while a guest runs: a guest that clears its MCE
//! (every guest starts with it clear) would decide that for the whole machine. Such bits keep the
//! host's value in guest mode, and the guest still reads what it wrote.
//!
//! Computing them once is easy. The difficulty is that the result is a copy: the host turns a bit
//! on later, CPUs differ, a task with other bits is loaded (TSD, PCE), CR3 gets another PCID. On
//! VMX, HOST_CR4 is such a copy of the host's own CR4, and every exit loads it. So the fields are
//! compared with the CPU's registers before each entry.
//!
//! | part | what it is |
//! |---|---|
//! | [`HostBits`], [`FixedBits`] | which bits the host owns, which VMX requires |
//! | [`VmxRules`], [`SvmRules`] | options that are consistent; they compute fields from the host's value and the guest's |
//! | [`VmxControl`], [`SvmControl`] | a vCPU's registers: the check before each entry, the handlers of exits |
//! | [`Cr4Copy`] | the value that the check compares with: a CPU's CR4 in memory |
//! | [`CrAccess`], [`Outcome`] | exits 28, 0x00 to 0x1f: what the guest did, and what the hypervisor must do |
//! | [`MachineCheck`], [`ExtendedSwitch`] | exits 0, 41, 0x52, and the registers that must be the host's when its handler runs |
//!
//! # One turn of a vCPU
//! ```
//! use shootdown_arch::x86_64::Cr4;
//! use shootdown_virt::host_bits::{
//!     CrAccess, CrField, Cr4Copy, Cr4Register, FixedBits, GuestControl, HostBits, HostControl,
//!     InterruptsOff, Outcome, VmxControl, VmxGuest, VmxOptions, VmxRules,
//! };
//! # use core::cell::Cell;
//! # struct Register(Cell<u64>);
//! # impl Cr4Register for Register {
//! #     fn read(&self) -> Cr4 { Cr4::from_bits(self.0.get()) }
//! #     unsafe fn write(&self, value: Cr4) { self.0.set(value.bits()) }
//! # }
//! # let register = Register(Cell::new(0x2060));
//! # let mut vmcs = std::collections::HashMap::from([(CrField::GuestCr4, 0), (CrField::GuestCr0, 0)]);
//! let rules = VmxRules::new(VmxOptions {
//!     owned: HostBits::VMX,
//!     fixed_cr0: FixedBits::new(0x8000_0021, 0xffff_ffff)?, // the MSRs 0x486 and 0x487
//!     fixed_cr4: FixedBits::new(0x2000, 0x0017_27ff)?,      // 0x488 and 0x489
//!     host_cr0: 0x8005_0033,
//!     guest_owned_cr0: 0,
//!     guest_owned_cr4: 0,
//!     supported_cr4: 0x0017_07ff,
//!     unrestricted: true,
//! })?;
//! let mut control = VmxControl::new(rules, GuestControl::RESET)?;
//!
//! // Once a CPU, when it starts.
//! let this_cpu = Cr4Copy::new(register);
//! // SAFETY (of the example): nothing interrupts it, and the register is a variable.
//! let off = unsafe { InterruptsOff::new() };
//! unsafe { this_cpu.start(&off) };
//!
//! // Before each entry, with interrupts off.
//! let host = HostControl::new(0x1000, this_cpu.for_entry(&off)?);
//! if let Some(update) = control.before_entry(host, &off) {
//!     for (field, write) in update.fields() {
//!         let old = vmcs.get(&field).copied().unwrap_or(0);
//!         vmcs.insert(field, write.over(old)); // VMREAD if `write.known()` is none, VMWRITE
//!     }
//!     update.written();
//! }
//! assert!(control.before_entry(host, &off).is_none());
//! assert_eq!(vmcs[&CrField::GuestCr4] & 0x40, 0x40); // MCE, though the guest's is clear
//!
//! // After exit 28: MOV CR4, RAX with TSD set.
//! let access = CrAccess::from_qualification(0x0004)?;
//! let now = VmxGuest {
//!     guest_cr0: vmcs[&CrField::GuestCr0],
//!     guest_cr4: vmcs[&CrField::GuestCr4],
//!     cr3: 0,
//!     efer: 0,
//!     code64: false,
//! };
//! match control.handle(access, 0x4, &now) {
//!     Outcome::Write(update, effects) => {
//!         for (field, write) in update.fields() {
//!             vmcs.insert(field, write.over(vmcs[&field]));
//!         }
//!         update.written();
//!         assert!(!effects.invalidate); // else INVVPID; then advance RIP
//!     }
//!     Outcome::Fault(_) => {} // inject #GP(0)
//!     _ => unreachable!(),
//! }
//! assert_eq!(control.cr4(vmcs[&CrField::GuestCr4]), 0x4);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # What is not here
//! Guests without nested paging (the hypervisor then owns more bits of CR0 and CR4 and changes them
//! itself), guests that have guests, HOST_CR0 (a host that switches x87 state lazily by CR0.TS
//! writes the field itself), `IA32_XSS`.

mod access;
mod copy;
mod extended;
mod fixed;
mod guest;
mod interrupts;
mod machine_check;
mod outcome;
mod owned;
pub mod register_bits;
mod svm_control;
mod vmx_control;
mod vmx_rules;

pub use access::{ControlRegister, CrAccess, CrAccessError, Gpr, LmswSource};
pub use copy::{Cr4Copy, Cr4Register, Cr4Unknown};
pub use extended::{ExtendedRegisters, ExtendedState, ExtendedSwitch, NoProtectionKeys};
pub use fixed::{FixedBits, FixedBitsError};
pub use guest::{Effects, GuestControl, WriteFault};
pub use interrupts::InterruptsOff;
pub use machine_check::{EXCEPTION_INTERCEPT, MachineCheck, MachineCheckTime};
pub use outcome::{Accessed, FieldWrite, HostControl, Outcome};
pub use owned::{Extension, HostBits, HostBitsError};
pub use svm_control::{
    SvmControl, SvmGuest, SvmIntercepts, SvmOptions, SvmRules, SvmRulesError, SvmStartError,
    SvmUpdate, VmcbCr,
};
pub use vmx_control::{CrField, VmxControl, VmxGuest, VmxStartError, VmxUpdate};
pub use vmx_rules::{VmxOptions, VmxRules, VmxRulesError};

#[cfg(target_arch = "x86_64")]
pub use {copy::HardwareCr4, extended::HardwareExtended};

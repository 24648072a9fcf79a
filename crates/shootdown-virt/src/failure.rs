//! What an instruction can do besides succeeding, and how a failure is reported.
//!
//! | class | what happened | [`Failure`] |
//! |---|---|---|
//! | VMfailInvalid | CF: there is no current VMCS, or VMXON refused its region | [`Failure::Invalid`] |
//! | VMfailValid | ZF: a number in the current VMCS names the error | [`Failure::Valid`] |
//! | fault | #UD, #GP, #SS, #PF | [`Failure::Fault`] |
//! | any of these while virtualization is taken away | an NMI or another part of a panic, reboot or kexec turned it off | [`Failure::Gone`] |
//!
//! (SDM vol. 3C, 31.2; APM vol. 3 for SVM, which has faults alone.)
//!
//! # How a failure is reported
//! If the failure of an instruction is a defect of the hypervisor, the instruction calls the
//! [hook](set_hook) with a [`Report`] and, when the hook returns, returns the failure to its
//! caller. The initial hook panics. VMXON, VMLAUNCH, VMRESUME and VMRUN never call the hook,
//! because the hypervisor can't know beforehand whether they succeed.
//!
//! While virtualization is being taken away ([`teardown`](crate::teardown)) nothing calls the hook.
//! Every failure is [`Failure::Gone`] then: the caller returns in order, and its next entry into
//! the guest is refused the same way. A #GP in that time is [`Failure::Gone`] too, because a kernel
//! that goes down must not panic again over it.

use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::teardown;
use crate::vmx::InstructionError;

/// An instruction that may fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the manuals' names")]
pub enum Instruction {
    Vmxon,
    Vmxoff,
    Vmclear,
    Vmptrld,
    Vmptrst,
    Vmread,
    Vmwrite,
    Vmlaunch,
    Vmresume,
    Invept,
    Invvpid,
    Vmfunc,
    Vmcall,
    Vmrun,
    Vmload,
    Vmsave,
    Stgi,
    Clgi,
    Invlpga,
    Vmmcall,
}

impl Instruction {
    /// The mnemonic.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmxon => "VMXON",
            Self::Vmxoff => "VMXOFF",
            Self::Vmclear => "VMCLEAR",
            Self::Vmptrld => "VMPTRLD",
            Self::Vmptrst => "VMPTRST",
            Self::Vmread => "VMREAD",
            Self::Vmwrite => "VMWRITE",
            Self::Vmlaunch => "VMLAUNCH",
            Self::Vmresume => "VMRESUME",
            Self::Invept => "INVEPT",
            Self::Invvpid => "INVVPID",
            Self::Vmfunc => "VMFUNC",
            Self::Vmcall => "VMCALL",
            Self::Vmrun => "VMRUN",
            Self::Vmload => "VMLOAD",
            Self::Vmsave => "VMSAVE",
            Self::Stgi => "STGI",
            Self::Clgi => "CLGI",
            Self::Invlpga => "INVLPGA",
            Self::Vmmcall => "VMMCALL",
        }
    }

    /// Is a failure of the instruction a defect of the hypervisor, which is reported to the hook?
    #[must_use]
    pub const fn reports(self) -> bool {
        !matches!(self, Self::Vmxon | Self::Vmlaunch | Self::Vmresume | Self::Vmrun)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An exception that an instruction raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// #UD: virtualization is off, or the CPU does not have the instruction.
    UndefinedOpcode,
    /// #GP: the operand's address is not canonical, or the CPU is not in a state for the
    /// instruction.
    Protection,
    /// #SS: the operand is addressed by RSP or RBP, and its address is not canonical.
    Stack,
    /// #PF at this address.
    Page(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UndefinedOpcode => f.write_str(
                "#UD: virtualization is off on this CPU, or it has not this instruction",
            ),
            Self::Protection => f.write_str("#GP: the CPU refuses the operand or its own state"),
            Self::Stack => f.write_str("#SS: the operand on the stack has no canonical address"),
            Self::Page(address) => write!(f, "#PF at {address:#x}"),
        }
    }
}

/// Why an instruction did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// VMfailInvalid: there is no current VMCS, or VMXON refused its region.
    Invalid,
    /// VMfailValid, with its number.
    Valid(InstructionError),
    /// A fault.
    Fault(Fault),
    /// Virtualization is being taken away ([`teardown`](crate::teardown)): return in order.
    Gone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str(
                "VMfailInvalid: no VMCS is current on this CPU, or VMXON was given a bad region",
            ),
            Self::Valid(number) => write!(f, "VMfailValid: {number}"),
            Self::Fault(fault) => fault.fmt(f),
            Self::Gone => f.write_str("virtualization is being taken away: leave the guest alone"),
        }
    }
}

impl core::error::Error for Failure {}

/// An instruction that failed, for the [hook](set_hook).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The instruction.
    pub instruction: Instruction,
    /// Its operand: the VMCS field, the physical address of the region, the type of an
    /// invalidation, or the address of the memory operand.
    pub operand: u64,
    /// Why it failed.
    pub failure: Failure,
    /// An address in the out-of-line part of the function that executed it: a symbolizer names
    /// that function, and with line tables the caller's line.
    pub rip: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instruction, operand, failure, rip } = self;
        write!(f, "{instruction} of {operand:#x} at {rip:#x}: {failure}")
    }
}

/// A function that failures that are defects are reported to.
pub type Hook = fn(&Report);

/// The hook; null stands for the initial one, which panics.
static HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Installs `hook`: from now on it is called for every failure that is a defect, in place of a
/// panic. It runs in the context of the instruction, which may be an NMI. When it returns, the
/// instruction returns the failure.
pub fn set_hook(hook: Hook) {
    // ORDERING: Release, with the Acquire in `report`: what the hook relies on was stored before.
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// Restores the initial hook, which panics.
pub fn reset_hook() {
    HOOK.store(core::ptr::null_mut(), Ordering::Release);
}

#[cold]
fn report(report: &Report) {
    // ORDERING: Acquire, with the Release in `set_hook`.
    let hook = HOOK.load(Ordering::Acquire);
    if hook.is_null() {
        panic!("{report}");
    }
    // SAFETY: what is not null was stored by `set_hook`, from a `Hook`.
    let hook: Hook = unsafe { core::mem::transmute::<*mut (), Hook>(hook) };
    hook(report);
}

/// What an instruction's slow path returns: decides between gone, a report, and the bare failure.
pub(crate) fn conclude(
    instruction: Instruction,
    operand: u64,
    failure: Failure,
    rip: u64,
) -> Failure {
    if teardown::has_begun() {
        return Failure::Gone;
    }
    if instruction.reports() {
        report(&Report { instruction, operand, failure, rip });
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::sync::Mutex;

    /// The hook and the flag belong to the whole program, not to one test.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static HEARD: Mutex<Option<Report>> = Mutex::new(None);

    fn hear(report: &Report) {
        *HEARD.lock().unwrap() = Some(*report);
    }

    #[test]
    fn a_defect_is_reported_and_returned() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        set_hook(hear);
        let failure = Failure::Valid(InstructionError::UNSUPPORTED_FIELD);
        let got = conclude(Instruction::Vmread, 0x4400, failure, 7);
        reset_hook();
        assert_eq!(got, failure);
        let heard = HEARD.lock().unwrap().take();
        let report = Report { instruction: Instruction::Vmread, operand: 0x4400, failure, rip: 7 };
        assert_eq!(heard, Some(report));
        assert!(report.to_string().contains("VMREAD of 0x4400 at 0x7: VMfailValid: 12"));
    }

    #[test]
    fn an_entry_that_fails_is_not_reported() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // No hook is set, so a report panics.
        for instruction in
            [Instruction::Vmxon, Instruction::Vmlaunch, Instruction::Vmresume, Instruction::Vmrun]
        {
            assert_eq!(conclude(instruction, 0, Failure::Invalid, 0), Failure::Invalid);
        }
    }

    #[test]
    fn without_a_hook_a_defect_panics() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ud = Failure::Fault(Fault::UndefinedOpcode);
        let panic = std::panic::catch_unwind(|| conclude(Instruction::Vmwrite, 1, ud, 2));
        let text = panic.unwrap_err().downcast::<std::string::String>().unwrap();
        assert_eq!(
            *text,
            "VMWRITE of 0x1 at 0x2: #UD: virtualization is off on this CPU, or it has not this instruction"
        );
    }

    #[test]
    fn while_virtualization_goes_every_failure_is_gone_and_nobody_hears() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        teardown::begin();
        let failures = [
            Failure::Invalid,
            Failure::Valid(InstructionError::UNSUPPORTED_FIELD),
            Failure::Fault(Fault::UndefinedOpcode),
            Failure::Fault(Fault::Protection),
        ];
        let got = failures.map(|failure| conclude(Instruction::Vmread, 0, failure, 0));
        teardown::cancel();
        assert_eq!(got, [Failure::Gone; 4]);
    }
}

//! Machine checks that come while a guest runs.
//!
//! The CPU does not call the host's handler: it exits. The hypervisor has to recognize such an exit
//! and call the handler itself, on the same CPU (the banks that the handler reads are the CPU's
//! own), and so before the host may be interrupted and moved.
//!
//! | exit | when |
//! |---|---|
//! | VMX 0, vector 18, type 3 | in the guest, with CR4.MCE set and bit 18 of the exception bitmap |
//! | VMX 41, bit 31 of the reason | during VM entry: the guest did not run |
//! | SVM 0x52 | in the guest, with CR4.MCE set and bit 18 of the exception intercepts |
//!
//! Without the intercept the *guest's* handler runs; with CR4.MCE clear the machine shuts down. The
//! types here ([`super::HostBits`], [`EXCEPTION_INTERCEPT`]) prevent both. A machine check during a
//! VM exit needs nothing: it is the host's own.
//!
//! The handler is code of the host that may use any register and touch any page, so it runs with
//! the host's XCR0 and PKRU ([`ExtendedSwitch`]).

use super::extended::{ExtendedRegisters, ExtendedSwitch};
use super::interrupts::InterruptsOff;
use crate::svm::ExitCode;
use crate::vmx::{EntryError, ExitReason};

/// Vector 18 in VMX's exception bitmap, and in SVM's exception intercepts.
pub const EXCEPTION_INTERCEPT: u32 = 1 << VECTOR;

/// #MC.
const VECTOR: u32 = 18;

/// When a machine check came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MachineCheckTime {
    /// While the guest ran.
    Guest,
    /// During VM entry. The guest's state is what it was before, and it may be entered again.
    Entry,
}

/// A machine check came, and the host's handler has not run yet.
///
/// It holds a borrow of the proof that interrupts are off: it can't be kept for later.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the host's machine-check handler has not run"]
pub struct MachineCheck<'a> {
    when: MachineCheckTime,
    off: core::marker::PhantomData<&'a InterruptsOff>,
}

impl<'a> MachineCheck<'a> {
    /// From what an entry came to ([`Vmcs::enter`](crate::vmx::Vmcs::enter)) and VM_EXIT_INTR_INFO,
    /// which is looked at for exit 0 only.
    #[must_use]
    pub const fn from_vmx(
        entered: Result<ExitReason, EntryError>,
        interruption: u32,
        off: &'a InterruptsOff,
    ) -> Option<Self> {
        /// The interruption information is there: bit 31. Hardware exception: 3 in bits 10:8.
        const HARDWARE: u32 = 1 << 31 | 3 << 8 | VECTOR;
        const KIND: u32 = 1 << 31 | 0x7ff;
        match entered {
            Ok(reason)
                if reason.basic() == ExitReason::EXCEPTION_OR_NMI
                    && interruption & KIND == HARDWARE =>
            {
                Some(Self::new(MachineCheckTime::Guest, off))
            }
            Err(EntryError::MachineCheck) => Some(Self::new(MachineCheckTime::Entry, off)),
            _ => None,
        }
    }

    /// From an SVM exit code.
    #[must_use]
    pub const fn from_svm(code: ExitCode, off: &'a InterruptsOff) -> Option<Self> {
        if code.bits() == ExitCode::MACHINE_CHECK.bits() {
            Some(Self::new(MachineCheckTime::Guest, off))
        } else {
            None
        }
    }

    const fn new(when: MachineCheckTime, _: &'a InterruptsOff) -> Self {
        Self { when, off: core::marker::PhantomData }
    }

    /// When the machine check came.
    #[must_use]
    pub const fn when(&self) -> MachineCheckTime {
        self.when
    }

    /// Restores the host's XCR0 and PKRU and then calls the host's handler.
    pub fn handle<R, T>(
        self,
        extended: &mut ExtendedSwitch,
        registers: &mut R,
        handler: impl FnOnce(MachineCheckTime, &mut R) -> T,
    ) -> T
    where
        R: ExtendedRegisters,
    {
        extended.load_host(registers);
        handler(self.when, registers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::extended::ExtendedState;
    use super::super::extended::tests::Registers;
    use super::*;

    fn off() -> InterruptsOff {
        // SAFETY: no interrupt reaches this code.
        unsafe { InterruptsOff::new() }
    }

    /// Every basic reason, each vector and type; each way that an entry fails.
    #[test]
    fn a_machine_check_is_recognized_and_nothing_else_is_taken_for_one() {
        let off = off();
        let of = |entered, interruption| {
            MachineCheck::from_vmx(entered, interruption, &off).map(|check| check.when())
        };
        let interruptions = (0..=255u32).flat_map(|vector| {
            // An error code and the bits above it do not matter.
            (0..16u32).map(move |kind| vector | (kind & 7) << 8 | 1 << 12 | kind >> 3 << 31)
        });
        for info in interruptions {
            let machine_check = info & 0x8000_07ff == 0x8000_0312;
            for reason in 0..=80u32 {
                let expected = (reason == 0 && machine_check).then_some(MachineCheckTime::Guest);
                // Bit 27: the exit was in an enclave.
                let entered = Ok(ExitReason::from_bits(reason | 1 << 27));
                assert_eq!(of(entered, info), expected, "{reason} {info:#x}");
            }
            for failed in [
                EntryError::GuestState { qualification: 0 },
                EntryError::MsrLoading { entry: 18 },
                EntryError::Failed(crate::Failure::Gone),
            ] {
                assert_eq!(of(Err(failed), info), None, "{failed:?} {info:#x}");
            }
            assert_eq!(of(Err(EntryError::MachineCheck), info), Some(MachineCheckTime::Entry));
        }
        for code in (0..0x500u64).chain([u64::MAX, 0x1_0000_0052]) {
            let got = MachineCheck::from_svm(ExitCode::from_bits(code), &off);
            let expected = (code == 0x52).then_some(MachineCheckTime::Guest);
            assert_eq!(got.map(|check| check.when()), expected, "{code:#x}");
        }
    }

    #[test]
    fn the_handler_runs_with_the_hosts_xcr0_and_pkru() {
        let off = off();
        for when in [MachineCheckTime::Guest, MachineCheckTime::Entry] {
            for loaded in [false, true] {
                let host = ExtendedState { xcr0: 7, pkru: Some(0x5555_5554) };
                let mut cpu = Registers { xcr0: 7, pkru: 0x5555_5554, writes: 0 };
                let mut switch = ExtendedSwitch::new(ExtendedState { xcr0: 3, pkru: Some(0) });
                if loaded {
                    switch.load_guest(host, &mut cpu).unwrap();
                    cpu.pkru = !0;
                }
                let check = match when {
                    MachineCheckTime::Guest => {
                        MachineCheck::from_svm(ExitCode::MACHINE_CHECK, &off)
                    }
                    MachineCheckTime::Entry => {
                        MachineCheck::from_vmx(Err(EntryError::MachineCheck), 0, &off)
                    }
                };
                let ran = check.unwrap().handle(&mut switch, &mut cpu, |at, cpu| {
                    assert_eq!((cpu.xcr0, cpu.pkru, at), (7, 0x5555_5554, when));
                    true
                });
                assert!(ran);
                // The guest's own are kept for its next entry.
                assert_eq!(switch.guest().pkru, Some(if loaded { !0 } else { 0 }));
            }
        }
    }

    #[test]
    fn both_extensions_intercept_vector_18() {
        assert_eq!(EXCEPTION_INTERCEPT, 0x4_0000);
    }
}

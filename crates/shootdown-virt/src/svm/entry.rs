//! Entering a guest and leaving it: VMRUN.
//!
//! # The problem
//! VMRUN switches a part of the state; VMLOAD and VMSAVE switch another (FS, GS, TR, LDTR,
//! KernelGsBase, the MSRs of system calls); software switches the general registers. Between the
//! VMLOAD of the guest's state and that of the host's, the CPU has the guest's GS, so no handler of
//! the host may run there: the global interrupt flag is clear for that time.
//!
//! # The sequence of [`enter`]
//! CLGI; STI; VMSAVE to the host's page; VMLOAD from the VMCB; registers; VMRUN; VMSAVE to the
//! VMCB; VMLOAD from the host's page; CLI; mitigations; STGI. The STI is needed because, with
//! V_INTR_MASKING, an interrupt ends the guest only while the host's IF is set (APM vol. 2,
//! 15.21.1); with the global flag clear the host takes no interrupt meanwhile.
//!
//! # Faults
//! CLGI faults where SVM is off, and nothing is changed then. The VMLOAD checks the address of the
//! VMCB as VMRUN does, before it loads anything. NMIs are held from the CLGI on, so SVM can't be
//! turned off in between. A VMRUN of this sequence can only be refused, by VMEXIT_INVALID. It has
//! entries in the exception table nevertheless. The VMSAVE and VMLOAD after it have none: if they
//! faulted, the CPU would have the guest's GS, and no code of the host could run.
//!
//! | state | what switches it |
//! |---|---|
//! | RAX, RSP, RIP, RFLAGS, CR0, CR2, CR3, CR4, DR6, DR7, EFER, segments, GDTR, IDTR | VMRUN |
//! | FS, GS, TR, LDTR, KernelGsBase, STAR, LSTAR, CSTAR, SFMASK, SYSENTER | VMLOAD and VMSAVE here |
//! | the other fourteen general registers | the function here, by [`GuestRegisters`] |
//! | x87, SSE, AVX, XCR0, XSS, PKRU, DR0 to DR3 | the hypervisor, around the call |
//! | DR6, DR7, CR2 | nothing restores the host's values: the exit resets DR7, the other two are the guest's |
//!
//! [`svm_entry!`](crate::svm_entry) makes functions with text for mitigations, at the places that
//! the VMX entry has too: when the guest's registers are loaded, and after the exit when they are
//! saved.

use core::fmt;
use core::mem::offset_of;

use super::operand::VmcbAddress;
use super::vmcb::{ExitCode, Vmcb};
use crate::failure::{Failure, Fault, Instruction, conclude};
use crate::slow;
use crate::vmx::GuestRegisters;

/// The value that an entry function returns if VMRUN was executed.
const LEFT: u64 = 0;

/// Why a guest was not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EntryError {
    /// An instruction faulted. CLGI, VMSAVE and VMLOAD report that to the [hook](crate::set_hook)
    /// before, VMRUN does not.
    Failed(Failure),
    /// VMEXIT_INVALID: the guest's state or its controls are invalid; the CPU does not report
    /// which. A request of [`Vmcb::flush`] is still pending then.
    Invalid,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Invalid => f.write_str(
                "VMEXIT_INVALID: VMRUN refused the guest; look at the ASID, the intercept of VMRUN, EFER.SVME, and reserved bits of CR0, CR3, CR4, DR6, DR7 and EFER",
            ),
        }
    }
}

impl core::error::Error for EntryError {}

/// An entry function: [`enter`] is the one without mitigations, [`svm_entry!`](crate::svm_entry)
/// makes others.
///
/// It takes the physical address of the VMCB, the guest's registers, the physical address of the
/// page for the host's state, and the VMCB (which it does not use, and which may have changed when
/// it returns). It returns 0 when VMRUN was executed. Otherwise it returns 1, 2, 3 or 4 for #UD,
/// #GP, #SS or #PF of CLGI; 16 more for VMSAVE of the host's state; 32 more for VMLOAD; 48 more for
/// VMRUN.
pub type EntryFunction = unsafe extern "sysv64" fn(u64, *mut GuestRegisters, u64, *mut Vmcb) -> u64;

/// Makes an entry function with text for mitigations.
///
/// ```
/// # #[cfg(target_arch = "x86_64")] {
/// shootdown_virt::svm_entry! {
///     /// Waits for earlier loads before the guest runs.
///     pub fn enter_fenced;
///     before = "lfence",
///     after = "",
/// }
/// # let _: shootdown_virt::svm::EntryFunction = enter_fenced;
/// # }
/// ```
#[macro_export]
macro_rules! svm_entry {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident;
        before = $before:expr, after = $after:expr $(,)?) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As `Vmcb::enter`.
        #[unsafe(naked)]
        $visibility unsafe extern "sysv64" fn $name(
            vmcb: u64,
            registers: *mut $crate::vmx::GuestRegisters,
            host: u64,
            memory: *mut $crate::svm::Vmcb,
        ) -> u64 {
            ::core::arch::naked_asm!(
                "push rbp",
                "push rbx",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "push rdx",
                "push rsi",
                $crate::may_fault!("clgi", "51f", "52f", "53f", "54f"),
                // Interrupts end the guest; the global flag holds them from the host. The STI is
                // here, so that VMRUN does not come in the shadow of STI, which an exit during the
                // injection of an event takes for the guest's.
                "sti",
                "mov rax, rdx",
                $crate::may_fault!("vmsave rax", "55f", "56f", "57f", "58f"),
                "mov rax, rdi",
                $crate::may_fault!("vmload rax", "61f", "62f", "63f", "64f"),
                "mov rcx, [rsi + 8]",
                "mov rdx, [rsi + 16]",
                "mov rbx, [rsi + 24]",
                "mov rbp, [rsi + 32]",
                "mov rdi, [rsi + 48]",
                "mov r8, [rsi + 56]",
                "mov r9, [rsi + 64]",
                "mov r10, [rsi + 72]",
                "mov r11, [rsi + 80]",
                "mov r12, [rsi + 88]",
                "mov r13, [rsi + 96]",
                "mov r14, [rsi + 104]",
                "mov r15, [rsi + 112]",
                "mov rsi, [rsi + 40]",
                $before,
                $crate::may_fault!("vmrun rax", "65f", "66f", "67f", "68f"),
                "vmsave rax",
                // RSP is the host's again, and RAX the address of the VMCB; all others are the
                // guest's.
                "pop rax",
                "mov [rax + 8], rcx",
                "mov [rax + 16], rdx",
                "mov [rax + 24], rbx",
                "mov [rax + 32], rbp",
                "mov [rax + 40], rsi",
                "mov [rax + 48], rdi",
                "mov [rax + 56], r8",
                "mov [rax + 64], r9",
                "mov [rax + 72], r10",
                "mov [rax + 80], r11",
                "mov [rax + 88], r12",
                "mov [rax + 96], r13",
                "mov [rax + 104], r14",
                "mov [rax + 112], r15",
                "push rax",
                "xor ecx, ecx",
                "jmp 40f",
                // Of CLGI: nothing has been changed.
                "51: mov ecx, 1",
                "jmp 42f",
                "52: mov ecx, 2",
                "jmp 42f",
                "53: mov ecx, 3",
                "jmp 42f",
                "54: mov ecx, 4",
                "jmp 42f",
                // Of VMSAVE and VMLOAD: the host's state is in place.
                "55: mov ecx, 17",
                "jmp 41f",
                "56: mov ecx, 18",
                "jmp 41f",
                "57: mov ecx, 19",
                "jmp 41f",
                "58: mov ecx, 20",
                "jmp 41f",
                "61: mov ecx, 33",
                "jmp 41f",
                "62: mov ecx, 34",
                "jmp 41f",
                "63: mov ecx, 35",
                "jmp 41f",
                "64: mov ecx, 36",
                "jmp 41f",
                // Of VMRUN.
                "65: mov ecx, 49",
                "jmp 69f",
                "66: mov ecx, 50",
                "jmp 69f",
                "67: mov ecx, 51",
                "jmp 69f",
                "68: mov ecx, 52",
                "69:",
                "40: mov rax, [rsp + 8]",
                "vmload rax",
                "41: cli",
                "42:",
                // Nothing of the guest stays in a register, whether it ran or not.
                "mov [rsp + 8], rcx",
                "xor eax, eax",
                "xor ecx, ecx",
                "xor edx, edx",
                "xor ebx, ebx",
                "xor ebp, ebp",
                "xor esi, esi",
                "xor edi, edi",
                "xor r8d, r8d",
                "xor r9d, r9d",
                "xor r10d, r10d",
                "xor r11d, r11d",
                "xor r12d, r12d",
                "xor r13d, r13d",
                "xor r14d, r14d",
                "xor r15d, r15d",
                $after,
                // After the mitigations: what was held comes now. Where CLGI has failed (codes 1 to
                // 4) STGI would fail too.
                "mov rcx, [rsp + 8]",
                "dec rcx",
                "cmp rcx, 4",
                "jb 43f",
                "stgi",
                "43:",
                "pop rcx",
                "pop rax",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbx",
                "pop rbp",
                "ret",
            )
        }
    };
}

svm_entry! {
    /// The entry function without mitigations.
    pub fn enter;
    before = "",
    after = "",
}

// The assembly counts on it.
const _: () = assert!(offset_of!(GuestRegisters, r15) == 112);

/// The failure that an entry function's return value stands for.
fn failed(code: u64, vmcb: u64, host: u64) -> Failure {
    let (instruction, operand) = match code >> 4 {
        0 => (Instruction::Clgi, 0),
        1 => (Instruction::Vmsave, host),
        2 => (Instruction::Vmload, vmcb),
        _ => (Instruction::Vmrun, vmcb),
    };
    let fault = match code & 15 {
        1 => Fault::UndefinedOpcode,
        2 => Fault::Protection,
        3 => Fault::Stack,
        _ => Fault::Page(operand),
    };
    conclude(instruction, operand, Failure::Fault(fault), slow::here())
}

/// Executes VMRUN of the VMCB at this physical address and nothing else: state that VMRUN does not
/// switch stays the host's, and the guest begins with the present values of the registers. For
/// tests of VMRUN itself. After `Ok` the global interrupt flag is clear, as after every exit.
///
/// # Errors
/// #UD with EFER.SVME clear; #GP for an address that is misaligned or too wide. They are returned,
/// not reported.
///
/// # Safety
/// As [`Vmcb::enter`], for a guest that changes no register but RAX and RSP. Interrupts are off,
/// the global flag is the caller's.
#[inline(never)]
pub unsafe fn vmrun_raw(address: u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { slow::execute!("vmrun rax", Vmrun, address, slow::NO_MEMORY, in("rax") address,) };
    Ok(())
}

impl Vmcb {
    /// Enters the guest, and returns when the guest was left. A request of [`flush`](Self::flush)
    /// is done then, and no longer pending.
    ///
    /// RAX is the VMCB's: `registers.rax` is neither read nor written.
    ///
    /// # Errors
    /// [`EntryError`]: the guest did not run. An emergency on this CPU makes it [`Failure::Gone`].
    ///
    /// # Safety
    /// 1. SVM is on on this CPU, interrupts are off, the contract of the
    ///    [instructions](super::vmload) holds.
    /// 2. `address` is this VMCB's; `host` is a page of this CPU's alone, for the host's state.
    /// 3. Its fields are such that the guest touches only what it may.
    /// 4. What the table of this module leaves to the hypervisor is switched.
    pub unsafe fn enter(
        &mut self,
        address: VmcbAddress,
        registers: &mut GuestRegisters,
        host: VmcbAddress,
    ) -> Result<ExitCode, EntryError> {
        // SAFETY: this function's contract.
        unsafe { self.enter_by(enter, address, registers, host) }
    }

    /// As [`enter`](Self::enter), by a function with mitigations.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    ///
    /// # Safety
    /// As [`enter`](Self::enter); `function` was made by [`svm_entry!`](crate::svm_entry).
    pub unsafe fn enter_by(
        &mut self,
        function: EntryFunction,
        address: VmcbAddress,
        registers: &mut GuestRegisters,
        host: VmcbAddress,
    ) -> Result<ExitCode, EntryError> {
        // SAFETY: this function's contract.
        let code = unsafe { function(address.get(), registers, host.get(), self) };
        if code != LEFT {
            return Err(EntryError::Failed(failed(code, address.get(), host.get())));
        }
        match self.exit_code() {
            exit if exit.is_refusal() => Err(EntryError::Invalid),
            exit => {
                self.flushed();
                Ok(exit)
            }
        }
    }
}

//! Entering a guest and leaving it: VMLAUNCH and VMRESUME.
//!
//! # The problem
//! An entry loads the guest's registers, which leaves none for the host, and an exit continues at
//! an address that the VMCS names, with the guest's registers in place. So both are one piece of
//! assembly, in which nothing may stand between the last register and the instruction. An NMI that
//! takes VMX away may come before any instruction of it.
//!
//! # What is saved
//! | state | what switches it |
//! |---|---|
//! | RSP, RIP, RFLAGS, CR0, CR3, CR4, DR7, segments, GDTR, IDTR, and the MSRs that the controls name | the CPU, by the VMCS |
//! | the other fifteen general registers, CR2 | the function here, by [`GuestRegisters`] |
//! | x87, SSE, AVX, XCR0, XSS, PKRU, DR0 to DR3, DR6, and MSRs that no list names (STAR, LSTAR, KernelGsBase) | the hypervisor, around the call; `host_bits` puts XCR0 and PKRU back for machine checks |
//! | LDTR, DR7, IA32_DEBUGCTL, and the limits of GDTR, IDTR and TR | nothing restores them: an exit makes them null, 0x400, 0, 0xffff, 0xffff and 0x67 (SDM vol. 3C, 28.5); a host that needs others loads them |
//!
//! The flags of the host are as the CPU leaves them at an exit: interrupts off, direction up.
//!
//! # Mitigations
//! The hypervisor can put text at two places. The first is immediately before the entry, when the
//! guest's registers are loaded: the text may use memory operands relative to RIP and RSP; it
//! changes no register and leaves CF alone (VERW is such an instruction). The second is after the
//! exit, when all of the guest's registers are saved and zero, before the first RET: the text
//! (filling the return buffer, writing SPEC_CTRL) may use all registers except RSP.
//! [`vmx_entry!`](crate::vmx_entry) makes a function with such text.

use core::pin::Pin;

use super::exit::{EntryError, ExitReason, outcome};
use super::field;
use super::instruction::vmread;
use super::loaded::Vmcs;
use super::registers::GuestRegisters;
use crate::failure::{Failure, Fault, Instruction, conclude};
use crate::slow;

/// The value that an entry function returns if the guest was left by an exit.
const LEFT: u64 = 0;

/// An entry function: [`enter`] is the one without mitigations, [`vmx_entry!`](crate::vmx_entry)
/// makes others.
///
/// It takes the guest's registers, the cell with the value of HOST_RSP, and whether to resume (1)
/// or to launch (0). It returns 0 after an exit; otherwise 1 for VMfail and 2, 3, 4, 5 for #UD,
/// #GP, #SS and #PF, with 16 more if the VMWRITE failed.
pub type EntryFunction = unsafe extern "sysv64" fn(*mut GuestRegisters, *mut u64, u64) -> u64;

/// Makes an entry function with text for mitigations: see the [module](crate::vmx::EntryFunction).
///
/// ```
/// # #[cfg(target_arch = "x86_64")] {
/// /// The kernel's selector of writable data.
/// #[unsafe(no_mangle)]
/// static KERNEL_DATA: u16 = 0x10;
///
/// shootdown_virt::vmx_entry! {
///     /// Clears the CPU's buffers before the guest runs.
///     pub fn enter_cleared;
///     before = "verw word ptr [rip + KERNEL_DATA]",
///     after = "",
/// }
/// # let _: shootdown_virt::vmx::EntryFunction = enter_cleared;
/// # }
/// ```
///
/// The function uses the local labels 2, 3 and 40 to 69; the text uses others.
#[macro_export]
macro_rules! vmx_entry {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident;
        before = $before:expr, after = $after:expr $(,)?) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As `vmx::enter`.
        #[unsafe(naked)]
        $visibility unsafe extern "sysv64" fn $name(
            registers: *mut $crate::vmx::GuestRegisters,
            host_rsp: *mut u64,
            resume: u64,
        ) -> u64 {
            ::core::arch::naked_asm!(
                "push rbp",
                "push rbx",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                // What HOST_RSP points at: the exit finds the registers by it.
                "push rdi",
                // HOST_RSP and HOST_RIP are written when the stack is elsewhere than at the last
                // entry.
                "cmp rsp, [rsi]",
                "je 40f",
                "mov eax, 0x6c14",
                $crate::may_fault!("vmwrite rax, rsp", "62f", "63f", "64f", "65f"),
                "jna 61f",
                "lea rcx, [rip + 50f]",
                "mov eax, 0x6c16",
                $crate::may_fault!("vmwrite rax, rcx", "62f", "63f", "64f", "65f"),
                "jna 61f",
                "mov [rsi], rsp",
                "40:",
                "mov rax, [rdi + 120]",
                "mov rcx, cr2",
                "cmp rax, rcx",
                "je 41f",
                "mov cr2, rax",
                "41:",
                // CF: resume. No MOV changes it, nor does VERW.
                "bt edx, 0",
                "mov rax, [rdi]",
                "mov rcx, [rdi + 8]",
                "mov rdx, [rdi + 16]",
                "mov rbx, [rdi + 24]",
                "mov rbp, [rdi + 32]",
                "mov rsi, [rdi + 40]",
                "mov r8, [rdi + 56]",
                "mov r9, [rdi + 64]",
                "mov r10, [rdi + 72]",
                "mov r11, [rdi + 80]",
                "mov r12, [rdi + 88]",
                "mov r13, [rdi + 96]",
                "mov r14, [rdi + 104]",
                "mov r15, [rdi + 112]",
                "mov rdi, [rdi + 48]",
                $before,
                "jc 42f",
                $crate::may_fault!("vmlaunch", "52f", "53f", "54f", "55f"),
                // An entry that goes on here has failed.
                "jmp 51f",
                "42:",
                $crate::may_fault!("vmresume", "52f", "53f", "54f", "55f"),
                "51: mov eax, 1",
                "jmp 60f",
                "52: mov eax, 2",
                "jmp 60f",
                "53: mov eax, 3",
                "jmp 60f",
                "54: mov eax, 4",
                "jmp 60f",
                "55: mov eax, 5",
                "jmp 60f",
                "61: mov eax, 17",
                "jmp 60f",
                "62: mov eax, 18",
                "jmp 60f",
                "63: mov eax, 19",
                "jmp 60f",
                "64: mov eax, 20",
                "jmp 60f",
                "65: mov eax, 21",
                "jmp 60f",
                // The exit. RSP has the value of HOST_RSP; every other register is the guest's.
                "50:",
                "xchg rax, [rsp]",
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
                "pop rcx",
                "mov [rax], rcx",
                "mov rcx, cr2",
                "mov [rax + 120], rcx",
                "push rax",
                "xor eax, eax",
                "60:",
                // Nothing of the guest stays in a register, whether it ran or not.
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
                "mov [rsp], rax",
                $after,
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

vmx_entry! {
    /// The entry function without mitigations.
    pub fn enter;
    before = "",
    after = "",
}

/// The failure that an entry function's return value stands for.
fn failed(code: u64, registers: *const GuestRegisters, resume: bool) -> Failure {
    const VMWRITE: u64 = 16;
    let instruction = match (code & VMWRITE != 0, resume) {
        (true, _) => Instruction::Vmwrite,
        (false, true) => Instruction::Vmresume,
        (false, false) => Instruction::Vmlaunch,
    };
    // The two fields that an entry writes; HOST_RIP is written only if HOST_RSP was.
    let operand =
        if code & VMWRITE != 0 { u64::from(field::HOST_RSP.encoding()) } else { registers as u64 };
    let fault = match code & (VMWRITE - 1) {
        2 => Fault::UndefinedOpcode,
        3 => Fault::Protection,
        4 => Fault::Stack,
        // None of the three has a memory operand.
        5 => Fault::Page(operand),
        _ => return slow::failed(instruction, operand, slow::here()),
    };
    conclude(instruction, operand, Failure::Fault(fault), slow::here())
}

impl Vmcs {
    /// Enters the guest, and returns when the guest was left. The first entry since the VMCS was
    /// loaded or cleared launches.
    ///
    /// # Errors
    /// [`EntryError`]: the guest did not run, or an emergency came between its exit and the reading
    /// of the reason. The number of a VMfail tells which part of the VMCS is invalid (7 and 8 are
    /// checked in any order); an emergency on this CPU makes it [`Failure::Gone`].
    ///
    /// # Safety
    /// 1. It is loaded and current on this CPU, interrupts are off, the contract of the
    ///    [instructions](super::vmread) holds.
    /// 2. Its fields are such that the guest touches only what it may, and that the host's state
    ///    after an exit is this CPU's: HOST_CR3, HOST_CR4, the segments, GDTR, IDTR and TR,
    ///    SYSENTER. (HOST_RSP and HOST_RIP are this function's.)
    /// 3. What the table of this module leaves to the hypervisor is switched.
    pub unsafe fn enter(
        self: Pin<&Self>,
        registers: &mut GuestRegisters,
    ) -> Result<ExitReason, EntryError> {
        // SAFETY: this function's contract.
        unsafe { self.enter_by(enter, registers) }
    }

    /// As [`enter`](Self::enter), by a function with mitigations.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    ///
    /// # Safety
    /// As [`enter`](Self::enter); `function` was made by [`vmx_entry!`](crate::vmx_entry), and from
    /// one [clear](Self::clear) to the next the VMCS is entered by one function, because
    /// HOST_RIP is written only when the stack has moved.
    pub unsafe fn enter_by(
        self: Pin<&Self>,
        function: EntryFunction,
        registers: &mut GuestRegisters,
    ) -> Result<ExitReason, EntryError> {
        let resume = self.is_launched();
        // SAFETY: this function's contract.
        let code = unsafe { function(registers, self.host_rsp(), u64::from(resume)) };
        if code != LEFT {
            return Err(EntryError::Failed(failed(code, registers, resume)));
        }
        // SAFETY: this function's contract.
        let (reason, qualification) = unsafe {
            let reason = vmread(field::EXIT_REASON).map_err(EntryError::Failed)?;
            let reason = ExitReason::from_bits(reason);
            // Used only if the entry failed; if this read fails, the code below reports it.
            let qualification =
                if reason.entry_failed() { vmread(field::EXIT_QUALIFICATION) } else { Ok(0) };
            (reason, qualification.map_err(EntryError::Failed)?)
        };
        let outcome = outcome(reason, qualification);
        if outcome.is_ok() {
            // An entry that fails with bit 31 leaves the launch state as it was (SDM vol. 3C,
            // 27.8).
            self.set_launched();
        }
        outcome
    }
}

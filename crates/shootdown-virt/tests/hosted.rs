//! The exception table in a position-independent program of an ordinary user: privileged
//! instructions fault there, signal handlers stand in for the kernel's, and every wrapper must
//! return what happened.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use shootdown_virt::{Failure, Fault, Report, extable, may_fault, set_hook, svm, teardown, vmx};

/// The hook, the handlers and the flag are the program's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static REPORTS: AtomicU32 = AtomicU32::new(0);

/// What a kernel's handler does: asks the table with vector and RIP, and changes RIP alone.
extern "C" fn handler(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a context of this type to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let vector = registers[libc::REG_TRAPNO as usize] as u8;
    let rip = &mut registers[libc::REG_RIP as usize];
    match extable::fixup(vector, *rip as u64) {
        Some(next) => *rip = next as i64,
        // SAFETY: the signal's default action ends the program when the instruction faults again.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

fn with_handlers() -> std::sync::MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler is async-signal-safe: it reads a table and writes the context.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let function: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handler;
            action.sa_sigaction = function as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
    set_hook(|_: &Report| {
        REPORTS.fetch_add(1, Ordering::Relaxed);
    });
    alone
}

const UNDEFINED: Failure = Failure::Fault(Fault::UndefinedOpcode);

/// Outside of VMX operation, and with EFER.SVME clear, each raises #UD before it looks at anything
/// else; SVM's raise #GP first for an ordinary user where the CPU has SVM and it is on.
fn every_wrapper() -> Vec<(&'static str, Result<(), Failure>)> {
    let mut word = 0u64;
    let at = &raw mut word;
    let descriptor = vmx::Descriptor::from_raw(0, 0);
    // SAFETY: an ordinary user's instruction faults and changes nothing; the handlers ask the
    // table.
    unsafe {
        vec![
            ("VMXON", vmx::vmxon_at(at)),
            ("VMXOFF", vmx::vmxoff()),
            ("VMCLEAR", vmx::vmclear_at(at)),
            ("VMPTRLD", vmx::vmptrld_at(at)),
            ("VMPTRST", vmx::vmptrst_at(at)),
            ("VMREAD", vmx::vmread(vmx::field::EXIT_REASON).map(drop)),
            ("VMWRITE", vmx::vmwrite(vmx::field::GUEST_RIP, 0)),
            ("INVEPT", vmx::invept_raw(2, &descriptor)),
            ("INVVPID", vmx::invvpid_raw(2, &descriptor)),
            ("VMFUNC", vmx::vmfunc(0, 0)),
        ]
    }
}

#[test]
fn every_fault_comes_back_as_a_value() {
    let _alone = with_handlers();
    let before = REPORTS.load(Ordering::Relaxed);
    for (name, result) in every_wrapper() {
        assert_eq!(result, Err(UNDEFINED), "{name}");
    }
    // All but VMXON, whose failure is not a defect.
    assert_eq!(REPORTS.load(Ordering::Relaxed) - before, 9);
}

#[test]
fn while_virtualization_goes_every_fault_is_gone() {
    let _alone = with_handlers();
    let before = REPORTS.load(Ordering::Relaxed);
    teardown::begin();
    let results = every_wrapper();
    // SAFETY: as in `every_wrapper`.
    let read = unsafe { vmx::vmread_or_zero(vmx::field::EXIT_REASON) };
    teardown::cancel();
    for (name, result) in results {
        assert_eq!(result, Err(Failure::Gone), "{name}");
    }
    assert_eq!(read, 0);
    assert_eq!(REPORTS.load(Ordering::Relaxed), before);
}

#[test]
fn svm_faults_come_back_too() {
    let _alone = with_handlers();
    // SAFETY: as in `every_wrapper`.
    let results = unsafe {
        [
            svm::vmload_raw(0x1000),
            svm::vmsave_raw(0x1000),
            svm::stgi(),
            svm::clgi(),
            svm::invlpga_raw(0x1000, 1),
        ]
    };
    for result in results {
        assert!(
            matches!(result, Err(Failure::Fault(Fault::UndefinedOpcode | Fault::Protection))),
            "{result:?}"
        );
    }
}

/// A load that faults says by which of the four vectors.
fn load(address: u64) -> Result<u64, &'static str> {
    let mut value = 0u64;
    let to = &raw mut value;
    // SAFETY: the load faults or finds mapped memory; RAX is declared.
    unsafe {
        std::arch::asm!(
            may_fault!("mov rax, [rdi]"),
            "mov [rsi], rax",
            in("rdi") address, in("rsi") to, lateout("rax") _,
            ud = label { return Err("#UD") }, gp = label { return Err("#GP") },
            ss = label { return Err("#SS") }, pf = label { return Err("#PF") },
            options(nostack)
        );
    }
    Ok(value)
}

/// The same by way of RBP, whose segment is SS.
fn load_by_rbp(address: u64) -> Result<(), &'static str> {
    // SAFETY: as in `load`; RBP is restored on every way out.
    unsafe {
        std::arch::asm!(
            "push rbp",
            "mov rbp, rdi",
            may_fault!("mov rax, [rbp]", "41f", "42f", "43f", "44f"),
            "pop rbp",
            ".pushsection .text.unlikely.shootdown_fixup, \"ax\", @progbits",
            "41: pop rbp", "jmp {ud}",
            "42: pop rbp", "jmp {gp}",
            "43: pop rbp", "jmp {ss}",
            "44: pop rbp", "jmp {pf}",
            ".popsection",
            in("rdi") address, lateout("rax") _,
            ud = label { return Err("#UD") }, gp = label { return Err("#GP") },
            ss = label { return Err("#SS") }, pf = label { return Err("#PF") },
        );
    }
    Ok(())
}

#[test]
fn the_vector_chooses_the_label() {
    const NOT_CANONICAL: u64 = 0x8000_0000_0000_0000;
    let _alone = with_handlers();
    let here = 7u64;
    assert_eq!(load((&raw const here) as u64), Ok(7));
    assert_eq!(load(8), Err("#PF"));
    assert_eq!(load(NOT_CANONICAL), Err("#GP"));
    assert_eq!(load_by_rbp((&raw const here) as u64), Ok(()));
    assert_eq!(load_by_rbp(NOT_CANONICAL), Err("#SS"));
    assert_eq!(load_by_rbp(8), Err("#PF"));
}

#[test]
fn a_hypercall_without_a_hypervisor_is_a_value() {
    let _alone = with_handlers();
    let mut registers = vmx::Hypercall { rax: 1, rbx: 2, rcx: 3, rdx: 4 };
    // What answers, if anything does, is the hypervisor of the machine that runs this test: ask for
    // nothing that one exists for. RBX and the stack must be whole either way.
    registers.rax = u64::from(u32::MAX);
    // SAFETY: no hypervisor gives the number a meaning; without one the instruction faults.
    let result = unsafe { vmx::vmcall(&mut registers) };
    assert!(matches!(result, Ok(()) | Err(Failure::Fault(_))), "{result:?}");
}

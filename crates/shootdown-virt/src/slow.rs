//! The slow paths: what an instruction's wrapper does after the instruction did not succeed.
//!
//! Each is a cold function of its own, so that the successful path of a wrapper contains only the
//! instruction and one jump that is not taken. The choice of the function tells what happened: the
//! label of the jump for VMfail, the fix-up for a fault.

use core::arch::asm;

use crate::failure::{Failure, Fault, Instruction, conclude};
use crate::msr;
use crate::vmx;

/// Executes one instruction, and returns from the function when it does not succeed.
///
/// With `or_fail` the instruction is one of VMX, which succeeds with CF and ZF clear; without, it
/// succeeds unless it faults. `$operand` is what a report names; `$memory` the address and the
/// length of the memory operand.
macro_rules! execute {
    (or_fail $template:literal, $instruction:ident, $operand:expr, $memory:expr,
        $($operands:tt)*) => {
        $crate::slow::execute!(@ $template, ["jna {fail}",], $instruction, $operand, $memory,
            [fail = label {
                return Err($crate::slow::failed(
                    $crate::Instruction::$instruction, $operand, $crate::slow::here()))
            },], $($operands)*)
    };
    ($template:literal, $instruction:ident, $operand:expr, $memory:expr, $($operands:tt)*) => {
        $crate::slow::execute!(@ $template, [], $instruction, $operand, $memory, [],
            $($operands)*)
    };
    (@ $template:literal, [$($jump:tt)*], $instruction:ident, $operand:expr, $memory:expr,
        [$($fail:tt)*], $($operands:tt)*) => {
        core::arch::asm!(
            $crate::may_fault!($template),
            $($jump)*
            $($operands)*
            $($fail)*
            ud = label {
                return Err($crate::slow::undefined(
                    $crate::Instruction::$instruction, $operand, $crate::slow::here()))
            },
            gp = label {
                return Err($crate::slow::protection(
                    $crate::Instruction::$instruction, $operand, $crate::slow::here()))
            },
            ss = label {
                return Err($crate::slow::stack(
                    $crate::Instruction::$instruction, $operand, $crate::slow::here()))
            },
            pf = label {
                return Err($crate::slow::page(
                    $crate::Instruction::$instruction, $operand, $memory, $crate::slow::here()))
            },
            options(nostack)
        )
    };
}
pub(crate) use execute;

/// The operand of an instruction without a memory operand.
pub(crate) const NO_MEMORY: (u64, u64) = (0, 0);

/// The address and the length of a memory operand.
#[inline(always)]
pub(crate) fn memory<T>(at: *const T) -> (u64, u64) {
    (at as u64, size_of::<T>() as u64)
}

/// An address in the function that this is inlined into.
#[inline(always)]
pub(crate) fn here() -> u64 {
    let rip;
    // SAFETY: reads the instruction pointer.
    unsafe { asm!("lea {}, [rip]", out(reg) rip, options(nomem, nostack, preserves_flags)) };
    rip
}

/// CF or ZF: VMfail. A current VMCS decides between the two kinds: VMfail is VMfailValid where
/// there is one and VMfailInvalid where there is none (SDM vol. 3C, 31.2), so the flags need not be
/// kept.
#[cold]
#[inline(never)]
pub(crate) fn failed(instruction: Instruction, operand: u64, rip: u64) -> Failure {
    // SAFETY: the instruction before was one of VMX, under the same contract.
    let failure = match unsafe { vmx::error_number() } {
        Some(number) => Failure::Valid(number),
        None => Failure::Invalid,
    };
    conclude(instruction, operand, failure, rip)
}

/// #UD.
#[cold]
#[inline(never)]
pub(crate) fn undefined(instruction: Instruction, operand: u64, rip: u64) -> Failure {
    conclude(instruction, operand, Failure::Fault(Fault::UndefinedOpcode), rip)
}

/// #GP.
#[cold]
#[inline(never)]
pub(crate) fn protection(instruction: Instruction, operand: u64, rip: u64) -> Failure {
    conclude(instruction, operand, Failure::Fault(Fault::Protection), rip)
}

/// #SS.
#[cold]
#[inline(never)]
pub(crate) fn stack(instruction: Instruction, operand: u64, rip: u64) -> Failure {
    conclude(instruction, operand, Failure::Fault(Fault::Stack), rip)
}

/// #PF, of an instruction whose memory operand begins at `at` and is `bytes` long.
#[cold]
#[inline(never)]
pub(crate) fn page(instruction: Instruction, operand: u64, at: (u64, u64), rip: u64) -> Failure {
    // SAFETY: the fault was one of privilege level 0.
    let address = faulting_address(unsafe { msr::cr2() }, at.0, at.1);
    conclude(instruction, operand, Failure::Fault(Fault::Page(address)), rip)
}

/// Returns CR2, unless a later page fault has changed it. Then it returns the operand's address,
/// which is wrong only for an operand that spans two pages.
const fn faulting_address(cr2: u64, at: u64, bytes: u64) -> u64 {
    if cr2.wrapping_sub(at) < bytes { cr2 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fault_since_is_not_taken_for_this_one() {
        assert_eq!(faulting_address(0x1ffc, 0x1ffc, 8), 0x1ffc);
        assert_eq!(faulting_address(0x2000, 0x1ffc, 8), 0x2000);
        assert_eq!(faulting_address(0x2004, 0x1ffc, 8), 0x1ffc);
        assert_eq!(faulting_address(0x1ff0, 0x1ffc, 8), 0x1ffc);
        assert_eq!(faulting_address(0xdead_0000, 0x1ffc, 8), 0x1ffc);
    }
}

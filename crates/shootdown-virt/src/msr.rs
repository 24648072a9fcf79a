//! Model-specific registers, and the control registers that only this crate reads.

use core::arch::asm;

/// IA32_FEATURE_CONTROL: bit 0 locks it, bit 2 lets VMXON be executed outside of SMX.
pub const FEATURE_CONTROL: u32 = 0x3a;
/// IA32_EFER.
pub const EFER: u32 = 0xc000_0080;
/// VM_CR: bit 4 keeps EFER.SVME from being set.
pub const VM_CR: u32 = 0xc001_0114;
/// VM_HSAVE_PA: where VMRUN saves the host's state.
pub const VM_HSAVE_PA: u32 = 0xc001_0117;

/// Reads a register.
///
/// # Safety
/// The CPU is at privilege level 0, has the register, and reading it has no effect.
#[must_use]
pub unsafe fn read(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rdmsr", in("ecx") number, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a register.
///
/// # Safety
/// The CPU is at privilege level 0, has the register, accepts the value, and running on with it is
/// sound.
pub unsafe fn write(number: u32, value: u64) {
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") number, in("eax") low, in("edx") high,
            options(nostack, preserves_flags));
    }
}

/// Reads CR0.
///
/// # Safety
/// The CPU is at privilege level 0.
#[must_use]
pub unsafe fn cr0() -> u64 {
    let value;
    // SAFETY: reading the register is permitted (the caller's promise) and changes nothing.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads CR2: the address of the last page fault, as the handlers since left it.
///
/// # Safety
/// The CPU is at privilege level 0.
#[must_use]
pub unsafe fn cr2() -> u64 {
    let value;
    // SAFETY: reading the register is permitted (the caller's promise) and changes nothing.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

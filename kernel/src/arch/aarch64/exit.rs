//! How the image ends: semihosting, which hands QEMU a real exit code.
//!
//! Needs `-semihosting`. Without, `HLT` is an undefined instruction: the exception's handler says so and turns the
//! machine off by PSCI.

use core::arch::asm;

use super::psci;

const SYS_EXIT_EXTENDED: u64 = 0x20;
const APPLICATION_EXIT: u64 = 0x20026;

/// Ends the machine with an exit code.
pub fn exit(code: u8) -> ! {
    let block = [APPLICATION_EXIT, u64::from(code)];
    // SAFETY: semihosting's SYS_EXIT_EXTENDED reads two words, a reason and a code, and touches nothing else.
    unsafe {
        asm!("hlt #0xf000", inlateout("x0") SYS_EXIT_EXTENDED => _, in("x1") block.as_ptr(), options(nostack));
    }
    psci::system_off()
}

//! How the image ends: semihosting, which hands QEMU a real exit code.
//!
//! Needs `-semihosting`. Without, `HLT` is an undefined instruction; the exception's handler, which
//! knows that it may come, goes on behind it, and the machine is turned off by PSCI: without a
//! code, so that the last line that was printed is all there is.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::psci;

const SYS_EXIT_EXTENDED: u64 = 0x20;
const APPLICATION_EXIT: u64 = 0x20026;

/// Semihosting is being tried: an undefined instruction may be its own.
static TRIED: AtomicBool = AtomicBool::new(false);

/// Is the machine ending, so that an undefined instruction means that there is no semihosting?
pub(super) fn is_tried() -> bool {
    TRIED.load(Ordering::Relaxed)
}

/// Ends the machine with an exit code.
pub fn exit(code: u8) -> ! {
    TRIED.store(true, Ordering::Relaxed);
    let block = [APPLICATION_EXIT, u64::from(code)];
    // SAFETY: semihosting's SYS_EXIT_EXTENDED reads two words, a reason and a code, and touches
    // nothing else.
    unsafe {
        asm!("hlt #0xf000", inlateout("x0") SYS_EXIT_EXTENDED => _, in("x1") block.as_ptr(), options(nostack));
    }
    psci::system_off()
}

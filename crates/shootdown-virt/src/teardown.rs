//! While virtualization is being taken away: a panic, a reboot, a kexec.
//!
//! # The problem
//! A machine that reboots or jumps into another kernel has to leave VMX operation on every CPU first: in it
//! INIT is blocked (SDM vol. 3C, 24.8), so the next kernel could not start the CPU. Whoever sees to it comes
//! by NMI or IPI, between any two instructions of the hypervisor that runs there. That hypervisor then goes
//! on with VMX off, and its next VMX instruction faults.
//!
//! # The protocol
//! One flag for the machine. Whoever takes virtualization away sets it first and turns virtualization off
//! second. Only the slow path of an instruction that has already failed reads it; with the flag set a failure
//! is [`Failure::Gone`](crate::Failure::Gone), which the hypervisor's code passes up until it has left its
//! loop.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | [G1] store of the flag in [`begin`] | Release, then a compiler fence | G2 | an NMI on this CPU stores the flag before its VMXOFF, so the interrupted code that faults finds the flag set |
//! | [G2] load of the flag in a slow path | Acquire | G1 | another CPU that began is not needed for this: each CPU stores the flag itself before its own VMXOFF |

use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

static BEGUN: AtomicBool = AtomicBool::new(false);

/// From now on failures are expected on every CPU. Call it before virtualization is turned off anywhere; the
/// emergency functions ([`vmx::emergency_off`](crate::vmx::emergency_off),
/// [`svm::emergency_off`](crate::svm::emergency_off)) call it themselves. It may be called in an NMI.
pub fn begin() {
    BEGUN.store(true, Ordering::Release); // [G1]
    // ORDERING: [G1]: what turns virtualization off is not moved before the store.
    compiler_fence(Ordering::SeqCst);
}

/// The machine goes on after all (a reboot that was called off, a kexec that came back), and virtualization is
/// on again wherever a hypervisor runs.
pub fn cancel() {
    BEGUN.store(false, Ordering::Release);
}

/// Is virtualization being taken away?
#[must_use]
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire) // [G2]
}

//! While virtualization is being taken away: a panic, a reboot, a kexec.
//!
//! # The problem
//! A machine that reboots or jumps into another kernel has to leave VMX operation on every CPU
//! first: VMX operation blocks INIT (SDM vol. 3C, 24.8), so the next kernel could not start the
//! CPU. The code that turns it off comes by NMI or IPI, between any two instructions of the
//! hypervisor that runs there. That hypervisor then goes on with VMX off, and its next VMX
//! instruction faults.
//!
//! # The protocol
//! There is one flag for the machine. The code that takes virtualization away sets it first and
//! turns virtualization off second. Only the slow path of an instruction that has already failed
//! reads it; with the flag set a failure is [`Failure::Gone`](crate::Failure::Gone), which the
//! hypervisor's code returns upward until it has left its loop.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | \[G1\] store of the flag in [`begin`] | Release, then a compiler fence | G2 | an NMI on this CPU stores the flag before its VMXOFF, so the interrupted code that faults finds the flag set |
//! | \[G2\] load of the flag in a slow path | Acquire | G1 | the fault was caused by a VMXOFF on this CPU, and the same CPU stored the flag before it; what other CPUs store is not needed |

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

static BEGUN: AtomicBool = AtomicBool::new(false);

/// How often virtualization has been taken away.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Marks failures as expected on every CPU from now on. Call it before virtualization is turned off
/// on any CPU; the emergency functions ([`vmx::emergency_off`](crate::vmx::emergency_off),
/// [`svm::emergency_off`](crate::svm::emergency_off)) call it themselves. It may be called in an
/// NMI.
pub fn begin() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    BEGUN.store(true, Ordering::Release); // [G1]
    // ORDERING: [G1]: what turns virtualization off is not moved before the store.
    compiler_fence(Ordering::SeqCst);
}

/// The machine goes on after all: a reboot that was called off, a kexec that came back. From here
/// on failures are defects again. The order on each CPU is:
/// 1. this function, once for the machine, when no CPU runs a hypervisor's code;
/// 2. [`Cr4Copy::start`](crate::host_bits::Cr4Copy::start), because an emergency changes CR4 behind
///    the copy;
/// 3. `vmx::turn_on` or `svm::turn_on`;
/// 4. `Vmcs::load` of each VMCS that was loaded, which finds that it was cleared.
pub fn cancel() {
    BEGUN.store(false, Ordering::Release);
}

/// How often virtualization was taken away.
#[cfg(target_arch = "x86_64")]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Is virtualization being taken away?
#[must_use]
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire) // [G2]
}

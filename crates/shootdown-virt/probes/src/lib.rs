//! Functions that hold one wrapper each, inlined: what `cargo xtask wrappers` disassembles.
//!
//! A function is named `PROJECT__WRAPPER`. What fails goes to a function elsewhere, as the path of
//! errors of a hypervisor does: what is left is the way that succeeds, with the function's own RET
//! behind it.
//!
//! Not here: the functions that enter a guest. Each is one piece of assembly that does not return
//! the way it came.
#![no_std]
// Two underscores part the project from the wrapper.
#![allow(non_snake_case)]

use shootdown_arch::x86_64::LinearAddress;
use shootdown_virt::Failure;
use shootdown_virt::svm::{self, Asid, VmcbAddress};
use shootdown_virt::vmx::field::{EXIT_REASON, GUEST_RIP, TSC_OFFSET};
use shootdown_virt::vmx::{self, Eptp, Hypercall, Invept, Invvpid, RegionAddress, Vpid};

unsafe extern "Rust" {
    /// Where a failure of ours goes.
    safe fn refused(failure: Failure) -> u64;
    /// Where one of another crate's goes.
    safe fn failed() -> u64;
}

/// One function for each wrapper, which are called by an expression of type `Result`.
macro_rules! probes {
    ($otherwise:expr;
        $($name:ident($($argument:ident: $type:ty),*) $(-> $value:ty)? = $call:expr;)*) => {$(
        /// The wrapper of this name.
        ///
        /// # Safety
        /// The wrapper's.
        #[unsafe(no_mangle)]
        pub unsafe fn $name($($argument: $type),*) $(-> $value)? {
            // SAFETY: the caller's promise.
            let result = unsafe { $call };
            probes!(@ result, $otherwise $(, $value)?)
        }
    )*};
    (@ $result:ident, $otherwise:expr) => {
        if let Err(failure) = $result {
            $otherwise(failure);
        }
    };
    (@ $result:ident, $otherwise:expr, $value:ty) => {
        match $result {
            Ok(value) => value,
            Err(failure) => $otherwise(failure) as $value,
        }
    };
}

probes! { refused;
    ours__vmxon(region: RegionAddress) = vmx::vmxon(region);
    ours__vmxoff() = vmx::vmxoff();
    ours__vmclear(region: RegionAddress) = vmx::vmclear(region);
    ours__vmptrld(region: RegionAddress) = vmx::vmptrld(region);
    ours__vmptrst(to: *mut u64) = vmx::vmptrst_at(to);
    ours__vmread(encoding: u64) -> u64 = vmx::vmread_raw(encoding);
    ours__vmread_field() -> u32 = vmx::vmread(EXIT_REASON);
    ours__vmwrite(encoding: u64, value: u64) = vmx::vmwrite_raw(encoding, value);
    ours__vmwrite_field(value: u64) = vmx::vmwrite(TSC_OFFSET, value);
    ours__invept(eptp: Eptp) = vmx::invept(Invept::Single(eptp));
    ours__invvpid(vpid: Vpid) = vmx::invvpid(Invvpid::Context(vpid));
    ours__vmfunc(function: u32, index: u32) = vmx::vmfunc(function, index);
    ours__vmcall(registers: &mut Hypercall) = vmx::vmcall(registers);
    ours__vmload(vmcb: VmcbAddress) = svm::vmload(vmcb);
    ours__vmsave(vmcb: VmcbAddress) = svm::vmsave(vmcb);
    ours__stgi() = svm::stgi();
    ours__clgi() = svm::clgi();
    ours__invlpga(address: LinearAddress, asid: Asid) = svm::invlpga(address, asid);
    ours__vmmcall(registers: &mut Hypercall) = svm::vmmcall(registers);
}

/// A read and a write that belong together, as a handler of an exit has them: RIP moves on.
///
/// # Safety
/// The wrappers'.
#[unsafe(no_mangle)]
pub unsafe fn ours__vmread_and_vmwrite(length: u64) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let rip = vmx::vmread(GUEST_RIP)?;
        vmx::vmwrite(GUEST_RIP, rip.wrapping_add(length))
    }
}

probes! { |_| failed();
    x86__vmxon(region: u64) = x86::bits64::vmx::vmxon(region);
    x86__vmxoff() = x86::bits64::vmx::vmxoff();
    x86__vmclear(region: u64) = x86::bits64::vmx::vmclear(region);
    x86__vmptrld(region: u64) = x86::bits64::vmx::vmptrld(region);
    x86__vmread(encoding: u32) -> u64 = x86::bits64::vmx::vmread(encoding);
    x86__vmwrite(encoding: u32, value: u64) = x86::bits64::vmx::vmwrite(encoding, value);
}

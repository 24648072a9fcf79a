//! INVLPG: one page under the loaded PCID.
//!
//! Removes every entry for the page that contains the address under the loaded PCID, global entries
//! for it under any PCID, and every paging-structure-cache entry of the loaded PCID (SDM 4.10.4.1).
//! On AMD with `EFER.TCE` set only the paging-structure entries on the way to the address go (APM
//! vol. 2, 5.5.3), which is why a flush that frees table pages must visit each stride of the range
//! and not just its first page. A non-canonical operand is a no-op (SDM vol. 2A, INVLPG).

/// The template, shared by the wrapper and the test of its encoding.
#[cfg(target_arch = "x86_64")]
macro_rules! template {
    ($address:tt) => {
        concat!("invlpg [", $address, "]")
    };
}

/// Executes INVLPG.
///
/// # Safety
/// The CPU is at privilege level 0.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn invlpg(address: super::LinearAddress) {
    // SAFETY: at privilege level 0 (the caller's promise) the instruction can't fault; it removes
    // cached translations and writes no register and no memory. Without `nomem` the compiler keeps
    // earlier page-table stores before it.
    unsafe {
        core::arch::asm!(template!("{0}"), in(reg) address.get(), options(nostack, preserves_flags));
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use crate::x86_64::model::{assembled, memory_operand, rex};

    assembled!(table, "invlpg", template);

    /// 0F 01 /7 (SDM vol. 2A, INVLPG), whatever register the compiler picks.
    #[test]
    fn encoding_is_0f_01_slash_7() {
        for (register, bytes) in table() {
            let mut expected = std::vec::Vec::new();
            expected.extend(rex(false, 7, register));
            expected.extend([0x0f, 0x01]);
            expected.extend(memory_operand(7, register));
            assert_eq!(bytes, expected, "register {register}");
        }
    }
}

//! The exception table: where execution goes on after an instruction of this crate faulted.
//!
//! # The problem
//! An NMI that prepares a crash dump runs VMXOFF between any two instructions of a hypervisor. The
//! next VMX instruction then raises #UD, and a kernel that can't go on after it loses the dump. A
//! test before each instruction does not help: the NMI comes between the test and the instruction.
//!
//! # The protocol
//! Every instruction of this crate that may fault has an entry in the ELF section
//! `shootdown_extable`: two 32-bit words, each relative to its own address, that name the
//! instruction and its *fix-up*. The kernel's handlers of #UD, #GP, #SS and #PF call [`fixup`] for
//! a fault that came from ring 0. If it returns an address, the handler stores that as the
//! interrupted RIP, changes no other register, and returns.
//!
//! A fix-up is four jumps of [`JUMP`] bytes, one for each vector of [`VECTORS`]. [`fixup`] chooses
//! the jump by the vector, so the vector reaches the slow path without memory that the interrupted
//! code and an NMI would have to share.
//!
//! # Invariants
//! - X1: A template of [`may_fault!`](crate::may_fault) makes one entry for each copy that the
//!   compiler makes of it, because the entry is part of the template.
//! - X2: [`fixup`] takes no lock and writes nothing. An NMI that interrupts it may call it.
//! - X3: The linker keeps every entry (`"aR"`: SHF_GNU_RETAIN), and provides the bounds of the
//!   section because its name is a C identifier. No linker script has to name the section, as long
//!   as the script does not discard it.
//!
//! The table is not sorted: it is searched only when something has failed, and the time does not
//! matter then.

/// Bytes of one jump of a fix-up: `JMP rel32`.
pub const JUMP: u64 = 5;

/// The vectors that have a fix-up, in the order of its jumps: #UD, #GP, #SS, #PF.
pub const VECTORS: [u8; 4] = [6, 13, 12, 14];

/// The text of an instruction that may fault, for `asm!`: the instruction, its fix-up and its entry
/// in the exception table.
///
/// The `asm!` block gives four label operands `ud`, `gp`, `ss` and `pf`, where execution goes on
/// after #UD, #GP, #SS and #PF. The template uses the local labels 2 and 3. Inside a naked
/// function, where there are no label operands, the four jumps are written as text: see the second
/// form.
///
/// ```
/// # #[cfg(target_arch = "x86_64")] {
/// use core::arch::asm;
/// use shootdown_virt::may_fault;
///
/// /// Executes UD2, and says whether it faulted.
/// fn faults() -> bool {
///     // SAFETY: a handler that asks `fixup` ends up at one of the labels.
///     unsafe {
///         asm!(may_fault!("ud2"),
///             ud = label { return true }, gp = label { return true },
///             ss = label { return true }, pf = label { return true },
///             options(nostack));
///     }
///     false
/// }
/// # let _ = faults;
/// # }
/// ```
#[macro_export]
macro_rules! may_fault {
    ($instruction:expr) => {
        $crate::may_fault!($instruction, "{ud}", "{gp}", "{ss}", "{pf}")
    };
    ($instruction:expr, $ud:expr, $gp:expr, $ss:expr, $pf:expr) => {
        concat!(
            "2: ",
            $instruction,
            "\n",
            ".pushsection .text.unlikely.shootdown_fixup, \"ax\", @progbits\n",
            "3: .byte 0xe9\n.long ",
            $ud,
            " - . - 4\n",
            ".byte 0xe9\n.long ",
            $gp,
            " - . - 4\n",
            ".byte 0xe9\n.long ",
            $ss,
            " - . - 4\n",
            ".byte 0xe9\n.long ",
            $pf,
            " - . - 4\n",
            ".popsection\n",
            ".pushsection shootdown_extable, \"aR\", @progbits\n",
            ".balign 4\n",
            ".long 2b - .\n",
            ".long 3b - .\n",
            ".popsection"
        )
    };
}

/// One entry. Both words are relative to their own addresses, so that a program that is loaded at
/// any address needs no relocation.
#[cfg(any(test, target_arch = "x86_64"))]
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    fault: i32,
    fixup: i32,
}

/// The address that a word at `at` with this value names.
#[cfg(any(test, target_arch = "x86_64"))]
const fn named(at: u64, word: i32) -> u64 {
    at.wrapping_add_signed(word as i64)
}

/// Which jump of a fix-up belongs to a vector.
#[cfg(any(test, target_arch = "x86_64"))]
const fn jump_of(vector: u8) -> Option<u64> {
    let mut at = 0;
    while at < VECTORS.len() {
        if VECTORS[at] == vector {
            return Some(at as u64);
        }
        at += 1;
    }
    None
}

/// The answer for one entry at address `at`.
#[cfg(any(test, target_arch = "x86_64"))]
const fn answer(entry: Entry, at: u64, rip: u64, jump: u64) -> Option<u64> {
    if named(at, entry.fault) == rip {
        Some(named(at + 4, entry.fixup) + jump * JUMP)
    } else {
        None
    }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static __start_shootdown_extable: Entry;
    static __stop_shootdown_extable: Entry;
}

/// Where execution goes on after an exception with this vector at `rip`, if an instruction of this
/// crate is there.
///
/// The kernel's handlers of vectors 6, 12, 13 and 14 call it for a fault that came from ring 0,
/// before they do anything else about the fault. It may be called in any context, an NMI's
/// included.
///
/// A kernel whose NMI handler can raise a page fault saves CR2 before and restores it after: the
/// address of a #PF is read from CR2 when execution goes on.
#[cfg(target_arch = "x86_64")]
#[must_use = "the interrupted RIP has to become this value"]
pub fn fixup(vector: u8, rip: u64) -> Option<u64> {
    let jump = jump_of(vector)?;
    // The template declares an entry that names itself, which is no instruction: the linker
    // provides the bounds of a section only if the section exists.
    // SAFETY: the template holds no instruction.
    unsafe {
        core::arch::asm!(
            ".pushsection shootdown_extable, \"aR\", @progbits",
            ".balign 4",
            ".long 0",
            ".long 0",
            ".popsection",
            options(nomem, nostack, preserves_flags)
        );
    }
    let mut at = &raw const __start_shootdown_extable;
    let end = &raw const __stop_shootdown_extable;
    while at < end {
        // SAFETY: `at` lies between the bounds of the section, which holds whole entries (X3), and
        // to which nothing writes.
        let found = answer(unsafe { at.read() }, at as u64, rip, jump);
        if found.is_some() {
            return found;
        }
        // SAFETY: as above; the end of the section is the last value that it takes.
        at = unsafe { at.add(1) };
    }
    None
}

/// The number of entries, for tests of a kernel's linking.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn entries() -> usize {
    let bytes = (&raw const __stop_shootdown_extable) as usize
        - (&raw const __start_shootdown_extable) as usize;
    bytes / size_of::<Entry>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_answers_for_its_own_address_alone() {
        let (at, fault, fixup) = (0x2000u64, 0x1234u64, 0x9000u64);
        #[allow(clippy::cast_possible_truncation, reason = "the addresses are near each other")]
        let entry = Entry {
            fault: fault.wrapping_sub(at) as i32,
            fixup: fixup.wrapping_sub(at + 4) as i32,
        };
        for rip in fault - 16..fault + 16 {
            for (jump, vector) in VECTORS.iter().enumerate() {
                assert_eq!(jump_of(*vector), Some(jump as u64));
                let expected = (rip == fault).then_some(fixup + jump as u64 * JUMP);
                assert_eq!(answer(entry, at, rip, jump as u64), expected);
            }
        }
    }

    #[test]
    fn vectors_without_a_jump_have_no_answer() {
        let with: usize = (0..=255).filter(|vector| jump_of(*vector).is_some()).count();
        assert_eq!(with, VECTORS.len());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn an_address_outside_of_the_table_has_no_answer() {
        for vector in 0..=255 {
            assert_eq!(fixup(vector, 0x1000), None);
        }
        assert!(entries() > 0);
    }
}

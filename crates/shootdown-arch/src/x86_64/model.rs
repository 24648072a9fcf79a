//! What the tests of this module share: an encoder for register-indirect operands, written from the
//! manual's tables (SDM vol. 2A, 2.1 and 2.2) and independent of any assembler, and the bytes an
//! assembler put between two labels.

use std::vec::Vec;

/// Defines `fn $table()`: for each of the sixteen registers, its number and the bytes the assembler
/// makes of `$template!("name")`. `$name` keeps the labels of different tables apart.
macro_rules! assembled {
    ($table:ident, $name:literal, $template:ident) => {
        $crate::x86_64::model::assembled!(@ $table, $name, $template,
            (0, "rax"), (1, "rcx"), (2, "rdx"), (3, "rbx"), (4, "rsp"), (5, "rbp"), (6, "rsi"),
            (7, "rdi"), (8, "r8"), (9, "r9"), (10, "r10"), (11, "r11"), (12, "r12"), (13, "r13"),
            (14, "r14"), (15, "r15"));
    };
    (@ $table:ident, $name:literal, $template:ident, $(($number:literal, $reg:literal)),*) => {
        $(core::arch::global_asm!(
            concat!(".globl sd_", $name, "_", $number, "\nsd_", $name, "_", $number, ":"),
            $template!($reg),
            concat!(".globl sd_", $name, "_end_", $number, "\nsd_", $name, "_end_", $number, ":"),
        );)*
        fn $table() -> std::vec::Vec<(u8, &'static [u8])> {
            std::vec![$({
                unsafe extern "C" {
                    #[link_name = concat!("sd_", $name, "_", $number)]
                    static START: u8;
                    #[link_name = concat!("sd_", $name, "_end_", $number)]
                    static END: u8;
                }
                let bytes = $crate::x86_64::model::bytes_between(&raw const START, &raw const END);
                ($number, bytes)
            }),*]
        }
    };
}
pub(crate) use assembled;

/// The REX prefix for a ModRM `reg` field and a base or `rm` register; nothing when it would be
/// empty.
pub(crate) fn rex(wide: bool, reg: u8, rm: u8) -> Option<u8> {
    let prefix = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3;
    (prefix != 0x40).then_some(prefix)
}

/// ModRM, SIB and displacement of `[base]`.
pub(crate) fn memory_operand(reg: u8, base: u8) -> Vec<u8> {
    let (reg, low) = ((reg & 7) << 3, base & 7);
    match low {
        // rsp and r12 as a base need a SIB byte without index.
        4 => std::vec![reg | 4, 0x24],
        // rbp and r13 as a base exist only with a displacement.
        5 => std::vec![0x40 | reg | 5, 0],
        _ => std::vec![reg | low],
    }
}

/// ModRM of two registers.
pub(crate) fn register_operand(reg: u8, rm: u8) -> u8 {
    0xc0 | (reg & 7) << 3 | rm & 7
}

/// The bytes from one label to the next.
pub(crate) fn bytes_between(start: *const u8, end: *const u8) -> &'static [u8] {
    let length = end as usize - start as usize;
    assert!(length <= 16, "labels belong to one instruction");
    // SAFETY: both labels were put into the program's text by one `global_asm!` block, so the bytes
    // between them are mapped, initialized and never written.
    unsafe { core::slice::from_raw_parts(start, length) }
}

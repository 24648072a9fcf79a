//! What a PVH loader tells (Xen's `hvm_start_info`, which QEMU's `-kernel` fills in).
//!
//! | offset | what |
//! |---|---|
//! | 0 | magic |
//! | 4 | version: 1 has the memory map |
//! | 24 | address of the command line, ending with a zero |
//! | 32 | address of the RSDP |
//! | 40, 48 | memory map: address, entries of 24 bytes: start, size, type (1: free) |

use super::entry::image_end;
use super::multiboot2::{best, text};
use crate::boot::BootInfo;

const MAGIC: u32 = 0x336e_c578;

/// Reads the information at `address`, if it is such.
///
/// # Safety
/// `address` is 0, or a loader's information is there, untouched, and stays so.
pub unsafe fn read(address: u64) -> Option<BootInfo> {
    if address == 0 {
        return None;
    }
    // SAFETY: the caller's promise; the words read are inside a structure of the version that it claims.
    unsafe {
        let word = |offset: u64| ((address + offset) as *const u64).read_unaligned();
        let half = |offset: u64| ((address + offset) as *const u32).read_unaligned();
        if half(0) != MAGIC {
            return None;
        }
        let (map, entries) = if half(4) >= 1 { (word(40), u64::from(half(48))) } else { (0, 0) };
        let regions = (0..entries).map(|index| {
            let entry = (map + index * 24) as *const u64;
            let kind = entry.add(2).cast::<u32>().read_unaligned();
            (entry.read_unaligned(), entry.add(1).read_unaligned(), kind)
        });
        Some(BootInfo {
            loader: "a PVH loader",
            command_line: text(word(24), usize::MAX),
            memory: best(regions, image_end()),
            tables: Some(word(32)).filter(|rsdp| *rsdp != 0),
        })
    }
}

//! What a PVH loader tells (Xen's `hvm_start_info`, which QEMU's `-kernel` fills in).
//!
//! | offset | what |
//! |---|---|
//! | 0 | magic |
//! | 4 | version: 1 has the memory map |
//! | 24 | address of the command line, ending with a zero |
//! | 32 | address of the RSDP |
//! | 40, 48 | memory map: address, entries of 24 bytes: start, size, type (1: free) |

use core::ffi::{CStr, c_char};

use super::entry::image_end;
use crate::boot::{BootInfo, best};

const MAGIC: u32 = 0x336e_c578;
/// The type of free memory.
const FREE: u32 = 1;

/// Reads the information at `address`, if it is such.
///
/// # Safety
/// `address` is 0, or a loader's information is there, untouched, and stays so.
pub unsafe fn read(address: u64) -> Option<BootInfo> {
    if address == 0 {
        return None;
    }
    // SAFETY: the caller's promise; the words read are inside a structure of the version that it
    // claims.
    unsafe {
        let word = |offset: u64| ((address + offset) as *const u64).read_unaligned();
        let half = |offset: u64| ((address + offset) as *const u32).read_unaligned();
        if half(0) != MAGIC {
            return None;
        }
        let (map, entries) = if half(4) >= 1 { (word(40), u64::from(half(48))) } else { (0, 0) };
        let free = (0..entries).filter_map(|index| {
            let entry = (map + index * 24) as *const u64;
            let kind = entry.add(2).cast::<u32>().read_unaligned();
            (kind == FREE).then(|| (entry.read_unaligned(), entry.add(1).read_unaligned()))
        });
        let line = Some(word(24)).filter(|line| *line != 0);
        Some(BootInfo {
            loader: "a PVH loader",
            command_line: line.map_or(&[], |line| CStr::from_ptr(line as *const c_char).to_bytes()),
            memory: best(free, image_end()),
            tables: Some(word(32)).filter(|rsdp| *rsdp != 0),
        })
    }
}

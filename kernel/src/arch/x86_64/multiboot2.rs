//! What GRUB tells (Multiboot2 specification 2.0, section 3.6): tags of a type, a size, and their contents, each at a
//! multiple of eight.
//!
//! | tag | what |
//! |---|---|
//! | 0 | the end |
//! | 1 | the command line |
//! | 6 | the memory map: size of an entry at 8, entries from 16: start, size, type (1: free) |
//! | 14, 15 | copies of the old and the new RSDP |

use core::ops::Range;

use super::entry::image_end;
use crate::boot::BootInfo;

const MAGIC: u32 = 0x36d7_6289;

/// Reads the information at `address`, if `magic` says that it is such.
///
/// # Safety
/// A loader left both, its information is untouched, and stays so.
pub unsafe fn read(magic: u32, address: u64) -> Option<BootInfo> {
    if magic != MAGIC {
        return None;
    }
    let mut info =
        BootInfo { loader: "a Multiboot2 loader", command_line: &[], memory: None, tables: None };
    // The loader may have put its information behind the image, into memory that is free otherwise.
    let mut end = image_end();
    let mut map = None;
    // SAFETY: the caller's promise; the walk ends at the end tag, which every loader writes.
    unsafe {
        let half = |at: u64| (at as *const u32).read_unaligned();
        end = end.max(address + u64::from(half(address)));
        let mut tag = address + 8;
        loop {
            let (kind, size) = (half(tag), u64::from(half(tag + 4)));
            match kind {
                0 => break,
                1 => info.command_line = text(tag + 8, (size as usize).saturating_sub(8)),
                6 => map = Some((tag, size)),
                // The new one, where both are told, comes last or replaces the old.
                14 if info.tables.is_none() => info.tables = Some(tag + 8),
                15 => info.tables = Some(tag + 8),
                _ => {}
            }
            tag += size.next_multiple_of(8).max(8);
        }
        if let Some((tag, size)) = map {
            let step = u64::from(half(tag + 8)).max(24);
            let regions = (0..(size - 16) / step).map(|index| {
                let entry = (tag + 16 + index * step) as *const u64;
                let kind = entry.add(2).cast::<u32>().read_unaligned();
                (entry.read_unaligned(), entry.add(1).read_unaligned(), kind)
            });
            info.memory = best(regions, end);
        }
    }
    Some(info)
}

/// The largest free part of memory behind `end` and below 4 GiB, which is what is mapped.
pub fn best(regions: impl Iterator<Item = (u64, u64, u32)>, end: u64) -> Option<Range<u64>> {
    const FREE: u32 = 1;
    regions
        .filter(|(_, _, kind)| *kind == FREE)
        .map(|(start, size, _)| start.max(end)..start.saturating_add(size).min(1 << 32))
        .filter(|range| range.start < range.end)
        .max_by_key(|range| range.end - range.start)
}

/// The bytes at `address` up to a zero, and no more than `limit`.
///
/// # Safety
/// They are there, and stay untouched.
pub unsafe fn text(address: u64, limit: usize) -> &'static [u8] {
    if address == 0 {
        return &[];
    }
    let start = address as *const u8;
    // SAFETY: the caller's promise.
    unsafe {
        let length = (0..limit).take_while(|at| start.add(*at).read() != 0).count();
        core::slice::from_raw_parts(start, length)
    }
}

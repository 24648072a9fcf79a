//! What a Multiboot2 loader tells (GRUB), by the crate `multiboot2`.

use core::ptr;

use multiboot2::{BootInformation, MAGIC, MemoryAreaType};
use spin::Once;

use super::entry::image_end;
use crate::boot::{BootInfo, best};

/// The loader's information, whose command line and RSDP are used where they are.
static INFO: Once<BootInformation<'static>> = Once::new();

/// Bytes of a tag before its contents: its type, and its size.
const TAG: u64 = 8;

/// Reads the information at `address`, if `magic` says that it is such, and it is whole.
///
/// # Safety
/// A loader left both, its information is untouched, and stays so.
pub unsafe fn read(magic: u32, address: u64) -> Option<BootInfo> {
    if magic != MAGIC {
        return None;
    }
    // SAFETY: the caller's promise.
    let info = unsafe { BootInformation::load(address as *const _) }.ok()?;
    let info = INFO.call_once(|| info);
    // The loader may have put its information behind the image, into memory that is free otherwise.
    let end = image_end().max(info.end_address() as u64);
    let free = info.memory_map_tag().map(|map| map.memory_areas().iter()).unwrap_or_default();
    let free = free.filter(|area| area.typ() == MemoryAreaType::Available);
    // Copies of the RSDP are the contents of tags.
    let new = info.rsdp_v2_tag().map(|tag| ptr::from_ref(tag).addr());
    let old = info.rsdp_v1_tag().map(|tag| ptr::from_ref(tag).addr());
    let line = info.command_line_tag().and_then(|tag| tag.cmdline().ok());
    Some(BootInfo {
        loader: "a Multiboot2 loader",
        command_line: line.unwrap_or_default().as_bytes(),
        memory: best(free.map(|area| (area.start_address(), area.size())), end),
        tables: new.or(old).map(|tag| tag as u64 + TAG),
    })
}

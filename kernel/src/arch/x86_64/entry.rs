//! From the loader's registers to [`crate::kmain`].

use core::arch::global_asm;

use super::cpus::NEXT_STACK;
use super::{console, cpus, multiboot2, pvh};
use crate::boot::BootInfo;

global_asm!(include_str!("boot.s"), start = sym start, start_other = sym start_other, next_stack = sym NEXT_STACK);

unsafe extern "C" {
    static end_of_image: u8;
}

/// The physical address behind the image.
#[must_use]
pub fn image_end() -> u64 {
    // Only the address of the linker's symbol means something.
    (&raw const end_of_image) as u64
}

/// The boot CPU: `magic` and `address` are what the loader left in EAX and EBX.
extern "C" fn start(magic: u32, address: u32) -> ! {
    console::init();
    let address = u64::from(address);
    // SAFETY: the loader's information is where EBX points, in memory that is mapped to itself and
    // that nothing has written since.
    let info = unsafe { multiboot2::read(magic, address).or_else(|| pvh::read(address)) };
    let info = info.unwrap_or(BootInfo {
        loader: "an unknown loader",
        command_line: &[],
        memory: None,
        tables: None,
    });
    crate::kmain(&info)
}

/// Every other CPU.
extern "C" fn start_other() -> ! {
    cpus::arrive()
}

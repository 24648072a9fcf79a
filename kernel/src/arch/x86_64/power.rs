//! The end of the machine.

use x86_64::instructions::{hlt, interrupts, port::Port};

use super::console;

/// QEMU: `-device isa-debug-exit,iobase=0xf4,iosize=4` ends with 2c+1.
const DEBUG_EXIT: u16 = 0xf4;

/// Bochs: this port ends the emulator when it is told so, letter by letter.
const SHUTDOWN: (u16, &[u8]) = (0x8900, b"Shutdown");

/// Ends an emulator; on a real machine, where neither port exists, stops this CPU.
pub fn exit(code: u8) -> ! {
    interrupts::disable();
    console::drain();
    // SAFETY: nothing runs after this, so nothing is disturbed by whatever else may be at these
    // ports.
    unsafe {
        Port::<u32>::new(DEBUG_EXIT).write(u32::from(code));
        for letter in SHUTDOWN.1 {
            Port::<u8>::new(SHUTDOWN.0).write(*letter);
        }
    }
    loop {
        hlt();
    }
}

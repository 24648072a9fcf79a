//! COM1, which every machine that this image runs on has, or ignores.

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;

/// Line status: the transmitter takes another byte.
const READY: u8 = 1 << 5;

/// Turns after which a transmitter that is never ready counts as absent.
const PATIENCE: u32 = 100_000;

/// Writes a byte.
pub fn put(byte: u8) {
    let mut status = Port::<u8>::new(COM1 + 5);
    let mut data = Port::<u8>::new(COM1);
    // SAFETY: COM1 is the console's alone; reading the status and writing a byte have no other effect.
    unsafe {
        for _ in 0..PATIENCE {
            if status.read() & READY != 0 {
                break;
            }
        }
        data.write(byte);
    }
}

/// 115200 baud, 8 bits, no parity; interrupts off.
pub(super) fn init() {
    // Interrupts off; divisor latch; divisor 1; 8N1; FIFOs; DTR, RTS.
    let writes = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)];
    for (register, value) in writes {
        // SAFETY: as in `put`; the sequence is that of a 16550.
        unsafe { Port::<u8>::new(COM1 + register).write(value) };
    }
}

/// Waits until the last byte has left: a machine that is switched off loses it otherwise.
pub(super) fn drain() {
    const EMPTY: u8 = 1 << 6;
    let mut status = Port::<u8>::new(COM1 + 5);
    for _ in 0..PATIENCE {
        // SAFETY: reading the status has no effect on what is written.
        if unsafe { status.read() } & EMPTY != 0 {
            return;
        }
    }
}

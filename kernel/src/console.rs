//! Lines of text, from any CPU.
//!
//! One lock keeps lines whole. It is taken with interrupts off, so a handler that prints never
//! waits for the code that it interrupted; a panic takes no lock, as its own CPU may hold it.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch;

/// Held while a line is written.
static BUSY: AtomicBool = AtomicBool::new(false);

/// The bytes of the console.
struct Bytes;

impl Write for Bytes {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                arch::console::put(b'\r');
            }
            arch::console::put(byte);
        }
        Ok(())
    }
}

/// Writes, with no other CPU's text in between.
pub fn print(text: fmt::Arguments<'_>) {
    let enabled = arch::interrupts::enabled();
    arch::interrupts::off();
    // ORDERING: Acquire, with the Release below: one CPU's bytes come after the other's.
    while BUSY.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        arch::relax();
    }
    // Writing bytes does not fail; a formatter that does has printed what it could.
    let _ = Bytes.write_fmt(text);
    BUSY.store(false, Ordering::Release);
    if enabled {
        arch::interrupts::on();
    }
}

/// Writes whatever the lock says: for a kernel that goes down.
pub fn print_regardless(text: fmt::Arguments<'_>) {
    let _ = Bytes.write_fmt(text);
}

/// Prints a line.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::console::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

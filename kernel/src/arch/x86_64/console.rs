//! COM1, which every machine that this image runs on has, or ignores; and the screen, if there is
//! one.

use uart_16550::spec::registers::LSR;
use uart_16550::{BaudRate, Config, Uart16550, backend::PioBackend};

use super::screen;

const COM1: u16 = 0x3f8;

/// Turns after which a transmitter that is never ready counts as absent.
const PATIENCE: u32 = 100_000;

/// The port. It has no state of its own here: a panic writes, whoever else was writing.
const fn port() -> Uart16550<PioBackend> {
    // SAFETY: COM1 is the console's alone, which keeps lines apart.
    match unsafe { Uart16550::new_port(COM1) } {
        Ok(port) => port,
        Err(_) => panic!("a port's address has sixteen bits"),
    }
}

/// Writes a byte.
pub fn put(byte: u8) {
    let mut port = port();
    // If it is never ready there is nobody to tell.
    let _ = (0..PATIENCE).any(|_| port.try_send_byte(byte).is_ok());
    screen::put(byte);
}

/// 115200 baud, 8 bits, no parity; interrupts off.
pub(super) fn init() {
    // An error is a machine without one.
    let _ = port().init(Config { baud_rate: BaudRate::Baud115200, ..Config::DEFAULT });
    screen::init();
}

/// Waits until the last byte has left: a machine that is switched off loses it otherwise.
pub(super) fn drain() {
    let mut port = port();
    let _ = (0..PATIENCE).any(|_| port.lsr().contains(LSR::TRANSMITTER_EMPTY));
}

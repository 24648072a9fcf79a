//! PCI of PCs: configuration space by a pair of ports, which every one of them has. Firmware gives
//! devices their addresses; where it has not, they go to the hole below the interrupt controllers.

use spin::Mutex;
use x86_64::instructions::port::Port;

/// Physical addresses that devices' 32-bit windows may be put at, if firmware has put them nowhere.
pub const WINDOW: core::ops::Range<u64> = 0xd000_0000..0xe000_0000;

/// CONFIG_ADDRESS: enabled (bit 31), bus, device, function, register; and the port of what is
/// there.
const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The two ports are one register: whoever writes the address holds this until the data is through.
static PORTS: Mutex<(Port<u32>, Port<u32>)> = Mutex::new((Port::new(ADDRESS), Port::new(DATA)));

const fn address(function: u16, offset: u16) -> u32 {
    ENABLE | (function as u32) << 8 | offset as u32 & 0xfc
}

/// Reads a configuration register (bus times 256, device number times eight, and function); all
/// ones where there is no such function.
#[must_use]
pub fn read(function: u16, offset: u16) -> u32 {
    let mut ports = PORTS.lock();
    // SAFETY: the ports are this file's, and locked; reading configuration has no effect.
    unsafe {
        ports.0.write(address(function, offset));
        ports.1.read()
    }
}

/// Writes one.
///
/// # Safety
/// What the device does then harms nobody.
pub unsafe fn write(function: u16, offset: u16, value: u32) {
    let mut ports = PORTS.lock();
    // SAFETY: as for `read`, and the caller's promise.
    unsafe {
        ports.0.write(address(function, offset));
        ports.1.write(value);
    }
}

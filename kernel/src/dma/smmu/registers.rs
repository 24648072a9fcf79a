//! An SMMUv3's registers (Arm IHI 0070, chapter 6).

use shootdown_dma::invalidate::queue::Port;

use crate::dma::registers::{Registers, soon};

/// Page 0.
pub const IDR0: usize = 0x00;
pub const IDR3: usize = 0x0c;
pub const CR0: usize = 0x20;
pub const CR0ACK: usize = 0x24;
pub const CR1: usize = 0x28;
pub const GERROR: usize = 0x60;
pub const GERRORN: usize = 0x64;
pub const STRTAB_BASE: usize = 0x80;
pub const STRTAB_BASE_CFG: usize = 0x88;
pub const CMDQ_BASE: usize = 0x90;
pub const CMDQ_PROD: usize = 0x98;
pub const CMDQ_CONS: usize = 0x9c;
pub const EVENTQ_BASE: usize = 0xa0;
/// Page 1.
pub const EVENTQ_PROD: usize = 0x1_00a8;
pub const EVENTQ_CONS: usize = 0x1_00ac;

/// CR0: translation, event queue, command queue.
pub const TRANSLATION: u32 = 1 << 0;
pub const EVENTQ: u32 = 1 << 2;
pub const CMDQ: u32 = 1 << 3;

/// GERROR: the command at the head is not taken; an event could not be written.
pub const CMDQ_ERR: u32 = 1 << 0;
pub const EVENTQ_ABT_ERR: u32 = 1 << 2;

impl Registers {
    /// Writes CR0, and waits until CR0ACK shows it; `false`: it does not.
    #[must_use]
    pub fn turn_on(&self, what: u32) -> bool {
        self.write32(CR0, what);
        soon(|| self.read32(CR0ACK) == what)
    }

    /// Errors that are not acknowledged.
    pub fn errors(&self) -> u32 {
        self.read32(GERROR) ^ self.read32(GERRORN)
    }

    /// Acknowledges an error, if it is there.
    pub fn acknowledge(&self, error: u32) {
        self.write32(GERRORN, self.read32(GERRORN) ^ (self.errors() & error));
    }
}

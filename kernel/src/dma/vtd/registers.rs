//! VT-d's registers (VT-d specification, chapter 11).

use shootdown_dma::invalidate::queue::Port;

use crate::dma::registers::{Registers, soon};

pub const VERSION: usize = 0x00;
pub const CAP: usize = 0x08;
pub const ECAP: usize = 0x10;
pub const GCMD: usize = 0x18;
pub const GSTS: usize = 0x1c;
pub const RTADDR: usize = 0x20;
pub const CCMD: usize = 0x28;
pub const FSTS: usize = 0x34;
pub const FECTL: usize = 0x38;
pub const IQH: usize = 0x80;
pub const IQT: usize = 0x88;
pub const IQA: usize = 0x90;

/// GCMD and GSTS: translation, root table, queue.
pub const TRANSLATION: u32 = 1 << 31;
pub const ROOT: u32 = 1 << 30;
pub const QUEUE: u32 = 1 << 26;
/// FSTS: the descriptor at the queue's head is not taken; a device has answered what it was not told; a device has not answered.
pub const IQE: u32 = 1 << 4;
pub const ICE: u32 = 1 << 5;
pub const ITE: u32 = 1 << 6;
/// GCMD's bits that are commands, and not states.
const ONE_SHOT: u32 = !0x96ff_ffff;

impl Registers {
    /// Gives a command to GCMD, and waits until GSTS shows it; `false`: it does not.
    #[must_use]
    pub fn command(&self, bit: u32) -> bool {
        self.write32(GCMD, self.read32(GSTS) & !ONE_SHOT | bit);
        soon(|| self.read32(GSTS) & bit != 0)
    }

    /// Takes a state back; `false`: GSTS shows it still.
    #[must_use]
    pub fn take_back(&self, bit: u32) -> bool {
        self.write32(GCMD, self.read32(GSTS) & !ONE_SHOT & !bit);
        soon(|| self.read32(GSTS) & bit == 0)
    }

    /// By registers, as nothing else is up yet: forgets all device entries, and all translations.
    #[must_use]
    pub fn forget_all(&self) -> bool {
        const GO: u64 = 1 << 63;
        const ALL_ENTRIES: u64 = 1 << 61;
        const ALL_TRANSLATIONS: u64 = 1 << 60;
        self.write64(CCMD, GO | ALL_ENTRIES);
        let entries = soon(|| self.read64(CCMD) & GO == 0);
        // ECAP.IRO, in 16 bytes; behind the address register is the command.
        let iotlb = ((self.read64(ECAP) >> 8) as usize & 0x3ff) * 16 + 8;
        self.write64(iotlb, GO | ALL_TRANSLATIONS);
        entries && soon(|| self.read64(iotlb) & GO == 0)
    }
}

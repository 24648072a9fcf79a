//! A set of Hyper-V's virtual processors: 64 banks of 64.

/// Virtual processors 0 to 4095, which are all that a sparse set can name (TLFS, `HV_VP_SET`).
/// Their numbers need not be the kernel's CPU numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VpSet([u64; Self::BANKS]);

impl VpSet {
    const BANKS: usize = 64;

    /// Nobody.
    pub const EMPTY: Self = Self([0; Self::BANKS]);

    /// Adds a VP; `false` for a number that no set can hold.
    #[must_use = "a VP that is left out is not flushed"]
    pub const fn insert(&mut self, vp: u32) -> bool {
        let bank = (vp / 64) as usize;
        if bank >= Self::BANKS {
            return false;
        }
        self.0[bank] |= 1 << (vp % 64);
        true
    }

    /// The banks, lowest VPs first.
    #[must_use]
    pub const fn banks(&self) -> &[u64; Self::BANKS] {
        &self.0
    }

    /// Is nobody in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|bank| *bank == 0)
    }
}

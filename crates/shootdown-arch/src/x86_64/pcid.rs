//! Process-context identifiers: the 12-bit tag of a TLB entry.

use core::fmt;

use shootdown::Tag;

/// A process-context identifier (SDM 3A 4.10.1): always below 4096.
///
/// PCID 0 is the one a CPU uses while `CR4.PCIDE` is clear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pcid(u16);

/// A number that does not fit a [`Pcid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcidError(pub u16);

impl fmt::Display for PcidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no PCID; PCIDs are 12 bits wide, 0 to {}", self.0, Pcid::MAX.0)
    }
}

impl core::error::Error for PcidError {}

impl Pcid {
    /// Width in bits.
    pub const BITS: u8 = 12;
    /// The PCID of a CPU without tags.
    pub const ZERO: Self = Self(0);
    /// The largest PCID.
    pub const MAX: Self = Self((1 << Self::BITS) - 1);

    /// The PCID with this number.
    ///
    /// # Errors
    /// [`PcidError`] above 4095.
    pub const fn new(raw: u16) -> Result<Self, PcidError> {
        if raw > Self::MAX.0 { Err(PcidError(raw)) } else { Ok(Self(raw)) }
    }

    /// The PCID a value of CR3 names while `CR4.PCIDE` is set.
    #[must_use]
    pub const fn of_cr3(raw: u64) -> Self {
        Self((raw & Self::MAX.0 as u64) as u16)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<Tag> for Pcid {
    type Error = PcidError;

    fn try_from(tag: Tag) -> Result<Self, PcidError> {
        Self::new(tag.0)
    }
}

impl From<Pcid> for Tag {
    fn from(pcid: Pcid) -> Self {
        Self(pcid.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_pcid_or_refused() {
        for raw in 0..=u16::MAX {
            match Pcid::new(raw) {
                Ok(pcid) => {
                    assert!(raw < 4096);
                    assert_eq!(pcid.get(), raw);
                    assert_eq!(Pcid::try_from(Tag::from(pcid)), Ok(pcid));
                    assert_eq!(Pcid::of_cr3(0xabcd_e000 | u64::from(raw)), pcid);
                }
                Err(PcidError(refused)) => {
                    assert!(raw >= 4096);
                    assert_eq!(refused, raw);
                }
            }
        }
    }
}

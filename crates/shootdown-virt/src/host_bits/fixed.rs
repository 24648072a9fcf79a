//! `IA32_VMX_CR0_FIXED0` and its like: which bits must be 1, which may be 1 (SDM 3D A.7, A.8).

use core::fmt;

/// What VMX demands of CR0 or of CR4, in host and in guest mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FixedBits {
    fixed0: u64,
    fixed1: u64,
}

/// The bits that must be 1 and may not: the two values are not a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedBitsError(pub u64);

impl fmt::Display for FixedBitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bits {:#x} must be 1 and can't be; pass FIXED0 first, then FIXED1, of one register",
            self.0
        )
    }
}

impl core::error::Error for FixedBitsError {}

impl FixedBits {
    /// From the MSRs: a bit set in `fixed0` must be 1, a bit clear in `fixed1` must be 0.
    ///
    /// # Errors
    /// [`FixedBitsError`] when a bit would have to be both.
    pub const fn new(fixed0: u64, fixed1: u64) -> Result<Self, FixedBitsError> {
        let both = fixed0 & !fixed1;
        if both == 0 { Ok(Self { fixed0, fixed1 }) } else { Err(FixedBitsError(both)) }
    }

    /// The bits that must be 1.
    #[must_use]
    pub const fn must(self) -> u64 {
        self.fixed0
    }

    /// The bits that may be 1.
    #[must_use]
    pub const fn may(self) -> u64 {
        self.fixed1
    }

    /// The same without some of the demands: CR0.PE and CR0.PG, for an unrestricted guest.
    #[must_use]
    pub const fn without_must(self, bits: u64) -> Self {
        Self { fixed0: self.fixed0 & !bits, ..self }
    }

    /// The bits of a value that are 0 and must be 1.
    #[must_use]
    pub const fn missing(self, value: u64) -> u64 {
        self.fixed0 & !value
    }

    /// The bits of a value that are 1 and must be 0.
    #[must_use]
    pub const fn unsupported(self, value: u64) -> u64 {
        value & !self.fixed1
    }

    /// Does VMX accept the value?
    #[must_use]
    pub const fn accept(self, value: u64) -> bool {
        self.missing(value) == 0 && self.unsupported(value) == 0
    }

    /// What two CPUs demand together, for a guest that runs on both.
    ///
    /// # Errors
    /// [`FixedBitsError`] when one demands what the other refuses.
    pub const fn and(self, other: Self) -> Result<Self, FixedBitsError> {
        Self::new(self.fixed0 | other.fixed0, self.fixed1 & other.fixed1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three bits, all pairs of MSRs, all values.
    #[test]
    fn a_value_is_accepted_if_and_only_if_each_bit_is() {
        for fixed0 in 0..8u64 {
            for fixed1 in 0..8u64 {
                let Ok(bits) = FixedBits::new(fixed0, fixed1) else {
                    assert_ne!(fixed0 & !fixed1, 0);
                    continue;
                };
                for value in 0..8u64 {
                    let each = (0..3).all(|n| match (fixed0 >> n & 1, fixed1 >> n & 1) {
                        (1, 1) => value >> n & 1 == 1,
                        (0, 0) => value >> n & 1 == 0,
                        (0, 1) => true,
                        _ => unreachable!(),
                    });
                    assert_eq!(bits.accept(value), each);
                    for less in 0..8 {
                        let less_must = bits.without_must(less);
                        assert_eq!(
                            less_must.accept(value),
                            bits.accept(value | less & fixed0) && bits.unsupported(value) == 0
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_two_cpus_accept_together_each_accepts() {
        for n in 0..1u32 << 12 {
            let part = |at: u32| u64::from(n >> at & 7);
            let (Ok(a), Ok(b)) =
                (FixedBits::new(part(0), part(3)), FixedBits::new(part(6), part(9)))
            else {
                continue;
            };
            let both = a.and(b);
            for value in 0..8 {
                let accepted = both.is_ok_and(|both| both.accept(value));
                assert_eq!(accepted, a.accept(value) && b.accept(value));
            }
        }
    }

    #[test]
    fn msrs_in_the_wrong_order_are_refused() {
        assert!(FixedBits::new(0x2000, 0x003f_67ff).is_ok());
        assert_eq!(FixedBits::new(0x003f_67ff, 0x2000), Err(FixedBitsError(0x003f_47ff)));
    }
}

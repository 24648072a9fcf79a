//! Remote fences by the SBI: firmware interrupts other harts, which fence on the caller's behalf.
//!
//! # The call (SBI, "Binary Encoding" and "RFENCE Extension")
//! a7 holds the extension 0x5246_4E43 ("RFNC"), a6 the function; a0 holds an error afterwards, a1 a
//! value; every other register is preserved.
//!
//! | function | a6 | a0, a1 | a2 | a3 | a4 |
//! |---|---|---|---|---|---|
//! | FENCE.I | 0 | mask, base | | | |
//! | SFENCE.VMA | 1 | mask, base | start | size | |
//! | SFENCE.VMA by ASID | 2 | mask, base | start | size | ASID |
//!
//! Bit *i* of the mask is hart `base + i`; a base of all ones is every hart. A size of all ones (or
//! start and size both zero) is the whole address space. A caller that computes them gets
//! "everything" by accident: an empty range at 0, or a subtraction below 0. [`RemoteFence`] takes a
//! [`VaRange`], which is neither empty nor whole unless it says so.
//!
//! A range is fenced address by address: leaf entries only, as by the instruction.
//! [`RemoteFence::of`] asks for the whole space where tables were freed.
//!
//! # When is it over?
//! Table stores must be visible to the other harts before the call
//! ([`shootdown::Regime::publish`]). The specification says of success that the harts were
//! interrupted, not that they have fenced. Firmware that waits for them makes the call a complete
//! shootdown; on any other, use the kernel's own interrupts.

use core::fmt;

use shootdown::VaRange;
use shootdown::regime::Invalidate;

use super::port::Port;
use crate::asid::Asid;

/// The RFENCE extension: "RFNC".
const EID: u64 = 0x5246_4e43;
/// In place of a base: every hart. In place of a size: every address.
const EVERY: u64 = u64::MAX;

/// Up to 64 harts with neighbouring numbers, or all there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HartMask {
    mask: u64,
    base: u64,
}

impl HartMask {
    /// Every hart that the kernel may name.
    pub const ALL: Self = Self { mask: 0, base: EVERY };

    /// One hart. `None` for the number that stands for all.
    #[must_use]
    pub const fn one(hart: u64) -> Option<Self> {
        if hart == EVERY { None } else { Some(Self { mask: 1, base: hart }) }
    }

    /// Is the hart in it?
    #[must_use]
    pub const fn contains(self, hart: u64) -> bool {
        if self.base == EVERY {
            return true;
        }
        match hart.checked_sub(self.base) {
            Some(bit) => bit < 64 && self.mask >> bit & 1 == 1,
            None => false,
        }
    }

    /// With one hart more; `None` when it is below the first or too far above.
    #[must_use]
    const fn with(self, hart: u64) -> Option<Self> {
        match hart.checked_sub(self.base) {
            Some(bit) if bit < 64 && hart != EVERY => {
                Some(Self { mask: self.mask | 1 << bit, base: self.base })
            }
            _ => None,
        }
    }
}

/// Any set of harts as few masks: as many calls.
#[derive(Clone, Debug)]
pub struct HartMasks<I: Iterator<Item = u64>> {
    harts: I,
    next: Option<u64>,
}

impl<I: Iterator<Item = u64>> HartMasks<I> {
    /// The masks of these harts; fewest when they ascend. The number that stands for all names no
    /// hart and is left out.
    pub fn new(harts: impl IntoIterator<IntoIter = I>) -> Self {
        Self { harts: harts.into_iter(), next: None }
    }
}

impl<I: Iterator<Item = u64>> Iterator for HartMasks<I> {
    type Item = HartMask;

    fn next(&mut self) -> Option<HartMask> {
        let mut mask: Option<HartMask> = None;
        while let Some(hart) = self.next.take().or_else(|| self.harts.next()) {
            let grown = match mask {
                None => HartMask::one(hart).map(Some),
                Some(so_far) => match so_far.with(hart) {
                    None if hart != EVERY => {
                        self.next = Some(hart);
                        break;
                    }
                    with => with.map(Some),
                },
            };
            if let Some(grown) = grown {
                mask = grown;
            }
        }
        mask
    }
}

/// What the harts of a mask do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoteFence {
    /// FENCE.I.
    Instructions,
    /// Leaf entries of a range: of one ASID, global ones excepted; or of every ASID, global ones
    /// included.
    Pages {
        /// The addresses.
        range: VaRange,
        /// Whose.
        asid: Option<Asid>,
    },
    /// Every entry of an ASID, global ones excepted.
    Space(Asid),
    /// Everything.
    All,
}

/// The registers of one call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// a6.
    pub function: u64,
    /// a0 to a4.
    pub arguments: [u64; 5],
}

impl Call {
    /// a7.
    pub const EXTENSION: u64 = EID;
}

impl RemoteFence {
    /// What carries out a request of the core on other harts: at least what was asked.
    #[must_use]
    pub const fn of(what: Invalidate, port: &Port) -> Self {
        match what {
            Invalidate::Range { tag, range, leaf_only } => match port.asid_of(tag) {
                Some(asid) if leaf_only => Self::Pages { range, asid: Some(asid) },
                Some(asid) => Self::Space(asid),
                None => Self::All,
            },
            Invalidate::Tag(tag) => match port.asid_of(tag) {
                Some(asid) => Self::Space(asid),
                None => Self::All,
            },
            Invalidate::Kernel(range) => Self::Pages { range, asid: None },
            Invalidate::Everything => Self::All,
        }
    }

    /// The registers that ask these harts for it.
    #[must_use]
    pub const fn call(self, harts: HartMask) -> Call {
        let (start, size) = match self {
            Self::Instructions => (0, 0),
            Self::Pages { range, .. } => {
                // All addresses: their number does not fit.
                match (range.last() - range.start()).checked_add(1) {
                    Some(size) => (range.start(), size),
                    None => (0, EVERY),
                }
            }
            Self::Space(_) | Self::All => (0, EVERY),
        };
        let (function, asid) = match self {
            Self::Instructions => (0, 0),
            Self::Pages { asid: None, .. } | Self::All => (1, 0),
            Self::Pages { asid: Some(asid), .. } | Self::Space(asid) => (2, asid.get() as u64),
        };
        Call { function, arguments: [harts.mask, harts.base, start, size, asid] }
    }
}

/// Why a call failed (SBI, "Binary Encoding", the standard error codes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SbiError {
    /// For no reason given.
    Failed,
    /// The firmware has no such extension or function.
    NotSupported,
    /// A hart of the mask does not exist, or not for this kernel.
    InvalidParam,
    /// Not allowed.
    Denied,
    /// Start and size are no range.
    InvalidAddress,
    /// A code that a remote fence does not return.
    Other(i64),
}

impl fmt::Display for SbiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the firmware could not fence other harts; interrupt them instead",
            Self::NotSupported => "the firmware has no remote fences; interrupt the harts instead",
            Self::InvalidParam => {
                "a hart of the mask does not exist; name only harts that are online"
            }
            Self::Denied => {
                "the firmware does not allow remote fences; interrupt the harts instead"
            }
            Self::InvalidAddress => "the firmware refused the range; fence the whole space",
            Self::Other(code) => {
                return write!(f, "the firmware answered {code}, which is no answer to a fence");
            }
        })
    }
}

impl core::error::Error for SbiError {}

impl SbiError {
    /// What a0 says after a call.
    ///
    /// # Errors
    /// The error, when it is not 0.
    pub const fn check(a0: i64) -> Result<(), Self> {
        Err(match a0 {
            0 => return Ok(()),
            -1 => Self::Failed,
            -2 => Self::NotSupported,
            -3 => Self::InvalidParam,
            -4 => Self::Denied,
            -5 => Self::InvalidAddress,
            code => Self::Other(code),
        })
    }
}

/// Calls the firmware.
///
/// # Errors
/// The firmware's. Nothing may be assumed of the harts then.
///
/// # Safety
/// The hart is in supervisor mode and its firmware is an SBI of version 0.2 or later.
#[cfg(target_arch = "riscv64")]
pub unsafe fn call(what: Call) -> Result<(), SbiError> {
    let [a0, a1, a2, a3, a4] = what.arguments;
    let error: i64;
    // SAFETY: there is firmware that answers (the caller's promise). It preserves every register
    // but a0 and a1, and remote fences change no memory of the caller's. The compiler is told
    // that it may touch memory, so that no access moves across it.
    unsafe {
        core::arch::asm!(
            "ecall",
            inlateout("a0") a0 => error,
            inlateout("a1") a1 => _,
            in("a2") a2,
            in("a3") a3,
            in("a4") a4,
            in("a6") what.function,
            in("a7") Call::EXTENSION,
            options(nostack),
        );
    }
    SbiError::check(error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use shootdown::{Stride, Tag};

    use super::super::port::Options;
    use super::*;
    use crate::asid::AsidWidth;

    #[test]
    fn the_extension_is_its_name() {
        assert_eq!(Call::EXTENSION.to_be_bytes()[4..], *b"RFNC");
    }

    #[test]
    fn registers_are_what_the_specification_lists() {
        let harts = HartMask::one(7).unwrap();
        let asid = Asid::new(9, AsidWidth::BITS_16).unwrap();
        let range = VaRange::new(0x40_0000, 3, Stride::Page4K).unwrap();
        let registers = |what: RemoteFence| {
            let call = what.call(harts);
            (call.function, call.arguments)
        };
        assert_eq!(registers(RemoteFence::Instructions), (0, [1, 7, 0, 0, 0]));
        let pages = |asid| RemoteFence::Pages { range, asid };
        assert_eq!(registers(pages(None)), (1, [1, 7, 0x40_0000, 0x3000, 0]));
        assert_eq!(registers(pages(Some(asid))), (2, [1, 7, 0x40_0000, 0x3000, 9]));
        assert_eq!(registers(RemoteFence::Space(asid)), (2, [1, 7, 0, u64::MAX, 9]));
        assert_eq!(registers(RemoteFence::All), (1, [1, 7, 0, u64::MAX, 0]));
        assert_eq!(RemoteFence::All.call(HartMask::ALL).arguments[1], u64::MAX);
    }

    /// "Everything" is asked for by intent only: no range turns into it but the one of all
    /// addresses.
    #[test]
    fn no_range_means_everything_by_accident() {
        let whole = |call: Call| {
            let [.., start, size, _] = call.arguments;
            (start == 0 && size == 0) || size == u64::MAX
        };
        for start in [0, 0x1000, 1 << 38, u64::MAX - 0xfff] {
            for count in [1, 2, 1 << 20] {
                if let Ok(range) = VaRange::new(start, count, Stride::Page4K) {
                    let call = RemoteFence::Pages { range, asid: None }.call(HartMask::ALL);
                    assert!(!whole(call), "{range:?}");
                    assert_eq!(call.arguments[3], count << 12);
                }
            }
        }
        let all = VaRange::new(0, 1 << 52, Stride::Page4K).unwrap();
        assert!(whole(RemoteFence::Pages { range: all, asid: None }.call(HartMask::ALL)));
    }

    #[test]
    fn freed_tables_ask_for_the_whole_space() {
        let port = Port::new(Options { asids: AsidWidth::new(9).unwrap(), ..Options::MINIMUM });
        let range = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
        let asid = Asid::new(5, port.asids()).unwrap();
        let of = |tag, leaf_only| {
            RemoteFence::of(Invalidate::Range { tag: Tag(tag), range, leaf_only }, &port)
        };
        assert_eq!(of(5, true), RemoteFence::Pages { range, asid: Some(asid) });
        assert_eq!(of(5, false), RemoteFence::Space(asid));
        assert_eq!(of(512, true), RemoteFence::All);
        assert_eq!(RemoteFence::of(Invalidate::Tag(Tag(5)), &port), RemoteFence::Space(asid));
        assert_eq!(RemoteFence::of(Invalidate::Everything, &port), RemoteFence::All);
        let kernel = RemoteFence::of(Invalidate::Kernel(range), &port);
        assert_eq!(kernel, RemoteFence::Pages { range, asid: None });
    }

    #[test]
    fn masks_hold_exactly_the_harts() {
        let sets: [&[u64]; 6] = [
            &[],
            &[0],
            &[5, 68, 69, 4000],
            &[63, 64, 127, 128, 191],
            &[u64::MAX - 1, u64::MAX],
            &[9, 3, 200, 1],
        ];
        for set in sets {
            let masks: Vec<HartMask> = HartMasks::new(set.iter().copied()).collect();
            let named: BTreeSet<u64> = set.iter().copied().filter(|h| *h != u64::MAX).collect();
            let near = named.iter().flat_map(|h| [h.saturating_sub(1), *h, h.saturating_add(1)]);
            for hart in near.filter(|h| *h != u64::MAX) {
                let found = masks.iter().filter(|m| m.contains(hart)).count();
                assert_eq!(found, usize::from(named.contains(&hart)), "hart {hart} of {set:?}");
            }
            assert!(masks.iter().all(|m| *m != HartMask::ALL));
        }
        // As few as their distance allows, when they ascend.
        assert_eq!(HartMasks::new(0..4096).count(), 64);
        assert_eq!(HartMasks::new([1, 64]).count(), 1);
        assert_eq!(HartMasks::new([1, 65]).count(), 2);
        assert_eq!(HartMask::one(u64::MAX), None);
    }

    #[test]
    fn answers_are_typed() {
        assert_eq!(SbiError::check(0), Ok(()));
        let named = [
            SbiError::Failed,
            SbiError::NotSupported,
            SbiError::InvalidParam,
            SbiError::Denied,
            SbiError::InvalidAddress,
        ];
        for (error, code) in named.into_iter().zip(1..) {
            assert_eq!(SbiError::check(-code), Err(error));
        }
        assert_eq!(SbiError::check(-6), Err(SbiError::Other(-6)));
        assert_eq!(SbiError::check(1), Err(SbiError::Other(1)));
    }
}

//! What the CPU checks when a guest writes CR0, CR4 or EFER.
//!
//! The write exited, so the hypervisor raises the faults that the CPU would have raised (SDM 2B
//! "MOV to control register", SDM 3A 2.5 and 10.8.5; APM 2 3.1 and 14.6). A hypervisor that does
//! not would put a state into the VMCS that VM entry refuses, and a guest could stop its own
//! hypervisor. All values here are the guest's: what it wrote and what it reads.
//!
//! Not checked: a 16-bit TSS when long mode is entered, and what VMX in the guest (nested) demands
//! of CR0 and CR4.

use core::fmt;

use super::register_bits::{cr0, cr4, efer};

/// A guest's control registers as it reads them, and its code segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestControl {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
    /// It runs 64-bit code (CS.L, with EFER.LMA).
    pub code64: bool,
}

impl GuestControl {
    /// After reset (SDM 3A table 10-1), with caches on: 16-bit code, no paging.
    pub const RESET: Self = Self { cr0: cr0::ET, cr3: 0, cr4: 0, efer: 0, code64: false };
}

/// Why a write of the guest's faults: inject #GP(0), and don't advance RIP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WriteFault {
    /// Bits that are reserved, or that this guest does not have.
    Unsupported(u64),
    /// CR0.PG without CR0.PE.
    PagingWithoutProtection,
    /// CR0.NW without CR0.CD.
    NoWriteThroughWithCaches,
    /// Long mode without CR4.PAE.
    LongModeWithoutPae,
    /// Paging turned on from 64-bit code, or off in it.
    PagingIn64BitCode,
    /// Paging turned off while CR4.PCIDE is set.
    PagingOffWithPcids,
    /// CR4.PCIDE set outside long mode, or while CR3 names another PCID than 0.
    Pcids,
    /// CR4.LA57 changed in long mode.
    LevelsInLongMode,
    /// CR4.CET without CR0.WP.
    CetWithoutWriteProtection,
    /// EFER.LME changed while paging is on.
    LongModeWhilePaging,
}

impl fmt::Display for WriteFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Self::Unsupported(bits) => {
                return write!(f, "the guest does not have bits {bits:#x}; inject #GP(0)");
            }
            Self::PagingWithoutProtection => "PG needs PE",
            Self::NoWriteThroughWithCaches => "NW needs CD",
            Self::LongModeWithoutPae => "long mode needs PAE",
            Self::PagingIn64BitCode => "64-bit code can't turn paging on or off",
            Self::PagingOffWithPcids => "paging can't be turned off while PCIDE is set",
            Self::Pcids => "PCIDE can be set in long mode only, while CR3 names PCID 0",
            Self::LevelsInLongMode => "LA57 can't change in long mode",
            Self::CetWithoutWriteProtection => "CET needs WP",
            Self::LongModeWhilePaging => "LME can't change while paging is on",
        };
        write!(f, "{why}; inject #GP(0)")
    }
}

impl core::error::Error for WriteFault {}

/// What the hypervisor does beside writing the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "the guest would run on with stale translations, or in another mode than it asked for"]
pub struct Effects {
    /// Invalidate the guest's linear translations on this CPU, global ones included: INVVPID of
    /// the single context, or TLB_CONTROL 3.
    pub invalidate: bool,
    /// VMX with EPT: load GUEST_PDPTE0 to 3 from the page that the guest's CR3 names. If an entry
    /// is invalid, inject #GP(0) instead of the write. SVM: false, the CPU reads them itself.
    pub load_pdptes: bool,
    /// The guest's EFER changed, as paging turned long mode on or off. VMX: write GUEST_IA32_EFER,
    /// and set the VM-entry control "IA-32e mode guest" to EFER.LMA. SVM: `None`, as the field
    /// is written.
    pub efer: Option<u64>,
}

/// A write that the CPU would accept: the registers afterwards, and what follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    pub after: GuestControl,
    pub effects: Effects,
}

/// Bits of CR4 that determine how linear addresses are translated, or which code may use a
/// translation.
const CR4_PAGING: u64 = cr4::PSE
    | cr4::PAE
    | cr4::PGE
    | cr4::LA57
    | cr4::PCIDE
    | cr4::SMEP
    | cr4::SMAP
    | cr4::PKE
    | cr4::CET
    | cr4::PKS;

impl GuestControl {
    /// Is long mode active?
    const fn long(self) -> bool {
        self.efer & efer::LMA != 0
    }

    /// A register's value as MOV takes it from a general register: 32 bits outside 64-bit code,
    /// where the upper half of a general register holds anything.
    pub(super) const fn operand(self, value: u64) -> u64 {
        if self.code64 { value } else { value & 0xffff_ffff }
    }

    /// MOV to CR0, with the whole operand.
    pub(super) fn write_cr0(self, value: u64) -> Result<Written, WriteFault> {
        if value >> 32 != 0 {
            return Err(WriteFault::Unsupported(value >> 32 << 32));
        }
        let value = value & cr0::WRITABLE | cr0::ET;
        let (on, was_on) = (value & cr0::PG != 0, self.cr0 & cr0::PG != 0);
        if on && value & cr0::PE == 0 {
            return Err(WriteFault::PagingWithoutProtection);
        }
        if value & (cr0::NW | cr0::CD) == cr0::NW {
            return Err(WriteFault::NoWriteThroughWithCaches);
        }
        if self.cr4 & cr4::CET != 0 && value & cr0::WP == 0 {
            return Err(WriteFault::CetWithoutWriteProtection);
        }
        let mut after = Self { cr0: value, ..self };
        if on && !was_on && self.efer & efer::LME != 0 {
            if self.cr4 & cr4::PAE == 0 {
                return Err(WriteFault::LongModeWithoutPae);
            }
            if self.code64 {
                return Err(WriteFault::PagingIn64BitCode);
            }
            after.efer |= efer::LMA;
        }
        if !on && was_on {
            if self.code64 {
                return Err(WriteFault::PagingIn64BitCode);
            }
            if self.cr4 & cr4::PCIDE != 0 {
                return Err(WriteFault::PagingOffWithPcids);
            }
            after.efer &= !efer::LMA;
        }
        let changed = value ^ self.cr0;
        Ok(Written {
            after,
            effects: Effects {
                invalidate: changed & (cr0::PG | cr0::PE | cr0::WP) != 0,
                load_pdptes: changed & (cr0::PG | cr0::CD | cr0::NW) != 0 && after.has_pdptes(),
                efer: (after.efer != self.efer).then_some(after.efer),
            },
        })
    }

    /// MOV to CR4, with the whole operand, by a guest that has the bits `supported`.
    pub(super) fn write_cr4(self, value: u64, supported: u64) -> Result<Written, WriteFault> {
        if value & !supported != 0 {
            return Err(WriteFault::Unsupported(value & !supported));
        }
        let changed = value ^ self.cr4;
        if self.long() {
            if value & cr4::PAE == 0 {
                return Err(WriteFault::LongModeWithoutPae);
            }
            if changed & cr4::LA57 != 0 {
                return Err(WriteFault::LevelsInLongMode);
            }
        }
        let pcids_on = changed & value & cr4::PCIDE != 0;
        if pcids_on && (!self.long() || self.cr3 & 0xfff != 0) {
            return Err(WriteFault::Pcids);
        }
        if value & cr4::CET != 0 && self.cr0 & cr0::WP == 0 {
            return Err(WriteFault::CetWithoutWriteProtection);
        }
        let after = Self { cr4: value, ..self };
        let reload = cr4::PAE | cr4::PGE | cr4::PSE | cr4::SMEP;
        Ok(Written {
            after,
            effects: Effects {
                invalidate: changed & CR4_PAGING != 0,
                load_pdptes: changed & reload != 0 && after.has_pdptes(),
                efer: None,
            },
        })
    }

    /// WRMSR to EFER, by a guest that has the bits `supported`. A write does not change LMA.
    pub(super) fn write_efer(self, value: u64, supported: u64) -> Result<Written, WriteFault> {
        let value = value & !efer::LMA | self.efer & efer::LMA;
        let unsupported = value & !(supported | efer::LMA);
        if unsupported != 0 {
            return Err(WriteFault::Unsupported(unsupported));
        }
        let changed = value ^ self.efer;
        if changed & efer::LME != 0 && self.cr0 & cr0::PG != 0 {
            return Err(WriteFault::LongModeWhilePaging);
        }
        let after = Self { efer: value, ..self };
        Ok(Written {
            after,
            effects: Effects {
                invalidate: changed & efer::NXE != 0,
                load_pdptes: false,
                efer: (changed != 0).then_some(value),
            },
        })
    }

    /// LMSW: the low four bits of CR0, of which PE can be set and not cleared.
    pub(super) const fn lmsw(self, source: u16) -> u64 {
        let low = cr0::MP | cr0::EM | cr0::TS;
        self.cr0 & !low | source as u64 & (low | cr0::PE)
    }

    /// CLTS.
    pub(super) const fn clts(self) -> u64 {
        self.cr0 & !cr0::TS
    }

    /// Four page-directory pointers are registers of the CPU (PAE paging).
    const fn has_pdptes(self) -> bool {
        self.cr0 & cr0::PG != 0 && self.cr4 & cr4::PAE != 0 && !self.long()
    }

    /// May a guest with the bits `supported` of CR4 be in this state at all?
    pub(super) fn check(self, supported: u64) -> Result<(), WriteFault> {
        let unknown = self.cr0 & !(cr0::WRITABLE | cr0::ET);
        if unknown != 0 {
            return Err(WriteFault::Unsupported(unknown));
        }
        if self.cr4 & !supported != 0 {
            return Err(WriteFault::Unsupported(self.cr4 & !supported));
        }
        let paging = self.cr0 & cr0::PG != 0;
        if paging && self.cr0 & cr0::PE == 0 {
            return Err(WriteFault::PagingWithoutProtection);
        }
        if self.cr0 & (cr0::NW | cr0::CD) == cr0::NW {
            return Err(WriteFault::NoWriteThroughWithCaches);
        }
        if self.cr4 & cr4::CET != 0 && self.cr0 & cr0::WP == 0 {
            return Err(WriteFault::CetWithoutWriteProtection);
        }
        if self.cr4 & cr4::PCIDE != 0 && !self.long() {
            return Err(WriteFault::Pcids);
        }
        if self.long() != (paging && self.efer & efer::LME != 0) {
            return Err(WriteFault::LongModeWhilePaging);
        }
        if self.long() && self.cr4 & cr4::PAE == 0 {
            return Err(WriteFault::LongModeWithoutPae);
        }
        if self.code64 && !self.long() {
            return Err(WriteFault::PagingIn64BitCode);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPPORTED: u64 = 0x00ff_17ff;

    /// All states over the bits that the rules are about.
    fn states() -> impl Iterator<Item = GuestControl> {
        let spread = |n: u32, bits: &[u64]| {
            let set = |(at, bit): (usize, &u64)| if n >> at & 1 == 1 { *bit } else { 0 };
            bits.iter().enumerate().map(set).sum::<u64>()
        };
        (0..1u32 << 13).map(move |n| GuestControl {
            cr0: cr0::ET | spread(n, &[cr0::PE, cr0::PG, cr0::WP, cr0::NW, cr0::CD]),
            cr4: spread(n >> 5, &[cr4::PAE, cr4::PCIDE, cr4::CET, cr4::LA57]),
            efer: spread(n >> 9, &[efer::LME, efer::LMA]),
            cr3: spread(n >> 11, &[3]),
            code64: n >> 12 & 1 == 1,
        })
    }

    #[test]
    fn a_write_that_is_accepted_leads_to_a_state_that_entry_accepts() {
        let mut legal = 0;
        for state in states().filter(|state| state.check(SUPPORTED).is_ok()) {
            legal += 1;
            // Each value of each register: the first states have all of them.
            for to in states().take(1 << 11) {
                let writes = [
                    (to.cr4 | to.efer == 0).then(|| state.write_cr0(to.cr0)),
                    (to.efer == 0).then(|| state.write_cr4(to.cr4, SUPPORTED)),
                    Some(state.write_efer(to.efer, efer::LME | efer::SCE)),
                ];
                for Written { after, effects } in writes.into_iter().flatten().flatten() {
                    assert_eq!(after.check(SUPPORTED), Ok(()), "{state:x?} to {after:x?}");
                    assert_eq!(effects.efer, (after.efer != state.efer).then_some(after.efer));
                }
            }
        }
        assert!(legal > 100, "{legal}");
    }

    #[test]
    fn every_fault_has_its_reason() {
        let long = GuestControl {
            cr0: 0x8001_0011,
            cr3: 0x5000,
            cr4: cr4::PAE,
            efer: efer::LME | efer::LMA,
            code64: true,
        };
        let compat = GuestControl { code64: false, ..long };
        let real = GuestControl::RESET;
        let cr0 = |guest: GuestControl, value| guest.write_cr0(value).err();
        let cr4 = |guest: GuestControl, value| guest.write_cr4(value, SUPPORTED).err();

        assert_eq!(cr0(long, 1 << 40 | long.cr0), Some(WriteFault::Unsupported(1 << 40)));
        assert_eq!(cr0(real, cr0::PG), Some(WriteFault::PagingWithoutProtection));
        assert_eq!(cr0(real, cr0::NW), Some(WriteFault::NoWriteThroughWithCaches));
        let enabled = GuestControl { efer: efer::LME, ..real };
        assert_eq!(cr0(enabled, 0x8000_0001), Some(WriteFault::LongModeWithoutPae));
        assert_eq!(cr0(long, 0x1_0001), Some(WriteFault::PagingIn64BitCode));
        let pcids = GuestControl { cr4: cr4::PAE | cr4::PCIDE, ..compat };
        assert_eq!(cr0(pcids, 0x1_0001), Some(WriteFault::PagingOffWithPcids));
        let cet = GuestControl { cr4: cr4::PAE | cr4::CET, ..compat };
        assert_eq!(cr0(cet, 0x8000_0001), Some(WriteFault::CetWithoutWriteProtection));

        assert_eq!(cr4(long, cr4::PAE | 1 << 31), Some(WriteFault::Unsupported(1 << 31)));
        assert_eq!(cr4(long, cr4::PAE | cr4::VMXE), Some(WriteFault::Unsupported(cr4::VMXE)));
        assert_eq!(cr4(long, 0), Some(WriteFault::LongModeWithoutPae));
        assert_eq!(cr4(long, cr4::PAE | cr4::LA57), Some(WriteFault::LevelsInLongMode));
        assert_eq!(cr4(real, cr4::PCIDE), Some(WriteFault::Pcids));
        let tagged = GuestControl { cr3: 0x5001, ..long };
        assert_eq!(cr4(tagged, cr4::PAE | cr4::PCIDE), Some(WriteFault::Pcids));
        assert_eq!(cr4(long, cr4::PAE | cr4::PCIDE), None);
        assert_eq!(cr4(real, cr4::CET), Some(WriteFault::CetWithoutWriteProtection));

        let lme = Some(WriteFault::LongModeWhilePaging);
        assert_eq!(long.write_efer(0, efer::LME).err(), lme);
        let svme = Some(WriteFault::Unsupported(efer::SVME));
        assert_eq!(real.write_efer(efer::SVME, efer::LME).err(), svme);
    }

    #[test]
    fn only_64_bit_code_has_64_bits_to_write() {
        let long = GuestControl { code64: true, ..GuestControl::RESET };
        assert_eq!(long.operand(0x5a5a_0000_0011), 0x5a5a_0000_0011);
        assert_eq!(GuestControl::RESET.operand(0x5a5a_0000_0011), 0x11);
    }

    #[test]
    fn lmsw_sets_pe_and_never_clears_it() {
        for low in 0..16u64 {
            let guest = GuestControl { cr0: 0x6000_0010 | low, ..GuestControl::RESET };
            assert_eq!(guest.clts(), guest.cr0 & !8);
            for source in 0..=u16::MAX {
                let expected = 0x6000_0010 | u64::from(source) & 0xf | low & 1;
                assert_eq!(guest.lmsw(source), expected);
            }
        }
    }
}

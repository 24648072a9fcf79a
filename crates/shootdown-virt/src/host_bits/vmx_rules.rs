//! VMX: computes the fields of the VMCS from the guest's value and the host's.
//!
//! | field | CR4 | CR0 |
//! |---|---|---|
//! | guest/host mask | all bits but the guest-owned ones, reserved bits included | same |
//! | read shadow | what the guest reads | same |
//! | GUEST_CRx | what the guest reads; the host's for owned bits; 1 where FIXED0 requires it | same; PE and PG are the guest's if it is unrestricted |
//! | HOST_CRx | this CPU's CR4 | not computed here |
//!
//! Owned bits have *exactly* the host's value, set or clear. So guest mode has the same bits as the
//! host, and a host that has not set up its machine-check handler yet is not called.

use core::fmt;

use super::fixed::FixedBits;
use super::owned::{Extension, HostBits};
use super::register_bits::{cr0, cr4};

/// Bits of CR4 that a guest may change without an exit: nothing outside the CPU depends on them.
///
/// PGE among them needs EPT: the CPU itself then invalidates what the change demands.
const CR4_PASSABLE: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PGE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::UMIP
    | cr4::FSGSBASE;

/// The same for CR0.
const CR0_PASSABLE: u64 = cr0::MP | cr0::EM | cr0::TS | cr0::WP | cr0::AM;

/// The options from which a guest's control registers are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmxOptions {
    /// The bits that the host owns.
    pub owned: HostBits,
    /// `IA32_VMX_CR0_FIXED0` and `FIXED1`, of all CPUs that the guest runs on.
    pub fixed_cr0: FixedBits,
    /// `IA32_VMX_CR4_FIXED0` and `FIXED1`.
    pub fixed_cr4: FixedBits,
    /// The host's CR0, whose owned bits don't change while VMX is on.
    pub host_cr0: u64,
    /// Bits of CR0 that the guest changes without an exit.
    pub guest_owned_cr0: u64,
    /// Bits of CR4 that the guest changes without an exit.
    pub guest_owned_cr4: u64,
    /// Bits of CR4 that the guest may set: what its CPUID says. Setting another is #GP(0).
    pub supported_cr4: u64,
    /// The execution controls "unrestricted guest" and "enable EPT" are set.
    pub unrestricted: bool,
}

/// Options that are consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmxRules {
    options: VmxOptions,
}

/// Why options are not consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmxRulesError {
    /// The host bits are SVM's.
    WrongExtension,
    /// The host's CR0 is none that VMX accepts, by these bits.
    HostCr0(u64),
    /// VMX requires bits of CR0 that the host does not own.
    NotOwned(u64),
    /// Bits of CR0 that a guest can set and VMX refuses.
    Cr0(u64),
    /// Bits are owned by host and guest, or are fixed, or need the hypervisor when they change.
    GuestOwnedCr0(u64),
    /// The same of CR4, or the guest does not have them.
    GuestOwnedCr4(u64),
    /// VMX refuses these bits of CR4.
    Supported(u64),
}

impl fmt::Display for VmxRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongExtension => f.write_str("these host bits are SVM's; use VMX's"),
            Self::HostCr0(bits) => {
                write!(f, "bits {bits:#x} of the host's CR0 are not as VMX demands; mend it first")
            }
            Self::NotOwned(bits) => {
                write!(f, "VMX demands bits {bits:#x} of CR0; add them to the host bits")
            }
            Self::Cr0(bits) => write!(f, "this CPU refuses bits {bits:#x} of CR0 in a guest"),
            Self::GuestOwnedCr0(bits) => {
                write!(f, "bits {bits:#x} of CR0 can't be the guest's alone; leave them out")
            }
            Self::GuestOwnedCr4(bits) => {
                write!(f, "bits {bits:#x} of CR4 can't be the guest's alone; leave them out")
            }
            Self::Supported(bits) => {
                write!(f, "this CPU refuses bits {bits:#x} of CR4 in a guest; hide them from it")
            }
        }
    }
}

impl core::error::Error for VmxRulesError {}

/// The guest turned CR0.PE or CR0.PG off, and must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Restricted;

impl VmxRules {
    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`VmxRulesError`].
    pub const fn new(options: VmxOptions) -> Result<Self, VmxRulesError> {
        let VmxOptions { owned, fixed_cr0, fixed_cr4, host_cr0, .. } = options;
        if !matches!(owned.extension(), Extension::Vmx) {
            return Err(VmxRulesError::WrongExtension);
        }
        if !fixed_cr0.accept(host_cr0) {
            let bits = fixed_cr0.missing(host_cr0) | fixed_cr0.unsupported(host_cr0);
            return Err(VmxRulesError::HostCr0(bits));
        }
        let not_owned = fixed_cr0.must() & !(owned.cr0() | cr0::PE | cr0::PG);
        if not_owned != 0 {
            return Err(VmxRulesError::NotOwned(not_owned));
        }
        let refused = fixed_cr0.unsupported(cr0::WRITABLE | cr0::ET);
        if refused != 0 {
            return Err(VmxRulesError::Cr0(refused));
        }
        let unsupported = fixed_cr4.unsupported(options.supported_cr4);
        if unsupported != 0 {
            return Err(VmxRulesError::Supported(unsupported));
        }
        let shared = options.guest_owned_cr0 & (owned.cr0() | fixed_cr0.must() | !CR0_PASSABLE);
        if shared != 0 {
            return Err(VmxRulesError::GuestOwnedCr0(shared));
        }
        let shared = options.guest_owned_cr4
            & (owned.cr4() | fixed_cr4.must() | !CR4_PASSABLE | !options.supported_cr4);
        if shared != 0 {
            return Err(VmxRulesError::GuestOwnedCr4(shared));
        }
        Ok(Self { options })
    }

    /// The options.
    #[must_use]
    pub const fn options(&self) -> &VmxOptions {
        &self.options
    }

    /// CR0_GUEST_HOST_MASK: writes that change one of these bits exit.
    #[must_use]
    pub const fn cr0_mask(&self) -> u64 {
        !self.options.guest_owned_cr0
    }

    /// CR4_GUEST_HOST_MASK. Every owned bit is in it.
    #[must_use]
    pub const fn cr4_mask(&self) -> u64 {
        !self.options.guest_owned_cr4
    }

    /// GUEST_CR4 for a guest that reads `guest` on a CPU whose CR4 is `host`.
    #[must_use]
    pub const fn guest_cr4(&self, guest: u64, host: u64) -> u64 {
        let owned = self.options.owned.cr4();
        guest & !owned | host & owned | self.options.fixed_cr4.must()
    }

    /// GUEST_CR0 for a guest that reads `guest`.
    pub(super) const fn guest_cr0(&self, guest: u64) -> Result<u64, Restricted> {
        let owned = self.options.owned.cr0();
        let freed = if self.options.unrestricted { cr0::PE | cr0::PG } else { 0 };
        let fixed = self.options.fixed_cr0.without_must(freed);
        if fixed.missing(guest) & (cr0::PE | cr0::PG) != 0 {
            return Err(Restricted);
        }
        Ok(guest & !owned | self.options.host_cr0 & owned | fixed.must())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A Haswell's MSRs.
    pub(in super::super) const HASWELL: VmxOptions = VmxOptions {
        owned: HostBits::VMX,
        fixed_cr0: match FixedBits::new(0x8000_0021, 0xffff_ffff) {
            Ok(bits) => bits,
            Err(_) => panic!(),
        },
        fixed_cr4: match FixedBits::new(0x2000, 0x0017_27ff) {
            Ok(bits) => bits,
            Err(_) => panic!(),
        },
        host_cr0: 0x8005_0033,
        guest_owned_cr0: 0,
        guest_owned_cr4: 0,
        supported_cr4: 0x0017_07ff,
        unrestricted: true,
    };

    fn rules(options: VmxOptions) -> VmxRules {
        VmxRules::new(options).unwrap()
    }

    /// All 2^11 guest values below PCIDE times all host values of the owned bits.
    #[test]
    fn an_owned_bit_is_the_hosts_and_every_other_bit_is_the_guests() {
        let rules = rules(HASWELL);
        for guest in 0..=0x7ff {
            for host in [0x2000, 0x2040, 0x27bf, 0x27ff, 0x17_2020] {
                let real = rules.guest_cr4(guest, host);
                assert_eq!(real & 0x40, host & 0x40, "MCE");
                assert_eq!(real & 0x2000, 0x2000, "VMXE");
                assert_eq!(real & !0x2040, guest & !0x40);
                assert!(rules.options().fixed_cr4.accept(real));
            }
        }
    }

    #[test]
    fn entry_accepts_every_cr0_that_is_computed() {
        let unrestricted = rules(HASWELL);
        let restricted = rules(VmxOptions { unrestricted: false, ..HASWELL });
        let bits = [cr0::PE, cr0::MP, cr0::TS, cr0::NE, cr0::WP, cr0::NW, cr0::CD, cr0::PG];
        for n in 0..1u32 << bits.len() {
            let set = |(at, bit): (usize, &u64)| if n >> at & 1 == 1 { *bit } else { 0 };
            let guest = cr0::ET | bits.iter().enumerate().map(set).sum::<u64>();
            let real = unrestricted.guest_cr0(guest).unwrap();
            // NE as FIXED0 demands, caches as the host has them, the rest as the guest has it.
            assert_eq!(real, guest & !(cr0::CD | cr0::NW) | cr0::NE);
            let both = cr0::PE | cr0::PG;
            let expected = (guest & both == both).then_some(real);
            assert_eq!(restricted.guest_cr0(guest).ok(), expected);
        }
    }

    /// Each bit alone, and the owned bits beside it.
    #[test]
    fn an_owned_or_fixed_bit_is_never_the_guests_alone() {
        for bit in 0..64 {
            let bit = 1u64 << bit;
            let cr4 = VmxRules::new(VmxOptions { guest_owned_cr4: bit, ..HASWELL });
            let may = CR4_PASSABLE & HASWELL.supported_cr4 & bit != 0;
            assert_eq!(cr4.err(), (!may).then_some(VmxRulesError::GuestOwnedCr4(bit)));
            assert!(!may || bit & (cr4::MCE | cr4::VMXE) == 0);
            let cr0 = VmxRules::new(VmxOptions { guest_owned_cr0: bit, ..HASWELL });
            let may = CR0_PASSABLE & bit != 0;
            assert_eq!(cr0.err(), (!may).then_some(VmxRulesError::GuestOwnedCr0(bit)));
        }
        let fixed_cr4 = FixedBits::new(0x2004, 0x0017_27ff).unwrap();
        let tsd = VmxOptions { fixed_cr4, guest_owned_cr4: cr4::TSD, ..HASWELL };
        assert_eq!(VmxRules::new(tsd), Err(VmxRulesError::GuestOwnedCr4(cr4::TSD)));
        // The guest reads what it wrote of a bit that must be 1, and runs with it set.
        let rules = rules(VmxOptions { fixed_cr4, ..HASWELL });
        assert_eq!(rules.guest_cr4(0, 0x2000), 0x2004);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let of = |change: fn(&mut VmxOptions)| {
            let mut options = HASWELL;
            change(&mut options);
            VmxRules::new(options).err()
        };
        assert_eq!(of(|_| ()), None);
        assert_eq!(of(|o| o.owned = HostBits::SVM), Some(VmxRulesError::WrongExtension));
        assert_eq!(of(|o| o.host_cr0 &= !cr0::NE), Some(VmxRulesError::HostCr0(cr0::NE)));
        assert_eq!(of(|o| o.host_cr0 |= 1 << 40), Some(VmxRulesError::HostCr0(1 << 40)));
        let no_ne = |o: &mut VmxOptions| {
            o.owned = HostBits::new(Extension::Vmx, cr0::CD, cr4::MCE | cr4::VMXE, 0).unwrap();
        };
        assert_eq!(of(no_ne), Some(VmxRulesError::NotOwned(cr0::NE)));
        let no_cd = |o: &mut VmxOptions| {
            o.fixed_cr0 = FixedBits::new(0x8000_0021, 0xffff_ffff & !cr0::CD).unwrap();
        };
        assert_eq!(of(no_cd), Some(VmxRulesError::Cr0(cr0::CD)));
        let smap = Some(VmxRulesError::Supported(cr4::SMAP));
        assert_eq!(of(|o| o.supported_cr4 |= cr4::SMAP), smap);
        let shown = VmxRulesError::GuestOwnedCr4(cr4::TSD);
        let hidden = |o: &mut VmxOptions| {
            o.supported_cr4 &= !cr4::TSD;
            o.guest_owned_cr4 = cr4::TSD;
        };
        assert_eq!(of(hidden), Some(shown));
    }
}

//! Operands of VMX instructions. A value that exists is one that the instruction accepts on the CPU
//! whose capabilities it was made with.

use core::fmt;

use shootdown_arch::x86_64::LinearAddress;

use super::capability::{Capabilities, EptVpid};

/// The revision of VMXON regions and VMCSs, which their first word holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revision(u32);

impl Revision {
    pub(super) const fn new(revision: u32) -> Self {
        Self(revision)
    }

    /// The number. Bit 31 is clear.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Why memory can't be a VMXON region or a VMCS, or a table be the root of an EPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OperandError {
    /// The address is not aligned to 4096 bytes.
    Misaligned(u64),
    /// The address has more bits than the CPU accepts: this many.
    TooWide {
        /// The address.
        address: u64,
        /// Bits of an address that the CPU accepts.
        bits: u8,
    },
    /// The CPU walks no EPT of this many levels.
    Levels(u8),
    /// The CPU has no accessed and dirty bits in EPTs.
    NoAccessedDirty,
    /// The CPU has no EPT in write-back memory.
    NoWriteBack,
    /// VPID 0 is the host's.
    HostVpid,
    /// The CPU has no INVEPT, or none of its types.
    NoInvept,
    /// The CPU has no INVVPID, or none that would remove what was asked.
    NoInvvpid,
}

impl fmt::Display for OperandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned(address) => {
                write!(f, "{address:#x} is not aligned to 4096 bytes; give a whole page")
            }
            Self::TooWide { address, bits } => {
                write!(f, "{address:#x} has more than {bits} bits; give memory below that")
            }
            Self::Levels(levels) => {
                write!(f, "this CPU walks no EPT of {levels} levels; it has 4, and newer ones 5")
            }
            Self::NoAccessedDirty => {
                f.write_str("this CPU's EPT has no accessed and dirty bits; do without them")
            }
            Self::NoWriteBack => f.write_str("this CPU walks no EPT in write-back memory"),
            Self::HostVpid => f.write_str("VPID 0 is the host's; give a guest another one"),
            Self::NoInvept => f.write_str("this CPU has no INVEPT: it has no EPT either"),
            Self::NoInvvpid => {
                f.write_str("this CPU has no INVVPID; run guests without VPIDs, and entries flush")
            }
        }
    }
}

impl core::error::Error for OperandError {}

const fn page(address: u64, bits: u8) -> Result<u64, OperandError> {
    if address & 0xfff != 0 {
        return Err(OperandError::Misaligned(address));
    }
    if bits < 64 && address >> bits != 0 {
        return Err(OperandError::TooWide { address, bits });
    }
    Ok(address)
}

/// The physical address of a page that VMXON, VMCLEAR and VMPTRLD accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionAddress(u64);

impl RegionAddress {
    /// The page at this physical address, on a CPU with `physical_bits` physical address bits.
    ///
    /// # Errors
    /// [`OperandError::Misaligned`], [`OperandError::TooWide`].
    pub const fn new(
        address: u64,
        physical_bits: u8,
        capabilities: &Capabilities,
    ) -> Result<Self, OperandError> {
        let bits = if capabilities.regions_below_4g() { 32 } else { physical_bits };
        match page(address, bits) {
            Ok(address) => Ok(Self(address)),
            Err(error) => Err(error),
        }
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An EPT pointer: the root of a guest's second-stage tables, and the tag of what they cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Eptp(u64);

impl Eptp {
    /// The tables under the root at this physical address, in write-back memory, of 4 or 5 levels.
    ///
    /// # Errors
    /// [`OperandError`] where an entry with this pointer would be refused.
    pub const fn new(
        root: u64,
        levels: u8,
        accessed_dirty: bool,
        physical_bits: u8,
        capabilities: &Capabilities,
    ) -> Result<Self, OperandError> {
        const WRITE_BACK: u64 = 6;
        let has = capabilities.ept_vpid;
        let root = match page(root, physical_bits) {
            Ok(root) => root,
            Err(error) => return Err(error),
        };
        if !(levels == 4 && has.four_levels() || levels == 5 && has.five_levels()) {
            return Err(OperandError::Levels(levels));
        }
        if accessed_dirty && !has.accessed_dirty() {
            return Err(OperandError::NoAccessedDirty);
        }
        if !has.write_back() {
            return Err(OperandError::NoWriteBack);
        }
        let walk = (levels as u64 - 1) << 3;
        Ok(Self(root | (accessed_dirty as u64) << 6 | walk | WRITE_BACK))
    }

    /// The value of the field.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// A virtual-processor identifier of a guest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vpid(u16);

impl Vpid {
    /// The identifier with this number.
    ///
    /// # Errors
    /// [`OperandError::HostVpid`] for 0.
    pub const fn new(number: u16) -> Result<Self, OperandError> {
        if number == 0 { Err(OperandError::HostVpid) } else { Ok(Self(number)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The memory operand of INVEPT and INVVPID: 128 bits (SDM vol. 3C, 31.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(16))]
pub struct Descriptor([u64; 2]);

impl Descriptor {
    /// The two halves, low half first, unchecked: for an instruction that is to fail.
    #[must_use]
    pub const fn from_raw(low: u64, high: u64) -> Self {
        Self([low, high])
    }

    /// The two halves, low half first.
    #[must_use]
    pub const fn raw(self) -> [u64; 2] {
        self.0
    }
}

/// One INVEPT operation. It removes guest-physical and combined entries, of the executing CPU
/// alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invept {
    /// Type 1: entries of one EPT pointer.
    Single(Eptp),
    /// Type 2: entries of every EPT pointer.
    All,
}

impl Invept {
    /// The narrowest operation of the CPU that removes at least what this one does.
    ///
    /// # Errors
    /// [`OperandError::NoInvept`] where there is none.
    pub const fn on(self, has: EptVpid) -> Result<Self, OperandError> {
        match self {
            Self::Single(_) if has.invept(1) => Ok(self),
            _ if has.invept(2) => Ok(Self::All),
            _ => Err(OperandError::NoInvept),
        }
    }

    /// The type: the register operand.
    #[must_use]
    pub const fn kind(self) -> u64 {
        match self {
            Self::Single(_) => 1,
            Self::All => 2,
        }
    }

    /// The memory operand.
    #[must_use]
    pub const fn descriptor(self) -> Descriptor {
        match self {
            Self::Single(eptp) => Descriptor([eptp.bits(), 0]),
            Self::All => Descriptor([0, 0]),
        }
    }
}

/// One INVVPID operation. It removes linear and combined entries, of the executing CPU alone;
/// guest-physical entries stay (SDM vol. 3C, 29.4.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invvpid {
    /// Type 0: entries for one linear address under one VPID.
    Address(Vpid, LinearAddress),
    /// Type 1: entries of one VPID.
    Context(Vpid),
    /// Type 2: entries of every VPID but 0.
    All,
    /// Type 3: entries of one VPID, global ones excepted.
    ContextButGlobals(Vpid),
}

impl Invvpid {
    /// The narrowest operation of the CPU that removes at least what this one does. Each type may
    /// be missing.
    ///
    /// # Errors
    /// [`OperandError::NoInvvpid`] where there is none.
    pub const fn on(self, has: EptVpid) -> Result<Self, OperandError> {
        if has.invvpid(self.kind()) {
            return Ok(self);
        }
        let vpid = match self {
            Self::Address(vpid, _) | Self::Context(vpid) | Self::ContextButGlobals(vpid) => vpid,
            Self::All => return Err(OperandError::NoInvvpid),
        };
        if has.invvpid(1) {
            Ok(Self::Context(vpid))
        } else if has.invvpid(2) {
            Ok(Self::All)
        } else {
            Err(OperandError::NoInvvpid)
        }
    }

    /// The type: the register operand.
    #[must_use]
    pub const fn kind(self) -> u64 {
        match self {
            Self::Address(..) => 0,
            Self::Context(_) => 1,
            Self::All => 2,
            Self::ContextButGlobals(_) => 3,
        }
    }

    /// The memory operand: the VPID in bits 15:0, the address in bits 127:64, everything else 0.
    #[must_use]
    pub const fn descriptor(self) -> Descriptor {
        match self {
            Self::Address(vpid, address) => Descriptor([vpid.get() as u64, address.get()]),
            Self::Context(vpid) | Self::ContextButGlobals(vpid) => {
                Descriptor([vpid.get() as u64, 0])
            }
            Self::All => Descriptor([0, 0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_arch::x86_64::LinearWidth;

    fn capabilities(ept_vpid: u64, basic: u64) -> Capabilities {
        Capabilities::gather(|number| match number {
            0x480 => basic,
            0x48c => ept_vpid,
            _ => u64::MAX << 32,
        })
    }

    #[test]
    fn regions_are_whole_pages_within_the_cpus_width() {
        let new = |address, bits, basic| RegionAddress::new(address, bits, &capabilities(0, basic));
        assert_eq!(new(0x12_3000, 39, 0).map(RegionAddress::get), Ok(0x12_3000));
        assert_eq!(new(0x12_3010, 39, 0), Err(OperandError::Misaligned(0x12_3010)));
        let wide = 1 << 39;
        assert_eq!(new(wide, 39, 0), Err(OperandError::TooWide { address: wide, bits: 39 }));
        let high = 1 << 32;
        assert_eq!(new(high, 39, 1 << 48), Err(OperandError::TooWide { address: high, bits: 32 }));
    }

    #[test]
    fn an_ept_pointer_has_what_the_cpu_has() {
        let haswell = capabilities(0xf01_0633_4141, 0);
        assert_eq!(Eptp::new(0x5000, 4, true, 39, &haswell).map(Eptp::bits), Ok(0x505e));
        assert_eq!(Eptp::new(0x5000, 4, false, 39, &haswell).map(Eptp::bits), Ok(0x501e));
        assert_eq!(Eptp::new(0x5000, 5, false, 39, &haswell), Err(OperandError::Levels(5)));
        assert_eq!(
            Eptp::new(0x5008, 4, false, 39, &haswell),
            Err(OperandError::Misaligned(0x5008))
        );
        let plain = capabilities(0xf01_0633_4141 & !(1 << 21), 0);
        assert_eq!(Eptp::new(0x5000, 4, true, 39, &plain), Err(OperandError::NoAccessedDirty));
    }

    #[test]
    fn a_missing_type_becomes_a_wider_one() {
        let vpid = Vpid::new(7).unwrap();
        let address =
            Invvpid::Address(vpid, LinearAddress::new(0x4000, LinearWidth::Bits48).unwrap());
        let exists = 1u64 << 32;
        let types = |kinds: &[u64]| {
            EptVpid::from_bits(exists | kinds.iter().fold(0, |bits, kind| bits | 1 << (40 + kind)))
        };
        assert_eq!(address.on(types(&[0, 1, 2, 3])), Ok(address));
        assert_eq!(address.on(types(&[1, 2])), Ok(Invvpid::Context(vpid)));
        // Type 3 leaves global entries, so it is no replacement.
        assert_eq!(address.on(types(&[2, 3])), Ok(Invvpid::All));
        assert_eq!(Invvpid::ContextButGlobals(vpid).on(types(&[1])), Ok(Invvpid::Context(vpid)));
        assert_eq!(Invvpid::All.on(types(&[0, 1, 3])), Err(OperandError::NoInvvpid));
        assert_eq!(address.on(EptVpid::default()), Err(OperandError::NoInvvpid));
        assert_eq!(Invept::All.on(EptVpid::from_bits(1 << 20 | 1 << 26)), Ok(Invept::All));
        assert_eq!(
            Invept::All.on(EptVpid::from_bits(1 << 20 | 1 << 25)),
            Err(OperandError::NoInvept)
        );
    }

    #[test]
    fn a_descriptor_is_sixteen_bytes_with_reserved_bits_clear() {
        assert_eq!(size_of::<Descriptor>(), 16);
        let vpid = Vpid::new(0xffff).unwrap();
        let address = LinearAddress::new(0x1234_5000, LinearWidth::Bits48).unwrap();
        assert_eq!(Invvpid::Address(vpid, address).descriptor().raw(), [0xffff, 0x1234_5000]);
        assert_eq!(Vpid::new(0), Err(OperandError::HostVpid));
    }
}

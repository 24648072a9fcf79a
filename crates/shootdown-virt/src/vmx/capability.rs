//! What a CPU's VMX can do: IA32_VMX_* (SDM vol. 3D, appendix A), decoded from register values.

use core::fmt;

use crate::host_bits::FixedBits;

/// Numbers of the model-specific registers.
mod msr {
    pub const BASIC: u32 = 0x480;
    pub const PIN: u32 = 0x481;
    pub const PROCESSOR: u32 = 0x482;
    pub const EXIT: u32 = 0x483;
    pub const ENTRY: u32 = 0x484;
    pub const MISC: u32 = 0x485;
    pub const CR0_FIXED0: u32 = 0x486;
    pub const CR0_FIXED1: u32 = 0x487;
    pub const CR4_FIXED0: u32 = 0x488;
    pub const CR4_FIXED1: u32 = 0x489;
    pub const SECONDARY: u32 = 0x48b;
    pub const EPT_VPID: u32 = 0x48c;
    /// From here on the four above once more, without the controls that older CPUs force to 1.
    pub const TRUE_PIN: u32 = 0x48d;
    pub const TRUE_PROCESSOR: u32 = 0x48e;
    pub const TRUE_EXIT: u32 = 0x48f;
    pub const TRUE_ENTRY: u32 = 0x490;
}

/// Which bits of a field of controls may be 0, and which may be 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Controls {
    /// Bits that must be 1.
    pub forced: u32,
    /// Bits that may be 1.
    pub allowed: u32,
}

/// The CPU does not have these controls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingControls(pub u32);

impl fmt::Display for MissingControls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this CPU does not have the controls {:#x}; do without them", self.0)
    }
}

impl core::error::Error for MissingControls {}

impl Controls {
    const fn of(raw: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "two halves of 32 bits")]
        Self { forced: raw as u32, allowed: (raw >> 32) as u32 }
    }

    /// The value of the field that has `wanted`, and beyond that only what the CPU forces.
    ///
    /// # Errors
    /// [`MissingControls`] names those of `wanted` that this CPU does not have.
    pub const fn with(self, wanted: u32) -> Result<u32, MissingControls> {
        let missing = wanted & !self.allowed;
        if missing != 0 {
            return Err(MissingControls(missing));
        }
        Ok(wanted | self.forced)
    }

    /// May all of these be 1?
    #[must_use]
    pub const fn has(self, controls: u32) -> bool {
        controls & !self.allowed == 0
    }
}

/// The invalidations that a CPU has (IA32_VMX_EPT_VPID_CAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EptVpid(u64);

impl EptVpid {
    /// From the value of IA32_VMX_EPT_VPID_CAP; 0 where the CPU has neither.
    #[must_use]
    pub const fn from_bits(raw: u64) -> Self {
        Self(raw)
    }

    const fn bit(self, number: u32) -> bool {
        self.0 >> number & 1 != 0
    }

    /// Walks of four levels.
    #[must_use]
    pub const fn four_levels(self) -> bool {
        self.bit(6)
    }

    /// Walks of five levels.
    #[must_use]
    pub const fn five_levels(self) -> bool {
        self.bit(7)
    }

    /// Tables in write-back memory.
    #[must_use]
    pub const fn write_back(self) -> bool {
        self.bit(14)
    }

    /// Leaves of 2 MiB.
    #[must_use]
    pub const fn leaves_2m(self) -> bool {
        self.bit(16)
    }

    /// Leaves of 1 GiB.
    #[must_use]
    pub const fn leaves_1g(self) -> bool {
        self.bit(17)
    }

    /// Accessed and dirty bits in the tables.
    #[must_use]
    pub const fn accessed_dirty(self) -> bool {
        self.bit(21)
    }

    /// INVEPT exists, with this type.
    #[must_use]
    pub const fn invept(self, kind: u64) -> bool {
        self.bit(20)
            && match kind {
                1 => self.bit(25),
                2 => self.bit(26),
                _ => false,
            }
    }

    /// INVVPID exists, with this type.
    #[must_use]
    pub const fn invvpid(self, kind: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "at most 3")]
        let bit = kind as u32;
        kind <= 3 && self.bit(32) && self.bit(40 + bit)
    }
}

/// What VMX can do on a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    basic: u64,
    misc: u64,
    /// Pin-based controls.
    pub pin: Controls,
    /// Primary processor-based controls.
    pub processor: Controls,
    /// Secondary processor-based controls; nothing where there are none.
    pub secondary: Controls,
    /// VM-exit controls.
    pub exit: Controls,
    /// VM-entry controls.
    pub entry: Controls,
    /// Bits of CR0.
    pub cr0: FixedBits,
    /// Bits of CR4.
    pub cr4: FixedBits,
    /// INVEPT and INVVPID.
    pub ept_vpid: EptVpid,
}

/// A pair of registers. A bit that must be 1 may be 1, whatever the second register reports.
const fn fixed(fixed0: u64, fixed1: u64) -> FixedBits {
    match FixedBits::new(fixed0, fixed1 | fixed0) {
        Ok(bits) => bits,
        Err(_) => unreachable!(),
    }
}

/// Primary control: there are secondary ones.
const SECONDARY: u32 = 1 << 31;
/// Secondary controls: EPT, VPID.
const ENABLE_EPT: u32 = 1 << 1;
const ENABLE_VPID: u32 = 1 << 5;

impl Capabilities {
    /// Asks `read(msr)` for each register that exists.
    pub fn gather(mut read: impl FnMut(u32) -> u64) -> Self {
        let basic = read(msr::BASIC);
        // Bit 55: the registers with "true" in their names exist.
        let exact = basic >> 55 & 1 != 0;
        let mut controls = |old: u32, new: u32| Controls::of(read(if exact { new } else { old }));
        let pin = controls(msr::PIN, msr::TRUE_PIN);
        let processor = controls(msr::PROCESSOR, msr::TRUE_PROCESSOR);
        let exit = controls(msr::EXIT, msr::TRUE_EXIT);
        let entry = controls(msr::ENTRY, msr::TRUE_ENTRY);
        let secondary = if processor.has(SECONDARY) {
            Controls::of(read(msr::SECONDARY))
        } else {
            Controls::default()
        };
        let either = secondary.has(ENABLE_EPT) || secondary.has(ENABLE_VPID);
        let ept_vpid = EptVpid(if either { read(msr::EPT_VPID) } else { 0 });
        Self {
            basic,
            misc: read(msr::MISC),
            pin,
            processor,
            secondary,
            exit,
            entry,
            cr0: fixed(read(msr::CR0_FIXED0), read(msr::CR0_FIXED1)),
            cr4: fixed(read(msr::CR4_FIXED0), read(msr::CR4_FIXED1)),
            ept_vpid,
        }
    }

    /// Those of the executing CPU.
    ///
    /// # Safety
    /// The CPU is at privilege level 0 and has VMX (CPUID.1:ECX\[5\]).
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub unsafe fn of_this_cpu() -> Self {
        // SAFETY: the registers exist where VMX does, in the cases in which `gather` asks for them.
        Self::gather(|number| unsafe { crate::msr::read(number) })
    }

    /// The revision that VMXON regions and VMCSs carry.
    #[must_use]
    pub const fn revision(&self) -> super::Revision {
        #[allow(clippy::cast_possible_truncation, reason = "bits 30:0")]
        super::Revision::new(self.basic as u32 & 0x7fff_ffff)
    }

    /// Physical addresses of regions have 32 bits at most.
    #[must_use]
    pub const fn regions_below_4g(&self) -> bool {
        self.basic >> 48 & 1 != 0
    }

    /// VMWRITE changes read-only fields too.
    #[must_use]
    pub const fn writes_all_fields(&self) -> bool {
        self.misc >> 29 & 1 != 0
    }

    /// EPT is there.
    #[must_use]
    pub const fn ept(&self) -> bool {
        self.secondary.has(ENABLE_EPT)
    }

    /// VPIDs are there.
    #[must_use]
    pub const fn vpid(&self) -> bool {
        self.secondary.has(ENABLE_VPID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Bochs 2.7 as a Haswell, and as a Penryn, which has neither EPT nor VPID.
    const HASWELL_EPT_VPID: u64 = 0xf01_0633_4141;

    #[test]
    fn controls_that_are_missing_are_named() {
        let controls = Controls::of(0x0000_00ff_0000_0016);
        assert_eq!(controls.with(0x1), Ok(0x17));
        assert_eq!(controls.with(0x301), Err(MissingControls(0x300)));
        assert!(controls.has(0xff) && !controls.has(0x100));
    }

    #[test]
    fn invalidations_are_had_by_type() {
        let all = EptVpid::from_bits(HASWELL_EPT_VPID);
        assert!(all.invept(1) && all.invept(2) && !all.invept(0) && !all.invept(3));
        assert!((0..=3).all(|kind| all.invvpid(kind)) && !all.invvpid(4));
        let none = EptVpid::default();
        assert!((0..8).all(|kind| !none.invept(kind) && !none.invvpid(kind)));
        // The types without the instruction count for nothing.
        let types = EptVpid::from_bits(HASWELL_EPT_VPID & !(1 << 20 | 1 << 32));
        assert!((0..8).all(|kind| !types.invept(kind) && !types.invvpid(kind)));
    }

    #[test]
    fn registers_that_need_not_exist_are_not_read() {
        // A CPU without secondary controls and without the exact registers.
        let capabilities = Capabilities::gather(|number| match number {
            msr::BASIC => 0x0018_1000_0000_0012,
            msr::PROCESSOR => 0x7fff_ffff_0401_e172,
            msr::SECONDARY | msr::EPT_VPID | msr::TRUE_PIN..=msr::TRUE_ENTRY => {
                panic!("{number:#x} does not exist")
            }
            _ => 0,
        });
        assert_eq!(capabilities.revision().get(), 0x12);
        assert!(!capabilities.ept() && !capabilities.vpid());
    }
}

//! What CPUID says about translation, decoded from register values.
//!
//! | leaf | register | bits | fact |
//! |---|---|---|---|
//! | 0 | ebx, edx, ecx | | vendor |
//! | 1 | eax | | family, model, stepping |
//! | 1 | ecx | 17 | PCID |
//! | 1 | ecx | 31 | a hypervisor is present |
//! | 1 | edx | 13 | global pages |
//! | 7.0 | ebx | 10 | INVPCID |
//! | 7.0 | ecx | 16 | five-level tables |
//! | 8000_0001 | ecx | 17 | translation cache extension (AMD) |
//! | 8000_0008 | eax | 7:0, 15:8 | physical, linear address bits |
//! | 8000_0008 | ebx | 3, 21 | INVLPGB, INVLPGB of nested translations (AMD) |
//! | 8000_0008 | edx | 15:0 | INVLPGB pages beyond the first (AMD) |
//! | 8000_000A | ebx | | number of ASIDs (AMD, with SVM) |
//!
//! (SDM vol. 2A, CPUID; APM vol. 3, appendix E.) Decoding is a pure function, so that a dump of any
//! CPU can be tested anywhere; [`Leaves::gather`] asks only for leaves that exist, because Intel
//! CPUs answer a leaf beyond the last with the data of the last.
//!
//! Two CPUs are known to claim what they lack, and both are corrected here: see
//! [`Features::invlpgb`] and [`Features::may_spare_globals`].

/// The four registers of one CPUID leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// eax.
    pub eax: u32,
    /// ebx.
    pub ebx: u32,
    /// ecx.
    pub ecx: u32,
    /// edx.
    pub edx: u32,
}

/// The leaves [`Features::decode`] reads; a leaf the CPU lacks is all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Leaves {
    /// Leaf 0: vendor.
    pub vendor: Registers,
    /// Leaf 1: signature and features.
    pub basic: Registers,
    /// Leaf 7, sub-leaf 0: features.
    pub structured: Registers,
    /// Leaf 8000_0001: features.
    pub extended: Registers,
    /// Leaf 8000_0008: address widths, INVLPGB.
    pub addresses: Registers,
    /// Leaf 8000_000A: SVM.
    pub svm: Registers,
}

impl Leaves {
    /// Asks `cpuid(leaf, subleaf)` for every leaf that exists.
    pub fn gather(mut cpuid: impl FnMut(u32, u32) -> Registers) -> Self {
        let vendor = cpuid(0, 0);
        let last_extended = cpuid(0x8000_0000, 0).eax;
        let mut leaf = |number: u32| {
            // Without extended leaves the answer to 8000_0000 is something else entirely.
            let extended = number >= 0x8000_0000 && last_extended >= 0x8000_0000;
            let last = if extended { last_extended } else { vendor.eax };
            if number <= last { cpuid(number, 0) } else { Registers::default() }
        };
        let (basic, structured) = (leaf(1), leaf(7));
        let extended = leaf(0x8000_0001);
        let addresses = leaf(0x8000_0008);
        // Without SVM (8000_0001 ecx bit 2) the leaf is reserved.
        let svm = if extended.ecx & 1 << 2 != 0 { leaf(0x8000_000a) } else { Registers::default() };
        Self { vendor, basic, structured, extended, addresses, svm }
    }

    /// The leaves of the CPU this runs on.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn of_this_cpu() -> Self {
        Self::gather(|leaf, subleaf| {
            // SAFETY: every x86-64 CPU has CPUID, at any privilege level.
            #[allow(unused_unsafe, reason = "the intrinsic is safe from Rust 1.94 on")]
            let r = unsafe { core::arch::x86_64::__cpuid_count(leaf, subleaf) };
            Registers { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx }
        })
    }
}

/// Who made the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Anyone else.
    Other,
}

/// What matters about a CPU's translation hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Who made it.
    pub vendor: Vendor,
    /// Display family.
    pub family: u16,
    /// Display model.
    pub model: u8,
    /// PCIDs exist.
    pub pcid: bool,
    /// Global pages exist.
    pub pge: bool,
    /// INVPCID exists.
    pub invpcid: bool,
    /// Five-level tables exist.
    pub la57: bool,
    /// Physical address bits.
    pub physical_bits: u8,
    /// Linear address bits.
    pub linear_bits: u8,
    /// Pages one INVLPGB can name (the count CPUID gives, plus one); `None` without INVLPGB.
    ///
    /// Only believed on AMD family 19h and later: some family 17h parts set the bit without having
    /// the instruction.
    pub invlpgb: Option<u32>,
    /// INVLPGB can name nested translations.
    pub invlpgb_nested: bool,
    /// Number of ASIDs, the host's included; 1 without SVM.
    pub asids: u32,
    /// The translation cache extension (`EFER.TCE`) exists.
    pub tce: bool,
    /// Runs under a hypervisor.
    pub hypervisor: bool,
}

impl Features {
    /// Decodes the leaves.
    #[must_use]
    pub const fn decode(leaves: &Leaves) -> Self {
        let vendor = vendor(&leaves.vendor);
        let (family, model) = signature(leaves.basic.eax);
        let extended = leaves.addresses;
        let has_invlpgb = bit(extended.ebx, 3) && matches!(vendor, Vendor::Amd) && family >= 0x19;
        // Without the leaf: SDM vol. 3A, 4.1.4.
        let (physical, linear) = if extended.eax == 0 {
            (36, 48)
        } else {
            ((extended.eax & 0xff) as u8, (extended.eax >> 8 & 0xff) as u8)
        };
        Self {
            vendor,
            family,
            model,
            pcid: bit(leaves.basic.ecx, 17),
            pge: bit(leaves.basic.edx, 13),
            invpcid: bit(leaves.structured.ebx, 10),
            la57: bit(leaves.structured.ecx, 16),
            physical_bits: physical,
            linear_bits: linear,
            invlpgb: if has_invlpgb { Some((extended.edx & 0xffff) + 1) } else { None },
            invlpgb_nested: has_invlpgb && bit(extended.ebx, 21),
            asids: if leaves.svm.ebx == 0 { 1 } else { leaves.svm.ebx },
            tce: bit(leaves.extended.ecx, 17) && matches!(vendor, Vendor::Amd),
            hypervisor: bit(leaves.basic.ecx, 31),
        }
    }

    /// Is this one of the CPUs whose INVLPG may leave global entries behind while PCIDs are on?
    ///
    /// Intel 12th and 13th generation Core and their efficiency-core relatives; newer microcode
    /// repairs it. Where this is `true` and the microcode is not known to be repaired, a port sets
    /// [`super::Options::page_spares_globals`] and does without PCIDs.
    #[must_use]
    pub const fn may_spare_globals(&self) -> bool {
        matches!(self.vendor, Vendor::Intel)
            && self.family == 6
            && matches!(self.model, 0x97 | 0x9a | 0xbe | 0xb7 | 0xba | 0xbf)
    }
}

const fn bit(register: u32, number: u32) -> bool {
    register >> number & 1 != 0
}

const fn vendor(leaf: &Registers) -> Vendor {
    const fn name(part: &[u8; 4]) -> u32 {
        u32::from_le_bytes(*part)
    }
    let intel = leaf.ebx == name(b"Genu") && leaf.edx == name(b"ineI") && leaf.ecx == name(b"ntel");
    let amd = leaf.ebx == name(b"Auth") && leaf.edx == name(b"enti") && leaf.ecx == name(b"cAMD");
    if intel {
        Vendor::Intel
    } else if amd {
        Vendor::Amd
    } else {
        Vendor::Other
    }
}

/// Display family and model of a leaf-1 signature.
const fn signature(eax: u32) -> (u16, u8) {
    let family = eax >> 8 & 0xf;
    let model = eax >> 4 & 0xf;
    let display_family = if family == 0xf { family + (eax >> 20 & 0xff) } else { family };
    let display_model = if family == 6 || family == 0xf { model | eax >> 12 & 0xf0 } else { model };
    (display_family as u16, display_model as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: Registers =
        Registers { eax: 0x20, ebx: 0x756e_6547, ecx: 0x6c65_746e, edx: 0x4965_6e69 };
    const AMD: Registers =
        Registers { eax: 0x10, ebx: 0x6874_7541, ecx: 0x444d_4163, edx: 0x6974_6e65 };

    fn decoded(vendor: Registers, edit: impl FnOnce(&mut Leaves)) -> Features {
        let mut leaves = Leaves { vendor, ..Leaves::default() };
        edit(&mut leaves);
        Features::decode(&leaves)
    }

    #[test]
    fn each_fact_comes_from_its_bit_alone() {
        for number in 0..32 {
            let one = 1u32 << number;
            let ecx = decoded(INTEL, |l| l.basic.ecx = one);
            assert_eq!((ecx.pcid, ecx.hypervisor), (number == 17, number == 31));
            let edx = decoded(INTEL, |l| l.basic.edx = one);
            assert_eq!(edx.pge, number == 13);
            assert_eq!(decoded(INTEL, |l| l.structured.ebx = one).invpcid, number == 10);
            assert_eq!(decoded(INTEL, |l| l.structured.ecx = one).la57, number == 16);
            assert_eq!(decoded(AMD, |l| l.extended.ecx = one).tce, number == 17);
            let zen3 = decoded(AMD, |l| {
                l.basic.eax = 0x00a0_0f11;
                l.addresses.ebx = one;
                l.addresses.edx = 7;
            });
            assert_eq!(zen3.invlpgb, (number == 3).then_some(8));
            assert!(!zen3.invlpgb_nested, "not without INVLPGB itself");
        }
    }

    #[test]
    fn the_page_count_is_one_more_than_the_field_for_every_value() {
        for field in 0..=u32::from(u16::MAX) {
            let features = decoded(AMD, |l| {
                l.basic.eax = 0x00a1_0f11;
                l.addresses.ebx = 1 << 3 | 1 << 21;
                l.addresses.edx = 0xabcd_0000 | field;
            });
            assert_eq!(features.invlpgb, Some(field + 1));
            assert!(features.invlpgb_nested);
        }
    }

    /// Signatures as in published CPUID dumps.
    #[test]
    fn signatures_of_known_cpus() {
        for (eax, family, model) in [
            (0x0003_06f2, 0x06, 0x3f), // Haswell-EP
            (0x0005_06e3, 0x06, 0x5e), // Skylake client
            (0x0009_0672, 0x06, 0x97), // Alder Lake
            (0x0080_0f11, 0x17, 0x01), // Naples
            (0x0083_0f10, 0x17, 0x31), // Rome
            (0x00a0_0f11, 0x19, 0x01), // Milan
            (0x00a1_0f11, 0x19, 0x11), // Genoa
            (0x00b0_0f21, 0x1a, 0x02), // Turin
        ] {
            assert_eq!(signature(eax), (family, model), "{eax:#x}");
        }
    }

    #[test]
    fn false_claims_are_not_believed() {
        let claim = |vendor, eax| {
            decoded(vendor, |l| {
                l.basic.eax = eax;
                l.addresses.ebx = 1 << 3;
                l.addresses.edx = 7;
            })
        };
        assert_eq!(claim(AMD, 0x0087_0f10).invlpgb, None, "a Zen 2 client part");
        assert_eq!(claim(AMD, 0x00a2_0f10).invlpgb, Some(8));
        assert_eq!(claim(INTEL, 0x000a_0f11).invlpgb, None);
        assert!(claim(INTEL, 0x0009_0672).may_spare_globals());
        assert!(!claim(INTEL, 0x0005_06e3).may_spare_globals());
        assert!(!claim(AMD, 0x0009_0672).may_spare_globals());
    }

    #[test]
    fn leaves_that_do_not_exist_are_not_asked_for() {
        let mut asked = std::vec::Vec::new();
        let leaves = Leaves::gather(|leaf, _| {
            asked.push(leaf);
            match leaf {
                0 => Registers { eax: 1, ..INTEL },
                0x8000_0000 => Registers { eax: 0x8000_0004, ..Registers::default() },
                _ => Registers { eax: 9, ebx: u32::MAX, ecx: 0, edx: 0 },
            }
        });
        assert_eq!(asked, [0, 0x8000_0000, 1, 0x8000_0001]);
        assert_eq!(leaves.structured, Registers::default());
        let features = Features::decode(&leaves);
        assert_eq!((features.physical_bits, features.linear_bits), (36, 48));
        assert_eq!(features.asids, 1);
        // A CPU without any extended leaf answers with anything below 8000_0000.
        let leaves = Leaves::gather(|leaf, _| match leaf {
            0 => Registers { eax: 7, ..INTEL },
            0x8000_0000 => Registers { eax: 0x123, ..Registers::default() },
            1 | 7 => Registers::default(),
            other => panic!("leaf {other:#x} does not exist"),
        });
        assert_eq!(leaves.addresses, Registers::default());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_host_has_a_plausible_answer() {
        let features = Features::decode(&Leaves::of_this_cpu());
        assert!((32..=52).contains(&features.physical_bits));
        assert!([48, 57].contains(&features.linear_bits));
        assert!(features.pge, "every x86-64 CPU has global pages");
    }
}

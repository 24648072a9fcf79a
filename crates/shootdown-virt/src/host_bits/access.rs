//! Decodes what the guest did to a control register from what the exit reports.
//!
//! | source | what it reports |
//! |---|---|
//! | VMX exit 28, exit qualification (SDM 3C table 29-3) | register 3:0, kind 5:4, general register 11:8, LMSW's source 31:16 |
//! | SVM exit codes 0x00 to 0x1f, with decode assists: EXITINFO1 (APM 2 15.33.1) | bit 63 for MOV, general register 3:0; CLTS and LMSW leave bit 63 clear |
//! | the instruction's bytes, on a CPU without decode assists | everything, and its length |

use core::fmt;

/// A general register, as instructions number them: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to
/// R15.
///
/// The guest's RSP is in the VMCS (GUEST_RSP), and RSP and RAX are in the VMCB, not with the other
/// registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gpr(u8);

impl Gpr {
    /// Bits 3:0 of a number.
    const fn of(bits: u64) -> Self {
        Self((bits & 0xf) as u8)
    }

    /// The register with this number, of 16.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < 16 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// It is RSP.
    #[must_use]
    pub const fn is_rsp(self) -> bool {
        self.0 == 4
    }
}

/// A control register that can exit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ControlRegister {
    /// CR0.
    Cr0,
    /// CR2.
    Cr2,
    /// CR3.
    Cr3,
    /// CR4.
    Cr4,
    /// CR8.
    Cr8,
}

impl ControlRegister {
    const fn of(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Cr0,
            2 => Self::Cr2,
            3 => Self::Cr3,
            4 => Self::Cr4,
            8 => Self::Cr8,
            _ => return None,
        })
    }
}

/// What the guest did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrAccess {
    /// MOV to the control register.
    Write(ControlRegister, Gpr),
    /// MOV from it.
    Read(ControlRegister, Gpr),
    /// CLTS: clears CR0.TS.
    Clts,
    /// LMSW: loads the low bits of CR0.
    Lmsw {
        /// Where the operand is.
        source: LmswSource,
    },
}

/// Where LMSW takes its operand from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LmswSource {
    /// The exit reports the value.
    Value(u16),
    /// The low 16 bits of a general register.
    Register(Gpr),
}

impl CrAccess {
    /// The general register that the access takes its operand from.
    #[must_use]
    pub const fn source(self) -> Option<Gpr> {
        match self {
            Self::Write(_, gpr) | Self::Lmsw { source: LmswSource::Register(gpr) } => Some(gpr),
            _ => None,
        }
    }
}

/// Why an access can't be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CrAccessError {
    /// A control register that does not exist.
    Register(u8),
    /// The exit is about something else.
    OtherExit(u64),
    /// The exit does not say which instruction it was.
    NeedsInstruction,
    /// The bytes are no instruction that this module decodes.
    OtherInstruction,
}

impl fmt::Display for CrAccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(number) => {
                write!(f, "there is no CR{number}; pass the exit's own information")
            }
            Self::OtherExit(code) => {
                write!(f, "exit {code:#x} is no access to a control register; handle it elsewhere")
            }
            Self::NeedsInstruction => {
                f.write_str("the CPU did not decode it; pass the bytes at the guest's RIP")
            }
            Self::OtherInstruction => f.write_str(
                "the bytes are no MOV, CLTS or LMSW of a register; emulate the instruction",
            ),
        }
    }
}

impl core::error::Error for CrAccessError {}

impl CrAccess {
    /// From the exit qualification of VMX exit 28.
    ///
    /// # Errors
    /// [`CrAccessError::Register`] if it is no such qualification.
    pub const fn from_qualification(qualification: u64) -> Result<Self, CrAccessError> {
        let number = qualification & 0xf;
        let gpr = Gpr::of(qualification >> 8);
        let Some(register) = ControlRegister::of(number) else {
            return Err(CrAccessError::Register(number as u8));
        };
        Ok(match qualification >> 4 & 3 {
            0 => Self::Write(register, gpr),
            1 => Self::Read(register, gpr),
            2 => Self::Clts,
            _ => Self::Lmsw { source: LmswSource::Value((qualification >> 16) as u16) },
        })
    }

    /// From an exit code of SVM and EXITINFO1. `decode_assists` is CPUID 8000_000A EDX\[7\].
    ///
    /// # Errors
    /// [`CrAccessError::NeedsInstruction`] without decode assists, and for CLTS, LMSW and SMSW;
    /// [`CrAccessError::OtherExit`] and [`CrAccessError::Register`] for other codes.
    pub const fn from_svm(
        code: u64,
        info1: u64,
        decode_assists: bool,
    ) -> Result<Self, CrAccessError> {
        if code >= 0x20 {
            return Err(CrAccessError::OtherExit(code));
        }
        let Some(register) = ControlRegister::of(code & 0xf) else {
            return Err(CrAccessError::Register((code & 0xf) as u8));
        };
        if !decode_assists || info1 >> 63 == 0 {
            return Err(CrAccessError::NeedsInstruction);
        }
        let gpr = Gpr::of(info1);
        Ok(if code < 0x10 { Self::Read(register, gpr) } else { Self::Write(register, gpr) })
    }

    /// From the bytes at the guest's RIP, and whether they are 64-bit code: the access and the
    /// length of the instruction.
    ///
    /// It decodes MOV to and from control registers, CLTS, and LMSW of a register. A LOCK prefix of
    /// MOV CR0 is AMD's way to CR8 in 32-bit code (APM 3 "MOV CRn").
    ///
    /// # Errors
    /// [`CrAccessError::OtherInstruction`] for other bytes, or if they end early.
    pub fn from_instruction(bytes: &[u8], code64: bool) -> Result<(Self, usize), CrAccessError> {
        /// An instruction is at most this long (SDM 2A 2.3.11).
        const LONGEST: usize = 15;
        let other = CrAccessError::OtherInstruction;
        let mut at = 0;
        let mut next = || -> Result<u8, CrAccessError> {
            let byte = bytes.iter().take(LONGEST).nth(at).copied().ok_or(other)?;
            at += 1;
            Ok(byte)
        };
        let (mut rex, mut lock) = (0, false);
        let opcode = loop {
            match next()? {
                byte @ 0x40..=0x4f if code64 => rex = byte,
                // Segments, operand and address size, REPNE and REP have no meaning here. A REX
                // that is not the last prefix is ignored.
                0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 => rex = 0,
                0xf0 => (rex, lock) = (0, true),
                0x0f => break next()?,
                _ => return Err(other),
            }
        };
        let access = match opcode {
            0x06 if !lock => Self::Clts,
            0x01 if !lock => {
                let modrm = next()?;
                // LMSW is /6; a memory operand would have to be fetched.
                if modrm >> 3 & 7 != 6 || modrm >> 6 != 3 {
                    return Err(other);
                }
                let gpr = Gpr::of(u64::from(modrm & 7 | (rex & 1) << 3));
                Self::Lmsw { source: LmswSource::Register(gpr) }
            }
            0x20 | 0x22 => {
                // The two upper bits are taken as 11 whatever they are.
                let modrm = next()?;
                let gpr = Gpr::of(u64::from(modrm & 7 | (rex & 1) << 3));
                let number = modrm >> 3 & 7 | (rex >> 2 & 1) << 3;
                let number = match (lock, number) {
                    (false, number) => number,
                    (true, 0) => 8,
                    (true, _) => return Err(other),
                };
                let register = ControlRegister::of(u64::from(number)).ok_or(other)?;
                if opcode == 0x20 { Self::Read(register, gpr) } else { Self::Write(register, gpr) }
            }
            _ => return Err(other),
        };
        Ok((access, at))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const REGISTERS: [(u64, ControlRegister); 5] = [
        (0, ControlRegister::Cr0),
        (2, ControlRegister::Cr2),
        (3, ControlRegister::Cr3),
        (4, ControlRegister::Cr4),
        (8, ControlRegister::Cr8),
    ];

    #[test]
    fn every_qualification_of_exit_28_is_decoded_and_no_other() {
        for (number, register) in REGISTERS {
            for gpr in 0..16 {
                // Bits that are not defined are set as well.
                for noise in [0, 0xffff_ffff_0000_f080] {
                    let of = |kind: u64| {
                        CrAccess::from_qualification(number | kind << 4 | gpr << 8 | noise)
                    };
                    let gpr = Gpr::of(gpr);
                    assert_eq!(of(0), Ok(CrAccess::Write(register, gpr)));
                    assert_eq!(of(1), Ok(CrAccess::Read(register, gpr)));
                }
            }
        }
        for source in [0, 1, 0xfff0, u16::MAX] {
            for memory in [0, 1 << 6] {
                let got = CrAccess::from_qualification(0x30 | memory | u64::from(source) << 16);
                assert_eq!(got, Ok(CrAccess::Lmsw { source: LmswSource::Value(source) }));
            }
        }
        assert_eq!(CrAccess::from_qualification(0x20), Ok(CrAccess::Clts));
        for number in [1u8, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15] {
            let got = CrAccess::from_qualification(u64::from(number));
            assert_eq!(got, Err(CrAccessError::Register(number)));
        }
    }

    #[test]
    fn exitinfo1_is_believed_only_where_the_cpu_fills_it() {
        for (number, register) in REGISTERS {
            for gpr in 0..16 {
                let of = |code, info, assists| CrAccess::from_svm(code, info, assists);
                let mov = 1 << 63 | gpr;
                let gpr = Gpr::of(gpr);
                assert_eq!(of(number, mov, true), Ok(CrAccess::Read(register, gpr)));
                assert_eq!(of(0x10 | number, mov, true), Ok(CrAccess::Write(register, gpr)));
                for (info, assists) in [(mov, false), (mov & 0xf, true), (0, true), (0, false)] {
                    let got = of(0x10 | number, info, assists);
                    assert_eq!(got, Err(CrAccessError::NeedsInstruction));
                }
            }
        }
        for code in [0x20, 0x52, 0x65, u64::MAX] {
            let got = CrAccess::from_svm(code, 1 << 63, true);
            assert_eq!(got, Err(CrAccessError::OtherExit(code)));
        }
        assert_eq!(CrAccess::from_svm(0x11, 1 << 63, true), Err(CrAccessError::Register(1)));
    }

    /// All 256 second bytes, with and without REX and LOCK, against the table of the manual.
    #[test]
    fn mov_to_and_from_control_registers_is_decoded_from_its_bytes() {
        for modrm in 0..=u8::MAX {
            for opcode in [0x20u8, 0x22] {
                let read = opcode == 0x20;
                let of = |register, gpr| {
                    let gpr = Gpr::new(gpr).unwrap();
                    if read {
                        CrAccess::Read(register, gpr)
                    } else {
                        CrAccess::Write(register, gpr)
                    }
                };
                let find = |number: u8| {
                    let known = |&&(n, _): &&(u64, ControlRegister)| n == u64::from(number);
                    REGISTERS.iter().find(known).map(|&(_, register)| register)
                };
                let (reg, rm) = (modrm >> 3 & 7, modrm & 7);
                let decode = |bytes: &[u8], long| CrAccess::from_instruction(bytes, long).ok();

                let plain = find(reg).map(|register| (of(register, rm), 3));
                assert_eq!(decode(&[0x0f, opcode, modrm, 0x90], true), plain);
                assert_eq!(decode(&[0x0f, opcode, modrm], false), plain);
                for rex in 0x40..=0x4fu8 {
                    let wide = find(reg | (rex & 4) << 1)
                        .map(|register| (of(register, rm | (rex & 1) << 3), 4));
                    assert_eq!(decode(&[rex, 0x0f, opcode, modrm], true), wide);
                    // INC or DEC, outside 64-bit code.
                    assert_eq!(decode(&[rex, 0x0f, opcode, modrm], false), None);
                    // A prefix after REX takes its meaning away.
                    let again = plain.map(|(access, length)| (access, length + 2));
                    assert_eq!(decode(&[rex, 0x66, 0x0f, opcode, modrm], true), again);
                }
                let lock = (reg == 0).then(|| (of(ControlRegister::Cr8, rm), 4));
                assert_eq!(decode(&[0xf0, 0x0f, opcode, modrm], false), lock);
            }
        }
    }

    #[test]
    fn bytes_that_are_something_else_or_end_early_are_refused() {
        let other = Err(CrAccessError::OtherInstruction);
        assert_eq!(CrAccess::from_instruction(&[0x0f, 0x06], true), Ok((CrAccess::Clts, 2)));
        for gpr in 0..16u8 {
            let got = CrAccess::from_instruction(&[0x40 | gpr >> 3, 0x0f, 1, 0xf0 | gpr & 7], true);
            let source = LmswSource::Register(Gpr::new(gpr).unwrap());
            assert_eq!(got, Ok((CrAccess::Lmsw { source }, 4)));
            assert_eq!(got.unwrap().0.source(), Gpr::new(gpr));
        }
        let full = [0x44u8, 0x0f, 0x22, 0xc0];
        for end in 0..full.len() {
            assert_eq!(CrAccess::from_instruction(&full[..end], true), other);
        }
        // LMSW from memory, SMSW, INVLPG, RDMSR, LOCK CLTS.
        for bytes in [&[0x0f, 1, 0x30][..], &[0x0f, 1, 0xe0], &[0x0f, 1, 0x38], &[0x0f, 0x32]] {
            assert_eq!(CrAccess::from_instruction(bytes, true), other);
        }
        assert_eq!(CrAccess::from_instruction(&[0xf0, 0x0f, 0x06], true), other);
        // Fifteen bytes at most.
        let mut long: Vec<u8> = std::vec![0x66; 12];
        long.extend([0x0f, 0x22, 0xe0]);
        assert_eq!(CrAccess::from_instruction(&long, true).map(|(_, length)| length), Ok(15));
        long.insert(0, 0x66);
        assert_eq!(CrAccess::from_instruction(&long, true), other);
    }
}

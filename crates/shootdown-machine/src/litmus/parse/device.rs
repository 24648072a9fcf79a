//! Devices, the IOMMU, and commands for it.

use super::names::Names;
use super::tokens::Tokens;
use crate::litmus::device::{Command, Device, Iommu, MAX_CODE, MOST};
use crate::litmus::error::Problem;
use crate::litmus::program::{Instruction, Op, Operand, Order, Place};
use crate::litmus::test::Arch;

/// What the IOMMU is like.
pub(super) fn iommu(tokens: &mut Tokens<'_>) -> Result<Iommu, Problem> {
    let mut iommu = Iommu::default();
    while let Some(word) = tokens.next()? {
        match word {
            "absence" => iommu.absence = true,
            "incoherent" => iommu.incoherent = true,
            _ => {
                let problem = format!("no IOMMU is `{word}`");
                return Err(Problem::new(problem, "write `absence` or `incoherent`"));
            }
        }
    }
    Ok(iommu)
}

/// `device N [root TABLE] [caches]`.
pub(super) fn head(
    names: &Names,
    count: usize,
    tokens: &mut Tokens<'_>,
) -> Result<Device, Problem> {
    let number = tokens.number("a device")? as usize;
    if number != count || number >= MOST {
        return Err(Problem::new(
            format!("device {number} is not next"),
            format!("number devices from 0 in order, at most {MOST}"),
        ));
    }
    let root = names.root(tokens)? as u8;
    let caches = tokens.take("caches");
    Ok(Device { root, caches, code: vec![] })
}

/// What a device can do.
pub(super) fn may_do(code: &[Instruction]) -> Result<(), (usize, Problem)> {
    for Instruction { op, line, .. } in code {
        let may = match op {
            Op::Load { place: Place::Page(_), address: None, order, exclusive: false, .. } => {
                *order == Order::default()
            }
            Op::Store { place, value: Operand::Value(_), address: None, order } => {
                *order == Order::default() && !matches!(place, Place::Entry { .. })
            }
            Op::Wait { place, .. } => matches!(place, Place::Var(_)),
            _ => false,
        };
        if !may {
            let help = "a device loads and stores pages, stores numbers to variables and waits for variables";
            return Err((*line, Problem::new("no device does this", help)));
        }
    }
    if code.len() > MAX_CODE {
        let problem = Problem::new("a device does too much", format!("write at most {MAX_CODE}"));
        return Err((code[MAX_CODE].line, problem));
    }
    Ok(())
}

/// An instruction of a CPU about the IOMMU, if the mnemonic is one.
pub(super) fn command(
    names: &Names,
    mnemonic: &str,
    tokens: &mut Tokens<'_>,
) -> Result<Option<Op>, Problem> {
    let page =
        |tokens: &mut Tokens<'_>| names.known_page(tokens.need("a page")?).map(|page| page as u8);
    let command = match mnemonic {
        "write.back" => {
            let place = names.place(tokens)?;
            if !matches!(place, Place::Entry { .. }) {
                let help = "write TABLE[INDEX] or pte(PAGE)";
                return Err(Problem::new("only entries of tables are written back", help));
            }
            return Ok(Some(Op::WriteBack { place }));
        }
        "iommu.page" => {
            let page = page(tokens)?;
            let root = names.root(tokens)? as u8;
            let leaf = tokens.take("leaf");
            // VT-d's DR and DW; the others always wait, or say it elsewhere.
            let drain = names.arch != Arch::X86_64 || !tokens.take("nodrain");
            Command::Page { page, root, leaf, drain }
        }
        "iommu.domain" => Command::Domain { root: names.root(tokens)? as u8 },
        "iommu.device" => {
            let device = tokens.number("a device")?;
            let device = u8::try_from(device)
                .map_err(|_| Problem::new("no such device", "number devices from 0"))?;
            Command::Device { device, page: page(tokens)? }
        }
        "iommu.wait" => {
            let place = names.place(tokens)?;
            let Place::Var(var) = place else {
                return Err(Problem::new("a wait stores to no variable", "name a variable"));
            };
            tokens.expect("=")?;
            let value = names.value(tokens)?;
            // VT-d's FN. What SMMUv3 and RISC-V have for a wait is a fence too.
            let fence = names.arch != Arch::X86_64 || tokens.take("fence");
            // RISC-V's PR and PW.
            let drain = names.arch != Arch::Riscv64 || !tokens.take("nodrain");
            Command::Wait { var, value, fence, drain }
        }
        _ => return Ok(None),
    };
    Ok(Some(Op::Command(command)))
}

/// Is there the device that the instruction names?
pub(super) fn names_one(op: &Op, devices: &[Device]) -> Result<(), Problem> {
    let missing = match op {
        Op::Command(Command::Device { device, .. }) => usize::from(*device) >= devices.len(),
        Op::Command(_) => devices.is_empty(),
        _ => false,
    };
    if missing {
        let help = "declare it with `device`, below the CPUs or above";
        return Err(Problem::new("there is no such device", help));
    }
    Ok(())
}

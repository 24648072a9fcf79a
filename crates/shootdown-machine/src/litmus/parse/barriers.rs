//! Barriers and invalidations by the names the manuals give them.

use super::names::Names;
use super::tokens::Tokens;
use crate::litmus::error::Problem;
use crate::litmus::program::{Barrier, Class, Invalidator, Op, Scope};
use crate::litmus::test::Arch;

/// The tag that programs run under unless they say otherwise.
pub(crate) const DEFAULT_TAG: u16 = 1;

/// A barrier or an invalidation, if the mnemonic is one of the architecture's.
pub(super) fn parse(
    names: &Names,
    mnemonic: &str,
    tokens: &mut Tokens<'_>,
) -> Result<Option<Op>, Problem> {
    match names.arch {
        Arch::X86_64 => x86_64(names, mnemonic, tokens),
        Arch::Aarch64 => aarch64(names, mnemonic, tokens),
        Arch::Riscv64 => riscv64(names, mnemonic, tokens),
    }
}

fn page(names: &Names, tokens: &mut Tokens<'_>) -> Result<u8, Problem> {
    let name = tokens.need("a page")?;
    names.known_page(name).map(|page| page as u8)
}

/// `WORD N` at the end of a line, or the default.
fn tag(word: &str, tokens: &mut Tokens<'_>) -> Result<u16, Problem> {
    if tokens.take(word) { number(tokens) } else { Ok(DEFAULT_TAG) }
}

fn number(tokens: &mut Tokens<'_>) -> Result<u16, Problem> {
    let n = tokens.number("a tag")?;
    u16::try_from(n).map_err(|_| Problem::new("a tag has 16 bits", "use a smaller one"))
}

fn x86_64(names: &Names, mnemonic: &str, tokens: &mut Tokens<'_>) -> Result<Option<Op>, Problem> {
    let invalidate =
        |scope| Op::Invalidate { by: Invalidator::Serializing, scope, broadcast: false };
    Ok(Some(match mnemonic {
        "mfence" => memory(Class::BOTH, Class::BOTH),
        "invlpg" => invalidate(Scope::PageHere { page: page(names, tokens)? }),
        "invpcid" => {
            let scope = match tokens.need("`page`, `tag`, `nonglobal` or `all`")? {
                "page" => {
                    let page = page(names, tokens)?;
                    Scope::Page { page, tag: tag("pcid", tokens)? }
                }
                "tag" => Scope::Tag(number(tokens)?),
                "nonglobal" => Scope::NonGlobal,
                "all" => Scope::All,
                other => {
                    return Err(Problem::new(
                        format!("INVPCID has no kind `{other}`"),
                        "write `page P pcid N`, `tag N`, `nonglobal` or `all`",
                    ));
                }
            };
            invalidate(scope)
        }
        "toggle.pge" => invalidate(Scope::All),
        _ => return Ok(None),
    }))
}

const fn memory(before: Class, after: Class) -> Op {
    Op::Barrier(Barrier::Memory { before, after })
}

fn aarch64(names: &Names, mnemonic: &str, tokens: &mut Tokens<'_>) -> Result<Option<Op>, Problem> {
    Ok(Some(match mnemonic {
        "isb" => Op::Barrier(Barrier::Context),
        "dmb" | "dsb" => {
            let kind = tokens.need("`ish`, `ishld` or `ishst`")?;
            data_barrier(mnemonic == "dsb", kind)?
        }
        "tlbi" => {
            let operation = tokens.need("an operation such as `vae1is`")?;
            let (scope, broadcast) = tlbi(operation, &mut || page(names, tokens))?;
            let scope = match scope {
                Scope::Page { page, .. } => Scope::Page { page, tag: tag("asid", tokens)? },
                Scope::LastLevel { page, tag: Some(_) } => {
                    Scope::LastLevel { page, tag: Some(tag("asid", tokens)?) }
                }
                Scope::Tag(_) => Scope::Tag(tag("asid", tokens)?),
                other => other,
            };
            Op::Invalidate { by: Invalidator::Tlbi, scope, broadcast }
        }
        _ => return Ok(None),
    }))
}

/// DMB or DSB of a kind.
pub(crate) fn data_barrier(dsb: bool, kind: &str) -> Result<Op, Problem> {
    let (before, after) = match kind.to_ascii_lowercase().as_str() {
        "sy" | "ish" | "osh" => (Class::BOTH, Class::BOTH),
        "ld" | "ishld" | "oshld" => (Class::READS, Class::BOTH),
        "st" | "ishst" | "oshst" => (Class::WRITES, Class::WRITES),
        _ => {
            return Err(Problem::new(
                format!("no barrier kind `{kind}`"),
                "write sy, ish, osh, ld, ishld, oshld, st, ishst or oshst",
            ));
        }
    };
    Ok(if dsb { Op::Barrier(Barrier::Sync { before }) } else { memory(before, after) })
}

/// The scope of a TLBI operation (tags are filled in by the caller), and whether it is broadcast.
pub(crate) fn tlbi(
    operation: &str,
    page: &mut dyn FnMut() -> Result<u8, Problem>,
) -> Result<(Scope, bool), Problem> {
    let lower = operation.to_ascii_lowercase();
    let (base, broadcast) = match lower.strip_suffix("is") {
        Some(base) => (base, true),
        None => (lower.as_str(), false),
    };
    let scope = match base {
        "vae1" => Scope::Page { page: page()?, tag: DEFAULT_TAG },
        "vale1" => Scope::LastLevel { page: page()?, tag: Some(DEFAULT_TAG) },
        "vaae1" => Scope::PageAnyTag { page: page()? },
        "vaale1" => Scope::LastLevel { page: page()?, tag: None },
        "aside1" => Scope::Tag(DEFAULT_TAG),
        "vmalle1" => Scope::All,
        _ => {
            return Err(Problem::new(
                format!("no operation `{operation}`"),
                "write vae1, vale1, vaae1, vaale1, aside1 or vmalle1, with `is` for all CPUs",
            ));
        }
    };
    Ok((scope, broadcast))
}

fn riscv64(names: &Names, mnemonic: &str, tokens: &mut Tokens<'_>) -> Result<Option<Op>, Problem> {
    Ok(Some(match mnemonic {
        "fence" => {
            let before = fence_class(tokens.need("`r`, `w` or `rw`")?)?;
            tokens.expect(",")?;
            memory(before, fence_class(tokens.need("`r`, `w` or `rw`")?)?)
        }
        "sfence.w.inval" => Op::Barrier(Barrier::BeforeInvalidations),
        "sfence.inval.ir" => Op::Barrier(Barrier::AfterInvalidations),
        "sfence.vma" | "sinval.vma" => {
            let page = match tokens.peek() {
                Some(word) if word != "asid" => Some(page(names, tokens)?),
                _ => None,
            };
            let asid = if tokens.take("asid") { Some(number(tokens)?) } else { None };
            let scope = match (page, asid) {
                (Some(page), Some(tag)) => Scope::Page { page, tag },
                (Some(page), None) => Scope::PageAnyTag { page },
                (None, Some(tag)) => Scope::Tag(tag),
                (None, None) => Scope::All,
            };
            let by = if mnemonic == "sfence.vma" {
                Invalidator::SfenceVma
            } else {
                Invalidator::SinvalVma
            };
            Op::Invalidate { by, scope, broadcast: false }
        }
        _ => return Ok(None),
    }))
}

fn fence_class(token: &str) -> Result<Class, Problem> {
    match token {
        "r" => Ok(Class::READS),
        "w" => Ok(Class::WRITES),
        "rw" => Ok(Class::BOTH),
        _ => Err(Problem::new(format!("no access class `{token}`"), "write r, w or rw")),
    }
}

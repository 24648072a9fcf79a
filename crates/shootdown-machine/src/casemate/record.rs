//! Records: one event of a trace, read and written.

use std::fmt;

/// A DSB's kind. Only writes wait for [`Dsb::Ishst`]; [`Dsb::Nsh`] is this CPU's own business.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dsb {
    /// Everything, for all CPUs.
    Ish,
    /// Stores only.
    Ishst,
    /// Everything, for this CPU.
    Nsh,
}

/// A TLBI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tlbi {
    /// Stage 1 of EL2, an address: the page's number, whether only the last level, whether on all
    /// CPUs.
    Va {
        /// Address / 4096.
        page: u64,
        /// Not the entries above it.
        last: bool,
        /// On all CPUs.
        all_cpus: bool,
    },
    /// Stage 1 of EL2, everything.
    El2 {
        /// On all CPUs.
        all_cpus: bool,
    },
    /// Stage 2, an address of the guest, on all CPUs.
    Ipa {
        /// Address / 4096.
        page: u64,
    },
    /// What the current guest's two stages gave together.
    Combined {
        /// On all CPUs.
        all_cpus: bool,
    },
    /// Both stages of the current guest.
    Guest {
        /// On all CPUs.
        all_cpus: bool,
    },
    /// Both stages of all guests.
    Guests {
        /// On all CPUs.
        all_cpus: bool,
    },
}

/// A register that names tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Register {
    /// The tables of EL2.
    Ttbr0El2,
    /// A guest's stage 2.
    VttbrEl2,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// A page of tables is zeroed.
    Init {
        /// Where.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// A store.
    Write {
        /// Where.
        address: u64,
        /// What.
        value: u64,
        /// As a release.
        release: bool,
    },
    /// A DSB.
    Dsb(Dsb),
    /// An ISB.
    Isb,
    /// A TLBI.
    Tlbi(Tlbi),
    /// Tables are loaded.
    Root {
        /// Into which register.
        register: Register,
        /// Where they are.
        value: u64,
    },
    /// Anything else, as it stands: other registers, locks, hints.
    Other(String),
}

/// A line of a trace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Record {
    /// Whose.
    pub thread: u32,
    /// What.
    pub step: Step,
    /// Where in the source: `FILE:LINE`.
    pub source: String,
}

/// A line that is no record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}; a trace has one Casemate record a line")]
pub struct RecordError {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl Record {
    /// The record as a line, with its number in the trace.
    #[must_use]
    pub fn line(&self, id: usize) -> String {
        let (name, rest) = match &self.step {
            Step::Init { address, size } => {
                ("mem-init", format!("(address {address:x}) (size {size:x})"))
            }
            Step::Write { address, value, release } => {
                let order = if *release { "release" } else { "plain" };
                let what = format!("(mem-order {order}) (address {address:x}) (value {value:x})");
                ("mem-write", what)
            }
            Step::Dsb(kind) => ("barrier", format!("dsb (kind {kind})")),
            Step::Isb => ("barrier", "isb".to_owned()),
            Step::Tlbi(tlbi) => ("tlbi", tlbi.to_string()),
            Step::Root { register, value } => {
                ("sysreg-write", format!("(sysreg {register}) (value {value:x})"))
            }
            Step::Other(text) => {
                let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
                (name, rest.to_owned())
            }
        };
        let Self { thread, source, .. } = self;
        format!("({name} (id {id}) (tid {thread}) {rest} (src \"{source}\"))")
    }
}

impl fmt::Display for Dsb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ish => "ish",
            Self::Ishst => "ishst",
            Self::Nsh => "nsh",
        })
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ttbr0El2 => "ttbr0_el2",
            Self::VttbrEl2 => "vttbr_el2",
        })
    }
}

impl fmt::Display for Tlbi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |all_cpus: bool| if all_cpus { "is" } else { "" };
        match *self {
            Self::Va { page, last, all_cpus } => {
                let level = if last { "l" } else { "" };
                write!(f, "va{level}e2{} (value {page:x})", is(all_cpus))
            }
            Self::El2 { all_cpus } => write!(f, "alle2{}", is(all_cpus)),
            Self::Ipa { page } => write!(f, "ipas2e1is (value {page:x})"),
            Self::Combined { all_cpus } => write!(f, "vmalle1{}", is(all_cpus)),
            Self::Guest { all_cpus } => write!(f, "vmalls12e1{}", is(all_cpus)),
            Self::Guests { all_cpus } => write!(f, "alle1{}", is(all_cpus)),
        }
    }
}

/// Reads a trace. A line that begins with `!` (a checker's verdict) ends it.
///
/// # Errors
/// [`RecordError`] names the line.
pub fn parse(text: &str) -> Result<Vec<Record>, RecordError> {
    let mut records = vec![];
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('!') {
            break;
        }
        if line.is_empty() {
            continue;
        }
        let record = record(line).map_err(|problem| RecordError { line: at + 1, problem })?;
        records.push(record);
    }
    Ok(records)
}

/// A record's words and its fields in parentheses, in order.
struct Fields<'a> {
    words: Vec<&'a str>,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Result<Self, String> {
        let inside = line.strip_prefix('(').and_then(|l| l.strip_suffix(')'));
        let mut rest = inside.ok_or("no parentheses around it")?.trim();
        let mut found = Self { words: vec![], fields: vec![] };
        while !rest.is_empty() {
            if let Some(field) = rest.strip_prefix('(') {
                let (field, after) = field.split_once(')').ok_or("a parenthesis is not closed")?;
                let (name, value) = field.trim().split_once(' ').ok_or("a field has no value")?;
                found.fields.push((name, value.trim()));
                rest = after.trim_start();
            } else {
                let end = rest.find([' ', '(']).unwrap_or(rest.len());
                found.words.push(&rest[..end]);
                rest = rest[end..].trim_start();
            }
        }
        Ok(found)
    }

    fn get(&self, name: &str) -> Result<&'a str, String> {
        let field = self.fields.iter().find(|(n, _)| *n == name);
        field.map(|(_, value)| *value).ok_or_else(|| format!("no field `{name}`"))
    }

    fn hex(&self, name: &str) -> Result<u64, String> {
        let text = self.get(name)?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
            .map_err(|_| format!("`{text}` is no hexadecimal number"))
    }

    fn word(&self, at: usize) -> Result<&'a str, String> {
        self.words.get(at).copied().ok_or_else(|| "it ends too early".to_owned())
    }

    /// Page number of a TLBI: newer traces have the operand, older ones an address.
    fn page(&self) -> Result<u64, String> {
        /// The operand's other bits: the translation granule and level hint, and the ASID.
        const NUMBER: u64 = (1 << 44) - 1;
        self.hex("value").map(|value| value & NUMBER).or_else(|_| self.hex("addr"))
    }
}

fn record(line: &str) -> Result<Record, String> {
    let fields = Fields::of(line)?;
    let thread = fields.get("tid")?;
    let thread = thread.parse().map_err(|_| format!("`{thread}` is no thread"))?;
    let source = fields.get("src").map_or("", |s| s.trim_matches('"')).to_owned();
    let other = || {
        let kept = fields.fields.iter().filter(|(n, _)| !["id", "tid", "src"].contains(n));
        let kept = kept.map(|(name, value)| format!("({name} {value})"));
        let all: Vec<String> = fields.words.iter().map(|w| (*w).to_owned()).chain(kept).collect();
        Step::Other(all.join(" "))
    };
    let step = match fields.word(0)? {
        "mem-init" => Step::Init { address: fields.hex("address")?, size: fields.hex("size")? },
        "mem-write" => Step::Write {
            address: fields.hex("address")?,
            value: fields.hex("value")?,
            release: fields.get("mem-order")? == "release",
        },
        "barrier" => match (fields.word(1)?, fields.get("kind")) {
            ("isb", _) => Step::Isb,
            ("dsb", Ok("ish" | "sy")) => Step::Dsb(Dsb::Ish),
            ("dsb", Ok("ishst")) => Step::Dsb(Dsb::Ishst),
            ("dsb", Ok("nsh")) => Step::Dsb(Dsb::Nsh),
            _ => return Err("a barrier of an unknown kind".to_owned()),
        },
        "tlbi" => Step::Tlbi(tlbi(&fields)?),
        "sysreg-write" | "msr" => match fields.get("sysreg")? {
            "ttbr0_el2" => Step::Root { register: Register::Ttbr0El2, value: fields.hex("value")? },
            "vttbr_el2" => Step::Root { register: Register::VttbrEl2, value: fields.hex("value")? },
            _ => other(),
        },
        "mem-read" | "hint" | "lock" | "trylock" | "unlock" => other(),
        name => return Err(format!("a record `{name}` is not known here")),
    };
    Ok(Record { thread, step, source })
}

fn tlbi(fields: &Fields<'_>) -> Result<Tlbi, String> {
    let name = fields.word(1)?;
    let (base, all_cpus) = match name.strip_suffix("is") {
        Some(base) => (base, true),
        None => (name, false),
    };
    Ok(match base {
        "vae2" => Tlbi::Va { page: fields.page()?, last: false, all_cpus },
        "vale2" => Tlbi::Va { page: fields.page()?, last: true, all_cpus },
        "alle2" => Tlbi::El2 { all_cpus },
        "ipas2e1" if all_cpus => Tlbi::Ipa { page: fields.page()? },
        "vmalle1" => Tlbi::Combined { all_cpus },
        "vmalls12e1" => Tlbi::Guest { all_cpus },
        "alle1" => Tlbi::Guests { all_cpus },
        _ => return Err(format!("`tlbi {name}` is not known here")),
    })
}

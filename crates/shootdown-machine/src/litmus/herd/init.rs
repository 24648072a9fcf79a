//! Initial states: locations, their page-table entries, and registers.

use std::collections::{BTreeMap, BTreeSet};

use super::Skip;
use crate::hostile::{Descriptor, Frame};
use crate::litmus::value::Value;

/// What a register holds, as far as that is known while the program is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// The address of a location.
    Address(String),
    /// The address of a location's page-table entry.
    Entry(String),
    /// A location's page number, as TLBI takes it.
    PageNumber(String),
    /// A number.
    Number(u64),
    /// A page-table entry's content.
    Content(Content),
    /// Zero, computed from a register.
    Zero,
    /// A number that was loaded from a location.
    Loaded,
    /// The address of a label of the program.
    Label(String),
    /// Whatever a load has read, or arithmetic has made of it.
    Unknown,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    /// The location whose frame it names; `None` for the location's own.
    pub frame: Option<String>,
    bits: u64,
}

impl Content {
    /// `(oa:phy_y, valid:0, …)`. A field that is not named has its default: valid, accessed,
    /// writable.
    pub fn parse(text: &str) -> Result<Self, Skip> {
        let inner = text.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')'));
        let inner = inner.ok_or_else(|| Skip::syntax(&format!("`{text}` is no entry")))?;
        let mut content = Self {
            frame: None,
            bits: Descriptor::user_rw(Frame(0)).without(Descriptor::DIRTY).bits(),
        };
        for field in inner.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (name, value) = field
                .split_once(':')
                .ok_or_else(|| Skip::feature(&format!("entry field `{field}`")))?;
            let (name, value) = (name.trim(), value.trim());
            if name == "oa" {
                let location = value
                    .strip_prefix("phy_")
                    .or_else(|| value.strip_prefix("PA(").and_then(|v| v.strip_suffix(')')));
                let location =
                    location.ok_or_else(|| Skip::feature(&format!("output address `{value}`")))?;
                content.frame = Some(location.trim().to_owned());
                continue;
            }
            let bit = match name {
                "valid" => Descriptor::PRESENT,
                "af" => Descriptor::ACCESSED,
                "db" => Descriptor::WRITE,
                "dbm" => Descriptor::DBM,
                "el0" => Descriptor::USER,
                _ => return Err(Skip::feature(&format!("entry field `{name}`"))),
            };
            match value {
                "0" => content.bits &= !bit,
                "1" => content.bits |= bit,
                _ => return Err(Skip::syntax(&format!("`{field}` in an entry"))),
            }
        }
        Ok(content)
    }

    /// The word, once frames have numbers.
    pub fn value(&self, own: &str, frames: &BTreeMap<String, usize>) -> Result<Value, Skip> {
        let name = self.frame.as_deref().unwrap_or(own);
        let frame = frames
            .get(name)
            .ok_or_else(|| Skip::feature(&format!("an entry without a frame (`{name}`)")))?;
        let descriptor = Descriptor::from_bits(self.bits).to_frame(Frame(*frame as u32));
        Ok(Value::descriptor(descriptor))
    }
}

/// The initial state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Init {
    /// Initial values of locations.
    pub values: BTreeMap<String, u64>,
    /// Entries that are not the default.
    pub entries: BTreeMap<String, Content>,
    pub registers: BTreeMap<(usize, u8), Known>,
    /// Locations that are translated: their entry, frame or page number is named somewhere.
    pub pages: BTreeSet<String>,
    /// Every location.
    pub locations: BTreeSet<String>,
}

const TYPES: [&str; 7] =
    ["int", "int32_t", "uint32_t", "int64_t", "uint64_t", "intptr_t", "pteval_t"];

impl Init {
    pub fn parse(items: &[String]) -> Result<Self, Skip> {
        let mut init = Self::default();
        for item in items {
            init.item(item)?;
        }
        Ok(init)
    }

    fn item(&mut self, item: &str) -> Result<(), Skip> {
        let untyped = item
            .split_once(char::is_whitespace)
            .filter(|(word, _)| TYPES.contains(word))
            .map_or(item, |(_, rest)| rest);
        let (left, right) = match untyped.split_once('=') {
            Some((left, right)) => (left.trim(), Some(right.trim())),
            None => (untyped.trim(), None),
        };
        if let Some((thread, register)) = left.split_once(':') {
            let thread = thread.trim().trim_start_matches('P');
            let thread: usize = thread.parse().map_err(|_| Skip::syntax(&format!("`{item}`")))?;
            let register = register_number(register.trim())
                .flatten()
                .ok_or_else(|| Skip::feature(&format!("register in `{item}`")))?;
            let known = match right {
                Some(right) => self.known(right)?,
                None => Known::Number(0),
            };
            self.registers.insert((thread, register), known);
            return Ok(());
        }
        let place = left.trim_start_matches('[').trim_end_matches(']').trim();
        if let Some(location) = entry_of(place) {
            let content = Content::parse(right.unwrap_or_default())?;
            self.page(location);
            if let Some(frame) = &content.frame {
                self.page(frame);
            }
            self.entries.insert(location.to_owned(), content);
            return Ok(());
        }
        if !is_name(place) {
            return Err(Skip::feature(&format!("initial state `{item}`")));
        }
        self.locations.insert(place.to_owned());
        if let Some(right) = right {
            let value =
                number(right).ok_or_else(|| Skip::feature(&format!("initial state `{item}`")))?;
            self.values.insert(place.to_owned(), value);
        }
        Ok(())
    }

    /// What a register is said to hold.
    fn known(&mut self, text: &str) -> Result<Known, Skip> {
        if let Some(number) = number(text) {
            return Ok(Known::Number(number));
        }
        if text.starts_with('(') {
            let content = Content::parse(text)?;
            if let Some(frame) = &content.frame {
                self.page(frame);
            }
            return Ok(Known::Content(content));
        }
        if let Some(location) = entry_of(text) {
            self.page(location);
            return Ok(Known::Entry(location.to_owned()));
        }
        if is_name(text) {
            self.locations.insert(text.to_owned());
            return Ok(Known::Address(text.to_owned()));
        }
        Err(Skip::feature(&format!("register content `{text}`")))
    }

    /// The location is translated.
    pub fn page(&mut self, location: &str) {
        self.pages.insert(location.to_owned());
        self.locations.insert(location.to_owned());
    }
}

/// `pte_x`, `PTE(x)` or `TTD(x)`.
pub(super) fn entry_of(text: &str) -> Option<&str> {
    let bare = text.strip_prefix("pte_");
    let call = || {
        let inner = text.strip_prefix("PTE(").or_else(|| text.strip_prefix("TTD("));
        inner.and_then(|t| t.strip_suffix(')'))
    };
    bare.or_else(call).map(str::trim).filter(|name| is_name(name))
}

pub(super) fn is_name(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let reserved = ["phy_", "pte_", "pa_"].iter().any(|prefix| text.starts_with(prefix));
    !reserved && text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(letters)
}

pub(super) fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_start_matches('#');
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `X3` or `W3`; `Some(None)` for the zero register.
pub(super) fn register_number(text: &str) -> Option<Option<u8>> {
    if text.eq_ignore_ascii_case("wzr") || text.eq_ignore_ascii_case("xzr") {
        return Some(None);
    }
    let digits = text.strip_prefix(['X', 'W', 'x', 'w'])?;
    digits.parse().ok().filter(|n| *n < 31).map(Some)
}

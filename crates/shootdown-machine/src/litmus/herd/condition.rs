//! Final conditions of herd files.

use super::Skip;
use super::init::{Content, entry_of, is_name, number, register_number};
use super::program::{Layout, label_address};
use crate::hostile::FaultKind;
use crate::litmus::condition::Condition;
use crate::litmus::program::{Instruction, Place};
use crate::litmus::value::Value;

/// The proposition behind the quantifier.
pub(super) fn proposition(text: &str) -> Result<&str, Skip> {
    let mut text = text.trim();
    if let Some(rest) = text.strip_prefix("locations") {
        let end = rest.find(']').ok_or_else(|| Skip::syntax("`locations` has no end"))?;
        text = rest[end + 1..].trim_start_matches(';').trim();
    }
    if text.starts_with("filter") {
        return Err(Skip::feature("a filter on final states"));
    }
    for quantifier in ["~exists", "not exists", "exists", "forall"] {
        if let Some(rest) = text.strip_prefix(quantifier) {
            return Ok(rest.trim());
        }
    }
    Err(Skip::syntax("no quantifier"))
}

/// Reads a proposition.
pub(super) fn parse(
    text: &str,
    layout: &Layout,
    threads: &[Vec<Instruction>],
) -> Result<Condition, Skip> {
    let mut parser = Parser { rest: text.trim(), layout, threads };
    let condition = parser.or()?;
    if parser.rest.trim().is_empty() {
        return Ok(condition);
    }
    Err(Skip::syntax(&format!("`{}` in the final condition", parser.rest.trim())))
}

/// Where the parenthesis that the text begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

struct Parser<'a> {
    rest: &'a str,
    layout: &'a Layout,
    threads: &'a [Vec<Instruction>],
}

impl<'a> Parser<'a> {
    fn take(&mut self, sign: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn or(&mut self) -> Result<Condition, Skip> {
        let mut left = self.and()?;
        while self.take("\\/") {
            left = Condition::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Condition, Skip> {
        let mut left = self.not()?;
        while self.take("/\\") {
            left = Condition::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Condition, Skip> {
        if self.take("~") || self.take("not ") {
            return Ok(Condition::Not(Box::new(self.not()?)));
        }
        if self.take("(") {
            let inner = self.or()?;
            return if self.take(")") { Ok(inner) } else { Err(Skip::syntax("a missing `)`")) };
        }
        if self.take("fault(") || self.take("Fault(") {
            let inner = self.until(')')?;
            return self.fault(inner);
        }
        self.equation()
    }

    /// What stands before the sign, which is taken.
    fn until(&mut self, sign: char) -> Result<&'a str, Skip> {
        let end = self
            .rest
            .find(sign)
            .ok_or_else(|| Skip::syntax(&format!("no `{sign}` in the final condition")))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[sign.len_utf8()..];
        Ok(text.trim())
    }

    /// `P0:L0,x`, `P0:L0` or `P0,x`.
    fn fault(&self, text: &str) -> Result<Condition, Skip> {
        let mut parts = text.split(',').map(str::trim);
        let place = parts.next().unwrap_or_default();
        let location = parts.next();
        let kinds: &[Option<FaultKind>] = match parts.next() {
            None => &[None][..],
            Some("MMU:Translation") => &[Some(FaultKind::NotPresent)],
            Some("MMU:Permission") => &[Some(FaultKind::ReadOnly), Some(FaultKind::Supervisor)],
            Some("MMU:AccessFlag") => &[Some(FaultKind::Accessed)],
            Some(kind) => return Err(Skip::feature(&format!("the kind of a fault (`{kind}`)"))),
        };
        let (thread, label) = match place.split_once(':') {
            Some((thread, label)) => (thread, Some(label.trim())),
            None => (place, None),
        };
        let cpu = self.thread(thread)?;
        let page = match location {
            Some(name) => match self.layout.pages.get(name) {
                Some(page) => Some(*page),
                None => return Err(Skip::feature(&format!("a fault on `{name}`"))),
            },
            None => None,
        };
        let mut found = Vec::new();
        for (at, instruction) in self.threads[cpu].iter().enumerate() {
            let named = label.is_none_or(|label| instruction.label.as_deref() == Some(label));
            let there = match (instruction.op.place(), page) {
                (Some(Place::Page(p)), Some(page)) => p == page,
                (Some(Place::Page(_)), None) => true,
                _ => false,
            };
            if named && there {
                found.extend(kinds.iter().map(|kind| Condition::Fault { cpu, at, kind: *kind }));
            }
        }
        // What is no access never faults.
        let never = Condition::Not(Box::new(Condition::Always));
        let any = found.into_iter().reduce(|a, b| Condition::Or(Box::new(a), Box::new(b)));
        Ok(any.unwrap_or(never))
    }

    fn thread(&self, text: &str) -> Result<usize, Skip> {
        let digits = text.trim().trim_start_matches('P');
        let number: usize =
            digits.parse().map_err(|_| Skip::syntax(&format!("thread `{text}`")))?;
        if number < self.threads.len() {
            return Ok(number);
        }
        Err(Skip::syntax(&format!("there is no thread {number}")))
    }

    fn equation(&mut self) -> Result<Condition, Skip> {
        let left = self.until('=')?;
        self.rest = self.rest.trim_start();
        let right = if self.rest.starts_with('(') {
            let end = closing(self.rest).ok_or_else(|| Skip::syntax("an entry has no end"))?;
            let (text, rest) = self.rest.split_at(end + 1);
            self.rest = rest;
            text
        } else {
            let end = self.rest.find([' ', '/', '\\', ')', '\n', '\t']);
            let (text, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
            self.rest = rest;
            text
        };
        let value = |own: &str| {
            if right.starts_with('(') {
                return Content::parse(right)?.value(own, &self.layout.frames);
            }
            let label = right.strip_prefix("label:\"").and_then(|label| label.strip_suffix('"'));
            if let Some((thread, label)) = label.and_then(|label| label.split_once(':')) {
                let code = &self.threads[self.thread(thread)?];
                let named = |i: &Instruction| i.label.as_deref() == Some(label);
                return code
                    .iter()
                    .position(named)
                    .map(label_address)
                    .ok_or_else(|| Skip::syntax(&format!("no label `{label}`")));
            }
            number(right)
                .map(Value::number)
                .ok_or_else(|| Skip::feature(&format!("the final value `{right}`")))
        };
        if let Some((thread, register)) = left.split_once(':') {
            let cpu = self.thread(thread)?;
            let reg = register_number(register.trim())
                .flatten()
                .ok_or_else(|| Skip::feature(&format!("`{left}` in the final condition")))?;
            return Ok(Condition::Register { cpu, reg, value: value("")? });
        }
        let name = left.trim_start_matches('[').trim_end_matches(']').trim();
        if let Some(location) = entry_of(name) {
            let place = self
                .layout
                .entry(location)
                .ok_or_else(|| Skip::feature(&format!("the entry of `{location}`")))?;
            return Ok(Condition::Memory { place, value: value(location)? });
        }
        if is_name(name) {
            if let Some(frame) = self.layout.frames.get(name) {
                return Ok(Condition::Frame { frame: *frame, value: value(name)? });
            }
            if let Some(place @ Place::Var(_)) = self.layout.location(name) {
                return Ok(Condition::Memory { place, value: value(name)? });
            }
        }
        Err(Skip::feature(&format!("`{left}` in the final condition")))
    }
}

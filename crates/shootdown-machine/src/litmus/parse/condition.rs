//! Conditions: `|` binds weakest, then `&`, then `!`.

use super::names::{Names, register};
use super::program::instruction_named;
use super::tokens::{Tokens, number};
use crate::litmus::condition::Condition;
use crate::litmus::device::{self, Device};
use crate::litmus::error::Problem;
use crate::litmus::program::Place;
use crate::litmus::test::Program;

/// Reads a whole condition.
pub(super) fn parse(
    names: &Names,
    cpus: &[Program],
    devices: &[Device],
    line: &str,
) -> Result<Condition, Problem> {
    let mut tokens = Tokens::new(line);
    let parser = Parser { names, cpus, devices };
    let condition = parser.or(&mut tokens)?;
    tokens.finish()?;
    Ok(condition)
}

struct Parser<'a> {
    names: &'a Names,
    cpus: &'a [Program],
    devices: &'a [Device],
}

impl Parser<'_> {
    fn or(&self, tokens: &mut Tokens<'_>) -> Result<Condition, Problem> {
        let mut left = self.and(tokens)?;
        while tokens.take("|") {
            left = Condition::Or(Box::new(left), Box::new(self.and(tokens)?));
        }
        Ok(left)
    }

    fn and(&self, tokens: &mut Tokens<'_>) -> Result<Condition, Problem> {
        let mut left = self.not(tokens)?;
        while tokens.take("&") {
            left = Condition::And(Box::new(left), Box::new(self.not(tokens)?));
        }
        Ok(left)
    }

    fn not(&self, tokens: &mut Tokens<'_>) -> Result<Condition, Problem> {
        if tokens.take("!") {
            return Ok(Condition::Not(Box::new(self.not(tokens)?)));
        }
        if tokens.take("(") {
            let inner = self.or(tokens)?;
            tokens.expect(")")?;
            return Ok(inner);
        }
        self.atom(tokens)
    }

    fn atom(&self, tokens: &mut Tokens<'_>) -> Result<Condition, Problem> {
        if tokens.take("always") {
            return Ok(Condition::Always);
        }
        if tokens.take("fault") {
            tokens.expect("(")?;
            let cpu = self.cpu(tokens)?;
            tokens.expect(":")?;
            let name = tokens.need("a label")?;
            tokens.expect(")")?;
            let code = match cpu.checked_sub(device::FIRST) {
                None => &self.cpus[cpu].code,
                Some(device) => &self.devices[device].code,
            };
            let at = instruction_named(code, name).ok_or_else(|| {
                Problem::new(format!("there is no label `{name}`"), "label the instruction")
            })?;
            return Ok(Condition::Fault { cpu, at, kind: None });
        }
        let first = tokens.peek().unwrap_or_default();
        if number(first).is_some() || self.device(first).is_some() {
            let cpu = self.cpu(tokens)?;
            tokens.expect(":")?;
            let name = tokens.need("a register")?;
            let reg = register(name).ok_or_else(|| {
                Problem::new(format!("`{name}` is no register"), "write CPU:REGISTER = VALUE")
            })?;
            tokens.expect("=")?;
            return Ok(Condition::Register { cpu, reg, value: self.names.value(tokens)? });
        }
        if let Some(frame) = self.names.frame(first) {
            tokens.next()?;
            tokens.expect("=")?;
            return Ok(Condition::Frame { frame, value: self.names.value(tokens)? });
        }
        let place = self.names.place(tokens)?;
        if matches!(place, Place::Page(_)) {
            return Err(Problem::new(
                format!("`{first}` is a page, and may be mapped anywhere in the end"),
                "ask for a frame",
            ));
        }
        tokens.expect("=")?;
        Ok(Condition::Memory { place, value: self.names.value(tokens)? })
    }

    /// `d0`, `d1`.
    fn device(&self, token: &str) -> Option<usize> {
        let device = token.strip_prefix('d').and_then(number)? as usize;
        (device < self.devices.len()).then_some(device)
    }

    /// A CPU, or a device.
    fn cpu(&self, tokens: &mut Tokens<'_>) -> Result<usize, Problem> {
        if let Some(device) = tokens.peek().and_then(|token| self.device(token)) {
            tokens.next()?;
            return Ok(device::FIRST + device);
        }
        let n = tokens.number("a CPU")? as usize;
        if n < self.cpus.len() {
            return Ok(n);
        }
        Err(Problem::new(format!("there is no cpu {n}"), "the first CPU is 0"))
    }
}

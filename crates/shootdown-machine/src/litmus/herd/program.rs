//! Instructions of herd files, as far as our machine has them.
//!
//! Addresses are followed while the program is read: an access must go to a location that is known.
//! What a register holds is forgotten where two paths meet that disagree.

use std::collections::BTreeMap;

use super::Skip;
use super::init::{Init, Known, number, register_number};
use crate::litmus::parse::barriers;
use crate::litmus::program::{
    Arithmetic, Barrier, Instruction, Invalidator, Op, Operand, Order, Place, Scope,
};
use crate::litmus::value::Value;

/// Where locations are, once they are laid out.
pub(super) struct Layout {
    /// Variables by name.
    pub vars: BTreeMap<String, u8>,
    /// Pages by name; entry `n` of the table maps page `n`.
    pub pages: BTreeMap<String, u8>,
    /// Frames by the name of the location they belong to.
    pub frames: BTreeMap<String, usize>,
}

impl Layout {
    pub fn location(&self, name: &str) -> Option<Place> {
        let page = || self.pages.get(name).map(|page| Place::Page(*page));
        self.vars.get(name).map(|var| Place::Var(*var)).or_else(page)
    }

    pub fn entry(&self, name: &str) -> Option<Place> {
        self.pages.get(name).map(|page| Place::Entry { table: 0, index: *page })
    }
}

/// The locations whose page numbers a thread's TLBI instructions name: they have to be pages.
pub(super) fn invalidated(cells: &[String], init: &Init, thread: usize) -> Vec<String> {
    let mut from = BTreeMap::new();
    let mut found = Vec::new();
    for cell in cells {
        let text = cell.rsplit(':').next().unwrap_or_default().trim();
        let (mnemonic, operands) = split(text);
        if mnemonic == "LSR"
            && let [to, source, ..] = operands.as_slice()
        {
            from.insert(register_number(to), register_number(source));
        }
        if mnemonic == "TLBI" {
            for operand in &operands {
                let source = from.get(&register_number(operand)).copied().flatten().flatten();
                if let Some(register) = source
                    && let Some(Known::Address(name)) = init.registers.get(&(thread, register))
                {
                    found.push(name.clone());
                }
            }
        }
    }
    found
}

fn split(text: &str) -> (String, Vec<String>) {
    let (mnemonic, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let mut operands: Vec<String> = Vec::new();
    let mut depth = 0;
    for part in rest.split(',') {
        match operands.last_mut() {
            Some(last) if depth > 0 => {
                last.push(',');
                last.push_str(part.trim());
            }
            _ => operands.push(part.trim().to_owned()),
        }
        depth += part.matches('[').count() as i32 - part.matches(']').count() as i32;
    }
    operands.retain(|operand| !operand.is_empty());
    (mnemonic.to_ascii_uppercase(), operands)
}

/// Translates one thread.
pub(super) struct Translator<'a> {
    layout: &'a Layout,
    known: BTreeMap<u8, Known>,
    code: Vec<Instruction>,
    labels: Vec<(String, usize)>,
    jumps: Vec<(usize, String)>,
    /// What was known where a branch to a label was taken.
    merges: Vec<(String, BTreeMap<u8, Known>)>,
}

impl<'a> Translator<'a> {
    pub fn new(layout: &'a Layout, init: &Init, thread: usize) -> Self {
        let registers = init.registers.iter().filter(|((t, _), _)| *t == thread);
        let known = registers.map(|((_, register), known)| (*register, known.clone())).collect();
        Self { layout, known, code: vec![], labels: vec![], jumps: vec![], merges: vec![] }
    }

    /// The thread's program.
    pub fn thread(mut self, cells: &[String]) -> Result<Vec<Instruction>, Skip> {
        for cell in cells {
            self.cell(cell)?;
        }
        for (at, label) in std::mem::take(&mut self.jumps) {
            let found = self.labels.iter().find(|(name, _)| *name == label).map(|(_, at)| *at);
            let target = found.ok_or_else(|| Skip::syntax(&format!("no label `{label}`")))?;
            if target <= at {
                return Err(Skip::feature("a backward branch"));
            }
            if let Op::Branch { target: place, .. } = &mut self.code[at].op {
                *place = target;
            }
        }
        if self.code.len() > crate::litmus::parse::program::MAX_CODE {
            return Err(Skip::feature("a longer program than our machine takes"));
        }
        Ok(self.code)
    }

    fn cell(&mut self, cell: &str) -> Result<(), Skip> {
        let mut text = cell;
        let mut label = None;
        while let Some((name, rest)) = text.split_once(':') {
            let name = name.trim();
            self.labels.push((name.to_owned(), self.code.len()));
            self.merge(name);
            label = Some(name.to_owned());
            text = rest.trim();
        }
        let text = text.trim();
        if text.is_empty() {
            // The label belongs to what comes next.
            return Ok(());
        }
        let before = self.code.len();
        self.instruction(text)?;
        let label = label.or_else(|| {
            let last = self.labels.last();
            last.filter(|(_, at)| *at == before).map(|(name, _)| name.clone())
        });
        if let (Some(label), Some(instruction)) = (label, self.code.get_mut(before)) {
            instruction.label = Some(label);
        }
        Ok(())
    }

    fn merge(&mut self, label: &str) {
        for (name, known) in &self.merges {
            if name == label {
                for (register, now) in &mut self.known {
                    if known.get(register) != Some(now) {
                        *now = Known::Unknown;
                    }
                }
            }
        }
    }

    fn push(&mut self, op: Op) {
        if let Some(register) = op.target() {
            let known = self.known.entry(register).or_insert(Known::Unknown);
            *known = Known::Unknown;
        }
        self.code.push(Instruction { op, label: None, line: 0 });
    }

    fn instruction(&mut self, text: &str) -> Result<(), Skip> {
        let (mnemonic, operands) = split(text);
        let unknown = || Skip::mnemonic(&mnemonic);
        match (mnemonic.as_str(), operands.as_slice()) {
            ("NOP", []) => {}
            ("LDR" | "LDAR" | "LDXR" | "LDAXR", [to, address]) => {
                let to = self.target(to)?;
                let (place, dependency) = self.address(address)?;
                let order = Order { acquire: mnemonic.starts_with("LDA"), release: false };
                let exclusive = mnemonic.contains("XR");
                self.push(Op::Load { to, place, address: dependency, order, exclusive });
            }
            ("STR" | "STLR", [from, address]) => {
                let value = self.value(from)?;
                let (place, address) = self.address(address)?;
                let order = Order { acquire: false, release: mnemonic == "STLR" };
                self.push(Op::Store { place, value, address, order });
            }
            ("STXR", [status, from, address]) => {
                let status = self.target(status)?;
                let value = self.value(from)?;
                let (place, dependency) = self.address(address)?;
                if dependency.is_some() {
                    return Err(Skip::feature("an exclusive store with a computed address"));
                }
                self.push(Op::StoreExclusive { status, place, value });
            }
            ("SWP" | "SWPA" | "SWPL" | "SWPAL", [from, to, address]) => {
                let value = self.value(from)?;
                let to = self.target(to)?;
                let (place, dependency) = self.address(address)?;
                if dependency.is_some() {
                    return Err(Skip::feature("a swap with a computed address"));
                }
                let order =
                    Order { acquire: mnemonic.contains('A'), release: mnemonic.ends_with('L') };
                self.push(Op::Swap { to, place, value, order });
            }
            ("MOV", [to, from]) => self.moved(to, from)?,
            ("EOR" | "AND" | "ADD" | "ORR" | "BIC", [to, left, right]) => {
                self.computed(&mnemonic, to, left, right)?;
            }
            ("LSR", [to, from, amount]) => {
                let shifted = match (self.holds(from)?, number(amount)) {
                    (Known::Address(name), Some(12)) => Known::PageNumber(name),
                    _ => return Err(Skip::feature("LSR of something else than an address by 12")),
                };
                let to = self.target(to)?;
                self.known.insert(to, shifted);
            }
            ("DMB" | "DSB", [kind]) => {
                let op = barriers::data_barrier(mnemonic == "DSB", kind);
                self.push(op.map_err(|_| Skip::mnemonic(text))?);
            }
            ("ISB", _) => self.push(Op::Barrier(Barrier::Context)),
            ("TLBI", [operation, rest @ ..]) => self.tlbi(operation, rest)?,
            ("CBZ" | "CBNZ", [register, label]) => {
                let reg = self.operand(register)?;
                let zero = Value::number(0);
                let equal = mnemonic == "CBZ";
                self.jumps.push((self.code.len(), label.clone()));
                self.merges.push((label.clone(), self.known.clone()));
                self.push(Op::Branch { reg, equal, value: zero, target: 0 });
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn target(&self, text: &str) -> Result<u8, Skip> {
        register_number(text)
            .flatten()
            .ok_or_else(|| Skip::feature(&format!("`{text}` as a destination")))
    }

    fn holds(&self, text: &str) -> Result<Known, Skip> {
        match register_number(text) {
            Some(None) => Ok(Known::Number(0)),
            Some(Some(register)) => {
                Ok(self.known.get(&register).cloned().unwrap_or(Known::Number(0)))
            }
            None => number(text)
                .map(Known::Number)
                .ok_or_else(|| Skip::feature(&format!("operand `{text}`"))),
        }
    }

    /// A register or a number as the operand of arithmetic, a branch or a store.
    fn operand(&self, text: &str) -> Result<Operand, Skip> {
        match (register_number(text), self.holds(text)?) {
            (_, Known::Address(_) | Known::Entry(_) | Known::PageNumber(_)) => {
                Err(Skip::feature("an address as data"))
            }
            (Some(Some(register)), _) => Ok(Operand::Reg(register)),
            (_, Known::Number(number)) => Ok(Operand::Value(Value::number(number))),
            _ => Err(Skip::feature(&format!("operand `{text}`"))),
        }
    }

    fn value(&self, text: &str) -> Result<Operand, Skip> {
        self.operand(text)
    }

    /// `[X1]`, or `[X1,W9,SXTW]` where the offset is zero computed from a register.
    fn address(&self, text: &str) -> Result<(Place, Option<u8>), Skip> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.ok_or_else(|| Skip::feature(&format!("address `{text}`")))?;
        let mut parts = inner.split(',').map(str::trim);
        let base = parts.next().unwrap_or_default();
        let place = match self.holds(base)? {
            Known::Address(name) => self.layout.location(&name),
            Known::Entry(name) => self.layout.entry(&name),
            _ => None,
        };
        let place =
            place.ok_or_else(|| Skip::feature(&format!("the computed address `{text}`")))?;
        let Some(offset) = parts.next() else { return Ok((place, None)) };
        match (self.holds(offset)?, register_number(offset).flatten()) {
            (Known::Zero, Some(register)) => Ok((place, Some(register))),
            (Known::Number(0), _) => Ok((place, None)),
            _ => Err(Skip::feature(&format!("the computed address `{text}`"))),
        }
    }

    fn moved(&mut self, to: &str, from: &str) -> Result<(), Skip> {
        let to = self.target(to)?;
        match self.holds(from)? {
            known @ (Known::Address(_) | Known::Entry(_) | Known::PageNumber(_)) => {
                self.known.insert(to, known);
            }
            known => {
                let left = self.operand(from)?;
                let right = Operand::Value(Value::number(0));
                self.push(Op::Set { to, left, with: Arithmetic::Move, right });
                self.known.insert(to, known);
            }
        }
        Ok(())
    }

    fn computed(&mut self, mnemonic: &str, to: &str, left: &str, right: &str) -> Result<(), Skip> {
        let to = self.target(to)?;
        // An address plus zero is the address, with a dependency that an access cannot express.
        let with = match mnemonic {
            "EOR" => Arithmetic::Xor,
            "AND" => Arithmetic::And,
            "ADD" => Arithmetic::Add,
            "ORR" => Arithmetic::Or,
            _ => Arithmetic::Clear,
        };
        let zero = mnemonic == "EOR" && left.get(1..) == right.get(1..)
            || mnemonic == "AND" && number(right) == Some(0);
        let op = Op::Set { to, left: self.operand(left)?, with, right: self.operand(right)? };
        self.push(op);
        self.known.insert(to, if zero { Known::Zero } else { Known::Unknown });
        Ok(())
    }

    fn tlbi(&mut self, operation: &str, rest: &[String]) -> Result<(), Skip> {
        let page = match rest {
            [] => None,
            [register] => match self.holds(register)? {
                Known::PageNumber(name) => self.layout.pages.get(&name).copied(),
                _ => None,
            },
            _ => return Err(Skip::mnemonic(&format!("TLBI {operation}"))),
        };
        let mut problem = false;
        let found = barriers::tlbi(operation, &mut || {
            problem |= page.is_none();
            Ok(page.unwrap_or_default())
        });
        if problem {
            return Err(Skip::feature("TLBI of a page that is not known"));
        }
        let (scope, broadcast) = found.map_err(|_| Skip::mnemonic(&format!("TLBI {operation}")))?;
        if matches!(scope, Scope::Tag(_)) {
            return Err(Skip::feature("TLBI by ASID"));
        }
        self.push(Op::Invalidate { by: Invalidator::Tlbi, scope, broadcast });
        Ok(())
    }
}

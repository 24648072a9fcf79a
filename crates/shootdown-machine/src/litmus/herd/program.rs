//! Instructions of herd files, as far as our machine has them.
//!
//! Addresses are followed while the program is read: an access must go to a location that is known.
//! What a register holds is forgotten where two paths meet that disagree.

use std::collections::BTreeMap;

use super::Skip;
use super::init::{Init, Known, number, register_number};
use crate::litmus::parse::barriers;
use crate::litmus::program::{
    Arithmetic, Barrier, Instruction, Invalidator, Modify, NOWHERE, OnFault, Op, Operand, Order,
    Place, Reg, Scope,
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

/// What a read-modify-write instruction does, and how it is ordered.
fn atomic(mnemonic: &str) -> Option<(Modify, Order)> {
    let kinds = [
        ("SWP", Modify::Exchange),
        ("LDADD", Modify::Add),
        ("LDSET", Modify::Set),
        ("LDCLR", Modify::Clear),
        ("CAS", Modify::Compare(Operand::Value(Value::number(0)))),
    ];
    kinds.iter().find_map(|(name, kind)| {
        let order = match mnemonic.strip_prefix(name)? {
            "" => Order::new(false, false),
            "A" => Order::new(true, false),
            "L" => Order::new(false, true),
            "AL" => Order::new(true, true),
            _ => return None,
        };
        Some((*kind, order))
    })
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
    /// No number in the test is larger.
    largest: u64,
    /// The thread runs in user mode.
    user: bool,
    /// Where ERET goes on.
    elr: Option<String>,
    /// The instruction is a handler's.
    handling: bool,
}

/// What faults do to a thread.
pub(super) enum OnFaults<'a> {
    /// They end it.
    End,
    /// The access is done once more.
    Retry,
    /// They go to this code.
    Handler(&'a [String]),
}

/// The register that stands for the flags: what a comparison has subtracted.
const FLAGS: Reg = 31;

/// The number that stands for the address of an instruction.
pub(super) fn label_address(at: usize) -> Value {
    Value::number(1 << 20 | at as u64)
}

impl<'a> Translator<'a> {
    pub fn new(layout: &'a Layout, init: &Init, thread: usize, largest: u64) -> Self {
        let registers = init.registers.iter().filter(|((t, _), _)| *t == thread);
        let known = registers.map(|((_, register), known)| (*register, known.clone())).collect();
        Self {
            layout,
            known,
            code: vec![],
            labels: vec![],
            jumps: vec![],
            merges: vec![],
            largest,
            user: false,
            elr: None,
            handling: false,
        }
    }

    /// The thread runs in user mode.
    pub fn user(&mut self) {
        self.user = true;
    }

    /// The thread's program.
    pub fn thread(
        mut self,
        cells: &[String],
        faults: OnFaults<'_>,
    ) -> Result<Vec<Instruction>, Skip> {
        let first = self.known.clone();
        for cell in cells {
            self.cell(cell)?;
        }
        let end = self.code.len();
        match faults {
            OnFaults::End => {}
            OnFaults::Retry => self.retry(),
            OnFaults::Handler(cells) => {
                // A fault may come anywhere: what the program changes is not known.
                for (register, known) in &mut self.known {
                    if first.get(register) != Some(known) {
                        *known = Known::Unknown;
                    }
                }
                self.handler(cells)?;
            }
        }
        let after = self.code.len();
        if after > end
            && let Some(last) = end.checked_sub(1)
        {
            self.code[last].next = Some(after);
        }
        for (at, label) in std::mem::take(&mut self.jumps) {
            let found = self.labels.iter().find(|(name, _)| *name == label).map(|(_, at)| *at);
            let target = found.ok_or_else(|| Skip::syntax(&format!("no label `{label}`")))?;
            let address = label_address(target);
            let target = if target == end { after } else { target };
            match &mut self.code[at].op {
                Op::Set { left, .. } => *left = Operand::Value(address),
                Op::Branch { target: place, .. } if target <= at && at < end => {
                    let loads = |i: &Instruction| {
                        matches!(i.op, Op::Load { exclusive: false, .. } | Op::Set { .. })
                    };
                    *place = NOWHERE;
                    if !self.code[target..at].iter().all(loads) {
                        return Err(Skip::feature("branch back to more than loads"));
                    }
                }
                Op::Branch { target: place, .. } => *place = target,
                _ => {}
            }
        }
        if self.code.len() > crate::litmus::parse::program::MAX_CODE {
            return Err(Skip::feature("a longer program than our machine takes"));
        }
        Ok(self.code)
    }

    /// Every access that faults is done once more; a run in which it faults again is dropped.
    fn retry(&mut self) {
        let end = self.code.len();
        for at in 0..end {
            if matches!(self.code[at].op.place(), Some(Place::Page(_))) {
                self.code[at].on_fault = OnFault::GoTo(self.code.len());
                let mut again = Instruction::new(self.code[at].op, None, 0);
                again.on_fault = OnFault::Discard;
                again.next = Some(at + 1);
                self.code.push(again);
            }
        }
        let after = self.code.len();
        for again in &mut self.code[end..] {
            if again.next == Some(end) {
                again.next = Some(after);
            }
        }
    }

    /// The handler follows the program. A fault in it is an error of the test.
    fn handler(&mut self, cells: &[String]) -> Result<(), Skip> {
        let start = self.code.len();
        self.handling = true;
        for cell in cells {
            self.cell(cell)?;
        }
        let back = self.elr.as_ref().and_then(|name| self.labels.iter().find(|l| l.0 == *name));
        let back = back.map_or(start, |(_, at)| *at);
        for at in 0..self.code.len() {
            if !matches!(self.code[at].op.place(), Some(Place::Page(_))) {
                continue;
            }
            if (back..start).contains(&at) {
                return Err(Skip::feature("second fault after the handler has returned"));
            }
            self.code[at].on_fault =
                if at < start { OnFault::GoTo(start) } else { OnFault::Discard };
        }
        Ok(())
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
        self.code.push(Instruction::new(op, None, 0));
    }

    fn instruction(&mut self, text: &str) -> Result<(), Skip> {
        let (mnemonic, operands) = split(text);
        let unknown = || Skip::mnemonic(&mnemonic);
        match (mnemonic.as_str(), operands.as_slice()) {
            ("NOP", []) => {}
            ("LDR" | "LDAR" | "LDAPR" | "LDXR" | "LDAXR", [to, address]) => {
                let to = self.target(to)?;
                let (place, dependency) = self.address(address)?;
                let mut order = Order::new(mnemonic.starts_with("LDA"), false);
                order.pc = mnemonic == "LDAPR";
                let exclusive = mnemonic.contains("XR");
                self.push(Op::Load { to, place, address: dependency, order, exclusive });
                if !matches!(place, Place::Entry { .. }) {
                    self.known.insert(to, Known::Loaded);
                }
            }
            ("STR" | "STLR", [from, address]) => {
                let value = self.value(from)?;
                let (place, address) = self.address(address)?;
                let order = Order::new(false, mnemonic == "STLR");
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
            (_, [from, to, address]) if atomic(&mnemonic).is_some() => {
                self.atomic(&mnemonic, from, Some(to), address)?;
            }
            ("STADD" | "STADDL" | "STSET" | "STSETL" | "STCLR" | "STCLRL", [from, address]) => {
                self.atomic(&mnemonic.replacen("ST", "LD", 1), from, None, address)?;
            }
            ("CMP", [left, right]) => {
                let (left, right) = (self.operand(left)?, self.operand(right)?);
                self.push(Op::Set { to: FLAGS, left, with: Arithmetic::Subtract, right });
            }
            ("CSEL", [to, left, right, condition]) => self.select(to, left, right, condition)?,
            ("CSET", [to, condition]) => self.select(to, "#1", "#0", condition)?,
            ("B.EQ" | "B.NE", [label]) => {
                self.branch(Operand::Reg(FLAGS), mnemonic == "B.EQ", label);
            }
            ("B", [label]) => self.branch(Operand::Value(Value::number(0)), true, label),
            ("ADR", [to, label]) => {
                let to = self.target(to)?;
                self.jumps.push((self.code.len(), label.clone()));
                let zero = Operand::Value(Value::number(0));
                self.push(Op::Set { to, left: zero, with: Arithmetic::Move, right: zero });
                self.known.insert(to, Known::Label(label.clone()));
            }
            ("MSR", [to, from]) if to.eq_ignore_ascii_case("ELR_EL1") && self.handling => {
                match self.holds(from)? {
                    Known::Label(label) => self.elr = Some(label),
                    _ => return Err(Skip::feature("return from a handler to a computed address")),
                }
            }
            ("ERET", []) if self.handling => match self.elr.clone() {
                Some(label) => self.branch(Operand::Value(Value::number(0)), true, &label),
                None => return Err(Skip::feature("return from a handler to what has faulted")),
            },
            ("MOV", [to, from]) => self.moved(to, from)?,
            ("EOR" | "AND" | "ADD" | "SUB" | "LSL" | "ORR" | "BIC", [to, left, right]) => {
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
                self.branch(self.operand(register)?, mnemonic == "CBZ", label);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn branch(&mut self, reg: Operand, equal: bool, label: &str) {
        self.jumps.push((self.code.len(), label.to_owned()));
        self.merges.push((label.to_owned(), self.known.clone()));
        self.push(Op::Branch { reg, equal, value: Value::number(0), target: 0 });
    }

    /// CSEL: one of two registers.
    fn select(&mut self, to: &str, left: &str, right: &str, condition: &str) -> Result<(), Skip> {
        let zero = match condition {
            "EQ" => true,
            "NE" => false,
            other => return Err(Skip::feature(&format!("condition {other}"))),
        };
        let to = self.target(to)?;
        let nothing = |known: &Known| matches!(known, Known::Number(0) | Known::Zero);
        let known = [self.holds(left)?, self.holds(right)?];
        let known = if known.iter().all(nothing) { Known::Zero } else { Known::Unknown };
        let (left, right) = (self.operand(left)?, self.operand(right)?);
        self.push(Op::Select { to, reg: FLAGS, zero, left, right });
        self.known.insert(to, known);
        Ok(())
    }

    /// A read-modify-write: `SWP from, to, [..]`, and for CAS `from` is what is compared.
    fn atomic(
        &mut self,
        mnemonic: &str,
        from: &str,
        to: Option<&str>,
        address: &str,
    ) -> Result<(), Skip> {
        let Some((kind, order)) = atomic(mnemonic) else { return Err(Skip::mnemonic(mnemonic)) };
        let (place, address) = self.address(address)?;
        let first = self.operand(from)?;
        let (to, with, value) = match kind {
            Modify::Compare(_) => {
                let value = self.operand(to.unwrap_or_default())?;
                (self.target(from).ok(), Modify::Compare(first), value)
            }
            // The zero register keeps nothing of what is read.
            with => (to.and_then(|to| self.target(to).ok()), with, first),
        };
        self.push(Op::Swap { to, place, with, value, address, order });
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
            (_, Known::Address(_) | Known::Entry(_) | Known::PageNumber(_) | Known::Label(_)) => {
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
            Known::Entry(_) if self.user => return Err(Skip::feature("entry for user mode")),
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
        if let (base @ (Known::Address(_) | Known::Entry(_)), "ADD", Known::Number(0)) =
            (self.holds(left)?, mnemonic, self.holds(right)?)
        {
            self.known.insert(to, base);
            return Ok(());
        }
        // An address plus zero is the address, with a dependency that an access cannot express.
        let with = match mnemonic {
            "EOR" => Arithmetic::Xor,
            "AND" => Arithmetic::And,
            "ADD" => Arithmetic::Add,
            "SUB" => Arithmetic::Subtract,
            "LSL" => Arithmetic::Shift,
            "ORR" => Arithmetic::Or,
            _ => Arithmetic::Clear,
        };
        let zero = mnemonic == "EOR" && left.get(1..) == right.get(1..)
            || mnemonic == "AND" && number(right) == Some(0)
            || mnemonic == "AND" && self.holds(left)? == Known::Loaded && self.above(right);
        let op = Op::Set { to, left: self.operand(left)?, with, right: self.operand(right)? };
        self.push(op);
        self.known.insert(to, if zero { Known::Zero } else { Known::Unknown });
        Ok(())
    }

    /// Has every number of the test a zero where the mask has bits?
    fn above(&self, mask: &str) -> bool {
        number(mask).is_some_and(|mask| mask != 0 && mask & mask.wrapping_neg() > self.largest)
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

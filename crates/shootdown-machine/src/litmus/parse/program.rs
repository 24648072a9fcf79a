//! Lines of a program.

use super::names::{Names, register};
use super::tokens::{Tokens, number};
use super::{barriers, device};
use crate::litmus::error::Problem;
use crate::litmus::program::{Arithmetic, Instruction, Modify, Op, Operand, Order, Place, Reg};
use crate::litmus::value::Value;

/// A program while it is read: branches name labels.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub code: Vec<Instruction>,
    /// Labels before anything stands behind them.
    waiting: Vec<String>,
    labels: Vec<(String, usize)>,
    jumps: Vec<(usize, String, usize)>,
}

/// The longest program.
pub(crate) const MAX_CODE: usize = 32;

impl Draft {
    /// Reads one line.
    pub fn line(&mut self, names: &Names, line: &str, at: usize) -> Result<(), Problem> {
        let mut tokens = Tokens::new(line);
        let mut ahead = tokens.clone();
        let first = ahead.need("an instruction")?;
        if ahead.take(":") {
            if self.labels.iter().any(|(name, _)| name == first) {
                return Err(Problem::new(format!("label `{first}` twice"), "rename one"));
            }
            self.labels.push((first.to_owned(), self.code.len()));
            self.waiting.push(first.to_owned());
            tokens = ahead;
            if tokens.is_empty() {
                return Ok(());
            }
        }
        let op = self.instruction(names, &mut tokens, at)?;
        tokens.finish()?;
        if self.code.len() == MAX_CODE {
            return Err(Problem::new(
                format!("more than {MAX_CODE} instructions"),
                "make the program shorter: every order of them is tried",
            ));
        }
        let label = self.waiting.pop();
        self.waiting.clear();
        self.code.push(Instruction::new(op, label, at));
        Ok(())
    }

    fn instruction(
        &mut self,
        names: &Names,
        tokens: &mut Tokens<'_>,
        line: usize,
    ) -> Result<Op, Problem> {
        let first = tokens.need("an instruction")?;
        if let Some(to) = register(first) {
            tokens.expect("=")?;
            return assignment(names, to, tokens);
        }
        match first {
            "store" | "store.rel" => {
                let place = names.place(tokens)?;
                tokens.expect("=")?;
                let value = operand(names, tokens)?;
                let address = address(tokens)?;
                let order = Order::new(false, first == "store.rel");
                Ok(Op::Store { place, value, address, order })
            }
            "wait" => {
                if tokens.take("ipi") {
                    return Ok(Op::TakeInterrupt);
                }
                let place = names.place(tokens)?;
                tokens.expect("=")?;
                let value = names.value(tokens)?;
                if matches!(place, Place::Page(_)) {
                    return Err(Problem::new("`wait` on a page", "wait for a variable"));
                }
                Ok(Op::Wait { place, value })
            }
            "ipi" => Ok(Op::Interrupt { cpu: tokens.number("a CPU")? as u8 }),
            "if" => self.branch(names, tokens, line),
            "load.root" => {
                let name = tokens.need("a table")?;
                let table = names.table(name).ok_or_else(|| {
                    Problem::new(format!("there is no table `{name}`"), "declare it with `table`")
                })?;
                let tag = if tokens.take("tag") {
                    tokens.number("a tag")?
                } else {
                    barriers::DEFAULT_TAG.into()
                };
                let keep = tokens.take("keep");
                Ok(Op::Root { table: table as u8, tag: tag as u16, keep })
            }
            mnemonic => match device::command(names, mnemonic, tokens)? {
                Some(op) => Ok(op),
                None => barriers::parse(names, mnemonic, tokens)?.ok_or_else(|| {
                    Problem::new(
                        format!("`{mnemonic}` is no instruction of {}", names.arch),
                        "see the list in the format's page",
                    )
                }),
            },
        }
    }

    fn branch(
        &mut self,
        names: &Names,
        tokens: &mut Tokens<'_>,
        line: usize,
    ) -> Result<Op, Problem> {
        let token = tokens.need("a register")?;
        let reg = register(token).ok_or_else(|| {
            Problem::new(format!("`{token}` is no register"), "compare a register with a value")
        })?;
        let equal = tokens.take("==");
        if !equal {
            tokens.expect("!=")?;
        }
        let value = names.value(tokens)?;
        tokens.expect("goto")?;
        self.jumps.push((self.code.len(), tokens.need("a label")?.to_owned(), line));
        Ok(Op::Branch { reg: Operand::Reg(reg), equal, value, target: 0 })
    }

    /// Resolves the jumps.
    pub fn finish(mut self) -> Result<Vec<Instruction>, (usize, Problem)> {
        for (at, name, line) in std::mem::take(&mut self.jumps) {
            let target = self.label(&name).filter(|target| *target > at).ok_or_else(|| {
                let help = "branches go forward, to a label of the same program";
                (line, Problem::new(format!("no label `{name}` below"), help))
            })?;
            if let Op::Branch { target: place, .. } = &mut self.code[at].op {
                *place = target;
            }
        }
        Ok(self.code)
    }

    fn label(&self, name: &str) -> Option<usize> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, at)| *at)
    }
}

fn operand(names: &Names, tokens: &mut Tokens<'_>) -> Result<Operand, Problem> {
    if let Some(reg) = tokens.peek().and_then(register) {
        tokens.next()?;
        return Ok(Operand::Reg(reg));
    }
    names.value(tokens).map(Operand::Value)
}

/// `@ REG`: the address is computed from the register, without changing it.
fn address(tokens: &mut Tokens<'_>) -> Result<Option<Reg>, Problem> {
    if !tokens.take("@") {
        return Ok(None);
    }
    let token = tokens.need("a register")?;
    register(token)
        .map(Some)
        .ok_or_else(|| Problem::new(format!("`{token}` is no register"), "write `@ REGISTER`"))
}

fn assignment(names: &Names, to: Reg, tokens: &mut Tokens<'_>) -> Result<Op, Problem> {
    let first = tokens.peek().unwrap_or_default();
    let acquire = first.ends_with(".acq") || first.ends_with(".acqrel");
    match first {
        "load" | "load.acq" | "load.ex" | "load.acq.ex" => {
            tokens.next()?;
            let place = names.place(tokens)?;
            let address = address(tokens)?;
            let order = Order::new(first.contains(".acq"), false);
            let exclusive = first.ends_with(".ex");
            Ok(Op::Load { to, place, address, order, exclusive })
        }
        "store.ex" => {
            tokens.next()?;
            let place = names.place(tokens)?;
            tokens.expect("=")?;
            Ok(Op::StoreExclusive { status: to, place, value: operand(names, tokens)? })
        }
        "swap" | "swap.acq" | "swap.rel" | "swap.acqrel" => {
            tokens.next()?;
            let place = names.place(tokens)?;
            tokens.expect("=")?;
            let value = operand(names, tokens)?;
            let order = Order::new(acquire, first.ends_with("rel"));
            let with = Modify::Exchange;
            Ok(Op::Swap { to: Some(to), place, with, value, address: None, order })
        }
        _ => {
            let left = operand(names, tokens)?;
            let Some(sign) = tokens.next()? else {
                let right = Operand::Value(Value::number(0));
                return Ok(Op::Set { to, left, with: Arithmetic::Move, right });
            };
            let with = match sign {
                "^" => Arithmetic::Xor,
                "&" => Arithmetic::And,
                "|" => Arithmetic::Or,
                _ => {
                    let help = "registers know ^, & and |";
                    return Err(Problem::new(format!("`{sign}` computes nothing"), help));
                }
            };
            Ok(Op::Set { to, left, with, right: operand(names, tokens)? })
        }
    }
}

/// The instruction that a label or an index names.
pub(super) fn instruction_named(code: &[Instruction], name: &str) -> Option<usize> {
    code.iter()
        .position(|i| i.label.as_deref() == Some(name))
        .or_else(|| number(name).map(|n| n as usize).filter(|n| *n < code.len()))
}

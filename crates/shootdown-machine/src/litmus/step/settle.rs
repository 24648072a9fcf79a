//! What follows by itself in a state.

use super::release;
use crate::hostile::Descriptor;
use crate::litmus::machine::{Machine, State, Step};
use crate::litmus::program::{Arithmetic, NOWHERE, Op};
use crate::litmus::test::Arch;
use crate::litmus::value::Value;
use crate::litmus::window::View;

/// Does what follows by itself: register arithmetic, and branches whose register is known. False if
/// a guess was wrong.
pub(in crate::litmus) fn settle(machine: &Machine<'_>, state: &mut State) -> bool {
    for cpu in 0..state.cpus.len() {
        let mut k = 0;
        loop {
            let view = View::new(machine, state, cpu);
            if k >= view.path.len() {
                break;
            }
            let at = view.path.at(k);
            let step = *view.step(k);
            let done = match *view.op(k) {
                Op::Set { to: _, left, with, right } if step == Step::Waiting => {
                    let both = view.operand(k, left).zip(view.operand(k, right));
                    both.map(|(left, right)| compute(machine.test.arch, left, with, right))
                }
                Op::Branch { reg, equal, value, target } if !step.finished() => {
                    let taken = view.operand(k, reg).map(|found| (found == value) == equal);
                    if let (Some(is), Step::Guessed { taken: guess }) = (taken, step)
                        && is != guess
                    {
                        return false;
                    }
                    if taken == Some(true) && target == NOWHERE {
                        return false;
                    }
                    taken.map(|taken| Value::number(u64::from(taken)))
                }
                Op::Select { reg, zero, left, right, .. } if !step.finished() => {
                    let taken = view.reg(k, reg).map(|found| (found.bits() == 0) == zero);
                    if let (Some(is), Step::Guessed { taken: guess }) = (taken, step)
                        && is != guess
                    {
                        return false;
                    }
                    taken.and_then(|taken| view.operand(k, if taken { left } else { right }))
                }
                _ => None,
            };
            if let Some(value) = done {
                state.cpus[cpu].steps[at] = Step::done(value);
            }
            k += 1;
        }
    }
    for cpu in 0..state.cpus.len() {
        over(machine, state, cpu);
    }
    true
}

/// Releases those who wait for faults of this CPU that are over.
fn over(machine: &Machine<'_>, state: &mut State, cpu: usize) {
    let waits = |step: &Step| matches!(step, Step::Issued { outstanding } if *outstanding != 0);
    if !state.cpus.iter().any(|other| other.steps.iter().any(waits)) {
        return;
    }
    let view = View::new(machine, state, cpu);
    let fault = |k: &usize| matches!(view.step(*k), Step::HeldFault { .. } | Step::Faulted { .. });
    let over = (0..view.path.len()).filter(|k| fault(k) && view.fault_over(*k));
    let over: Vec<usize> = over.map(|k| view.path.at(k)).collect();
    for at in over {
        release(state, cpu, at);
    }
}

/// What arithmetic makes of two values. On AArch64 a number beside an entry names the entry's bits
/// as the manual has them.
pub(in crate::litmus) fn compute(arch: Arch, left: Value, with: Arithmetic, right: Value) -> Value {
    if arch == Arch::Aarch64
        && let (Some(entry), None) = (left.as_descriptor(), right.as_descriptor())
    {
        let mask = right.bits();
        match with {
            Arithmetic::And => return Value::number(entry_bits(entry) & mask),
            Arithmetic::Or => return Value::descriptor(with_bits(entry, entry_bits(entry) | mask)),
            Arithmetic::Clear => {
                return Value::descriptor(with_bits(entry, entry_bits(entry) & !mask));
            }
            _ => {}
        }
    }
    let (l, r) = (left.bits(), right.bits());
    match with {
        Arithmetic::Subtract => Value::from_bits(l.wrapping_sub(r)),
        Arithmetic::Shift => Value::from_bits(l.checked_shl(r as u32).unwrap_or(0)),
        Arithmetic::Move => left,
        Arithmetic::Add => Value::from_bits(l.wrapping_add(r)),
        Arithmetic::Xor => Value::from_bits(l ^ r),
        Arithmetic::And => Value::from_bits(l & r),
        Arithmetic::Or => Value::from_bits(l | r),
        Arithmetic::Clear => Value::from_bits(l & !r),
    }
}

/// Bits of an AArch64 entry that software changes by masks (Arm ARM D8.3.1: valid, AP\[2\], AF,
/// DBM); AP\[2\] forbids stores.
const FIELDS: [(u64, u64); 3] =
    [(1, Descriptor::PRESENT), (1 << 10, Descriptor::ACCESSED), (1 << 51, Descriptor::DBM)];
const READ_ONLY: u64 = 1 << 7;

fn entry_bits(entry: Descriptor) -> u64 {
    let read_only = if entry.has(Descriptor::WRITE) { 0 } else { READ_ONLY };
    let set = FIELDS.iter().filter(|(_, ours)| entry.has(*ours));
    set.fold(read_only, |bits, (theirs, _)| bits | theirs)
}

fn with_bits(entry: Descriptor, bits: u64) -> Descriptor {
    let write = (bits & READ_ONLY == 0, Descriptor::WRITE);
    let fields = FIELDS.iter().map(|(theirs, ours)| (bits & theirs != 0, *ours));
    fields.chain([write]).fold(
        entry,
        |entry, (on, bit)| {
            if on { entry.with(bit) } else { entry.without(bit) }
        },
    )
}

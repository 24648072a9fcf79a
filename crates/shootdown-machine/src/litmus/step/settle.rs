//! What follows by itself in a state.

use crate::litmus::machine::{Machine, State, Step};
use crate::litmus::program::{Arithmetic, Op};
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
                    both.map(|(left, right)| compute(left, with, right))
                }
                Op::Branch { reg, equal, value, .. } if !step.finished() => {
                    let taken = view.operand(k, reg).map(|found| (found == value) == equal);
                    if let (Some(is), Step::Guessed { taken: guess }) = (taken, step)
                        && is != guess
                    {
                        return false;
                    }
                    taken.map(|taken| Value::number(u64::from(taken)))
                }
                _ => None,
            };
            if let Some(value) = done {
                state.cpus[cpu].steps[at] = Step::done(value);
            }
            k += 1;
        }
    }
    true
}

fn compute(left: Value, with: Arithmetic, right: Value) -> Value {
    let (l, r) = (left.bits(), right.bits());
    match with {
        Arithmetic::Move => left,
        Arithmetic::Add => Value::from_bits(l.wrapping_add(r)),
        Arithmetic::Xor => Value::from_bits(l ^ r),
        Arithmetic::And => Value::from_bits(l & r),
        Arithmetic::Or => Value::from_bits(l | r),
        Arithmetic::Clear => Value::from_bits(l & !r),
    }
}

//! Every run of a test: breadth-first search over an exact visited set.
//!
//! The set keeps a 128-bit fingerprint of each state, made of two independent 64-bit hashes. With a
//! million states the chance that two different ones share a fingerprint is below 10^-26.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::condition::Ending;
use super::device;
use super::error::RunError;
use super::machine::{End, Machine, Options, State};
use super::program::{Instruction, Place};
use super::step::{Stepper, settle};
use super::test::{Features, Test};

/// What exploring a test found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Steps between them, repetitions included.
    pub transitions: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// The distinct ways a run can end: registers, memory and faults, as text.
    pub finals: BTreeSet<String>,
    /// Distinct ending states for which the question is answered with yes.
    pub yes: usize,
    /// Those for which it is answered with no.
    pub no: usize,
    /// For each witness of the test, whether some run ends so.
    pub witnesses: Vec<bool>,
}

/// Explores a test on a machine with these features.
///
/// # Errors
/// [`RunError`]: the limit was reached, or the machine cannot hold the test. Never a partial result.
pub fn explore(test: &Test, features: Features, options: &Options) -> Result<Explored, RunError> {
    let machine = Machine::new(test, features, *options);
    let mut stepper = Stepper::new(&machine);
    let mut seen: HashSet<u128, BuildHasherDefault<Identity>> = HashSet::default();
    let mut start = machine.start()?;
    settle(&machine, &mut start);
    seen.insert(fingerprint(&start));
    let mut found =
        Explored { witnesses: vec![false; test.witnesses.len()], ..Explored::default() };
    let mut level = vec![start];
    let mut next = Vec::new();
    while !level.is_empty() {
        for state in level.drain(..) {
            if stepper.ended(&state) {
                found.end(&End { machine: &machine, state: &state });
            }
            stepper.successors(&state, &mut |successor| {
                found.transitions += 1;
                if seen.insert(fingerprint(&successor)) {
                    next.push(successor);
                }
            })?;
            if seen.len() > options.max_states {
                return Err(RunError::Limit(options.max_states));
            }
        }
        std::mem::swap(&mut level, &mut next);
        found.depth += usize::from(!level.is_empty());
    }
    found.states = seen.len();
    Ok(found)
}

impl Explored {
    fn end(&mut self, end: &End<'_>) {
        let test = end.machine.test;
        if test.goal.holds(end) {
            self.yes += 1;
        } else {
            self.no += 1;
        }
        for (reached, witness) in self.witnesses.iter_mut().zip(&test.witnesses) {
            *reached |= witness.holds(end);
        }
        self.finals.insert(describe(end));
    }
}

/// An ending as text: registers that programs write, faults, and words that are not as at the
/// start.
fn describe(end: &End<'_>) -> String {
    let test = end.machine.test;
    let mut text = String::new();
    for (cpu, program) in test.cpus.iter().enumerate() {
        let written: BTreeSet<u8> = program.code.iter().filter_map(|i| i.op.target()).collect();
        for reg in written {
            let _ = write!(text, "{cpu}:r{reg}={:?} ", end.register(cpu, reg));
        }
        for (at, instruction) in program.code.iter().enumerate() {
            if end.faulted(cpu, at).is_some() {
                let label = instruction.label.clone().unwrap_or_else(|| at.to_string());
                let _ = write!(text, "fault({cpu}:{label}) ");
            }
        }
    }
    for (number, device) in test.devices.iter().enumerate() {
        for (at, Instruction { op, label, .. }) in device.code.iter().enumerate() {
            let actor = device::FIRST + number;
            if end.faulted(actor, at).is_some() {
                let label = label.clone().unwrap_or_else(|| at.to_string());
                let _ = write!(text, "fault(d{number}:{label}) ");
            } else if let Some(reg) = op.target() {
                let _ = write!(text, "d{number}:r{reg}={:?} ", end.register(actor, reg));
            }
        }
    }
    for (var, word) in test.vars.iter().enumerate() {
        let value = end.memory(Place::Var(var as u8));
        let _ = write!(text, "{}={value:?} ", word.name);
    }
    for (frame, word) in test.frames.iter().enumerate() {
        let _ = write!(text, "{}={:?} ", word.name, end.frame(frame));
    }
    for (table, t) in test.tables.iter().enumerate() {
        for (index, initial) in t.entries.iter().enumerate() {
            let value = end.memory(Place::Entry { table: table as u8, index: index as u8 });
            if value != *initial {
                let _ = write!(text, "{}[{index}]={value:?} ", t.name);
            }
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Two independent hashes of a state.
pub(super) fn fingerprint(state: &State) -> u128 {
    let mut hasher = Lanes { a: 0x243f_6a88_85a3_08d3, b: 0x1319_8a2e_0370_7344 };
    state.hash(&mut hasher);
    u128::from(mix(hasher.a, hasher.b)) << 64 | u128::from(mix(hasher.b, !hasher.a))
}

/// Folds the 128-bit product of its arguments.
const fn mix(a: u64, b: u64) -> u64 {
    let product = (a ^ 0xa409_3822_299f_31d0) as u128 * (b ^ 0x082e_fa98_ec4e_6c89) as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A hasher that gives the same in every run and on every host.
struct Lanes {
    a: u64,
    b: u64,
}

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.a = mix(self.a ^ n, 0x4528_21e6_38d0_1377);
        self.b = mix(self.b.rotate_left(23) ^ n, 0xbe54_66cf_34e9_0c6c);
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.a, self.b)
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {}

    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

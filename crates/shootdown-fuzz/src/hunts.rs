//! What a hunt reads: programs of the model kernel, schedules, and the lines that show a failure
//! again.

use shootdown_lab::check::code::ReplayCode;
use shootdown_machine::harness::Code;
use shootdown_machine::hunt::kernel::{Op, Program, Script};
use shootdown_machine::hunt::schedule::{Replay, decode, encode};
use shootdown_machine::hunt::{Bounds, Powers, run};

use crate::Bytes;

/// The bytes are a line, and, one by one, the choices of a schedule.
pub fn schedule(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(choices) = decode(&text) {
        assert_eq!(decode(&encode(&choices)), Ok(choices));
    }
    if let Ok(code) = text.parse::<Code>() {
        assert_eq!(code.to_string().parse(), Ok(code));
    }
    if let Ok(code) = text.parse::<ReplayCode>() {
        assert_eq!(code.to_string().parse(), Ok(code));
    }
    if let Ok(powers) = text.parse::<Powers>() {
        assert_eq!(powers.to_string().parse(), Ok(powers));
    }
    // A line has a place for every choice but zeros at the end; a wrong character is noticed.
    let mut choices: Vec<u16> = data.iter().map(|b| u16::from(*b) << (b & 8)).collect();
    let line = encode(&choices);
    choices.truncate(choices.iter().rposition(|c| *c != 0).map_or(0, |last| last + 1));
    assert_eq!(decode(&line), Ok(choices));
}

/// What ends a program and begins a schedule of it.
const BETWEEN: char = '#';

/// The bytes are a program and a schedule: it reads back as it is written, and where it is a
/// program that a correct kernel may run, no promise is broken.
pub fn program(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, schedule) = text.split_once(BETWEEN).unwrap_or((&text, ""));
    let program: Program = match text.parse() {
        Ok(program) => program,
        Err(said) => {
            assert!(!said.is_empty());
            return;
        }
    };
    let written = program.to_string();
    assert_eq!(written.parse().as_ref(), Ok(&program), "{written}");
    program.config.facts().check().expect("a configuration that was accepted can be built");
    if !is_fair(&program) {
        return;
    }
    let mut bytes = Bytes::new(schedule.as_bytes());
    let mut choices = Vec::new();
    while !bytes.is_empty() && choices.len() < 400 {
        choices.push(bytes.below(8) as u16);
    }
    let bounds = Bounds { steps: 3_000, record: false };
    let outcome = run(&program, Powers::HOSTILE, bounds, &mut Replay::new(&choices));
    assert!(!outcome.end.is_failure(), "{program}: {:?}", outcome.end);
}

/// Does it keep what programs owe: few operations, so that there are frames and tables for all;
/// nothing before the start that asks other CPUs; no step left out; a driver that gives its page
/// back once, and an area that is that page?
fn is_fair(program: &Program) -> bool {
    let early = |op: &Op| matches!(op, Op::Switch(_) | Op::Lazy | Op::Leave);
    let short =
        |cpu: &Script| cpu.run.len() <= 6 && cpu.boot.len() <= 3 && cpu.boot.iter().all(early);
    let ops = || program.cpus.iter().flat_map(|cpu| cpu.boot.iter().chain(&cpu.run));
    let drivers = ops().filter(|op| matches!(op, Op::Driver(_))).count();
    let areas: Vec<_> =
        ops().filter(|op| matches!(op, Op::Driver(_) | Op::Munmap(_))).map(Op::at).collect();
    let one_area = drivers <= 1 && areas.iter().all(|area| *area == areas[0]);
    program.cpus.len() <= 4
        && program.cpus.iter().all(short)
        && program.config.mutant.is_none()
        && (drivers == 0 || one_area)
}

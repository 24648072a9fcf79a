//! Runs of AArch64 tests as Casemate traces.
//!
//! Programs are executed in order here, one instruction after the other, in every interleaving: a
//! trace is what a log in the code would show, not what the hardware makes of it. The tables get
//! levels above them, so that there are four, and the operations of EL1 become those of EL2's stage
//! 1, which the format has. A lock is held by the CPU that writes the tables, as Casemate asks.
//! DMBs and DSB LD have no record.

use std::collections::{BTreeSet, HashSet};

use crate::casemate::{Dsb, Record, Register, Step as Event, Tlbi};
use crate::hostile::Descriptor;

use super::error::RunError;
use super::explore::fingerprint;
use super::machine::{Breakage, Machine, Options, State};
use super::program::{Barrier, Class, Op, Place, Scope};
use super::step::{Stepper, settle};
use super::test::{Arch, Features, Test};
use super::value::Value;
use super::window::View;

const TABLES: u64 = 0x4000_0000;
const UPPER: u64 = 0x4100_0000;
const LOCK: u64 = 0x4200_0000;
const FRAMES: u64 = 0x8000_0000;
const PAGE: u64 = 0x1000;
/// Valid, and (above the last level) a table; on the last level a page.
const TABLE: u64 = 0b11;

/// An instruction of a run that leaves a record, and what it wrote.
type Done = (u8, u8, Value);

/// The traces of all runs of a test, each once.
///
/// # Errors
/// [`RunError::Unsupported`] says what the format can't express; [`RunError::Limit`].
pub fn traces(test: &Test, options: &Options) -> Result<BTreeSet<Vec<Record>>, RunError> {
    let writer = writer(test)?;
    let options = Options { breakage: Breakage::Sequential, ..*options };
    let machine = Machine::new(test, Features::default(), options);
    let mut stepper = Stepper::new(&machine);
    let mut start = machine.start()?;
    settle(&machine, &mut start);
    let mut seen = HashSet::new();
    let mut found = BTreeSet::new();
    let mut todo = vec![(start, Vec::<Done>::new())];
    while let Some((state, done)) = todo.pop() {
        if stepper.ended(&state) {
            let mut all = done.clone();
            for cpu in 0..state.cpus.len() {
                barriers(&machine, &state, cpu, usize::MAX, &mut all);
            }
            found.insert(records(test, writer, &all));
        }
        stepper.successors(&state, &mut |next| {
            let mut done = done.clone();
            let finished = |cpu: usize, at: usize| {
                !state.cpus[cpu].steps[at].finished() && next.cpus[cpu].steps[at].finished()
            };
            for cpu in 0..next.cpus.len() {
                for at in (0..next.cpus[cpu].steps.len()).filter(|at| finished(cpu, *at)) {
                    if let Some(value) = written(&machine, &state, &next, cpu, at) {
                        barriers(&machine, &next, cpu, at, &mut done);
                        done.push((cpu as u8, at as u8, value));
                    }
                }
            }
            if seen.insert((fingerprint(&next), done.clone())) {
                todo.push((next, done));
            }
        })?;
        if seen.len() > options.max_states {
            return Err(RunError::Limit(options.max_states));
        }
    }
    Ok(found)
}

/// The CPU that writes the tables.
fn writer(test: &Test) -> Result<u32, RunError> {
    let no = |why: &str| Err(RunError::Unsupported(why.to_owned()));
    if test.arch != Arch::Aarch64 {
        return no("traces are of AArch64 tests");
    }
    if !test.devices.is_empty() {
        return no("traces know no devices");
    }
    let roots: BTreeSet<(usize, u16)> = test.cpus.iter().map(|p| (p.root, p.tag)).collect();
    let loads = test.cpus.iter().flat_map(|p| &p.code).any(|i| matches!(i.op, Op::Root { .. }));
    if roots.len() != 1 || loads {
        return no("several roots or tags: a trace of EL2 has one");
    }
    let writes = |op: &Op| {
        let entry = matches!(op.place(), Some(Place::Entry { .. }));
        entry && op.class().is_some_and(|c| c.writes)
    };
    let mut writers =
        (0u32..).zip(&test.cpus).filter(|(_, p)| p.code.iter().any(|i| writes(&i.op)));
    match (writers.next(), writers.next()) {
        (Some((cpu, _)), None) => Ok(cpu),
        (None, _) => no("nobody writes the tables"),
        _ => no("several CPUs write the tables, and a trace needs them to take turns by a lock"),
    }
}

/// What the instruction wrote to a table, or nothing if it is one that leaves another record.
fn written(
    machine: &Machine<'_>,
    before: &State,
    after: &State,
    cpu: usize,
    at: usize,
) -> Option<Value> {
    match machine.op(cpu, at) {
        Op::Invalidate { .. } => Some(Value::default()),
        op => {
            let word = usize::from(machine.word(op.place()?)?);
            let stores = op.class().is_some_and(|c| c.writes);
            let table = matches!(op.place(), Some(Place::Entry { .. }));
            let changed = before.words.0[word].1 != after.words.0[word].1;
            (stores && table && changed).then_some(after.words.0[word].0)
        }
    }
}

/// The barriers that a CPU has passed before an instruction and that are not in the trace yet.
fn barriers(machine: &Machine<'_>, state: &State, cpu: usize, before: usize, done: &mut Vec<Done>) {
    let view = View::new(machine, state, cpu);
    for k in 0..view.path.len() {
        let at = view.path.at(k);
        if at >= before {
            break;
        }
        let entry = (cpu as u8, at as u8, Value::default());
        if matches!(view.op(k), Op::Barrier(_)) && !done.contains(&entry) {
            done.push(entry);
        }
    }
}

fn records(test: &Test, writer: u32, done: &[Done]) -> Vec<Record> {
    let mut all = prelude(test);
    let source = |cpu: u8, at: u8| {
        let line = test.cpus[usize::from(cpu)].code[usize::from(at)].line;
        format!("{}:{line}", test.name)
    };
    let lock = |what: &str| Record {
        thread: writer,
        step: Event::Other(format!("{what} (address {LOCK:x})")),
        source: format!("{}:0", test.name),
    };
    all.push(lock("lock"));
    for &(cpu, at, value) in done {
        let op = &test.cpus[usize::from(cpu)].code[usize::from(at)].op;
        if let Some(step) = event(test, op, value) {
            all.push(Record { thread: u32::from(cpu), step, source: source(cpu, at) });
        }
    }
    all.push(lock("unlock"));
    all
}

fn event(test: &Test, op: &Op, value: Value) -> Option<Event> {
    Some(match *op {
        Op::Barrier(Barrier::Context) => Event::Isb,
        Op::Barrier(Barrier::Sync { before: Class::BOTH }) => Event::Dsb(Dsb::Ish),
        Op::Barrier(Barrier::Sync { before: Class::WRITES }) => Event::Dsb(Dsb::Ishst),
        Op::Barrier(_) => return None,
        Op::Invalidate { scope, broadcast: all_cpus, .. } => Event::Tlbi(match scope {
            Scope::Page { page, .. } | Scope::PageAnyTag { page } | Scope::PageHere { page } => {
                Tlbi::Va { page: number(test, page), last: false, all_cpus }
            }
            Scope::LastLevel { page, .. } => {
                Tlbi::Va { page: number(test, page), last: true, all_cpus }
            }
            Scope::Tag(_) | Scope::NonGlobal | Scope::All => Tlbi::El2 { all_cpus },
        }),
        _ => {
            let Some(Place::Entry { table, index }) = op.place() else { return None };
            let value = encode(test, usize::from(table), value);
            Event::Write {
                address: entry(table.into(), index.into()),
                value,
                release: op.order().release,
            }
        }
    })
}

/// The tables as they are at the start, linked below a root of four levels, and loaded.
fn prelude(test: &Test) -> Vec<Record> {
    let upper: Vec<u64> =
        (0..4 - u64::from(test.levels)).map(|level| UPPER + level * PAGE).collect();
    let tables = (0..test.tables.len()).map(|table| entry(table, 0));
    let pages: Vec<u64> = upper.iter().copied().chain(tables).collect();
    let other = |text: String| Event::Other(text);
    let register =
        |name: &str, value: u64| other(format!("sysreg-write (sysreg {name}) (value {value:x})"));
    let write = |address: u64, value: u64| Event::Write { address, value, release: false };
    let hint = |kind: &str, location: u64, value: u64| {
        other(format!("hint (kind {kind}) (location {location:x}) (value {value:x})"))
    };
    // 16 bits less than 64 of address: four levels.
    let mut all = vec![register("vtcr_el2", 0x10), register("tcr_el2", 0x10)];
    all.extend(["mair_el2", "hcr_el2", "sctlr_el2"].map(|name| register(name, 0)));
    all.extend(pages.iter().map(|address| Event::Init { address: *address, size: PAGE }));
    all.push(hint("set_root_lock", pages[0], LOCK));
    all.extend(pages[1..].iter().map(|page| hint("set_owner_root", *page, pages[0])));
    all.extend(upper.iter().zip(&pages[1..]).map(|(from, to)| write(*from, to | TABLE)));
    for (table, contents) in test.tables.iter().enumerate() {
        for (index, value) in contents.entries.iter().enumerate() {
            let value = encode(test, table, *value);
            if value != 0 {
                all.push(write(entry(table, index), value));
            }
        }
    }
    all.push(Event::Root { register: Register::Ttbr0El2, value: pages[0] });
    all.push(register("sctlr_el2", 1));
    let source = format!("{}:0", test.name);
    all.into_iter().map(|step| Record { thread: 0, step, source: source.clone() }).collect()
}

const fn entry(table: usize, index: usize) -> u64 {
    TABLES + table as u64 * PAGE + index as u64 * 8
}

/// A page's number with nine bits a level.
fn number(test: &Test, page: u8) -> u64 {
    let mut rest = test.pages[usize::from(page)].page;
    let mut number = 0;
    for level in 0..u32::from(test.levels) {
        number |= u64::from(rest % (1 << Test::INDEX_BITS)) << (9 * level);
        rest >>= Test::INDEX_BITS;
    }
    number
}

/// The entry as AArch64 has it (EL2's stage 1 knows no non-global entries).
fn encode(test: &Test, table: usize, value: Value) -> u64 {
    let of = value.as_walked();
    let last_level = table + 1 >= usize::from(test.levels);
    if of.present() && !of.has(Descriptor::LEAF) {
        return entry(usize::from(of.next().0), 0) | TABLE;
    }
    if of.bits() == 0 {
        return 0;
    }
    let flag = |bits: u64, at: u32| u64::from(of.has(bits)) << at;
    let leaf = if last_level { TABLE } else { 1 };
    let kind = if of.present() { leaf } else { 0 };
    let read_only = u64::from(!of.has(Descriptor::WRITE)) << 7;
    let address = FRAMES + u64::from(of.frame().0) * PAGE;
    let attributes = (of.bits() & Descriptor::ATTRIBUTES)
        / (Descriptor::ATTRIBUTES & !(Descriptor::ATTRIBUTES << 1));
    let bits =
        flag(Descriptor::ACCESSED, 10) | flag(Descriptor::USER, 6) | flag(Descriptor::DBM, 51);
    address | bits | read_only | attributes << 2 | kind
}

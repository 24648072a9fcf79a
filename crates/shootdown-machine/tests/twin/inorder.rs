//! x86-64: instructions in order, stores through a queue.
//!
//! Rules: x86-TSO (Owens, Sarkar, Sewell); Intel SDM vol. 3A 4.10.2.3 (only present entries are
//! cached), 4.10.4.1 (INVLPG; a fault drops the page's entries), 8.3 (INVLPG and MFENCE wait for
//! the queue). The walker of a CPU may read the CPU's own queue.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use stateright::{Model, Property};

use super::memory::{Caching, Memory, Tlb, Write};
use super::program::{Instr, Mapping, Program, Value, Word};

/// The rules that a test may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    pub caching: Caching,
    /// INVLPG waits until the CPU's stores have left the queue.
    pub invlpg_serializes: bool,
    /// A fault drops what the CPU has cached for the page.
    pub faults_forget: bool,
    /// A CPU's walker reads the CPU's queue.
    pub walks_queue: bool,
}

impl Rules {
    pub const X86: Self = Self {
        caching: Caching { absent: false, retains: true },
        invlpg_serializes: true,
        faults_forget: true,
        walks_queue: true,
    };
}

/// Where a CPU is in its current instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Begin,
    /// A load's page is translated.
    Through(usize),
    /// The page has no translation; the fault is not taken yet.
    Faulting,
    /// A fault ended the program.
    Faulted,
}

/// Where a load found its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum From {
    Memory(Write),
    Queue(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cpu {
    at: usize,
    phase: Phase,
    loads: Vec<Option<(Value, Word, From)>>,
    /// Where stores went whose page was translated.
    went: Vec<Option<usize>>,
    queue: VecDeque<(usize, Word, Value)>,
    interrupts: usize,
    tlb: Tlb,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    memory: Memory,
    cpus: Vec<Cpu>,
}

/// What a CPU does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The oldest store leaves the queue.
    Drain,
    /// The current page is translated so.
    Translate(Mapping),
    /// Everything else that the current instruction does.
    Step,
}

pub struct InOrder {
    pub program: Program,
    pub rules: Rules,
    pub ends: Mutex<BTreeSet<String>>,
}

impl InOrder {
    pub fn new(program: Program, rules: Rules) -> Self {
        Self { program, rules, ends: Mutex::default() }
    }

    /// The instruction a CPU is at. Fences are no steps: it is past one as soon as its queue is
    /// empty.
    fn current(&self, cpu: usize, state: &Cpu) -> Option<(usize, Instr)> {
        let code = &self.program.cpus[cpu];
        let fences = code[state.at..].iter().take_while(|i| **i == Instr::Fence).count();
        let blocked = fences > 0 && !state.queue.is_empty();
        let over = blocked || state.phase == Phase::Faulted;
        let at = state.at + fences;
        (!over && at < code.len()).then(|| (at, code[at]))
    }

    fn queued(state: &Cpu, word: Word) -> impl DoubleEndedIterator<Item = (usize, Value)> + '_ {
        state.queue.iter().filter(move |(_, w, _)| *w == word).map(|(at, _, value)| (*at, *value))
    }

    /// What walks of a page may find now.
    fn walks(&self, memory: &Memory, cpu: &Cpu, page: usize) -> Vec<Mapping> {
        let mut found = vec![memory.walk(page)];
        if self.rules.walks_queue {
            found.extend(Self::queued(cpu, Word::Entry(page)).map(|(_, value)| match value {
                Value::Map(mapping) => mapping,
                Value::Number(_) => unreachable!("entries hold mappings"),
            }));
        }
        found
    }

    fn fill(&self, memory: &Memory, cpu: &mut Cpu, page: usize) {
        for found in self.walks(memory, cpu, page) {
            cpu.tlb.fill(self.rules.caching, page, found);
        }
    }

    fn ended(&self, state: &State) -> bool {
        state.cpus.iter().zip(&self.program.cpus).all(|(cpu, code)| {
            let rest = &code[cpu.at..];
            let over = cpu.phase == Phase::Faulted || rest.iter().all(|i| *i == Instr::Fence);
            cpu.queue.is_empty() && over
        })
    }

    fn describe(&self, state: &State) -> String {
        let mut text = String::new();
        for (number, cpu) in state.cpus.iter().enumerate() {
            for (at, instr) in self.program.cpus[number].iter().enumerate() {
                if instr.reads() {
                    let value = match cpu.loads[at] {
                        Some((Value::Number(n), ..)) => n,
                        _ => 0,
                    };
                    text += &format!("{number}:r{at}={value} ");
                }
            }
            if cpu.phase == Phase::Faulted {
                text += &format!("fault({number}:{}) ", cpu.at);
            }
        }
        text + &state.memory.describe(&self.program)
    }

    fn step(&self, next: &mut State, number: usize, at: usize, instr: Instr) {
        let (memory, cpu) = (&mut next.memory, &mut next.cpus[number]);
        cpu.at = at + 1;
        match instr {
            Instr::LoadPage(_) | Instr::LoadVar(_) => {
                let word = match (instr.word(), cpu.phase) {
                    (Some(word), _) => word,
                    (None, Phase::Through(frame)) => Word::Frame(frame),
                    (None, Phase::Faulting) => return self.fault(memory, cpu, at, instr),
                    (None, _) => unreachable!("loads are translated first"),
                };
                let own = Self::queued(cpu, word).next_back();
                let (value, write) = memory.read(word);
                let read = own.map_or((value, word, From::Memory(write)), |(from, value)| {
                    (value, word, From::Queue(from))
                });
                cpu.loads[at] = Some(read);
                cpu.phase = Phase::Begin;
            }
            Instr::StorePage(..) => self.fault(memory, cpu, at, instr),
            Instr::StoreVar(..) | Instr::StoreEntry(..) => {
                let word = instr.word().expect("it names a word");
                cpu.queue.push_back((at, word, instr.data().expect("a store has data")));
                if let Word::Entry(page) = word {
                    self.fill(memory, cpu, page);
                }
            }
            Instr::Invalidate { page, .. } => {
                cpu.tlb.drop_page(page);
                self.fill(memory, cpu, page);
            }
            Instr::Interrupt(to) => next.cpus[to].interrupts += 1,
            Instr::TakeInterrupt => cpu.interrupts -= 1,
            Instr::Fence | Instr::Sync | Instr::Context => unreachable!("no step of its own"),
        }
    }

    fn fault(&self, memory: &Memory, cpu: &mut Cpu, at: usize, instr: Instr) {
        (cpu.at, cpu.phase) = (at, Phase::Faulted);
        let page = instr.page().expect("only pages fault");
        if self.rules.faults_forget {
            cpu.tlb.drop_page(page);
            self.fill(memory, cpu, page);
        }
    }
}

impl Model for InOrder {
    type State = State;
    type Action = (usize, Action);

    fn init_states(&self) -> Vec<State> {
        let memory = Memory::new(&self.program);
        let cpus = self.program.cpus.iter().map(|code| {
            let mut cpu = Cpu {
                at: 0,
                phase: Phase::Begin,
                loads: vec![None; code.len()],
                went: vec![None; code.len()],
                queue: VecDeque::new(),
                interrupts: 0,
                tlb: Tlb::default(),
            };
            (0..self.program.pages.len()).for_each(|page| self.fill(&memory, &mut cpu, page));
            cpu
        });
        vec![State { cpus: cpus.collect(), memory }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Self::Action>) {
        for (number, cpu) in state.cpus.iter().enumerate() {
            if !cpu.queue.is_empty() {
                actions.push((number, Action::Drain));
            }
            let Some((_, instr)) = self.current(number, cpu) else { continue };
            match (instr, cpu.phase) {
                (Instr::LoadPage(page) | Instr::StorePage(page, _), Phase::Begin) => {
                    let walks = self.walks(&state.memory, cpu, page);
                    let found: BTreeSet<Mapping> =
                        walks.into_iter().chain(cpu.tlb.of(page)).collect();
                    actions.extend(found.into_iter().map(|m| (number, Action::Translate(m))));
                }
                (Instr::Invalidate { .. }, _) => {
                    if cpu.queue.is_empty() || !self.rules.invlpg_serializes {
                        actions.push((number, Action::Step));
                    }
                }
                (Instr::TakeInterrupt, _) if cpu.interrupts == 0 => {}
                _ => actions.push((number, Action::Step)),
            }
        }
    }

    fn next_state(&self, state: &State, (number, action): Self::Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Drain => {
                let (_, word, value) = next.cpus[number].queue.pop_front()?;
                next.memory.write(word, value);
                if let Word::Entry(page) = word {
                    for cpu in &mut next.cpus {
                        self.fill(&next.memory, cpu, page);
                    }
                }
            }
            Action::Translate(found) => {
                let (at, instr) = self.current(number, &state.cpus[number])?;
                let cpu = &mut next.cpus[number];
                cpu.at = at;
                match (found, instr) {
                    (None, _) => cpu.phase = Phase::Faulting,
                    (Some(frame), Instr::StorePage(_, n)) => {
                        cpu.queue.push_back((at, Word::Frame(frame), Value::Number(n)));
                        cpu.went[at] = Some(frame);
                        cpu.at = at + 1;
                    }
                    (Some(frame), _) => cpu.phase = Phase::Through(frame),
                }
            }
            Action::Step => {
                let (at, instr) = self.current(number, &state.cpus[number])?;
                self.step(&mut next, number, at, instr);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Stateright visits everything only while a property has not failed; this one also notes
        // the ends.
        vec![Property::always("a load reads a number", |model: &Self, state: &State| {
            if model.ended(state) {
                model.ends.lock().expect("one thread").insert(model.describe(state));
            }
            let mut loads = state.cpus.iter().flat_map(|cpu| cpu.loads.iter().flatten());
            loads.all(|(value, ..)| matches!(value, Value::Number(_)))
        })]
    }
}

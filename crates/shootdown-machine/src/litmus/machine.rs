//! The machine that runs a test: its options, its memory, and a state of it.
//!
//! A state holds everything that decides the future: the words of memory, what the hostile hardware
//! may have cached ([`crate::hostile`]), and for each CPU how far every instruction has come.
//! Barriers have no step of their own: they are conditions on the steps of others (see
//! [`super::window`]).

use crate::hostile::{
    Aarch64, AccessedUpdates, Broken, Descriptor, FaultKind, Hostile, Negative, RiscV, Rules,
    Shape, TableId, TableMemory, Update, Word,
};
use shootdown::Tag;

use super::condition::Ending;
use super::device::{self, Access, Io};
use super::error::RunError;
use super::program::{Op, Place};
use super::test::{Arch, Features, Managed, Test};
use super::value::Value;

/// In which order a CPU executes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Execution {
    /// Any order that dependencies, barriers and the order of accesses to one word permit.
    Window,
    /// In program order, stores through a first-in first-out buffer.
    Tso,
    /// In program order, each instruction done before the next.
    Sequential,
}

/// A deliberately broken machine: the suite must fail on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Breakage {
    /// The machine as the manuals describe it.
    #[default]
    None,
    /// TLBs keep nothing: every access walks.
    NeverRetains,
    /// Every invalidation empties every TLB.
    FlushesAll,
    /// Every CPU executes in program order, without store buffers.
    Sequential,
    /// Invalidations remove nothing the first time.
    ForgetsToInvalidate,
    /// A DSB does not wait for accesses that other CPUs have translated already.
    ImpatientSync,
    /// Hardware updates of AArch64 entries are seen before the access that asks for them.
    PromptUpdates,
}

/// What to run a test on, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// Breakage of the machine.
    pub breakage: Breakage,
    /// The most states of one exploration. Beyond it the answer is "unknown".
    pub max_states: usize,
}

impl Options {
    /// A machine that is not broken, and states enough for every test of ours.
    pub const WHOLE: Self = Self { breakage: Breakage::None, max_states: 4_000_000 };
}

impl Default for Options {
    fn default() -> Self {
        Self::WHOLE
    }
}

/// A test made ready to run with some features.
pub(super) struct Machine<'a> {
    pub test: &'a Test,
    pub features: Features,
    pub options: Options,
    pub execution: Execution,
    /// Where the words of frames and tables begin; variables come first.
    frames: usize,
    tables: usize,
}

/// How far an instruction has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Step {
    Waiting,
    /// A branch whose outcome was guessed.
    Guessed {
        taken: bool,
    },
    /// Translated (or, with a store buffer, issued): the word is known.
    Held {
        word: u8,
        tag: u16,
        global: bool,
    },
    /// Translated to a fault that has not been taken.
    HeldFault {
        kind: FaultKind,
        tag: u16,
    },
    /// The load of a read-modify-write is done, its store is not.
    Half {
        value: Value,
        word: u8,
        version: u8,
        tag: u16,
        global: bool,
    },
    /// Done; `value` is what its register gets, `source` which write a load has read.
    Done {
        value: Value,
        word: u8,
        source: u8,
    },
    /// An invalidation issued; the mask names the accesses of other CPUs that still go by what it
    /// removed.
    Issued {
        outstanding: u128,
    },
    /// The fault was taken.
    Faulted {
        kind: FaultKind,
        tag: u16,
    },
}

/// `source` of a load that was given the value of the store at this index by its own CPU.
pub(super) const FORWARDED: u8 = 0x80;
/// `word` of a step that concerns none.
pub(super) const NO_WORD: u8 = u8::MAX;

impl Step {
    pub const DONE: Self = Self::done(Value::number(0));

    pub const fn done(value: Value) -> Self {
        Self::Done { value, word: NO_WORD, source: 0 }
    }

    /// Nothing is left to do?
    pub const fn finished(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Faulted { .. } | Self::Issued { .. })
    }
}

/// A hardware update of an entry that nobody has seen yet.
///
/// On AArch64 it is no part of the access that asks for it: the access may be performed first. Only
/// a full DSB waits for it (Arm ARM D8.13.5; in the formal model of B2.3 hardware updates are
/// ordered by `DSB-ob` alone).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Due {
    /// The instruction.
    pub at: u8,
    pub update: Update,
    /// The write that the walk has read: the update is atomic with that read.
    pub version: u8,
}

/// One CPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct CpuState {
    pub steps: Vec<Step>,
    /// Interrupts sent and not taken.
    pub interrupts: u8,
    /// Hardware updates of entries that are due, in the order of their instructions.
    pub updates: Vec<Due>,
}

/// Memory: each word with the number of the write that gave it its value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Words(pub Vec<(Value, u8)>);

/// Everything that decides the future.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub words: Words,
    pub hw: Hostile,
    pub cpus: Vec<CpuState>,
    pub io: Io,
}

impl<'a> Machine<'a> {
    pub fn new(test: &'a Test, features: Features, options: Options) -> Self {
        let execution = match (options.breakage, test.arch) {
            (Breakage::Sequential, _) => Execution::Sequential,
            (_, Arch::X86_64) => Execution::Tso,
            _ => Execution::Window,
        };
        let frames = test.vars.len();
        let tables = frames + test.frames.len();
        Self { test, features, options, execution, frames, tables }
    }

    fn rules(&self) -> Result<Rules, RunError> {
        let shape = Shape::new(self.test.levels, Test::INDEX_BITS)?;
        let Features { ets2, ha, hd, svvptc } = self.features;
        let mut rules = match self.test.arch {
            Arch::X86_64 => Rules::x86_64(shape),
            Arch::Aarch64 => Rules::aarch64(shape, Aarch64 { ets2, ha, hd }),
            Arch::Riscv64 => {
                Rules::riscv64(shape, RiscV { svvptc, svadu: ha || hd, svinval: false })
            }
        };
        // The window itself translates early and holds what it found, faults included.
        if self.test.arch == Arch::Aarch64 {
            rules.negative = Negative::Never;
        }
        rules.translates_ahead = false;
        rules.late = crate::hostile::Late::Never;
        rules.accessed_updates = AccessedUpdates::Explicit;
        rules.broken = Broken {
            forgetful: self.options.breakage == Breakage::NeverRetains,
            flushes_all: self.options.breakage == Breakage::FlushesAll,
        };
        // A CPU of the test that is set up without what others have.
        for (cpu, program) in self.test.cpus.iter().enumerate() {
            let managed = program.managed.unwrap_or(Managed { ha, hd });
            rules.accessed_by_software |= u16::from(ha && !managed.ha) << cpu;
            rules.dirty_by_software |= u16::from(hd && !managed.hd) << cpu;
        }
        rules.errata.survives_once = self.options.breakage == Breakage::ForgetsToInvalidate;
        Ok(rules)
    }

    /// The state in which the test begins.
    pub fn start(&self) -> Result<State, RunError> {
        let test = self.test;
        let mut words = Vec::new();
        words.extend(test.vars.iter().chain(&test.frames).map(|word| (word.initial, 0)));
        words.extend(test.tables.iter().flat_map(|table| table.entries.iter().map(|v| (*v, 0))));
        let words = Words(words);
        let mut hw = Hostile::new(self.rules()?, test.cpus.len())?;
        let walker = Walker { machine: self, words: &words, cpus: &[] };
        for (cpu, program) in test.cpus.iter().enumerate() {
            let root = TableId(program.root as u16);
            hw.load(&walker, cpu, Some(root), Tag(program.tag), true)?;
        }
        let idle = |code: usize| CpuState {
            steps: vec![Step::Waiting; code],
            interrupts: 0,
            updates: vec![],
        };
        let cpus = test.cpus.iter().map(|program| idle(program.code.len())).collect();
        let mut io = Io::new(&test.devices);
        io.refresh(self, &words);
        Ok(State { words, hw, cpus, io })
    }

    /// Do hardware updates of entries become visible after the access that asks for them?
    pub fn updates_late(&self) -> bool {
        self.weak() && self.options.breakage != Breakage::PromptUpdates
    }

    /// AArch64, as the manual describes it.
    pub fn weak(&self) -> bool {
        self.test.arch == Arch::Aarch64 && self.execution == Execution::Window
    }

    /// Are the load and the store of a read-modify-write two events? Nothing comes between them in
    /// the order of writes to the word, but later loads may be given what is stored before others see
    /// it (Arm ARM B2.3, atomic-ordered-before; RVWMO forbids it, PPO rule 12 and the rule of AMOs).
    pub fn atomics_split(&self) -> bool {
        self.weak()
    }

    /// The word of a variable or a table's entry.
    pub fn word(&self, place: Place) -> Option<u8> {
        let index = match place {
            Place::Var(var) => usize::from(var),
            Place::Entry { table, index } => {
                self.tables + (usize::from(table) << Test::INDEX_BITS) + usize::from(index)
            }
            Place::Page(_) => return None,
        };
        Some(index as u8)
    }

    /// The word of a frame.
    pub fn frame_word(&self, frame: usize) -> Option<u8> {
        (frame < self.test.frames.len()).then_some((self.frames + frame) as u8)
    }

    /// The table's entry that the word is, if it is one.
    pub fn entry(&self, word: u8) -> Option<Word> {
        let index = usize::from(word).checked_sub(self.tables)?;
        let entries = 1 << Test::INDEX_BITS;
        Some(Word::new(TableId((index / entries) as u16), (index % entries) as u8))
    }

    pub fn entry_word(&self, entry: Word) -> Option<u8> {
        let table = usize::from(entry.table.0);
        let place = Place::Entry { table: table as u8, index: entry.index };
        if table < self.test.tables.len() { self.word(place) } else { None }
    }

    pub fn op(&self, cpu: usize, at: usize) -> &Op {
        &self.test.cpus[cpu].code[at].op
    }

    pub fn page_number(&self, page: u8) -> u32 {
        self.test.pages[usize::from(page)].page
    }
}

/// Memory as walkers read it.
pub(super) struct Walker<'a> {
    pub machine: &'a Machine<'a>,
    pub words: &'a Words,
    /// For CPUs whose walkers may look into their own store buffers.
    pub cpus: &'a [CpuState],
}

impl TableMemory for Walker<'_> {
    fn read(&self, cpu: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32)) {
        let Some(index) = self.machine.entry_word(word) else {
            return see(Descriptor::ABSENT, 0);
        };
        if self.machine.execution == Execution::Tso
            && let Some(state) = self.cpus.get(cpu)
        {
            super::window::buffered(self.machine, state, cpu, index, &mut |value| {
                see(value.as_walked(), 0);
            });
        }
        see(self.words.0[usize::from(index)].0.as_walked(), 0);
    }
}

/// A state in which every program has ended, with the machine that says what is where.
pub(super) struct End<'a> {
    pub machine: &'a Machine<'a>,
    pub state: &'a State,
}

impl Ending for End<'_> {
    fn register(&self, cpu: usize, reg: u8) -> Value {
        let Some(device) = cpu.checked_sub(device::FIRST) else {
            return super::window::View::new(self.machine, self.state, cpu).last_value(reg);
        };
        let code = &self.machine.test.devices[device].code;
        let accesses = &self.state.io.devices[device].accesses;
        let mut last = code.iter().zip(accesses).rev();
        let found = last.find_map(|(instruction, access)| match access {
            Access::Done(value) if instruction.op.target() == Some(reg) => Some(*value),
            _ => None,
        });
        found.unwrap_or_default()
    }

    fn memory(&self, place: Place) -> Value {
        let word = self.machine.word(place).expect("conditions name no pages");
        self.state.words.0[usize::from(word)].0
    }

    fn frame(&self, frame: usize) -> Value {
        let word = self.machine.frame_word(frame).expect("conditions name frames of the test");
        self.state.words.0[usize::from(word)].0
    }

    fn faulted(&self, cpu: usize, at: usize) -> Option<FaultKind> {
        match cpu.checked_sub(device::FIRST) {
            None => match self.state.cpus[cpu].steps[at] {
                Step::Faulted { kind, .. } => Some(kind),
                _ => None,
            },
            Some(device) => (self.state.io.devices[device].accesses[at] == Access::Faulted)
                .then_some(FaultKind::NotPresent),
        }
    }
}

//! What both kinds of CPU share: memory, and TLBs that hold whatever they could have cached.

use std::collections::{BTreeMap, BTreeSet};

use super::program::{Arch, Mapping, Program, Value, Word};

/// Which write a load has read: a word's first value is write 0.
pub type Write = usize;

/// Memory: each word's value, and how often it was written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Memory(BTreeMap<Word, (Value, Write)>);

impl Memory {
    pub fn new(program: &Program) -> Self {
        let vars = (0..program.vars).map(|v| (Word::Var(v), Value::Number(0)));
        let frames = (0..program.frames).map(|f| (Word::Frame(f), Value::Number(f as u64 + 1)));
        let pages = program.pages.iter().enumerate();
        let entries = pages.map(|(page, mapping)| (Word::Entry(page), Value::Map(*mapping)));
        let words = vars.chain(frames).chain(entries);
        Self(words.map(|(word, value)| (word, (value, 0))).collect())
    }

    pub fn read(&self, word: Word) -> (Value, Write) {
        self.0[&word]
    }

    pub fn write(&mut self, word: Word, value: Value) {
        let cell = self.0.get_mut(&word).expect("a word of the program");
        *cell = (value, cell.1 + 1);
    }

    /// What a walk finds.
    pub fn walk(&self, page: usize) -> Mapping {
        match self.read(Word::Entry(page)).0 {
            Value::Map(mapping) => mapping,
            Value::Number(_) => unreachable!("entries hold mappings"),
        }
    }

    /// The end of a run as text: words, and entries that are not as at the start.
    pub fn describe(&self, program: &Program) -> String {
        let number = |word| match self.read(word).0 {
            Value::Number(n) => n,
            Value::Map(_) => unreachable!("only entries hold mappings"),
        };
        let mut parts = vec![];
        parts.extend((0..program.vars).map(|v| format!("v{v}={}", number(Word::Var(v)))));
        parts.extend((0..program.frames).map(|f| format!("f{f}={}", number(Word::Frame(f)))));
        let dirty = if program.arch == Arch::Arm { '-' } else { 'd' };
        for (page, first) in program.pages.iter().enumerate() {
            match self.walk(page) {
                now if now == *first => {}
                Some(f) => parts.push(format!("root[{page}]=leaf(frame{f} wu-a{dirty}--)")),
                None => parts.push(format!("root[{page}]=absent(0x0)")),
            }
        }
        parts.join(" ")
    }
}

/// A TLB that caches at every moment everything that a walk could find, and loses nothing by
/// itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tlb(BTreeSet<(usize, Mapping)>);

/// The rules of caching, each with a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caching {
    /// "Nothing there" may be cached (RISC-V Privileged 12.2.1; not on x86, SDM 3A 4.10.2.3, nor
    /// on Arm).
    pub absent: bool,
    /// Entries stay until something removes them. Off: a TLB that is too kind.
    pub retains: bool,
}

impl Tlb {
    /// A walk may find this now.
    pub fn fill(&mut self, caching: Caching, page: usize, found: Mapping) {
        if caching.retains && (found.is_some() || caching.absent) {
            self.0.insert((page, found));
        }
    }

    /// Everything about the page goes.
    pub fn drop_page(&mut self, page: usize) {
        self.0.retain(|(p, _)| *p != page);
    }

    pub fn of(&self, page: usize) -> impl Iterator<Item = Mapping> + '_ {
        self.0.iter().filter(move |(p, _)| *p == page).map(|(_, found)| *found)
    }
}

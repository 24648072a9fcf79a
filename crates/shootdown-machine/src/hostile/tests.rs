//! One test per rule of the manuals, and one per switch.

mod arm;
mod model;
mod riscv;
mod switches;
mod x86;

use std::collections::BTreeMap;

use shootdown::{Reach, Tag};

use super::*;

/// Tables in plain memory: every walker reads the last write.
#[derive(Clone, Default)]
pub(super) struct Tables(BTreeMap<Word, (Descriptor, u32)>);

impl TableMemory for Tables {
    fn read(&self, _cpu: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32)) {
        let (descriptor, version) = self.0.get(&word).copied().unwrap_or_default();
        see(descriptor, version);
    }
}

/// Hardware with its memory.
#[derive(Clone)]
pub(super) struct World {
    pub hw: Hostile,
    pub mem: Tables,
}

pub(super) const ROOT: TableId = TableId(0);
pub(super) const LEAVES: TableId = TableId(1);
pub(super) const OLD: Frame = Frame(10);
pub(super) const NEW: Frame = Frame(20);
pub(super) const ONE: Tag = Tag(1);
pub(super) const TWO: Tag = Tag(2);

impl World {
    /// Two levels of four entries: `ROOT` names `LEAVES`, which maps page 0 to `OLD`. Both CPUs
    /// have the root loaded under tag `ONE`.
    pub fn new(rules: impl FnOnce(Shape) -> Rules) -> Self {
        let rules = rules(Shape::new(2, 2).unwrap());
        let mut world = Self { hw: Hostile::new(rules, 2).unwrap(), mem: Tables::default() };
        world.write(ROOT, 0, Descriptor::table(LEAVES));
        world.write(LEAVES, 0, Descriptor::user_rw(OLD));
        for cpu in 0..2 {
            world.load(cpu, ROOT, ONE, false);
        }
        world
    }

    pub fn write(&mut self, table: TableId, index: u8, descriptor: Descriptor) {
        let word = Word::new(table, index);
        let slot = self.mem.0.entry(word).or_default();
        *slot = (descriptor, slot.1 + 1);
        self.hw.changed(&self.mem, word).unwrap();
    }

    pub fn load(&mut self, cpu: usize, root: TableId, tag: Tag, keep: bool) {
        self.hw.load(&self.mem, cpu, Some(root), tag, keep).unwrap();
    }

    pub fn local(&mut self, cpu: usize, what: Invalidation) {
        self.hw.invalidate(&self.mem, cpu, what, Reach::Local).unwrap();
    }

    pub fn broadcast(&mut self, cpu: usize, what: Invalidation) {
        self.hw.invalidate(&self.mem, cpu, what, Reach::Broadcast).unwrap();
    }

    pub fn sync(&mut self, cpu: usize) {
        self.hw.sync(cpu);
    }

    pub fn context_sync(&mut self, cpu: usize) {
        self.hw.context_sync(&self.mem, cpu).unwrap();
    }

    pub fn outcomes(&self, cpu: usize, page: u32, access: Access) -> Vec<Outcome> {
        let mut out = Vec::new();
        self.hw.outcomes(&self.mem, cpu, page, access, &mut out);
        out
    }

    /// The frames a user load may reach.
    pub fn frames(&self, cpu: usize, page: u32) -> Vec<Frame> {
        let mut frames: Vec<_> = self
            .outcomes(cpu, page, Access::USER_READ)
            .iter()
            .filter_map(|o| match o {
                Outcome::Hit { translation, .. } => Some(translation.frame_of(page)),
                _ => None,
            })
            .collect();
        frames.sort();
        frames.dedup();
        frames
    }

    /// The faults an access may take.
    pub fn faults(&self, cpu: usize, page: u32, access: Access) -> Vec<FaultKind> {
        let mut kinds: Vec<_> = self
            .outcomes(cpu, page, access)
            .iter()
            .filter_map(|o| match o {
                Outcome::Fault { kind, .. } => Some(*kind),
                _ => None,
            })
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }
}

//! Questions to the hardware: who holds what, who can still walk where, what breaks the rules of
//! change.

use super::rules::{Fills, Rules, WalkCache};
use super::walk::{Cursor, Step};
use super::{
    Descriptor, Frame, Hostile, Owner, Partial, TableId, TableMemory, Translation, Update, Word,
};

impl Descriptor {
    /// Does going from this word to `new` need a break (an uncacheable word, then an invalidation)
    /// before the make? (Arm ARM D8.16.1: another output address or size, other attributes, from
    /// non-global to global.)
    #[must_use]
    pub const fn needs_break(self, new: Self) -> bool {
        if !self.present() || !new.present() {
            return false;
        }
        let mapping = Self::LEAF | Self::ATTRIBUTES;
        self.frame().0 != new.frame().0
            || (self.bits() ^ new.bits()) & mapping != 0
            || !self.has(Self::GLOBAL) && new.has(Self::GLOBAL)
    }
}

impl Hostile {
    /// The translations that `cpu` may have cached, under every tag, in a fixed order.
    pub fn translations(&self, cpu: usize) -> impl Iterator<Item = &Translation> {
        self.cpus[cpu].translations.iter().map(|slot| &slot.entry)
    }

    /// The steps of walks that `cpu` may have cached, under every tag, in a fixed order.
    pub fn partials(&self, cpu: usize) -> impl Iterator<Item = &Partial> {
        self.cpus[cpu].partials.iter().map(|slot| &slot.entry)
    }

    /// The cached translations of `page` that an access of `cpu` may use now.
    pub fn usable(&self, cpu: usize, page: u32) -> impl Iterator<Item = &Translation> {
        let state = &self.cpus[cpu];
        self.translations(cpu).filter(move |t| t.pages().has(page) && state.serves(t.owner))
    }

    /// Does what `cpu` runs now use entries of this owner?
    #[must_use]
    pub fn serves(&self, cpu: usize, owner: Owner) -> bool {
        self.cpus[cpu].serves(owner)
    }

    /// The CPUs (one bit each) whose walkers can read `table` now: through a loaded root, or
    /// through a cached step that serves what runs there.
    pub fn walkers_reach<M: TableMemory + ?Sized>(&self, mem: &M, table: TableId) -> u16 {
        let rules = &self.rules;
        let closed = rules.fills == Fills::Anytime
            && rules.walk_cache != WalkCache::None
            && !rules.broken.forgetful;
        let reaches = |cpu: usize| {
            let state = &self.cpus[cpu];
            if state.roots(rules).any(|root| root.root == table) {
                return true;
            }
            let resumes = |p: &Partial| state.serves(p.owner) && state.rooted();
            if state.partials.iter().any(|s| s.entry.table == table && resumes(&s.entry)) {
                return true;
            }
            let mut found = false;
            if !closed {
                self.every_step(mem, cpu, &mut |step| {
                    found |= matches!(step, Step::Table(p) if p.table == table);
                });
            }
            found
        };
        (0..self.cpus.len()).filter(|&cpu| reaches(cpu)).fold(0, |mask, cpu| mask | 1 << cpu)
    }

    /// The CPUs (one bit each) that remember a step to `table` under any tag: reusing that tag
    /// without an invalidation would let their walkers read it again.
    #[must_use]
    pub fn remember(&self, table: TableId) -> u16 {
        (0..self.cpus.len())
            .filter(|&cpu| self.partials(cpu).any(|p| p.table == table))
            .fold(0, |mask, cpu| mask | 1 << cpu)
    }

    /// The CPUs (one bit each) that hold a translation to `frame` under any tag.
    #[must_use]
    pub fn hold(&self, frame: Frame) -> u16 {
        let names = |t: &Translation| {
            let first = t.descriptor.frame();
            t.descriptor.present()
                && frame.0.checked_sub(first.0).is_some_and(|offset| offset <= t.last_offset)
        };
        (0..self.cpus.len())
            .filter(|&cpu| self.translations(cpu).any(names))
            .fold(0, |mask, cpu| mask | 1 << cpu)
    }

    /// The CPUs (one bit each) that may still hold what `word` said before, if `new` differs from
    /// it in a way that needs break-before-make. Ask before the write; any bit is a violation
    /// on Arm.
    #[must_use]
    pub fn unbroken(&self, word: Word, new: Descriptor) -> u16 {
        if !new.present() {
            return 0;
        }
        let leaf = |t: &Translation| t.source.word == word && t.descriptor.needs_break(new);
        let step = |p: &Partial| {
            let same = !new.has(Descriptor::LEAF) && new.next() == p.table;
            p.source.word == word && !same
        };
        (0..self.cpus.len())
            .filter(|&cpu| self.translations(cpu).any(leaf) || self.partials(cpu).any(step))
            .fold(0, |mask, cpu| mask | 1 << cpu)
    }

    /// Two translations of one page that `cpu` may use now and that differ in size: what an access
    /// does is undefined then (Intel SDM 3A 4.10.2.3; Arm calls it a TLB conflict).
    #[must_use]
    pub fn two_sizes(&self, cpu: usize) -> Option<(&Translation, &Translation)> {
        let state = &self.cpus[cpu];
        let usable = |t: &&Translation| t.descriptor.present() && state.serves(t.owner);
        self.translations(cpu).filter(usable).find_map(|a| {
            self.translations(cpu)
                .filter(usable)
                .find(|b| a.level < b.level && a.pages().meets(b.pages()))
                .map(|b| (a, b))
        })
    }

    /// The accessed bits that the walker of `cpu` may set now, although no access asks for it
    /// (speculation). Empty where the updates are assumed or software's.
    pub fn early_updates<M: TableMemory + ?Sized>(
        &self,
        mem: &M,
        cpu: usize,
        out: &mut Vec<Update>,
    ) {
        out.clear();
        if !self.rules.sets_accessed(cpu) {
            return;
        }
        self.every_step(mem, cpu, &mut |step| {
            let seen = match step {
                Step::Unaccessed { translation, .. } => translation,
                Step::Leaf(leaf) if !leaf.descriptor.has(Descriptor::ACCESSED) => leaf,
                _ => return,
            };
            let update =
                Update { word: seen.source.word, seen: seen.descriptor, set: Descriptor::ACCESSED };
            if !out.contains(&update) {
                out.push(update);
            }
        });
    }

    /// Every step that the walker of `cpu` could make now, from every root and cached step.
    fn every_step<M: TableMemory + ?Sized>(
        &self,
        mem: &M,
        cpu: usize,
        tell: &mut dyn FnMut(&Step),
    ) {
        let rules = &self.rules;
        let state = &self.cpus[cpu];
        for root in state.roots(rules) {
            for index in root.first..=root.last {
                below(rules, mem, cpu, &root.cursor(rules), index, tell);
            }
        }
        for slot in state.partials.iter() {
            if let Some(cursor) = state.resume(rules, &slot.entry, slot.marks) {
                for index in 0..rules.shape.entries() {
                    below(rules, mem, cpu, &cursor, index as u8, tell);
                }
            }
        }
    }
}

fn below<M: TableMemory + ?Sized>(
    rules: &Rules,
    mem: &M,
    cpu: usize,
    cursor: &Cursor,
    index: u8,
    tell: &mut dyn FnMut(&Step),
) {
    let word = cursor.word(index);
    mem.read(cpu, word, &mut |read, version| {
        let step = cursor.step(rules, word, read, version);
        tell(&step);
        if let Step::Table(partial) = step {
            let next = cursor.below(rules, &partial, cursor.marks);
            for index in 0..rules.shape.entries() {
                below(rules, mem, cpu, &next, index as u8, tell);
            }
        }
    });
}

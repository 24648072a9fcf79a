//! The closure: everything a walker could have cached by now.
//!
//! # Protocol
//! After each event that can let a walker reach something new, the sets of the CPUs concerned are closed
//! under walking: from the loaded roots and from every usable walk-cache entry, through the words as they
//! are now. So the sets always hold everything that some sequence of speculative walks could have left
//! there since the last invalidation, and no choice of "when to fill" is left to make.
//!
//! # Invariants
//! - I1: after a fill, walking once more from a loaded root or a usable partial adds nothing.
//! - I2: an entry made through a doomed step (see [`super::invalidate`]) is doomed with it if the removal
//!   covers the entry too: a walk that the removal must stop leaves nothing behind.

use super::cpu::Cpu;
use super::held::{Inserted, Marks};
use super::invalidate::Pending;
use super::rules::{Fills, Negative, Rules, WalkCache};
use super::walk::{Cursor, Step};
use super::{Descriptor, HostileError, Partial, TableMemory, Translation, Word};

/// Walks on behalf of one CPU, into the sets of all CPUs that share its entries.
pub(super) struct Filler<'a, M: ?Sized> {
    pub rules: &'a Rules,
    pub mem: &'a M,
    /// The CPUs that share entries.
    pub group: &'a mut [Cpu],
    /// The number of the first of them.
    pub first: usize,
    pub pending: &'a [Pending],
    /// Only this translation, and the steps to it.
    only: Option<Translation>,
    /// The walker's place in the group.
    at: usize,
    /// Something new was added.
    grew: bool,
    full: Option<HostileError>,
}

impl<'a, M: TableMemory + ?Sized> Filler<'a, M> {
    pub fn new(
        rules: &'a Rules,
        mem: &'a M,
        group: &'a mut [Cpu],
        first: usize,
        pending: &'a [Pending],
    ) -> Self {
        Self { rules, mem, group, first, pending, only: None, at: 0, grew: false, full: None }
    }

    /// Does nothing get cached now?
    fn idle(&self) -> bool {
        let asked = self.rules.fills == Fills::Anytime || self.only.is_some();
        !asked || self.rules.broken.forgetful
    }

    /// Closes the sets of the whole group.
    pub fn close(&mut self) -> Result<(), HostileError> {
        self.until_stable(Self::walk_all)
    }

    /// Caches what an access of `cpu` used, on a machine that caches nothing else.
    pub fn used(&mut self, cpu: usize, translation: &Translation) -> Result<(), HostileError> {
        if self.rules.fills == Fills::Anytime || self.rules.broken.forgetful {
            return Ok(());
        }
        self.only = Some(*translation);
        self.at = cpu - self.first;
        self.walk_all();
        self.full.map_or(Ok(()), Err)
    }

    /// Closes the sets after `word` changed: they were closed before.
    pub fn word_changed(&mut self, word: Word) -> Result<(), HostileError> {
        if self.rules.walk_cache == WalkCache::None && !self.idle() {
            return self.close();
        }
        self.until_stable(|filler| filler.walk_word(word))
    }

    /// Shared entries: what one CPU adds, its siblings may go on from.
    fn until_stable(&mut self, walk: impl Fn(&mut Self)) -> Result<(), HostileError> {
        if self.idle() {
            return Ok(());
        }
        loop {
            self.grew = false;
            for at in 0..self.group.len() {
                self.at = at;
                walk(self);
            }
            if let Some(full) = self.full {
                return Err(full);
            }
            if self.group.len() == 1 || !self.grew {
                return Ok(());
            }
        }
    }

    fn walk_all(&mut self) {
        for root in self.group[self.at].roots(self.rules) {
            for index in self.indices(root.cursor.level, root.first, root.last) {
                self.visit(root.cursor, index);
            }
        }
        // Entries added meanwhile move others to the right: nothing is skipped, at worst walked twice.
        let mut at = 0;
        while let Some((partial, marks)) = self.group[self.at].partials.at(at) {
            if let Some(cursor) = self.group[self.at].resume(self.rules, &partial, marks) {
                self.table(cursor);
            }
            at += 1;
        }
    }

    fn walk_word(&mut self, word: Word) {
        for root in self.group[self.at].roots(self.rules) {
            let within = root.first <= word.index && word.index <= root.last;
            if root.cursor.table == word.table && within {
                self.visit(root.cursor, word.index);
            }
        }
        let mut at = 0;
        while let Some((partial, marks)) = self.group[self.at].partials.at(at) {
            if partial.table == word.table
                && let Some(cursor) = self.group[self.at].resume(self.rules, &partial, marks)
            {
                self.visit(cursor, word.index);
            }
            at += 1;
        }
    }

    fn table(&mut self, cursor: Cursor) {
        let last = (self.rules.shape.entries() - 1) as u8;
        for index in self.indices(cursor.level, 0, last) {
            self.visit(cursor, index);
        }
    }

    /// The entries of a table that are walked: all, or the one on the way to what was used.
    fn indices(&self, level: u8, first: u8, last: u8) -> std::ops::RangeInclusive<u8> {
        match self.only {
            None => first..=last,
            Some(only) => {
                let index = self.rules.shape.index(only.base, level);
                index.max(first)..=index.min(last)
            }
        }
    }

    fn visit(&mut self, cursor: Cursor, index: u8) {
        let word = cursor.word(index);
        let mem = self.mem;
        mem.read(self.first + self.at, word, &mut |read, version| {
            self.meet(cursor, word, read, version);
        });
    }

    fn meet(&mut self, cursor: Cursor, word: Word, read: Descriptor, version: u32) {
        match cursor.step(self.rules, word, read, version) {
            Step::Absent(absent) => match self.rules.negative {
                Negative::Never => {}
                Negative::UntilContextSync => {
                    self.keep(absent, Marks { ahead: true, ..Marks::default() });
                }
                Negative::UntilFault | Negative::UntilInvalidated => {
                    self.keep(absent, cursor.marks)
                }
            },
            Step::Leaf(leaf) => self.keep(leaf, cursor.marks),
            Step::Table(partial, next) => {
                if self.rules.walk_cache == WalkCache::None {
                    self.table(next);
                } else if let Some(marks) = self.keep_partial(partial, cursor.marks) {
                    self.table(Cursor { marks, ..next });
                }
            }
            Step::Unaccessed { .. } => {}
        }
    }

    fn keep(&mut self, translation: Translation, marks: Marks) {
        if self.only.is_some_and(|only| only != translation) {
            return;
        }
        for at in 0..self.group.len() {
            let marks = self.inherited(at, marks, |p| p.covers(self.rules, &translation));
            let inserted =
                self.group[at].translations.insert(translation, marks, self.rules.capacity);
            self.note(at, inserted, "translations");
        }
    }

    /// Keeps a step; its marks if the walk must go on from it because it is new or became more usable.
    fn keep_partial(&mut self, partial: Partial, marks: Marks) -> Option<Marks> {
        let mut go_on = None;
        for at in 0..self.group.len() {
            let marks = self.inherited(at, marks, |p| p.covers_partial(&partial));
            let inserted = self.group[at].partials.insert(partial, marks, self.rules.capacity);
            self.note(at, inserted, "walk-cache entries");
            if at == self.at && matches!(inserted, Inserted::New | Inserted::Renewed) {
                go_on = Some(marks);
            }
        }
        go_on
    }

    /// I2: of the marks of the step it was made through, those whose removal covers the new entry.
    fn inherited(&self, at: usize, marks: Marks, covers: impl Fn(&Pending) -> bool) -> Marks {
        if marks.doomed == 0 {
            return Marks { ahead: marks.ahead, ..Marks::default() };
        }
        let target = 1 << (self.first + at);
        let mask = self
            .pending
            .iter()
            .filter(|p| marks.doomed & p.issuer_bit() != 0 && p.targets & target != 0 && covers(p))
            .fold(0, |mask, p| mask | p.issuer_bit());
        Marks {
            doomed: marks.doomed & mask,
            early: marks.early & mask,
            again: marks.again & mask,
            survived: false,
            ahead: marks.ahead,
        }
    }

    fn note(&mut self, at: usize, inserted: Inserted, what: &'static str) {
        match inserted {
            Inserted::Known => {}
            Inserted::New | Inserted::Renewed => self.grew = true,
            Inserted::Full => {
                let (cpu, limit) = (self.first + at, self.rules.capacity);
                self.full = Some(HostileError::Full { cpu, what, limit });
            }
        }
    }
}

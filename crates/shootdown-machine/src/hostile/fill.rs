//! The closure: everything a walker could have cached by now.
//!
//! # Protocol
//! After each event that can let a walker reach something new, the sets of the CPUs concerned are
//! closed under walking: from the loaded roots and from every usable walk-cache entry, through the
//! words as they are now. So the sets always hold everything that some sequence of speculative
//! walks could have left there since the last invalidation, and no choice of "when to fill" is left
//! to make.
//!
//! # Invariants
//! - I1: after a fill, walking once more from a loaded root or a usable partial adds nothing.
//! - I2: an entry made through a doomed step (see [`super::late`]) is doomed with it if the removal
//!   covers the entry too: a walk that the removal must stop leaves nothing behind.

use super::cpu::Cpu;
use super::held::{Inserted, Marks};
use super::invalidate::{Invalidation, Walks};
use super::late::Outstanding;
use super::rules::{Fills, Negative, Rules, WalkCache};
use super::walk::{Cursor, Step};
use super::{Descriptor, HostileError, Pages, Partial, TableMemory, Translation, Word};

/// What a walk looks at.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// The pages whose last-level entries are read.
    pub leaves: Pages,
    /// The pages whose other entries are read.
    pub steps: Pages,
}

impl Scope {
    pub const ALL: Self = Self { leaves: Pages::ALL, steps: Pages::ALL };

    /// What an invalidation can have removed. The sets were closed before it, and it opens no new
    /// way to anything: only what it covers is missing now.
    pub fn of(what: &Invalidation) -> Self {
        let steps = match what.walks {
            Walks::None | Walks::Covering => what.pages,
            Walks::All => Pages::ALL,
        };
        Self { leaves: what.pages, steps }
    }
}

/// Walks on behalf of one CPU, into the sets of all CPUs that share its entries.
pub(super) struct Filler<'a, M: ?Sized> {
    pub rules: &'a Rules,
    pub mem: &'a M,
    /// The CPUs that share entries.
    pub group: &'a mut [Cpu],
    /// The number of the first of them.
    pub first: usize,
    pub outstanding: &'a Outstanding,
    /// Only the parts of tables that concern these pages.
    scope: Scope,
    /// Of the translations, only this one.
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
        outstanding: &'a Outstanding,
    ) -> Self {
        Self {
            rules,
            mem,
            group,
            first,
            outstanding,
            scope: Scope::ALL,
            only: None,
            at: 0,
            grew: false,
            full: None,
        }
    }

    /// Does nothing get cached now?
    fn idle(&self) -> bool {
        let asked = self.rules.fills == Fills::Anytime || self.only.is_some();
        !asked || self.rules.broken.forgetful
    }

    /// Looks at no more than this.
    pub fn within(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
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
        let page = Pages::one(translation.base);
        self.scope = Scope { leaves: page, steps: page };
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
            self.table(&root.cursor(self.rules), root.first, root.last);
        }
        // Entries added meanwhile move others to the right: nothing is skipped, at worst walked
        // twice.
        let last = self.last();
        let mut at = 0;
        while let Some((partial, marks)) = self.group[self.at].partials.at(at) {
            if let Some(cursor) = self.group[self.at].resume(self.rules, partial, marks) {
                self.table(&cursor, 0, last);
            }
            at += 1;
        }
    }

    fn walk_word(&mut self, word: Word) {
        if !self.group[self.at].starts_at(word.table) {
            return;
        }
        for root in self.group[self.at].roots(self.rules) {
            let within = root.first <= word.index && word.index <= root.last;
            if root.root == word.table && within {
                self.visit(&root.cursor(self.rules), word.index);
            }
        }
        let mut at = 0;
        while let Some((partial, marks)) = self.group[self.at].partials.at(at) {
            if partial.table == word.table
                && let Some(cursor) = self.group[self.at].resume(self.rules, partial, marks)
            {
                self.visit(&cursor, word.index);
            }
            at += 1;
        }
    }

    /// The last index of a table.
    fn last(&self) -> u8 {
        (self.rules.shape.entries() - 1) as u8
    }

    /// Walks the entries of a table from `first` to `last`, as far as they are within the scope.
    fn table(&mut self, cursor: &Cursor, first: u8, last: u8) {
        let pages = if cursor.level == 0 { self.scope.leaves } else { self.scope.steps };
        let spanned = self.rules.shape.last_offset(cursor.level + 1);
        let all = Pages { first: cursor.base, last: cursor.base + spanned };
        if !pages.meets(all) {
            return;
        }
        let index = |page| self.rules.shape.index(page, cursor.level);
        let first = first.max(index(pages.first.max(all.first)));
        let last = last.min(index(pages.last.min(all.last)));
        for index in first..=last {
            self.visit(cursor, index);
        }
    }

    #[inline]
    fn visit(&mut self, cursor: &Cursor, index: u8) {
        let word = cursor.word(index);
        let mem = self.mem;
        mem.read(self.first + self.at, word, &mut |read, version| {
            self.meet(cursor, word, read, version);
        });
    }

    #[inline]
    fn meet(&mut self, cursor: &Cursor, word: Word, read: Descriptor, version: u32) {
        match cursor.step(self.rules, word, read, version) {
            Step::Absent(absent) => match self.rules.negative {
                Negative::Never => {}
                Negative::UntilContextSync => {
                    self.keep(&absent, Marks { ahead: true, ..Marks::default() });
                }
                Negative::UntilFault | Negative::UntilInvalidated => {
                    self.keep(&absent, cursor.marks)
                }
            },
            Step::Leaf(leaf) => self.keep(&leaf, cursor.marks),
            Step::Table(partial) => {
                let go_on = if self.rules.walk_cache == WalkCache::None {
                    Some(cursor.marks)
                } else {
                    self.keep_partial(&partial, cursor.marks)
                };
                if let Some(marks) = go_on {
                    let last = self.last();
                    self.table(&cursor.below(self.rules, &partial, marks), 0, last);
                }
            }
            Step::Unaccessed { .. } => {}
        }
    }

    fn keep(&mut self, translation: &Translation, marks: Marks) {
        if self.only.is_some_and(|only| only != *translation) {
            return;
        }
        for at in 0..self.group.len() {
            let marks = self.inherited(at, marks, |what| what.covers(self.rules, translation));
            let inserted =
                self.group[at].translations.insert(*translation, marks, self.rules.capacity);
            self.note(at, inserted, "translations");
        }
    }

    /// Keeps a step; its marks if the walk must go on from it because it is new or became more
    /// usable.
    fn keep_partial(&mut self, partial: &Partial, marks: Marks) -> Option<Marks> {
        let mut go_on = None;
        for at in 0..self.group.len() {
            let marks = self.inherited(at, marks, |what| what.covers_partial(partial));
            let inserted = self.group[at].partials.insert(*partial, marks, self.rules.capacity);
            self.note(at, inserted, "walk-cache entries");
            if at == self.at {
                go_on = match inserted {
                    Inserted::New => Some(marks),
                    Inserted::Renewed(marks) => Some(marks),
                    Inserted::Known | Inserted::Full => None,
                };
            }
        }
        go_on
    }

    /// I2: of the marks of the step it was made through, those whose removal covers the new entry.
    #[inline]
    fn inherited(&self, at: usize, marks: Marks, covers: impl Fn(&Invalidation) -> bool) -> Marks {
        let mask = match marks.doomed {
            0 => 0,
            doomed => self.outstanding.among(doomed, self.first + at, covers),
        };
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
            Inserted::New | Inserted::Renewed(_) => self.grew = true,
            Inserted::Full => {
                let (cpu, limit) = (self.first + at, self.rules.capacity);
                self.full = Some(HostileError::Full { cpu, what, limit });
            }
        }
    }
}

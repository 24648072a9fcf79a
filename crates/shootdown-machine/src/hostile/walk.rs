//! One step of a walk: what a walker makes of a word it has read.
//!
//! Filling ([`super::fill`]) and accesses ([`super::access`]) both walk with this; they differ in
//! what they do with the result.

use shootdown::Tag;

use super::held::Marks;
use super::rules::{Dirty, Rules, WalkCache};
use super::{Descriptor, Owner, Partial, Path, Rights, Source, TableId, Translation, Word};

/// A walker standing before a table.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    pub table: TableId,
    pub level: u8,
    pub base: u32,
    pub rights: Rights,
    pub global: bool,
    pub path: Path,
    /// Which root it started from, and under which tag.
    pub root: TableId,
    pub tag: Tag,
    /// The marks of the cached step it started from; none from a root.
    pub marks: Marks,
}

/// What a word means to a walker.
pub(super) enum Step {
    /// Nothing there, cached or not as the rules say.
    Absent(Translation),
    /// A leaf.
    Leaf(Translation),
    /// The walk goes on ([`Cursor::below`]); the walk cache may keep the step.
    Table(Partial),
    /// The word cannot be used before hardware has set its accessed bit (or, on a leaf, faulted
    /// over it).
    Unaccessed {
        /// The word's place and content.
        translation: Translation,
        /// It names a table.
        table: bool,
    },
}

impl Cursor {
    /// Before the root.
    pub fn root(rules: &Rules, root: TableId, tag: Tag) -> Self {
        Self {
            table: root,
            level: rules.shape.top(),
            base: 0,
            rights: Rights::ALL,
            global: false,
            path: Path::default(),
            root,
            tag,
            marks: Marks::default(),
        }
    }

    /// Going on from a cached step, under the root and tag that are loaded.
    pub fn resume(rules: &Rules, partial: &Partial, marks: Marks, root: TableId, tag: Tag) -> Self {
        Self {
            table: partial.table,
            level: partial.level,
            base: partial.base,
            rights: partial.rights,
            global: partial.global,
            path: extend(rules, partial.path, partial.source),
            root,
            tag,
            marks,
        }
    }

    /// The word the walker reads for an entry of its table.
    pub fn word(&self, index: u8) -> Word {
        Word::new(self.table, index)
    }

    /// What the walker makes of `read` in `word`.
    #[inline]
    pub fn step(&self, rules: &Rules, word: Word, read: Descriptor, version: u32) -> Step {
        let shape = rules.shape;
        let source = Source { word, version: if rules.provenance { version } else { 0 } };
        let base = shape.base(self.base, self.level, word.index);
        let leaf = read.has(Descriptor::LEAF) || self.level == 0 && rules.last_level_is_leaf;
        let global = self.global || rules.tables_global && read.has(Descriptor::GLOBAL);
        let tagged = Owner::Tag(self.tag);
        let translation = |descriptor: Descriptor, owner, rights| Translation {
            base,
            level: self.level,
            last_offset: shape.last_offset(self.level),
            owner,
            descriptor,
            rights,
            source,
            path: self.path,
        };
        if !read.present() || (self.level == 0 && !leaf) {
            let owner = if self.global { Owner::Everyone } else { tagged };
            return Step::Absent(translation(Descriptor::ABSENT, owner, self.rights));
        }
        let rights = self.rights.and(rights_of(rules, read, leaf));
        let accessed = read.has(Descriptor::ACCESSED);
        if leaf {
            let seen =
                if rules.assumes_accessed() { read.with(Descriptor::ACCESSED) } else { read };
            let everyone = self.global || read.has(Descriptor::GLOBAL);
            let owner = if everyone { Owner::Everyone } else { tagged };
            let translation = translation(seen, owner, rights);
            return if rules.cacheable(accessed) {
                Step::Leaf(translation)
            } else {
                Step::Unaccessed { translation, table: false }
            };
        }
        if rules.tables_accessed && !rules.cacheable(accessed) {
            return Step::Unaccessed {
                translation: translation(read, tagged, rights),
                table: true,
            };
        }
        let owner = match rules.walk_cache {
            _ if global => Owner::Everyone,
            WalkCache::Untagged => Owner::Root(self.root),
            WalkCache::Tagged | WalkCache::None => tagged,
        };
        let partial = Partial {
            base,
            level: self.level - 1,
            last_offset: shape.last_offset(self.level),
            owner,
            table: read.next(),
            rights,
            global,
            source,
            path: self.path,
        };
        Step::Table(partial)
    }

    /// The next table, by a step that this cursor has just made.
    #[inline]
    pub fn below(&self, rules: &Rules, partial: &Partial, marks: Marks) -> Self {
        Self::resume(rules, partial, marks, self.root, self.tag)
    }
}

/// The rights a word gives: with hardware dirty management a clean writable leaf looks read-only.
fn rights_of(rules: &Rules, read: Descriptor, leaf: bool) -> Rights {
    match rules.dirty {
        Dirty::Modifier { hardware: true } if leaf && read.has(Descriptor::DBM) => {
            read.with(Descriptor::WRITE).rights()
        }
        _ => read.rights(),
    }
}

fn extend(rules: &Rules, path: Path, source: Source) -> Path {
    if rules.provenance { path.then(source) } else { path }
}

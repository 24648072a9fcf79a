//! Page tables, what the CPUs' MMUs may have cached of them, and the promises about both.
//!
//! # What is checked, and when
//! | promise | looked at |
//! |---|---|
//! | revocation, master invariant, frame reuse, tag reuse | when code runs that may use translations ([`hw::user_code`](super::hw::user_code)): *every* translation that the CPU could use at that moment |
//! | table reuse | when a table page is freed: no walker of any CPU reaches it any more |
//!
//! A change of an entry becomes *revoked* when the code under test says that its flush has returned
//! ([`hw::revoked`](super::hw::revoked)). From then on every translation that was made from an
//! older write of that entry is stale.

mod guest;

use std::hash::{Hash, Hasher};

use shootdown::{Reach, Tag};

use super::hw::{Change, Setup, Target};
use super::memory::{Location, MAX_CPUS, SharedMemory, mix};
use super::powers::Powers;
use crate::hostile::{
    Access, Descriptor, Frame, Hostile, Invalidation, Outcome, Pages, Shape, TableId, TableMemory,
    Translation, Word,
};
use crate::oracle::Invariant;

/// A promise that does not hold, before it is reported.
pub(super) type Broken = (Invariant, String);

/// What a table page is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    Unused,
    Table,
    Freed,
}

#[derive(Clone, Copy, Debug, Default)]
struct FrameState {
    in_use: bool,
    /// How often it was handed out.
    epoch: u32,
    /// Nobody may write it any more, or this promise is broken.
    sealed: Option<Invariant>,
}

/// One entry of a table.
#[derive(Clone, Debug, Default)]
struct Entry {
    location: Location,
    /// Translations made from older writes are stale.
    revoked: u32,
    /// Translations made from older writes are of what the address was before it was mapped again.
    reused: u32,
    /// For each write the epoch of the frame it names.
    epochs: Vec<u32>,
    /// The writes that only cleared the accessed bit.
    agings: Vec<u32>,
}

/// A root and a tag, as loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loaded {
    pub root: TableId,
    pub tag: Tag,
}

/// The MMUs of a run.
pub(super) struct Mmu {
    hostile: Hostile,
    entries: Vec<Entry>,
    pages: Vec<Page>,
    frames: Vec<FrameState>,
    pub loaded: [Option<Loaded>; MAX_CPUS],
    /// Per CPU: what had been revoked when the root was loaded with the tag's entries kept.
    kept: Vec<Vec<u32>>,
    /// Which entry a location is: number + 1.
    by_location: Vec<u16>,
    revocations: u64,
    /// Changes that each CPU sees to by itself, and the promise that it does.
    deferred: Vec<(Change, Invariant)>,
    /// Hash of what table pages and frames are used for.
    uses: u64,
    /// Hash of the hardware, while nothing of it changes.
    hash: Option<u64>,
}

fn new_hostile(setup: Setup, powers: Powers, cpus: usize) -> Hostile {
    Hostile::new(setup.rules(powers), cpus).unwrap_or_else(|e| panic!("{e}"))
}

/// Hashes plain data fast.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, x: u8) {
        self.write_u64(u64::from(x));
    }

    fn write_u16(&mut self, x: u16) {
        self.write_u64(u64::from(x));
    }

    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// Entries as walkers read them.
struct Tables<'a> {
    memory: &'a SharedMemory,
    entries: &'a [Entry],
    shape: Shape,
}

fn number(shape: Shape, word: Word) -> usize {
    usize::from(word.table.0) * shape.entries() + usize::from(word.index)
}

impl TableMemory for Tables<'_> {
    fn read(&self, _: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32)) {
        match self.entries.get(number(self.shape, word)) {
            Some(entry) if entry.location != 0 => {
                self.memory.walker_reads(entry.location, &mut |value, version| {
                    see(Descriptor::from_bits(value), version);
                });
            }
            _ => see(Descriptor::ABSENT, 0),
        }
    }
}

impl Mmu {
    pub fn new() -> Self {
        Self {
            hostile: new_hostile(Setup::default(), Powers::NONE, 1),
            entries: Vec::new(),
            pages: Vec::new(),
            frames: Vec::new(),
            loaded: [None; MAX_CPUS],
            kept: vec![Vec::new(); MAX_CPUS],
            by_location: Vec::new(),
            revocations: 0,
            deferred: Vec::new(),
            uses: 0,
            hash: None,
        }
    }

    pub fn reset(&mut self, powers: Powers, cpus: u8) {
        self.set_up(Setup::default(), powers, cpus as usize);
    }

    pub fn set_up(&mut self, setup: Setup, powers: Powers, cpus: usize) {
        self.hostile = new_hostile(setup, powers, cpus);
        let shape = self.hostile.rules().shape;
        self.entries.clear();
        self.entries.resize(usize::from(setup.tables) * shape.entries(), Entry::default());
        self.pages.clear();
        self.pages.resize(usize::from(setup.tables), Page::Unused);
        self.frames.clear();
        self.frames.resize(setup.frames as usize, FrameState::default());
        self.loaded = [None; MAX_CPUS];
        self.kept.iter_mut().for_each(Vec::clear);
        self.by_location.clear();
        self.revocations = 0;
        self.deferred.clear();
        self.uses = 0;
        self.hash = None;
    }

    /// Hash of the hardware and of what was promised about it.
    pub fn hash(&mut self) -> u64 {
        let Self { hostile, hash, .. } = self;
        let hardware = *hash.get_or_insert_with(|| {
            let mut mixer = Mixer::default();
            hostile.hash(&mut mixer);
            mixer.finish()
        });
        hardware ^ self.revocations ^ self.uses
    }

    /// The location of an entry.
    pub fn location(&mut self, memory: &mut SharedMemory, word: Word) -> Location {
        let number = number(self.hostile.rules().shape, word);
        let entry = &mut self.entries[number];
        if entry.location == 0 {
            entry.location = memory.locate(0);
            entry.epochs.push(0);
            let at = entry.location as usize;
            if self.by_location.len() <= at {
                self.by_location.resize(at + 1, 0);
            }
            #[allow(clippy::cast_possible_truncation)] // few entries
            let number = number as u16;
            self.by_location[at] = number + 1;
        }
        entry.location
    }

    /// Is the location an entry of a table?
    pub fn is_entry(&self, location: Location) -> bool {
        self.by_location.get(location as usize).is_some_and(|number| *number != 0)
    }

    fn word(&self, location: Location) -> Option<Word> {
        let number = usize::from(*self.by_location.get(location as usize)?).checked_sub(1)?;
        let entries = self.hostile.rules().shape.entries();
        #[allow(clippy::cast_possible_truncation)] // they were made from these types
        Some(Word::new(TableId((number / entries) as u16), (number % entries) as u8))
    }

    /// A table page, which was freed before or never used.
    pub fn new_table(&mut self) -> TableId {
        let free = self.pages.iter().position(|p| *p != Page::Table).expect("a table page is left");
        self.set_page(free, Page::Table);
        #[allow(clippy::cast_possible_truncation)] // few tables
        TableId(free as u16)
    }

    fn set_page(&mut self, page: usize, to: Page) {
        let was = std::mem::replace(&mut self.pages[page], to);
        let cell = |p: Page| mix((page as u64) << 8 ^ p as u64 ^ 0x7ab1e << 32);
        self.uses ^= cell(was) ^ cell(to);
    }

    fn set_frame(&mut self, frame: usize, change: impl FnOnce(&mut FrameState)) {
        let cell = |f: &FrameState| {
            let flags = u64::from(f.in_use) | f.sealed.map_or(0, |i| 2 + (i as u64) * 2);
            mix((frame as u64) << 40 ^ u64::from(f.epoch) << 8 ^ flags ^ 0xf << 60)
        };
        let state = &mut self.frames[frame];
        self.uses ^= cell(state);
        change(state);
        self.uses ^= cell(state);
    }

    /// A table page is given back.
    pub fn free_table(&mut self, memory: &SharedMemory, table: TableId) -> Result<(), Broken> {
        self.set_page(usize::from(table.0), Page::Freed);
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        match hostile.walkers_reach(&tables, table) {
            0 => Ok(()),
            cpus => {
                let cpu = cpus.trailing_zeros();
                let details =
                    format!("the walker of cpu{cpu} can still reach {table}, which is freed");
                Err((Invariant::TableReuse, details))
            }
        }
    }

    pub fn new_frame(&mut self) -> Frame {
        let free = self.frames.iter().position(|f| !f.in_use).expect("a frame is left");
        self.set_frame(free, |f| {
            *f = FrameState { in_use: true, epoch: f.epoch + 1, sealed: None }
        });
        #[allow(clippy::cast_possible_truncation)] // few frames
        Frame(free as u32)
    }

    pub fn free_frame(&mut self, frame: Frame) {
        self.set_frame(frame.0 as usize, |f| *f = FrameState { in_use: false, sealed: None, ..*f });
    }

    /// Nobody may write the frame any more (`None`: anybody who is allowed to).
    pub fn seal(&mut self, frame: Frame, promise: Option<Invariant>) {
        self.set_frame(frame.0 as usize, |f| f.sealed = promise);
    }

    /// Is the table page free?
    pub fn is_free(&self, table: TableId) -> bool {
        self.pages[usize::from(table.0)] == Page::Freed
    }

    /// An entry was written; this was write number `version` of it.
    pub fn written(&mut self, word: Word, to: Descriptor, version: u32) {
        let epoch = self.frames.get(to.frame().0 as usize).map_or(0, |f| f.epoch);
        let number = number(self.hostile.rules().shape, word);
        let epochs = &mut self.entries[number].epochs;
        if epochs.len() <= version as usize {
            epochs.resize(version as usize + 1, 0);
        }
        epochs[version as usize] = epoch;
    }

    /// A location has changed where walkers can see it.
    pub fn visible(&mut self, memory: &SharedMemory, location: Location) {
        let Some(word) = self.word(location) else { return };
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        self.hash = None;
        hostile.changed(&tables, word).unwrap_or_else(|e| panic!("{e}"));
    }

    /// What this CPU stored to entries is seen by all walkers from now on.
    pub fn publish(&mut self, memory: &mut SharedMemory, cpu: u8) {
        for entry in &self.entries {
            if entry.location != 0 {
                memory.publish(cpu, entry.location);
            }
        }
    }

    /// Does another CPU have a translation, or the beginning of a walk, that was made from this
    /// entry?
    pub fn is_cached_elsewhere(&self, cpu: u8, word: Word) -> bool {
        (0..self.hostile.cpus()).filter(|other| *other != usize::from(cpu)).any(|other| {
            let mut translations = self.hostile.translations(other);
            translations.any(|t| t.descriptor.present() && t.sources().any(|s| s.word == word))
                || self.hostile.partials(other).any(|p| p.sources().any(|s| s.word == word))
        })
    }

    /// A change was flushed.
    pub fn revoked(&mut self, change: Change) {
        let number = number(self.hostile.rules().shape, change.word);
        let floor = &mut self.entries[number].revoked;
        if change.version > *floor {
            let cell = |version: u32| mix((number as u64) << 32 ^ u64::from(version));
            self.revocations ^= cell(*floor) ^ cell(change.version);
            *floor = change.version;
        }
    }

    /// This write only cleared the accessed bit: who relies on the entry does not rely on that.
    pub fn aging(&mut self, change: Change) {
        let number = self.number(change.word);
        self.entries[number].agings.push(change.version);
    }

    /// The latest write up to this one that did more than clear the accessed bit.
    pub fn before_agings(&self, word: Word, mut version: u32) -> u32 {
        let agings = &self.entries[self.number(word)].agings;
        while agings.contains(&version) {
            version -= 1;
        }
        version
    }

    /// The address of an entry was given out again after this change of it.
    pub fn reused(&mut self, change: Change) {
        let number = self.number(change.word);
        let floor = &mut self.entries[number].reused;
        if change.version > *floor {
            let cell =
                |version: u32| mix((number as u64) << 32 ^ u64::from(version) ^ 0x5a3e << 48);
            self.revocations ^= cell(*floor) ^ cell(change.version);
            *floor = change.version;
        }
    }

    /// The code under test was told of a change, and has promised that each CPU sees to it by
    /// itself.
    pub fn deferred(&mut self, change: Change, promise: Invariant) {
        let number = self.number(change.word) as u64;
        let place = self.deferred.len() as u64 + 1;
        self.revocations ^=
            mix(number << 40 ^ u64::from(change.version) << 8 ^ place ^ 0xa9ed << 48);
        self.deferred.push((change, promise));
    }

    /// A CPU has come by, and had heard of the first `told` of these promises before: what it could
    /// use now is not older than any of those changes.
    pub fn check_deferred(
        &self,
        cpu: u8,
        told: usize,
        only: Option<Invariant>,
    ) -> Result<(), Broken> {
        let counts = |(_, promise): &&(Change, Invariant)| only.is_none_or(|o| o == *promise);
        self.check_gone(cpu, self.deferred[..told].iter().filter(counts))
    }

    /// What the CPU could use now is not older than any of these changes.
    pub fn check_gone<'c>(
        &self,
        cpu: u8,
        changes: impl Iterator<Item = &'c (Change, Invariant)> + Clone,
    ) -> Result<(), Broken> {
        let at = usize::from(cpu);
        for t in self.hostile.translations(at) {
            let usable = t.descriptor.present() && t.rights.user();
            if !usable || !self.hostile.serves(at, t.owner) {
                continue;
            }
            let old =
                |(c, _): &&(Change, _)| c.word == t.source.word && t.source.version < c.version;
            if let Some((change, promise)) = changes.clone().find(old) {
                let what = match promise {
                    Invariant::AccessedBound => "the accessed bit of that was cleared",
                    _ => "that was unmapped",
                };
                let details = format!(
                    "cpu{cpu} can use a translation of page {} made from {} before {what}, although it has come by since",
                    t.base, change.word
                );
                return Err((*promise, details));
            }
        }
        Ok(())
    }

    pub fn load(&mut self, memory: &SharedMemory, cpu: u8, root: TableId, tag: Tag, keep: bool) {
        self.hash = None;
        self.loaded[cpu as usize] = Some(Loaded { root, tag });
        let kept = &mut self.kept[cpu as usize];
        kept.clear();
        if keep {
            kept.extend(self.entries.iter().map(|e| e.revoked));
        }
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile
            .load(&tables, usize::from(cpu), Some(root), tag, keep)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    pub fn invalidate(&mut self, memory: &SharedMemory, cpu: u8, target: Target, reach: Reach) {
        self.hash = None;
        let loaded = self.loaded[cpu as usize].map_or(Tag(0), |l| l.tag);
        let what = match target {
            Target::Pages { tag, first, last, leaf_only } => {
                Invalidation::range(tag, Pages { first, last }, leaf_only)
            }
            Target::Kernel { first, last } if reach == Reach::Broadcast => {
                Invalidation::tlbi_va_any_last(Pages { first, last })
            }
            Target::Kernel { first, last } => Invalidation::kernel(Pages { first, last }, loaded),
            Target::Tag(tag) => Invalidation::tag(tag),
            Target::Everything => Invalidation::everything(),
        };
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile
            .invalidate(&tables, usize::from(cpu), what, reach)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    pub fn sync(&mut self, memory: &SharedMemory, cpu: u8) {
        self.hash = None;
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile.sync(usize::from(cpu));
        hostile.context_sync(&tables, usize::from(cpu)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Every translation this CPU could use now, against every promise.
    pub fn check_uses(&self, cpu: u8, user: bool) -> Result<(), Broken> {
        let Some(loaded) = self.loaded[cpu as usize] else { return Ok(()) };
        let at = usize::from(cpu);
        for t in self.hostile.translations(at) {
            if t.descriptor.present() && t.rights.user() == user && self.hostile.serves(at, t.owner)
            {
                self.check_use(cpu, loaded, t)?;
            }
        }
        if let Some((small, large)) = self.hostile.two_sizes(at).filter(|_| user) {
            let details = format!(
                "cpu{cpu} can use translations of page {} of two sizes, from {} and from {}",
                small.base, small.source.word, large.source.word
            );
            return Err((Invariant::OneSize, details));
        }
        for p in self.hostile.partials(at).filter(|p| self.hostile.serves(at, p.owner)) {
            let stale = |word: Word, version| version < self.entries[self.number(word)].revoked;
            if let Some(source) = p.sources().find(|s| stale(s.word, s.version)) {
                let details = format!(
                    "cpu{cpu} can start a walk at {}, from before {} changed, although the flush of that change has returned",
                    p.table, source.word
                );
                return Err((Invariant::WalkCacheReuse, details));
            }
        }
        Ok(())
    }

    fn number(&self, word: Word) -> usize {
        number(self.hostile.rules().shape, word)
    }

    /// How a store of user code to a page may go, the plainest first.
    pub fn user_stores(&self, memory: &SharedMemory, cpu: u8, page: u32) -> Vec<Outcome> {
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        let mut outcomes = Vec::new();
        hostile.outcomes(&tables, usize::from(cpu), page, Access::USER_WRITE, &mut outcomes);
        outcomes
    }

    /// A translation is used by user code, against every promise.
    pub fn used(&self, cpu: u8, t: &Translation) -> Result<(), Broken> {
        self.loaded[cpu as usize].map_or(Ok(()), |loaded| self.check_use(cpu, loaded, t))
    }

    /// User code faults on a page.
    pub fn faulted(&mut self, memory: &SharedMemory, cpu: u8, page: u32) {
        self.hash = None;
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile.faulted(&tables, usize::from(cpu), page).unwrap_or_else(|e| panic!("{e}"));
    }

    fn check_use(&self, cpu: u8, loaded: Loaded, t: &Translation) -> Result<(), Broken> {
        let what = || {
            let (page, frame) = (t.base, t.frame_of(t.base));
            format!("cpu{cpu} can use a translation of page {page} to {frame}")
        };
        if t.rights.user() && t.sources().next().is_some_and(|s| s.word.table != loaded.root) {
            let details =
                format!("{} of other tables than {}, which are loaded", what(), loaded.root);
            return Err((Invariant::TagReuse, details));
        }
        for source in t.sources() {
            let number = number(self.hostile.rules().shape, source.word);
            let entry = &self.entries[number];
            if source.version < entry.reused {
                let details = format!("{} from before {} was given out again", what(), source.word);
                return Err((Invariant::RangeReuse, details));
            }
            if source.version < entry.revoked {
                let kept = self.kept[cpu as usize].get(number).copied().unwrap_or(0);
                let word = source.word;
                return Err(if source.version < kept {
                    let how = "kept when its tag was loaded, made before a flush that had returned";
                    (Invariant::MasterInvariant, format!("{}, {how} ({word})", what()))
                } else {
                    let how = "although the flush of that change has returned";
                    (Invariant::Revocation, format!("{} from before {word} changed, {how}", what()))
                });
            }
        }
        let number = number(self.hostile.rules().shape, t.source.word);
        let epoch =
            self.entries[number].epochs.get(t.source.version as usize).copied().unwrap_or(0);
        let frame = t.frame_of(t.base);
        match self.frames.get(frame.0 as usize) {
            Some(FrameState { in_use: true, epoch: now, sealed }) if *now == epoch => {
                match sealed {
                    Some(promise) if t.rights.write() => {
                        let details =
                            format!("{}, for writing, although its contents were taken", what());
                        Err((*promise, details))
                    }
                    _ => Ok(()),
                }
            }
            Some(_) => Err((Invariant::FrameReuse, format!("{}, which was freed since", what()))),
            None => Err((Invariant::TableReuse, format!("{}, read from a freed table", what()))),
        }
    }
}

//! What an access may meet: every outcome that some real CPU could produce now.
//!
//! A CPU may use any cached translation of the page, or walk: from the root, or from any cached
//! step. The caller chooses among the outcomes, does what the chosen one asks of memory, and goes
//! on.
//!
//! | outcome | the caller |
//! |---|---|
//! | [`Outcome::Hit`] without update | accesses the frame |
//! | [`Outcome::Hit`] with an [`Update`] | performs it atomically on the word ([`Update::apply`]), reports the change ([`Hostile::changed`]), then accesses the frame; if the word has changed meanwhile, asks again |
//! | [`Outcome::Blocked`] | performs the update of a table word, reports it, asks again |
//! | [`Outcome::Fault`] | delivers it ([`Hostile::faulted`]) |
//!
//! On a machine that caches on access only, the caller also says which translation it used
//! ([`Hostile::used`]).

use super::cpu::Cpu;
use super::rules::{Dirty, Rules};
use super::walk::{Cursor, Step};
use super::{Descriptor, Hostile, MAX_LEVELS, TableMemory, Translation, Word};

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// What is done.
    pub kind: Kind,
    /// By user mode.
    pub user: bool,
}

impl Access {
    /// A load by user mode.
    pub const USER_READ: Self = Self { kind: Kind::Read, user: true };
    /// A store by user mode.
    pub const USER_WRITE: Self = Self { kind: Kind::Write, user: true };
    /// A load by the kernel.
    pub const KERNEL_READ: Self = Self { kind: Kind::Read, user: false };
    /// A store by the kernel.
    pub const KERNEL_WRITE: Self = Self { kind: Kind::Write, user: false };
}

/// Why an access is not allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// Nothing there.
    NotPresent,
    /// User mode may not.
    Supervisor,
    /// Stores may not.
    ReadOnly,
    /// Fetches may not.
    NoExec,
    /// Software has to set the accessed bit.
    Accessed,
    /// Software has to set the dirty bit.
    Dirty,
}

/// Bits that hardware has to set in memory before the access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Update {
    /// Where.
    pub word: Word,
    /// What the walker read there, or cached.
    pub seen: Descriptor,
    /// What is set.
    pub set: u64,
}

impl Update {
    /// The word's new content if it still says the same; `None` if the access must start again. The
    /// comparison and the store are one atomic step (x86: a locked update; Arm ARM D8.13: an atomic
    /// one).
    #[must_use]
    pub fn apply(&self, current: Descriptor) -> Option<Descriptor> {
        let own = Descriptor::ACCESSED | Descriptor::DIRTY | self.set;
        current.same_but_for(self.seen, own).then(|| current.with(self.set))
    }
}

/// How an access may go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It goes through.
    Hit {
        /// By this translation.
        translation: Translation,
        /// A walk made now would not find it.
        stale: bool,
        /// After this update.
        update: Option<Update>,
    },
    /// The walker has to set an accessed bit in a table before it goes on.
    Blocked {
        /// This one.
        update: Update,
    },
    /// It faults.
    Fault {
        /// Why.
        kind: FaultKind,
        /// The entry that says so; `None` where no root is loaded.
        translation: Option<Translation>,
        /// A walk made now would not find it.
        stale: bool,
    },
}

impl Outcome {
    /// The translation it is about.
    #[must_use]
    pub const fn translation(&self) -> Option<&Translation> {
        match self {
            Self::Hit { translation, .. } => Some(translation),
            Self::Fault { translation, .. } => translation.as_ref(),
            Self::Blocked { .. } => None,
        }
    }
}

/// Judges an access through a leaf.
fn judge(
    rules: &Rules,
    cpu: usize,
    access: Access,
    translation: Translation,
    stale: bool,
) -> Outcome {
    let leaf = translation.descriptor;
    let fault = |kind| Outcome::Fault { kind, translation: Some(translation), stale };
    if !leaf.present() {
        return fault(FaultKind::NotPresent);
    }
    if access.user && !translation.rights.user() {
        return fault(FaultKind::Supervisor);
    }
    let dirty = rules.dirty_of(cpu);
    // The entry may have been cached for CPUs whose hardware turns DBM into a right to store.
    let unmanaged = matches!(dirty, Dirty::Modifier { hardware: false });
    match access.kind {
        Kind::Read => {}
        Kind::Write if unmanaged && !leaf.has(Descriptor::WRITE) => {
            return fault(FaultKind::ReadOnly);
        }
        Kind::Write if translation.rights.write() => {}
        Kind::Write => return fault(FaultKind::ReadOnly),
        Kind::Fetch if translation.rights.exec() => {}
        Kind::Fetch => return fault(FaultKind::NoExec),
    }
    let mut set = 0;
    if !leaf.has(Descriptor::ACCESSED) {
        if !rules.sets_accessed(cpu) {
            return fault(FaultKind::Accessed);
        }
        set |= Descriptor::ACCESSED;
    }
    if access.kind == Kind::Write {
        match dirty {
            Dirty::Hardware if !leaf.has(Descriptor::DIRTY) => set |= Descriptor::DIRTY,
            Dirty::Fault if !leaf.has(Descriptor::DIRTY) => return fault(FaultKind::Dirty),
            Dirty::Modifier { .. } if !leaf.has(Descriptor::WRITE) => set |= Descriptor::WRITE,
            _ => {}
        }
    }
    let update = Update { word: translation.source.word, seen: leaf, set };
    Outcome::Hit { translation, stale, update: (set != 0).then_some(update) }
}

impl Hostile {
    /// Every way an access of `cpu` to `page` may go now, without repetitions. A walk from the root
    /// that reads the newest values comes first, stale entries last.
    ///
    /// # Panics
    /// If the page lies outside what the tables can map.
    pub fn outcomes<M: TableMemory + ?Sized>(
        &self,
        mem: &M,
        cpu: usize,
        page: u32,
        access: Access,
        out: &mut Vec<Outcome>,
    ) {
        out.clear();
        let rules = &self.rules;
        assert!(page <= rules.shape.last_page(), "page {page:#x} is outside the tables");
        let state = &self.cpus[cpu];
        let add = |out: &mut Vec<Outcome>, outcome| {
            if !out.contains(&outcome) {
                out.push(outcome);
            }
        };
        walks(rules, mem, cpu, state, page, &mut |step| {
            let outcome = match step {
                Step::Absent(translation) | Step::Leaf(translation) => {
                    judge(rules, cpu, access, translation, false)
                }
                Step::Unaccessed { translation, table: false } => {
                    judge(rules, cpu, access, translation, false)
                }
                Step::Unaccessed { translation, table: true } => Outcome::Blocked {
                    update: Update {
                        word: translation.source.word,
                        seen: translation.descriptor,
                        set: Descriptor::ACCESSED,
                    },
                },
                Step::Table(_) => return,
            };
            add(out, outcome);
        });
        if out.is_empty() {
            let kind = FaultKind::NotPresent;
            out.push(Outcome::Fault { kind, translation: None, stale: false });
        }
        let fresh = out.len();
        for translation in self.usable(cpu, page) {
            let known = out[..fresh].iter().any(|o| o.translation() == Some(translation));
            if !known {
                out.push(judge(rules, cpu, access, *translation, true));
            }
        }
    }
}

/// Walks to `page` from the root and from every usable step, telling each step. A cached step that
/// the walk from the root has just made again leads nowhere new.
fn walks<M: TableMemory + ?Sized>(
    rules: &Rules,
    mem: &M,
    cpu: usize,
    state: &Cpu,
    page: u32,
    tell: &mut dyn FnMut(Step),
) {
    let top = rules.shape.top();
    let index = rules.shape.index(page, top);
    let mut made = [None; MAX_LEVELS as usize];
    for root in state.roots(rules) {
        if root.first <= index && index <= root.last {
            descend(rules, mem, cpu, &root.cursor(rules), page, &mut |step| {
                if let Step::Table(partial) = &step {
                    made[usize::from(partial.level)] = Some(*partial);
                }
                tell(step);
            });
        }
    }
    for slot in state.partials.iter() {
        let partial = &slot.entry;
        if partial.pages().has(page)
            && made[usize::from(partial.level)] != Some(*partial)
            && let Some(cursor) = state.resume(rules, partial, slot.marks)
        {
            descend(rules, mem, cpu, &cursor, page, tell);
        }
    }
}

fn descend<M: TableMemory + ?Sized>(
    rules: &Rules,
    mem: &M,
    cpu: usize,
    cursor: &Cursor,
    page: u32,
    tell: &mut dyn FnMut(Step),
) {
    let word = cursor.word(rules.shape.index(page, cursor.level));
    mem.read(cpu, word, &mut |read, version| {
        let step = cursor.step(rules, word, read, version);
        let next = match &step {
            Step::Table(partial) => Some(cursor.below(rules, partial, cursor.marks)),
            _ => None,
        };
        tell(step);
        if let Some(next) = next {
            descend(rules, mem, cpu, &next, page, tell);
        }
    });
}

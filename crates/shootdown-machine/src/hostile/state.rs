//! The whole hardware, and the events that change it.

use std::hash::{Hash, Hasher};

use shootdown::{Reach, Tag};

use super::cpu::Cpu;
use super::fill::{Filler, Scope};
use super::late::{Outstanding, Removal};
use super::rules::{Late, Negative, Rules};
use super::{HostileError, Invalidation, Owner, TableId, TableMemory, Translation, Word};

/// The most CPUs: sets of CPUs are 16 bits wide.
pub const MAX_CPUS: usize = 16;

/// What every TLB and walk cache may hold. See the [module](super).
#[derive(Clone, Debug)]
pub struct Hostile {
    pub(super) rules: Rules,
    pub(super) cpus: Vec<Cpu>,
    /// Removals issued and not complete.
    outstanding: Outstanding,
}

impl PartialEq for Hostile {
    fn eq(&self, other: &Self) -> bool {
        self.cpus == other.cpus
            && self.outstanding == other.outstanding
            && self.rules == other.rules
    }
}

impl Eq for Hostile {}

impl Hash for Hostile {
    /// The rules never change in a run: hashing them would cost time and tell nothing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.cpus.hash(state);
        self.outstanding.hash(state);
    }
}

impl Hostile {
    /// `cpus` CPUs with nothing loaded and nothing cached.
    ///
    /// # Errors
    /// [`HostileError::Cpus`] unless there are 1 to [`MAX_CPUS`].
    pub fn new(rules: Rules, cpus: usize) -> Result<Self, HostileError> {
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(HostileError::Cpus(cpus));
        }
        Ok(Self { rules, cpus: vec![Cpu::default(); cpus], outstanding: Outstanding::default() })
    }

    /// The rules it was built with.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How many CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The root that `cpu` has loaded.
    #[must_use]
    pub fn root(&self, cpu: usize) -> Option<TableId> {
        self.cpus[cpu].low
    }

    /// The upper half's root that `cpu` has loaded.
    #[must_use]
    pub fn upper_root(&self, cpu: usize) -> Option<TableId> {
        self.cpus[cpu].high
    }

    /// The tag in force on `cpu`.
    #[must_use]
    pub fn tag(&self, cpu: usize) -> Tag {
        self.cpus[cpu].tag
    }

    /// `cpu` loads a root under a tag; with `None` its walker has nowhere to start. Without `keep`
    /// the tag's entries on this CPU are gone, global ones excepted, once the root is in force.
    /// The load synchronizes the CPU's context, and no walk through the previous root goes on.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn load<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        root: Option<TableId>,
        tag: Tag,
        keep: bool,
    ) -> Result<(), HostileError> {
        let state = &mut self.cpus[cpu];
        state.low = root;
        state.tag = tag;
        state.forget_ahead();
        if !keep {
            self.remove(cpu, &Invalidation::tag(tag), false);
        }
        self.close(mem, cpu)
    }

    /// `cpu` loads a root for the upper half of the addresses (Arm TTBR1); `None` gives that half
    /// back to the root loaded by [`Hostile::load`]. Entries stay. Synchronizes the CPU's
    /// context.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn load_upper<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        root: Option<TableId>,
    ) -> Result<(), HostileError> {
        let state = &mut self.cpus[cpu];
        state.high = root;
        state.forget_ahead();
        self.close(mem, cpu)
    }

    /// Walkers may read something new in `word`: every CPU whose walker can reach it may have done
    /// so. Every change has to be reported before the next call of another kind.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    ///
    /// # Panics
    /// If the word lies outside its table.
    pub fn changed<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        word: Word,
    ) -> Result<(), HostileError> {
        self.check(word);
        let mut first = 0;
        while first < self.cpus.len() {
            self.filler(mem, first).word_changed(word)?;
            first += self.group_len();
        }
        Ok(())
    }

    /// The walker of `cpu` alone may read something new in `word` (its own store buffer, its own
    /// view).
    ///
    /// # Errors
    /// [`HostileError::Full`].
    ///
    /// # Panics
    /// If the word lies outside its table.
    pub fn changed_for<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        word: Word,
    ) -> Result<(), HostileError> {
        self.check(word);
        self.filler(mem, cpu).word_changed(word)
    }

    /// Walkers may read something new anywhere.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn changed_anywhere<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
    ) -> Result<(), HostileError> {
        (0..self.cpus.len()).step_by(self.group_len()).try_for_each(|cpu| self.close(mem, cpu))
    }

    /// `cpu` issues a removal on itself or on every CPU. It takes effect now or at the next
    /// [`Hostile::sync`] of this CPU, as the rules say; what can be walked again comes back at
    /// once.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn invalidate<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        what: Invalidation,
        reach: Reach,
    ) -> Result<(), HostileError> {
        if self.rules.broken.flushes_all {
            for state in &mut self.cpus {
                state.translations.clear();
                state.partials.clear();
            }
            return self.changed_anywhere(mem);
        }
        let targets = match reach {
            Reach::Local => cpu..cpu + 1,
            Reach::Broadcast => 0..self.cpus.len(),
        };
        let late = match self.rules.late {
            Late::Always => true,
            Late::Broadcast => reach == Reach::Broadcast,
            Late::Never => false,
        };
        if late || self.rules.errata.early_sync {
            let mask = targets.clone().fold(0, |mask, target| mask | 1 << target);
            let removal = Removal { issuer: cpu as u8, targets: mask, what };
            self.outstanding.issue(&self.rules, &mut self.cpus, removal)?;
            let scope = Scope::of(&what);
            for target in targets {
                self.filler(mem, target).within(scope).close()?;
            }
            self.outstanding.settle(&mut self.cpus);
            return Ok(());
        }
        for target in targets {
            if self.remove(target, &what, target == cpu) {
                self.filler(mem, target).within(Scope::of(&what)).close()?;
            }
        }
        Ok(())
    }

    /// `cpu` waits until the removals it issued are complete, on every CPU.
    pub fn sync(&mut self, cpu: usize) {
        // What is gone could not be walked any more, or it would not have been doomed.
        self.outstanding.sync(&self.rules, &mut self.cpus, cpu as u8);
    }

    /// `cpu` drops what it has translated ahead.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn context_sync<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
    ) -> Result<(), HostileError> {
        let gone = self.cpus[cpu].forget_ahead();
        // What is ahead of the TLB cannot be walked any more, or it would be in the TLB; faults
        // apart.
        let refill = self.rules.negative == Negative::UntilContextSync;
        if gone && refill { self.close(mem, cpu) } else { Ok(()) }
    }

    /// `cpu` takes a fault on `page`. Where the rules say so the CPU forgets what it has cached for
    /// the page, so that the same stale entry does not fault twice. Synchronizes the CPU's
    /// context.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn faulted<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        page: u32,
    ) -> Result<(), HostileError> {
        let all = self.rules.fault_forgets;
        let absent = self.rules.negative == Negative::UntilFault;
        let state = &mut self.cpus[cpu];
        let tag = Owner::Tag(state.tag);
        let gone = state.translations.retain(|t, marks| {
            let serves = t.owner == tag || t.owner == Owner::Everyone;
            let forgotten = all || absent && !t.descriptor.present();
            !(marks.ahead || forgotten && serves && t.pages().has(page))
        });
        if gone { self.close(mem, cpu) } else { Ok(()) }
    }

    /// An access went by `translation`, which [`Hostile::outcomes`] has just found fresh: a machine
    /// that caches on access keeps it, and the steps that led to it. The others have it
    /// already.
    ///
    /// # Errors
    /// [`HostileError::Full`].
    pub fn used<M: TableMemory + ?Sized>(
        &mut self,
        mem: &M,
        cpu: usize,
        translation: &Translation,
    ) -> Result<(), HostileError> {
        self.filler(mem, cpu).used(cpu, translation)
    }

    fn check(&self, word: Word) {
        let entries = self.rules.shape.entries();
        assert!(usize::from(word.index) < entries, "{word}: a table has {entries} entries");
    }

    fn remove(&mut self, cpu: usize, what: &Invalidation, own: bool) -> bool {
        self.cpus[cpu].remove(&self.rules, what, own)
    }

    fn close<M: TableMemory + ?Sized>(&mut self, mem: &M, cpu: usize) -> Result<(), HostileError> {
        self.filler(mem, cpu).close()
    }

    fn group_len(&self) -> usize {
        usize::from(self.rules.sharing.max(1))
    }

    fn filler<'a, M: TableMemory + ?Sized>(&'a mut self, mem: &'a M, cpu: usize) -> Filler<'a, M> {
        let len = self.group_len();
        let first = cpu / len * len;
        let end = (first + len).min(self.cpus.len());
        Filler::new(&self.rules, mem, &mut self.cpus[first..end], first, &self.outstanding)
    }
}

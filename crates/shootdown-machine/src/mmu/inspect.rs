//! Looking at what a CPU has cached without using it, and saying what is wrong with it.

use shootdown::Tag;

use crate::mmu::addr::{self, Root};
use crate::mmu::array::{context_of, span_of};
use crate::mmu::cpu::CpuMmu;
use crate::mmu::memory::{Finding, Memory};
use crate::mmu::tags::TagState;
use crate::oracle::{Epoch, Invariant, Violation};

impl CpuMmu {
    /// Looks at what is cached for one address under the loaded tag, without using it: what a flush
    /// that has returned promises is that nothing stale is found on a CPU that runs user code.
    ///
    /// # Errors
    /// When an access would be a violation.
    pub fn check(&self, mem: &Memory, va: u64) -> Result<(), Box<Violation>> {
        let mut worst = None;
        for context in [self.context, self.global] {
            self.tlb.peek(addr::vpn(va), context, |entry| {
                if let Err(finding) = mem.check_leaf(entry, entry.frame) {
                    worst.get_or_insert(finding);
                }
            });
            if !self.global_used {
                break;
            }
        }
        match worst {
            None => Ok(()),
            Some(v) => Err(self.stale(&v, va, "an entry that user code could use now")),
        }
    }

    /// Looks at everything cached under the loaded tag for entries whose accessed bit was cleared,
    /// and that was told, by `since`: this CPU has switched, or ticked, after that.
    ///
    /// # Errors
    /// The first one found.
    pub(crate) fn check_ages(&self, mem: &Memory, since: Epoch) -> Result<(), Box<Violation>> {
        let mut found = None;
        self.tlb.for_each(|k, entry| {
            let mine = context_of(k) == self.context;
            if mine && mem.has_aged(entry, since) {
                found.get_or_insert(addr::va_of(span_of(k).0));
            }
        });
        found.map_or(Ok(()), |va| Err(self.aged(va)))
    }

    /// As [`check_ages`](Self::check_ages), for one address only.
    ///
    /// # Errors
    /// When it is cached.
    pub(crate) fn check_age(
        &self,
        mem: &Memory,
        va: u64,
        since: Epoch,
    ) -> Result<(), Box<Violation>> {
        let mut found = false;
        self.tlb.peek(addr::vpn(va), self.context, |entry| found |= mem.has_aged(entry, since));
        if found { Err(self.aged(va)) } else { Ok(()) }
    }

    fn aged(&self, va: u64) -> Box<Violation> {
        let what = "an entry is still cached whose accessed bit was cleared before".to_string();
        let owner = self.tags[self.current].owner;
        self.violation(Invariant::AccessedBound, Some(owner), Some(va), what)
    }

    /// Looks at everything cached under a tag for entries that nobody may use any more: for tests
    /// and adversaries, which want to know before an access does.
    ///
    /// # Errors
    /// The first one found.
    pub fn audit(&self, mem: &Memory, tag: Tag) -> Result<(), Box<Violation>> {
        let Some(state) = self.tags.iter().find(|t| t.tag == tag) else { return Ok(()) };
        let mut worst = None;
        self.tlb.for_each(|k, entry| {
            if context_of(k) == state.context
                && let Err(v) = mem.check_leaf(entry, entry.frame)
            {
                let va = addr::va_of(span_of(k).0);
                worst.get_or_insert((v, va, "an entry that is still cached"));
            }
        });
        self.walk_caches.for_each(|k, entry| {
            if context_of(k) == state.walk_context
                && let Err(v) = mem.check_walk(entry)
            {
                worst.get_or_insert((v, 0, "a walk-cache entry that is still cached"));
            }
        });
        match worst {
            None => Ok(()),
            Some((v, va, what)) => Err(self.stale_under(state, &v, va, what)),
        }
    }

    /// How many leaf entries are cached under a tag, global ones not counted, each level for
    /// itself.
    #[must_use]
    pub fn cached(&self, tag: Tag) -> usize {
        let Some(state) = self.tags.iter().find(|t| t.tag == tag) else { return 0 };
        let mut n = 0;
        self.tlb.for_each(|k, _| n += usize::from(context_of(k) == state.context));
        n
    }

    pub(crate) fn violation(
        &self,
        invariant: Invariant,
        root: Option<Root>,
        va: Option<u64>,
        details: String,
    ) -> Box<Violation> {
        Box::new(Violation { invariant, cpu: self.id, root, va, culprits: Vec::new(), details })
    }

    /// The violation that using a stale entry is.
    pub(crate) fn stale(&self, finding: &Finding, va: u64, what: &str) -> Box<Violation> {
        self.stale_under(&self.tags[self.current], finding, va, what)
    }

    fn stale_under(
        &self,
        state: &TagState,
        finding: &Finding,
        va: u64,
        what: &str,
    ) -> Box<Violation> {
        let mut invariant = finding.invariant;
        let mut details = match invariant {
            Invariant::FrameReuse => {
                format!("{what} leads to a frame that was freed before any flush")
            }
            Invariant::TableReuse => {
                format!(
                    "{what} leads to a table page that was freed before any flush for freed tables"
                )
            }
            Invariant::WalkCacheReuse => {
                format!("{what} leads to a table page whose flush has returned")
            }
            _ => format!("{what} is older than a change whose flush has returned"),
        };
        let mut culprits = Vec::new();
        if let Some(missed) = &finding.missed {
            let (change, flush) = (missed.changed_by, missed.returned_by);
            details.push_str(&format!(
                " (changed by {} at {} ns, flush returned to {} at {} ns",
                change.cpu,
                change.at / 1000,
                flush.cpu,
                flush.at / 1000
            ));
            if invariant == Invariant::Revocation && missed.returned <= state.loaded {
                // The tag was loaded with this entry in it, after the flush.
                invariant = Invariant::MasterInvariant;
                details
                    .push_str(&format!(", before this CPU loaded tag {} keeping it", state.tag.0));
            }
            details.push(')');
            culprits.extend([change, flush]);
        }
        let mut violation = self.violation(invariant, Some(state.owner), Some(va), details);
        violation.culprits = culprits;
        violation
    }
}

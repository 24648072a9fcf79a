//! The page walker: reads tables, sets accessed and dirty bits, fills the caches.
//!
//! A walk starts from the deepest walk-cache entry that leads to the address, else from the root.
//! When it fails from a walk cache, it forgets the path and walks again from the root before it
//! faults: a fault is only ever due to what the tables say (Intel SDM vol. 3A section 4.10.4.1 has
//! a fault forget the path; doing it at once stands for the retry after a spurious fault).

use crate::mmu::addr::{Frame, SlotId, TableId, index, leaf_size};
use crate::mmu::array::{Entry, rights};
use crate::mmu::cpu::CpuMmu;
use crate::mmu::memory::Memory;
use crate::mmu::pte::Pte;
use crate::mmu::translation::{Fault, FaultKind, Found, Translation, Trap, Walk};
use crate::oracle::Invariant;

impl CpuMmu {
    pub(crate) fn not_canonical(&mut self, va: u64) -> Trap {
        self.counters.faults += 1;
        Trap::Fault(Fault {
            cpu: self.id,
            va,
            kind: FaultKind::NotCanonical,
            walk: Walk::default(),
        })
    }

    /// Walks for an access that needs these rights, and fills the caches.
    pub(crate) fn walk(
        &mut self,
        mem: &mut Memory,
        va: u64,
        need: u32,
    ) -> Result<Translation, Trap> {
        let mut walk = Walk::default();
        if let Some((table, level)) = self.cached_start(mem, va)? {
            match self.descend(mem, va, need, (table, level), &mut walk)? {
                Ok(frame) => return Ok(Translation { frame, found: Found::Walk(walk) }),
                Err(_) => {
                    self.counters.rewalks += 1;
                    self.forget_path(va);
                }
            }
        }
        let Some(top) = mem.top(self.root) else {
            let what = format!("walks {}, whose tables have been freed", self.root);
            return Err(Trap::Violation(self.violation(
                Invariant::TableReuse,
                Some(self.root),
                Some(va),
                what,
            )));
        };
        let kind = match self.descend(mem, va, need, (top, 3), &mut walk)? {
            Ok(frame) => return Ok(Translation { frame, found: Found::Walk(walk) }),
            Err(kind) => kind,
        };
        self.forget_path(va);
        self.counters.faults += 1;
        Err(Trap::Fault(Fault { cpu: self.id, va, kind, walk }))
    }

    fn forget_path(&mut self, va: u64) {
        self.walk_caches.drop_path(va, self.tags[self.current].walk_context);
    }

    /// The table and level a walk may start at thanks to a walk cache.
    fn cached_start(&mut self, mem: &Memory, va: u64) -> Result<Option<(TableId, u8)>, Trap> {
        let state = &self.tags[self.current];
        if !state.walk_used {
            return Ok(None);
        }
        let Some((level, entry)) = self.walk_caches.deepest(va, state.walk_context) else {
            return Ok(None);
        };
        let start = (TableId(entry.frame.0), level - 1);
        if entry.verified < mem.record.last_event() {
            let copy = *entry;
            entry.verified = mem.now();
            if let Err(violation) = mem.check_walk(&copy) {
                return Err(Trap::Violation(self.stale(&violation, va, "a walk-cache entry")));
            }
        }
        self.counters.walk_cache_hits[3 - usize::from(level)] += 1;
        Ok(Some(start))
    }

    /// Reads tables from `start` downwards. The outer error is a violation, the inner one a fault.
    fn descend(
        &mut self,
        mem: &mut Memory,
        va: u64,
        need: u32,
        start: (TableId, u8),
        walk: &mut Walk,
    ) -> Result<Result<Frame, FaultKind>, Trap> {
        let now = mem.now();
        let (mut table, mut level) = start;
        loop {
            let i = index(va, level);
            let slot = SlotId::new(table, i);
            let distance = self.lines.read(slot.line());
            walk.read(distance);
            self.counters.table_reads[distance as usize] += 1;
            let pte = &mut mem.tables[table.0 as usize].entries[i];
            if !pte.present() {
                return Ok(Err(FaultKind::NotPresent));
            }
            if level == 0 || pte.large() {
                let Some(size) = leaf_size(level) else { return Ok(Err(FaultKind::NotPresent)) };
                let have = rights_of(*pte, need);
                let wanted = need & !rights::DIRTY;
                if have & wanted != wanted {
                    let user = have & need & rights::USER == need & rights::USER;
                    return Ok(Err(if user { FaultKind::ReadOnly } else { FaultKind::Supervisor }));
                }
                pte.0 |= Pte::A | if have & rights::DIRTY != 0 { Pte::D } else { 0 };
                let entry =
                    Entry { frame: pte.frame(), rights: have, slot, filled: now, verified: now };
                let global = pte.perms().global;
                self.fill(va, size, entry, global);
                let offset = (va & (size.bytes() - 1)) >> 12;
                return Ok(Ok(Frame(entry.frame.0 + offset as u32)));
            }
            pte.0 |= Pte::A;
            let next = pte.next();
            if !mem.is_table(next) {
                let what = format!("walks into {next}, which has been freed but is still hooked");
                return Err(Trap::Violation(self.violation(
                    Invariant::TableReuse,
                    Some(self.root),
                    Some(va),
                    what,
                )));
            }
            let state = &mut self.tags[self.current];
            state.walk_used = true;
            let context = state.walk_context;
            self.walk_caches.insert(va, level, context, (slot, next), now, &self.walk_contexts);
            table = next;
            level -= 1;
        }
    }
}

/// The rights of a leaf, with the dirty bit as it is after an access that needs `need`.
fn rights_of(pte: Pte, need: u32) -> u32 {
    let perms = pte.perms();
    let mut have = 0;
    if perms.write {
        have |= rights::WRITE;
    }
    if perms.user {
        have |= rights::USER;
    }
    if pte.dirty() || (perms.write && need & rights::DIRTY != 0) {
        have |= rights::DIRTY;
    }
    have
}

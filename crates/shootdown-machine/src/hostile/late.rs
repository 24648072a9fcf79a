//! Removals that take effect when the CPU that issued them syncs.
//!
//! # Protocol
//! Issuing a removal *dooms* what it covers: doomed entries are used and walked from as before. The
//! sync removes what is still doomed. An entry that is walked anew after the issue is a new copy
//! and not doomed; unless the walk went through a step that the same removal has doomed, and the
//! removal covers the entry too: hardware then has to stop that walk.
//!
//! # Invariants
//! - I1: a removal is outstanding exactly as long as it dooms an entry somewhere.
//! - I2: the list is sorted, and bit `n` of a mark belongs to its item `n`: equal states are equal
//!   values.
//! - I3: after a sync nothing is doomed by the CPU any more, the erratum `early_sync` aside. With
//!   it the sync only counts, and the entry goes at the first sync after another covering removal.

use super::cpu::Cpu;
use super::held::{Entry, Held, Marks};
use super::invalidate::{Invalidation, lingers};
use super::rules::Rules;
use super::{HostileError, Partial, Translation};

/// The most removals outstanding: one bit each in the marks of an entry.
const MAX_OUTSTANDING: usize = u32::BITS as usize;

/// A removal that has been issued and is not complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Removal {
    pub issuer: u8,
    /// One bit per CPU within reach.
    pub targets: u16,
    pub what: Invalidation,
}

/// All of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Outstanding(Vec<Removal>);

impl Outstanding {
    /// Adds a removal and dooms what it covers.
    pub fn issue(
        &mut self,
        rules: &Rules,
        cpus: &mut [Cpu],
        removal: Removal,
    ) -> Result<(), HostileError> {
        let at = match self.0.binary_search(&removal) {
            Ok(at) => at,
            Err(_) if self.0.len() == MAX_OUTSTANDING => {
                return Err(HostileError::Outstanding { limit: MAX_OUTSTANDING });
            }
            Err(at) => {
                self.0.insert(at, removal);
                let below = (1 << at) - 1;
                each(cpus, |mask| (mask & below) | (mask & !below) << 1);
                at
            }
        };
        let own = self.of(removal.issuer);
        for (target, cpu) in cpus.iter_mut().enumerate() {
            if removal.targets & 1 << target != 0 {
                cpu.doom(rules, &removal.what, 1 << at, own, target == usize::from(removal.issuer));
            }
        }
        Ok(())
    }

    /// The sync of a CPU.
    pub fn sync(&mut self, rules: &Rules, cpus: &mut [Cpu], issuer: u8) {
        let own = self.of(issuer);
        if own == 0 {
            return;
        }
        for (target, cpu) in cpus.iter_mut().enumerate() {
            cpu.complete(rules, own, target == usize::from(issuer));
        }
        self.settle(cpus);
    }

    /// I1: forgets the removals that doom nothing.
    pub fn settle(&mut self, cpus: &mut [Cpu]) {
        if self.0.is_empty() {
            return;
        }
        fn doomed<T: Entry>(held: &Held<T>) -> u32 {
            held.iter().fold(0, |mask, slot| mask | slot.marks.doomed)
        }
        let awaited = cpus
            .iter()
            .fold(0, |mask, cpu| mask | doomed(&cpu.translations) | doomed(&cpu.partials));
        for at in (0..self.0.len()).rev().filter(|at| awaited & 1 << at == 0) {
            self.0.remove(at);
            let below = (1 << at) - 1;
            each(cpus, |mask| (mask & below) | (mask >> 1 & !below));
        }
    }

    /// Of the removals in `mask`, those that reach `target` and satisfy `covers`.
    pub fn among(&self, mask: u32, target: usize, covers: impl Fn(&Invalidation) -> bool) -> u32 {
        let mut found = 0;
        for (at, removal) in self.0.iter().enumerate() {
            let within = mask & 1 << at != 0 && removal.targets & 1 << target != 0;
            if within && covers(&removal.what) {
                found |= 1 << at;
            }
        }
        found
    }

    /// The removals of a CPU, one bit each.
    fn of(&self, issuer: u8) -> u32 {
        let issued = |(at, removal): (usize, &Removal)| {
            u32::from(removal.issuer == issuer).checked_shl(at as u32).unwrap_or(0)
        };
        self.0.iter().enumerate().map(issued).fold(0, |mask, bit| mask | bit)
    }
}

/// Renumbers the removals in all marks.
fn each(cpus: &mut [Cpu], change: impl Fn(u32) -> u32 + Copy) {
    let renumber = |marks: &mut Marks| {
        if marks.doomed != 0 {
            marks.doomed = change(marks.doomed);
            marks.early = change(marks.early);
            marks.again = change(marks.again);
        }
    };
    for cpu in cpus {
        cpu.translations.each(|_, marks| renumber(marks));
        cpu.partials.each(|_, marks| renumber(marks));
    }
}

impl Cpu {
    /// Dooms what a removal covers. `bit` is the removal's, `own` those of its issuer. What the
    /// issuer itself has translated ahead only a context synchronization drops; what others
    /// have is out of use when the removal is complete.
    fn doom(&mut self, rules: &Rules, what: &Invalidation, bit: u32, own: u32, issuer: bool) {
        let mark = |marks: &mut Marks| {
            marks.again |= marks.early & own;
            marks.doomed |= bit;
        };
        self.translations.each(|translation: &Translation, marks| {
            if !(issuer && marks.ahead) && what.covers(rules, translation) {
                mark(marks);
            }
        });
        self.partials.each(|partial: &Partial, marks| {
            if what.covers_partial(partial) {
                mark(marks);
            }
        });
    }

    /// Removes what the removals `own` have doomed.
    fn complete(&mut self, rules: &Rules, own: u32, issuer: bool) {
        let due = |marks: &mut Marks| {
            let doomed = marks.doomed & own;
            if doomed == 0 {
                return false;
            }
            if rules.errata.early_sync && marks.again & own == 0 {
                marks.early |= doomed;
                return false;
            }
            marks.doomed &= !own;
            marks.early &= !own;
            marks.again &= !own;
            true
        };
        self.translations.retain(|_, marks| !due(marks) || lingers(rules, marks, issuer));
        self.partials.retain(|_, marks| !due(marks));
    }
}

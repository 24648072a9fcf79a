//! Accesses of user code, and the page faults they raise.

use shootdown::ids::Stride;

use super::state::{State, with};
use super::{Space, entry};
use crate::engine;
use crate::mmu::{Access, Distance, Found, MapError, Perms, Trap, USER_END};
use crate::oracle::Event;
use crate::time::Time;

/// How accesses follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// Each needs what the one before returned.
    Dependent,
    /// They overlap.
    Independent,
}

/// One access of user code on the executing CPU. `false` when a real program would have been sent a
/// signal.
#[inline]
pub(crate) fn access(va: u64, kind: Access, pace: Pace) -> bool {
    loop {
        let result = with(|s| {
            let cpu = s.executing() as usize;
            debug_assert!(
                s.cpus[cpu].current.is_some(),
                "cpu{cpu} runs no space; switch to one first"
            );
            let got = s.mmus.of(cpu).translate(&mut s.memory, va, kind)?;
            Ok(price(s, got.found, pace))
        });
        match result {
            Ok(cost) => {
                engine::charge_private(cost);
                return true;
            }
            Err(Trap::Fault(_)) => {
                if !fault(va, kind == Access::UserWrite) {
                    return false;
                }
            }
            Err(Trap::Violation(violation)) => engine::fail(&violation),
        }
    }
}

#[inline]
fn price(s: &State, found: Found, pace: Pace) -> Time {
    let c = &s.costs;
    match (pace, found) {
        (Pace::Dependent, Found::First) => c.dependent,
        (Pace::Independent, Found::First) => c.independent,
        (Pace::Dependent, Found::Second) => c.dependent + c.l2_hit,
        (Pace::Independent, Found::Second) => c.independent + c.l2_hit_overlapped,
        (Pace::Independent, Found::Walk(_)) => c.independent + c.walk_overlapped,
        (Pace::Dependent, Found::Walk(walk)) => {
            c.dependent
                + match walk.worst() {
                    Distance::Near => c.walk_near,
                    Distance::Typical => c.walk_typical,
                    Distance::Far => c.walk_far,
                }
        }
    }
}

/// A page fault: fills the page on demand, or gives back the right that cleaning took. `false` when
/// no area allows the access.
fn fault(va: u64, write: bool) -> bool {
    let cost = with(|s| s.costs.fault);
    entry::enter();
    engine::note(Event::Fault(va));
    engine::compute(cost);
    engine::step();
    let (cpu, at) = (engine::cpu(), engine::now().ps());
    let allowed = with(|s| {
        s.act_as(cpu, at);
        s.cpus[cpu as usize].current.is_some_and(|space| s.resolve(space, va, write))
    });
    entry::exit();
    allowed
}

impl State {
    /// Makes the tables allow an access, if the areas do.
    fn resolve(&mut self, space: Space, va: u64, write: bool) -> bool {
        let state = &self.spaces[space.0 as usize];
        let Some((start, area)) = state.areas.find(va).filter(|_| va < USER_END) else {
            return false;
        };
        if write && !area.writable {
            return false;
        }
        let root = state.root;
        let perms = if area.writable { Perms::USER_RW } else { Perms::USER_RO };
        if let Some(leaf) = self.memory.lookup(root, va) {
            if write && !leaf.pte.perms().write {
                // Adds a right: no flush is pending.
                let _ = self.memory.protect(root, va, perms);
            }
            return true;
        }
        let base = va & !(area.size.bytes() - 1);
        let whole = base >= start && base + area.size.bytes() <= area.end;
        let sizes = if whole { [area.size, Stride::Page4K] } else { [Stride::Page4K; 2] };
        for size in sizes {
            let frame = self.memory.alloc(size).unwrap_or_else(|e| panic!("{e}"));
            match self.memory.map(root, va & !(size.bytes() - 1), frame, size, perms) {
                Ok(()) => return true,
                // A table of small pages is in the way of a large one.
                Err(MapError::Occupied(_)) if size != Stride::Page4K => {
                    self.memory.free(frame).unwrap_or_else(|e| panic!("{e}"));
                }
                Err(e) => panic!("{e}"),
            }
        }
        unreachable!("a 4 KiB page fits where nothing is mapped")
    }
}

//! What only the oracle knows of: promises about the contents of pages, and about faults.

use super::choice::Point;
use super::hw::{Change, check, own_step};
use super::machine::{step, stop, with};
use crate::hostile::{Frame, Outcome, TableId, Word};
use crate::oracle::Invariant;

/// The change that made an entry what it is: to be named by who promises that nothing older is
/// used, whoever made it.
pub fn latest(word: Word) -> Change {
    let location = with(|h| h.mmu.location(&mut h.memory, word));
    step(location, false, false);
    with(|h| {
        let version = h.memory.version_of_last_store(h.current, location);
        let version = h.mmu.before_agings(word, version);
        h.saw(u64::from(location) ^ u64::from(version) << 32 ^ 0x1a7);
        Change { word, version }
    })
}

/// The contents of a frame were taken (copied, or written to a disk): if anybody can still write
/// it, this promise is broken. Until the frame is free, or [`unseal`]ed.
pub fn seal(frame: Frame, promise: Invariant) {
    step(0, false, true);
    with(|h| {
        h.note(|| format!("takes the contents of {frame}"));
        h.mmu.seal(frame, Some(promise));
    });
}

/// Writes to a frame count again.
pub fn unseal(frame: Frame) {
    step(0, false, true);
    with(|h| h.mmu.seal(frame, None));
}

/// Software has followed an entry to a table page, or has just read it: the page must not be free.
pub fn software_reads(table: TableId) {
    check(|h| {
        if h.mmu.is_free(table) {
            let details = format!("software walks {table}, which was freed");
            return Err((Invariant::TableReuse, details));
        }
        Ok(())
    });
}

/// User code stores to a page. `false`: it faults.
#[must_use]
pub fn user_store(page: u32) -> bool {
    own_step();
    let outcome = with(|h| {
        let outcomes = h.mmu.user_stores(&h.memory, h.current, page);
        let chosen = match outcomes.len() {
            1 => 0,
            count => h.choose(&Point::Value { cpu: h.current, count })?,
        };
        // What the program learns.
        h.saw(0x5704e ^ u64::from(matches!(outcomes[chosen], Outcome::Hit { .. })) << 24);
        Some(outcomes[chosen])
    });
    match outcome {
        None => stop(),
        Some(Outcome::Hit { translation, .. }) => {
            check(|h| {
                h.note(|| format!("user code writes page {page}"));
                h.mmu.used(h.current, &translation)
            });
            true
        }
        Some(Outcome::Blocked { .. } | Outcome::Fault { .. }) => {
            with(|h| {
                h.note(|| format!("user code faults on page {page}"));
                h.mmu.faulted(&h.memory, h.current, page);
            });
            false
        }
    }
}

/// Code runs on this CPU that may use any translation of its loaded tables that user mode may use.
/// A promise is broken if it could use one that it must not.
pub fn user_code() {
    own_step();
    check(|h| {
        h.note(|| "runs user code".to_owned());
        h.mmu.check_uses(h.current, true)
    });
}

/// As [`user_code`], for the kernel's own addresses.
pub fn kernel_code() {
    own_step();
    check(|h| {
        h.note(|| "uses kernel addresses".to_owned());
        h.mmu.check_uses(h.current, false)
    });
}

/// The flush that covers these changes has returned: what they took away is used no more.
pub fn revoked(changes: &[Change]) {
    step(0, false, true);
    with(|h| {
        // What is over before the hunt begins has no versions: see `write_entry`.
        let changes = if h.running { changes } else { &[] };
        for change in changes {
            h.mmu.revoked(*change);
            h.note(|| format!("has flushed the change of {}", change.word));
        }
    });
}

/// The address of these changes is about to be given out again: what it was before is used no more.
pub fn reused(changes: &[Change]) {
    step(0, false, true);
    with(|h| {
        for change in changes {
            h.mmu.reused(*change);
            h.note(|| format!("gives out again what {} maps", change.word));
        }
    });
}

/// The code under test was told of a change (an accessed bit that was cleared,
/// [`hw::age_entry`](super::hw::age_entry); a lazy unmapping), and has promised that a CPU that
/// comes by after that was heard of uses no older translation. No step: what says that it was told
/// is the caller's own memory, stored just before.
pub fn deferred(change: Change, promise: Invariant) {
    with(|h| {
        h.mmu.deferred(change, promise);
        h.note(|| format!("has told of {}, which each CPU is to see to", change.word));
    });
}

/// This CPU has come by, and had heard of the first `told` of these at the beginning; `only` those
/// of one promise count.
pub fn check_deferred(told: usize, only: Option<Invariant>) {
    own_step();
    check(|h| h.mmu.check_deferred(h.current, told, only));
}

/// This CPU uses nothing that is older than the change.
pub fn check_gone(change: Change, promise: Invariant) {
    own_step();
    check(|h| h.mmu.check_gone(h.current, [(change, promise)].iter()));
}

/// A promise of the code under test itself does not hold. The run is over.
pub fn violation(invariant: Invariant, details: String) -> ! {
    with(|h| h.broken(invariant, h.current, details));
    stop()
}

//! The oracle: watches every access and stops the run when a promise is broken.
//!
//! # The problem
//! A stale translation is invisible until the page has a new owner. The oracle knows at each access
//! whether the translation used may still be used, at a cost that allows it to be always on.
//!
//! # The protocol
//! Time is counted in [`Epoch`]s: one per event that matters (a revoking change, a flush that
//! returned, something freed), none per access.
//! 1. Taking something away from a page (unmapping it, narrowing its rights, replacing its frame)
//!    or unhooking a table page stamps the table entry as *changed*, pending. Entries cached
//!    earlier may still be used: the flush is under way. Widening rights stamps nothing.
//! 2. When a flush returns, the pending changes it covers (same tables, address in range, made
//!    before the flush began; unhooked tables only if it was told of freed tables) become
//!    *binding*: an entry cached before the change must not be used any more.
//! 3. Freeing a frame or a table page stamps it as freed. An entry made before must not be used any
//!    more, flush or not.
//! 4. Every cached entry carries the epoch it was made in and the epoch it was last verified in. An
//!    access through an entry verified after the latest binding or freeing of anything is sound:
//!    one comparison. Otherwise the stamps of its table entry and frame decide, and it is verified
//!    anew.
//! 5. When a flush returns, the CPUs that run user code of the space at that moment are looked at:
//!    an access could be their next step, so a stale entry is a violation although nobody has used
//!    it. (A CPU in the kernel may be in the middle of forgetting, having promised to.)
//! 6. Loading a tag with its entries kept is checked against the owner of the entries: one
//!    comparison.
//!
//! # Invariants
//! What is checked is [`Invariant`], by name. The oracle never reports a legal run: a change binds
//! only through a flush that returned, and the stamps only grow. It reports every use of what may
//! not be used. Of entries that nobody uses it says nothing but at the moment of point 5.

pub(crate) mod devices;
mod revocations;
mod timeline;
mod violation;

pub use devices::Cached;
pub(crate) use revocations::{Bound, Kind, Revocations};
pub use revocations::{FlushToken, Stamp};
pub use timeline::{Event, Timeline, Timelines};
pub use violation::{Invariant, Violation, ViolationReport};

/// A point in the history of what the oracle cares about. 0 is before everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub(crate) u64);

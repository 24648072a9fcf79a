//! Presence: where entries of a space can be, so that hardware need not broadcast when one CPU is enough.
//!
//! Where hardware can invalidate on all CPUs with one instruction, that instruction is what everyone
//! queues for. Most spaces run on one CPU; their changes concern nobody else. But a CPU that leaves a space
//! keeps its entries (tags outlive switches), and its walker may still be at work: knowing where a space
//! *runs* is not enough.

/// How it is decided how far an invalidation must reach.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Strategy {
    /// Every invalidation is broadcast.
    Always,
    /// Local for the only CPU that ever ran the space.
    Sticky,
    /// Local for the only CPU that runs the space now; others flush the tag when they come back.
    Active,
    /// Local for the only CPU that may hold entries; CPUs can be asked to leave.
    Trim,
}

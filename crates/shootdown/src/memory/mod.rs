//! The interface for a memory manager: unmappings together with what they free, and the changes
//! that need no flush, or may wait for it.

pub mod accessed;
pub mod elide;
pub mod epoch;
pub mod gather;
pub mod lazy_unmap;
pub mod reclaim;
pub mod spurious;

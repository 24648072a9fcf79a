//! What a memory manager calls: unmappings with what they set free, and the changes that need no
//! flush, or may wait for it.

pub mod accessed;
pub mod elide;
pub mod epoch;
pub mod gather;
pub mod lazy_unmap;
pub mod reclaim;
pub mod spurious;

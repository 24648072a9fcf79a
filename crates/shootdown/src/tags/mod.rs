//! Hardware tags: which space's entries a CPU keeps apart under which number.

pub mod broadcast;
pub mod generations;
pub mod shared;
pub mod slots;
pub mod versioned;

//! Hardware tags: which space's entries a CPU keeps apart under which number.

pub mod generations;
pub mod slots;
pub mod versioned;

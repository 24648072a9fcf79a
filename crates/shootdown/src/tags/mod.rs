//! Hardware tags: the numbers under which a CPU keeps the entries of different spaces apart.

pub mod broadcast;
pub mod generations;
pub mod shared;
pub mod slots;
pub mod versioned;

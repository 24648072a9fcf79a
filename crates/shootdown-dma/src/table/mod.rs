//! What does the hardware find there? I/O page tables.

pub mod memory;

pub use memory::TableMemory;

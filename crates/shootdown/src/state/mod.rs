//! Data and its invariants: the state of spaces, of CPUs, and of the system. The protocols that
//! read and write it are operations ([`ops`](crate::ops)).

pub(crate) mod calls;
pub mod cpu;
#[cfg(shootdown_traced)]
pub mod layout;
pub(crate) mod pending;
pub(crate) mod range_log;
pub mod residency;
pub mod space;
pub mod stats;
pub mod system;

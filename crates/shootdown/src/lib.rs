//! Translation coherence.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod facts;
pub mod ids;
pub mod policy;
pub mod sync;

pub use ids::{CpuId, Generation, SpaceId, Stride, Tag, VaRange};

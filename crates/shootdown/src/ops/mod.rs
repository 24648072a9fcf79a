//! The protocols: how a CPU changes spaces, how a change reaches every CPU, and how CPUs call each
//! other. Each file that has orderings opens with their table.
//!
//! A function that several paths share, or that runs rarely, is `#[inline(never)]` here and below:
//! a kernel links one copy of it (`cargo xtask size` has the budget).

pub mod call;
pub(crate) mod come_by;
pub mod flush;
pub mod isolated;
pub mod online;
pub mod pinned;
pub(crate) mod respond;
pub mod retire;
pub mod switch;
pub(crate) mod tree;

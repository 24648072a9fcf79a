//! The protocols: how a CPU changes spaces, how a change reaches every CPU, and how CPUs call each
//! other. Each file that has orderings opens with their table.

pub mod call;
pub mod flush;
pub mod isolated;
pub mod pinned;
pub(crate) mod respond;
pub(crate) mod sequence;
pub(crate) mod serve;
pub mod switch;
pub(crate) mod tree;

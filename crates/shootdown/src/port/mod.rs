//! The seam: what a kernel implements and declares, and which functions it may call where.

pub mod context;
pub mod facts;
pub(crate) mod family;
pub mod paravirt;
pub mod platform;
pub mod policy;
pub mod regime;

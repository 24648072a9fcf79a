//! AArch64: TLBI and its barriers, the translation base registers, and what the ID registers say.
//!
//! Operands and plans compile on every host; the functions that execute an instruction exist only
//! where `target_arch = "aarch64"`.

mod asid;
mod cover;
mod granule;
mod span;
mod tlbi;

pub use asid::{Asid, AsidError, AsidWidth};
pub use cover::{Cover, Piece, Shape};
pub use granule::{Granule, Level};
pub use span::{Span, SpanError};
pub use tlbi::{Domain, Operation, Page, Sys, Tlbi};

#[cfg(target_arch = "aarch64")]
pub use tlbi::tlbi;

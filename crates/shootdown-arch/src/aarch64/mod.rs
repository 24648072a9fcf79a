//! AArch64: TLBI and its barriers, the translation base registers, and what the ID registers say.
//!
//! Operands and plans compile on every host; the functions that execute an instruction exist only
//! where `target_arch = "aarch64"`.

mod asid;
mod barrier;
mod cover;
mod entry;
mod features;
mod granule;
mod plan;
mod port;
#[cfg(target_arch = "aarch64")]
mod regime;
mod span;
mod tlbi;
mod ttbr;

pub use crate::asid::{Asid, AsidError, AsidWidth};
pub use crate::entry::TableLevel;
pub use crate::root::RootError;
pub use barrier::{Barrier, Completing, Completion};
pub use cover::{Cover, Piece, Shape};
pub use entry::{Bbm, EntryRules, change};
pub use features::Features;
pub use granule::{Depth, Granule, Level};
pub use plan::Steps;
pub use port::{Options, Port};
pub use span::{Span, SpanError};
pub use tlbi::{Domain, Operation, Page, Sys, Tlbi};
pub use ttbr::{RootFrame, Ttbr};

#[cfg(target_arch = "aarch64")]
pub use {
    barrier::barrier,
    regime::{ArmRegime, Boot},
    tlbi::tlbi,
    ttbr::{read_ttbr0, write_ttbr0},
};

//! Recordings of real programs.
//!
//! **Problem.** To say what a program would cost on another machine one needs what it did to its
//! address spaces on this one: which threads of which spaces ran on which CPU when, what they
//! mapped, unmapped, protected and touched, and which flushes and interrupts that took. Linux tells
//! all of it through tracepoints, but as gigabytes of text that depend on the version of the tool.
//!
//! **Protocol.** [`record::run`] drives `perf` (or `strace`), the importers ([`import`]) turn the
//! text of either into [`model::Event`]s, [`write::Writer`] and [`read::Reader`] keep them in a
//! compact file (`docs/src/recording-format.md`), and [`timeline`] rebuilds threads, spaces and
//! CPUs from them.
//!
//! **Invariants.**
//! - I1: a file is either complete or not there: it is written under a temporary name and renamed.
//! - I2: what a reader hands out has passed its checksum; anything else is an error with file and
//!   offset.
//! - I3: events are in order of time.
//! - I4: every thread an event names was declared by an earlier [`model::What::Task`] event.

pub mod codec;
pub mod error;
pub mod frame;
pub mod host;
pub mod import;
pub mod model;
pub mod perf_script;
pub mod read;
pub mod record;
pub mod strace;
pub mod timeline;
pub mod write;

pub use error::{Problem, RecordingError};
pub use model::{Event, Header, Trailer, What};
pub use read::Reader;
pub use write::Writer;

//! Drivers in user space: the kernel has the page table, and unmapping is a system call.
//!
//! # The problem
//! A driver in user space maps its memory by `ioctl` (VFIO's type 1, iommufd). The kernel walks,
//! pins, invalidates and waits in each call, which takes microseconds; and it hands out no
//! addresses. So such drivers map everything once and for ever, with allocators that leak or that
//! are a list. Drivers that do unmap have to solve the hard part again: when an address may be used
//! again, when the buffer may be recycled, what happens if the kernel refuses.
//!
//! # The protocol
//! A [`Domain`] solves that. [`Space`] is a domain whose hardware is the kernel:
//!
//! | a domain | here |
//! |---|---|
//! | page table, walked by hardware | a shadow of the kernel's, walked by no hardware: it records what is mapped, and to which memory |
//! | unit that executes invalidations | the [backend](Backend): an invalidation is the system call that unmaps |
//! | token is complete | the system call has returned |
//! | what is deferred is given back | addresses go to the allocator, buffers to their [owner](Memory) |
//!
//! Policies, bounds, queues of what is deferred, timers and allocators are the domain's own. The
//! policies keep their meaning, with *invalidation* read as *the kernel's unmapping*: under
//! [`Policy::Strict`](shootdown_dma::Policy::Strict) unmapping makes the call and waits for it;
//! under [`Policy::Deferred`](shootdown_dma::Policy::Deferred) it returns at once, many unmappings
//! are made by one call (the kernel unmaps all mappings in a range), and buffer and addresses are
//! given back after it; under [`Policy::Lazy`](shootdown_dma::Policy::Lazy) only the addresses
//! wait. Lazy unmapping is less dangerous than in a kernel: the pages stay pinned, so a device
//! disturbs this process and no other.
//!
//! A page has 4 KiB, or the size that [`Space::with_granule`] gets: a kernel with pages of 64 KiB
//! maps nothing smaller.
//!
//! # Invariants
//! - **K1** An address goes back to the allocator only after the kernel has reported that nothing
//!   is mapped there.
//! - **K2** A live mapping is never unmapped, however coarse the domain's command is: the unit
//!   looks only for mappings that were given up.
//! - **K3** What the kernel refuses to unmap, or unmaps in part, stays deferred, and is tried
//!   again. Until it has succeeded nothing that was unmapped later is given back either, since a
//!   kernel that does not unmap can't be relied on.
//! - **K4** No lock is held during a system call except the one that allows one call at a time; a
//!   thread that maps does not take it.
//! - **K5** One thread at a time changes a range of addresses that callers bring, and nothing is
//!   mapped there before the kernel has unmapped what was there and the domain has reported it
//!   complete.
//!
//! | file | does |
//! |---|---|
//! | `backend.rs` | what a kernel must offer |
//! | `kernel.rs` | the kernel as a unit: what is mapped, what is to be unmapped |
//! | `space.rs` | what a driver calls |
//! | `map_at.rs`, `claim.rs` | addresses that the caller brings: a hypervisor's guest chooses its own |
//! | `mapped.rs` | what is mapped, one by one |
//! | `shadow.rs` | what the shadow's entries look like |
//! | `dry.rs` | a backend without hardware, that refuses what kernels refuse |
//! | `linux/` | VFIO and iommufd |
//!
//! [`Domain`]: shootdown_dma::Domain

mod backend;
mod claim;
pub mod dry;
mod kernel;
#[cfg(target_os = "linux")]
pub mod linux;
mod map_at;
mod mapped;
mod shadow;
mod space;

pub use backend::{Backend, BackendError, Window, Windows, WindowsError};
pub use kernel::Calls;
pub use map_at::MapAtError;
pub use mapped::{Mapped, MappedRange};
pub use space::{MapError, Memory, Space, SpaceError, UnmapError};

//! A hypervisor's IOMMU: emulated devices that translate through a domain's table, for `vm-memory`.
//!
//! # The problem
//! A hypervisor that offers its guest an IOMMU emulates devices in threads of its own. Each access
//! of theirs goes through the guest's mappings, and since looking these up is slow, through a cache
//! (`vm_memory`'s [`Iotlb`]). That cache goes stale in the same way as one in hardware: when the
//! guest unmaps, and the request is answered, no emulated device may find the old translation any
//! more. The crate `vm-memory` says that the cache must be updated, and leaves it to the hypervisor
//! when, and what happens to a device that is just filling it.
//!
//! # The protocol
//! The guest's mappings are a [`Domain`](shootdown_dma::Domain), and the cache is a
//! [`Unit`](shootdown_dma::invalidate::Unit) of it, as an IOMMU is. Then everything that the domain
//! promises of hardware holds for the emulated devices.
//!
//! ```text
//! guest: MAP, UNMAP --> Mappings --> Domain --> clears entries --> Engine --> Cache forgets
//! device: access --> Translator --> Cache --(miss)--> walks the domain's table, with the cache held
//! ```
//!
//! Each emulated device is [attached](shootdown_dma::Domain::attach) to the domain before it
//! translates: a unit with no device behind it is told nothing.
//!
//! # Invariants
//! - **V1** What the cache was told to forget, it has forgotten when the ticket is complete, and
//!   nobody reads by it any more: it forgets with its lock held alone, and readers hold it shared
//!   for as long as they use what they found.
//! - **V2** The cache is filled with what the table held while its lock was held alone. Otherwise a
//!   device could read an entry, have it unmapped and forgotten by others, and then put it into the
//!   cache, where it would stay.
//! - **V3** The cache has a bound; a guest can't fill the hypervisor's memory by touching many
//!   pages. So have a guest's mappings, and the tables that they take.
//! - **V4** A request of the guest that is refused has changed nothing.
//!
//! What a device has taken out of an iterator of `vm-memory` and keeps after the iterator is gone
//! is beyond the cache's reach (so it is with every cache of that crate). Its methods for reading
//! and writing (`Bytes`) keep to it; who collects slices of memory holds [`Translator::hold`]
//! beside them.
//!
//! | file | does |
//! |---|---|
//! | `cache.rs` | the cache, and how it forgets |
//! | `translate.rs` | `vm_memory`'s trait `Iommu` |
//! | `requests.rs` | a guest's MAP and UNMAP |

mod cache;
mod requests;
mod translate;

pub use cache::{Cache, Guard};
pub use requests::{Bounds, MapRequest, Mappings, RequestError};
pub use translate::{Translator, Walk};
#[doc(no_inline)]
pub use vm_memory::iommu::Iotlb;

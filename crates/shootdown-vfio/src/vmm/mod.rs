//! A hypervisor's IOMMU: emulated devices that translate through a domain's table, for `vm-memory`.
//!
//! # The problem
//! A hypervisor that offers its guest an IOMMU emulates devices in threads of its own. Each of
//! their accesses goes through the guest's mappings, and since a lookup is slow, through a cache
//! (`vm_memory`'s [`Iotlb`]). That cache goes stale in the same way as one in hardware: when the
//! guest has unmapped and its request has returned, no emulated device may find the old translation
//! any more. The crate `vm-memory` requires that the cache is updated, and leaves to the hypervisor
//! when, and what happens to a device that is filling it at that moment.
//!
//! # The protocol
//! The guest's mappings are a [`Domain`](shootdown_dma::Domain), and the cache is a
//! [`Unit`](shootdown_dma::invalidate::Unit) of it, as an IOMMU is. Then all guarantees of the
//! domain about hardware hold for the emulated devices.
//!
//! ```text
//! guest: MAP, UNMAP --> Mappings --> Domain --> clears entries --> Engine --> Cache invalidates
//! device: access --> Translator --> Cache --(miss)--> walks the domain's table, with the cache held
//! ```
//!
//! Each emulated device is [attached](shootdown_dma::Domain::attach) to the domain before it
//! translates: a unit with no device behind it gets no commands.
//!
//! # Invariants
//! - **V1** When a ticket is complete, the cache has invalidated what the commands name, and no
//!   device uses it any more: the cache invalidates with its lock held alone, and readers hold the
//!   lock shared for as long as they use what they found.
//! - **V2** The cache is filled with what the table held while its lock was held alone. Otherwise a
//!   device could read an entry, another thread could unmap and invalidate it, and the device could
//!   then put it into the cache, where it would stay.
//! - **V3** The cache has a bound; a guest can't fill the hypervisor's memory by touching many
//!   pages. A guest's mappings, and the tables that they take, have bounds too.
//! - **V4** A request of the guest that is refused has changed nothing.
//!
//! The cache does not protect a slice that a device has taken out of an iterator of `vm-memory` and
//! keeps after the iterator is gone (this is so with every cache of that crate). Its methods for
//! reading and writing (`Bytes`) keep no slice; code that collects slices of memory holds
//! [`Translator::hold`] beside them.
//!
//! | file | does |
//! |---|---|
//! | `cache.rs` | the cache, and its invalidation |
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

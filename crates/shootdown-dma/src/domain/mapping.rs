//! A mapping, as a value that its owner has once.
//!
//! # The problem
//! Unmapping reads and clears the entries of a mapping by plain loads and stores, which makes it
//! cheap, and which is correct as long as one caller at a time unmaps a mapping. An address is a
//! number that any caller can copy. Two callers that unmap the same mapping at once would both find
//! the entry, both clear it, and both give back its page and its address: the page loses a
//! reference too many, and the address is handed out twice.
//!
//! # The protocol
//! [`Domain::map`] returns a [`Mapping`], which can't be copied, and [`Domain::unmap`] consumes it.
//! A driver that can keep only the address (a descriptor of a device has no room for more) takes it
//! out ([`Mapping::into_raw`]) and unmaps by [`Domain::unmap_raw`]. That function is `unsafe`: the
//! caller then guarantees that each mapping is unmapped once.
//!
//! # Invariants
//! - **I1** A mapping is unmapped by one caller at a time, and once.
//! - **I2** What is mapped in one domain is not unmapped in another.

use core::fmt;

use super::{DmaAddr, Domain, Host, Policy, UnmapError};

/// Memory that is mapped: the address by which devices reach it, and the right to unmap it, once.
///
/// [`Domain::unmap`] consumes it. If it is forgotten, the memory stays mapped until the domain
/// [ends](Domain::end). It can't be unmapped twice:
///
/// ```compile_fail,E0382
/// # use shootdown_dma::domain::{Domain, Host, Mapping};
/// fn twice<H: Host>(domain: &Domain<H>, mapping: Mapping) {
///     let _ = domain.unmap(mapping);
///     let _ = domain.unmap(mapping); // used after it was moved
/// }
/// ```
///
/// nor can two callers each have it:
///
/// ```compile_fail,E0277
/// # use shootdown_dma::domain::Mapping;
/// fn is_copied<T: Clone>() {}
/// is_copied::<Mapping>();
/// ```
#[must_use = "what is not unmapped stays within the device's reach"]
#[derive(PartialEq, Eq, Debug)]
pub struct Mapping {
    at: DmaAddr,
    bytes: u64,
    /// The domain that it belongs to.
    domain: u64,
}

impl Mapping {
    /// The address at which a device finds its first byte.
    #[must_use]
    #[inline]
    pub const fn addr(&self) -> DmaAddr {
        self.at
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address alone, for a caller that keeps the number of bytes elsewhere. From now on the
    /// caller guarantees that the memory is unmapped ([`Domain::unmap_raw`]), and once.
    #[must_use = "what is not unmapped stays within the device's reach"]
    #[inline]
    pub const fn into_raw(self) -> DmaAddr {
        self.at
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:?}", self.bytes, self.at)
    }
}

/// What devices still reach of memory that was unmapped, by the addresses that it had. (The same
/// memory may be mapped at other addresses too.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// Nothing, from the time on that the domain's [`Policy`] names.
    Ended,
    /// Some of it, as before: its address follows from the memory's, and other callers have mapped
    /// the same page with the same rights. The last of them to unmap it ends the device's access.
    /// This applies under [`Policy::Strict`] too: a caller that must know that the device has no
    /// access checks for this value.
    Shared,
    /// All of it, always: it lies in the [window](Domain::open_window).
    Window,
}

impl<H: Host> Domain<H> {
    /// The mapping of what was mapped just now.
    #[inline]
    pub(super) fn mapped(&self, at: DmaAddr, bytes: u64) -> Mapping {
        Mapping { at, bytes, domain: self.engine.id() }
    }

    /// Unmaps. The domain's [`Policy`] says what holds afterwards, and the returned value says for
    /// which part of the memory it holds.
    ///
    /// # Errors
    /// See [`UnmapError`], and the mapping if it still exists: nothing has changed then, and
    /// nothing was invalidated. After [`UnmapError::NotComplete`] the mapping does not exist any
    /// more.
    #[inline]
    pub fn unmap(&self, mapping: Mapping) -> Result<Reach, (UnmapError, Option<Mapping>)> {
        self.unmap_if(self.is_ours(&mapping), self.config.policy, mapping)
    }

    /// The same under another policy, which is not [weaker](Policy::is_weaker_than) than the
    /// domain's. [`Policy::Deferred`] in a domain that does not hold its pages acts as
    /// [`Policy::Strict`], so that the guarantee is no weaker than requested. What lies in the
    /// window stays mapped, whatever the policy is.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    #[inline]
    pub fn unmap_under(
        &self,
        policy: Policy,
        mapping: Mapping,
    ) -> Result<Reach, (UnmapError, Option<Mapping>)> {
        let may = self.is_ours(&mapping).and_then(|()| self.allows(policy, mapping.at));
        self.unmap_if(may, policy, mapping)
    }

    /// [I2] Checks that it was mapped in this domain.
    #[inline]
    pub(super) fn is_ours(&self, mapping: &Mapping) -> Result<(), UnmapError> {
        if mapping.domain == self.engine.id() { Ok(()) } else { Err(UnmapError::NotMapped) }
    }

    #[inline]
    pub(super) fn unmap_if(
        &self,
        may: Result<(), UnmapError>,
        policy: Policy,
        mapping: Mapping,
    ) -> Result<Reach, (UnmapError, Option<Mapping>)> {
        // SAFETY: [I1] the call that mapped it has made it, it can't be copied, and this call
        // consumes it if it unmaps.
        let unmap = |()| unsafe { self.unmap_bytes(policy, mapping.at, mapping.bytes) };
        let outcome = may.and_then(unmap);
        match outcome {
            Ok(reach) => Ok(reach),
            Err(error @ UnmapError::NotComplete(_)) => Err((error, None)),
            Err(error) => Err((error, Some(mapping))),
        }
    }
}

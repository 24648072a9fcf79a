//! A mapping, as something that its owner has once.
//!
//! # The problem
//! The entries of a mapping are read and cleared by plain loads and stores: that is what makes
//! unmapping cheap, and it is right as long as one at a time unmaps. An address is a number, which
//! anybody can copy. Two who unmap the same mapping at once would both find the entry, both clear
//! it, and both give back its page and its address: the page has a reference less than it should,
//! and the address is handed out twice.
//!
//! # The protocol
//! [`Domain::map`] returns a [`Mapping`], which can't be copied, and [`Domain::unmap`] consumes it.
//! Who must keep the address alone (a descriptor of a device has no room for more) takes it out
//! ([`Mapping::into_raw`]), and unmaps by [`Domain::unmap_raw`], which is `unsafe`: then it is the
//! caller who sees to it that there is one.
//!
//! # Invariants
//! - **I1** A mapping is unmapped by one at a time, and once.
//! - **I2** What is mapped in one domain is not unmapped in another.

use core::fmt;

use super::{DmaAddr, Domain, Host, Policy, UnmapError};

/// Memory that is mapped: where devices find it, and the right to unmap it, once.
///
/// Given back by [`Domain::unmap`]; forgetting it leaves the memory mapped until the domain
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
/// nor by two:
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
    /// The domain whose it is.
    domain: u64,
}

impl Mapping {
    /// Where a device finds its first byte.
    #[must_use]
    #[inline]
    pub const fn addr(&self) -> DmaAddr {
        self.at
    }

    /// How many bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address alone, for who keeps the number of bytes elsewhere. From now on it is the caller
    /// who sees to it that the memory is unmapped ([`Domain::unmap_raw`]), and once.
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

/// What devices still reach of memory that was unmapped, by the addresses that it had there. (The
/// same memory may be mapped at other addresses too.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// Nothing, from when the domain's [`Policy`] says.
    Ended,
    /// Some of it, as before: its address follows from the memory's, and others have mapped the
    /// same page with the same rights. The last of them ends it. Under [`Policy::Strict`] too: who
    /// has to know that the device is out looks at this.
    Shared,
    /// All of it, always: it lies in the [window](Domain::open_window).
    Window,
}

impl<H: Host> Domain<H> {
    /// Something was mapped, just now.
    #[inline]
    pub(super) fn mapped(&self, at: DmaAddr, bytes: u64) -> Mapping {
        Mapping { at, bytes, domain: self.engine.id() }
    }

    /// Unmaps. What is promised then depends on the domain's [`Policy`], and whether that holds of
    /// all of it is what this returns.
    ///
    /// # Errors
    /// See [`UnmapError`], and the mapping if it is still there: nothing has changed then, and
    /// nobody was told to forget anything. After [`UnmapError::NotComplete`] it is not.
    #[inline]
    pub fn unmap(&self, mapping: Mapping) -> Result<Reach, (UnmapError, Option<Mapping>)> {
        self.unmap_if(self.is_ours(&mapping), self.config.policy, mapping)
    }

    /// The same under another policy, which is not [weaker](Policy::is_weaker_than) than the
    /// domain's. [`Policy::Deferred`] in a domain that does not hold its pages is
    /// [`Policy::Strict`]: nothing weaker than what is asked for is given. What lies in the
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

    /// [I2] Was it mapped here?
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
        // SAFETY: [I1] it was made by who mapped it, can't be copied, and is gone with this call if
        // it is unmapped.
        let unmap = |()| unsafe { self.unmap_bytes(policy, mapping.at, mapping.bytes) };
        let outcome = may.and_then(unmap);
        match outcome {
            Ok(reach) => Ok(reach),
            Err(error @ UnmapError::NotComplete(_)) => Err((error, None)),
            Err(error) => Err((error, Some(mapping))),
        }
    }
}

//! Addresses first, memory piece by piece, one invalidation.
//!
//! Mapping page by page costs an address for each page, and an invalidation for each when it is
//! unmapped. A driver that knows the total length takes all the addresses at once
//! ([`Domain::reserve`]), links memory as it arrives, and unmaps everything with one invalidation.
//! (Linux has had this interface since 6.16.)
//!
//! Only the [`Reservation`] unmaps what is linked, and all at once. The entries carry no marks of a
//! mapping's begin and end (`table/unit.rs`), so [`Domain::unmap`] refuses every part of it.

use core::fmt;

use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::table::Part;

/// Addresses that one user has, with or without memory behind them.
///
/// [`Domain::release`] gives them back; forgetting it leaks the addresses, and leaves what is
/// linked mapped.
#[must_use = "addresses that are not released are lost"]
#[derive(PartialEq, Eq, Debug)]
pub struct Reservation {
    range: IovaRange,
    /// Bits of a byte address within a page.
    granule: u32,
    /// The domain that the addresses belong to.
    domain: u64,
    /// Pages with memory behind them, from the first on.
    linked: u64,
    /// The pages for which units that cache absent entries have been invalidated, from the first
    /// on.
    told: u64,
    /// The memory behind them is unmapped, and its invalidation is not complete.
    stale: bool,
    /// Some of the addresses are mapped by another user.
    taken: bool,
}

impl Reservation {
    /// The address at which it begins for the device.
    #[must_use]
    pub const fn addr(&self) -> DmaAddr {
        DmaAddr(self.range.first() << self.granule)
    }

    /// How many pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.range.pages()
    }

    /// How many of them have memory behind them.
    #[must_use]
    pub const fn linked(&self) -> u64 {
        self.linked
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} linked", self.range, self.linked)
    }
}

impl<H: Host> Domain<H> {
    /// Takes addresses for this many pages, with no memory behind them yet; also in a domain with a
    /// window these are addresses of their own.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn reserve(&self, pages: u64) -> Result<Reservation, MapError> {
        if pages == 0 {
            return Err(MapError::Empty);
        }
        let range = self.allocate(pages)?;
        Ok(Reservation {
            range,
            granule: Self::SHIFT,
            domain: self.engine.id(),
            linked: 0,
            told: 0,
            stale: false,
            taken: false,
        })
    }

    /// Whether these addresses are the domain's own.
    fn has_reserved(&self, reservation: &Reservation) -> bool {
        reservation.domain == self.engine.id()
    }

    /// Puts `pages` pages of memory behind the next addresses; returns the address by which the
    /// device reaches them. The device may use it after [`sync`](Self::sync) has returned.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::Overflow`] if fewer addresses are left,
    /// [`MapError::Unaligned`] if `phys` is not the start of a page, [`MapError::NotReserved`] if
    /// the addresses are another domain's. Nothing more is linked then.
    pub fn link(
        &self,
        reservation: &mut Reservation,
        phys: PhysAddr,
        pages: u64,
        rights: Rights,
    ) -> Result<DmaAddr, MapError> {
        if pages == 0 {
            return Err(MapError::Empty);
        }
        if !self.has_reserved(reservation) {
            return Err(MapError::NotReserved);
        }
        if pages > reservation.pages() - reservation.linked {
            return Err(MapError::Overflow);
        }
        let frames = Self::whole_pages(phys, pages)?;
        let first = reservation.range.first() + reservation.linked;
        let part = IovaRange::new(first, pages).ok_or(MapError::Overflow)?;
        if reservation.stale {
            self.invalidate_all().map_err(MapError::NotTold)?;
            reservation.stale = false;
        }
        self.hold(frames)?;
        self.put_kept(part, frames, rights, Part::Middle).map_err(|(error, late)| {
            reservation.stale |= late.is_some();
            reservation.taken =
                reservation.taken || self.unused(error, reservation.range).is_none();
            late.map_or(error, MapError::NotComplete)
        })?;
        reservation.linked += pages;
        Ok(DmaAddr(first << Self::SHIFT))
    }

    /// Makes what was linked usable for the device. This costs something only where a unit caches
    /// absent entries.
    ///
    /// # Errors
    /// [`MapError::NotTold`]: try again. [`MapError::NotReserved`] if the addresses are another
    /// domain's: nothing has changed, call that domain.
    pub fn sync(&self, reservation: &mut Reservation) -> Result<(), MapError> {
        if !self.has_reserved(reservation) {
            return Err(MapError::NotReserved);
        }
        let new = reservation.linked - reservation.told;
        let first = reservation.range.first() + reservation.told;
        if let (true, Some(new)) = (self.config.caches_absence, IovaRange::new(first, new)) {
            self.tell_units(new).map_err(MapError::NotTold)?;
        }
        reservation.told = reservation.linked;
        Ok(())
    }

    /// Unmaps all that was linked, with one invalidation, and keeps the addresses. Other memory may
    /// be linked there next, so this waits whatever the domain's policy is.
    ///
    /// # Errors
    /// See [`UnmapError`]; [`UnmapError::NotMapped`] if the addresses are another domain's. After
    /// [`UnmapError::NotComplete`] the next [`link`](Self::link) waits again.
    pub fn unlink(&self, reservation: &mut Reservation) -> Result<(), UnmapError> {
        if !self.has_reserved(reservation) {
            return Err(UnmapError::NotMapped);
        }
        if let Some(linked) = IovaRange::new(reservation.range.first(), reservation.linked) {
            let outcome = self.unmap_pages(linked, None, Policy::Strict, false);
            let incomplete = matches!(outcome, Err(UnmapError::NotComplete(_)));
            reservation.stale |= incomplete;
            if outcome.is_ok() || incomplete {
                (reservation.linked, reservation.told) = (0, 0);
            }
            return outcome;
        }
        Ok(())
    }

    /// Gives the addresses back, and unmaps what is linked, with one invalidation under the
    /// domain's policy.
    ///
    /// # Errors
    /// See [`UnmapError`], and the reservation if it still exists. After
    /// [`UnmapError::NotComplete`] it does not: the domain gives its addresses back when the
    /// invalidation is complete.
    pub fn release(
        &self,
        reservation: Reservation,
    ) -> Result<(), (UnmapError, Option<Reservation>)> {
        if !self.has_reserved(&reservation) {
            return Err((UnmapError::NotMapped, Some(reservation)));
        }
        let gives = (!reservation.taken).then_some(reservation.range);
        let Some(linked) = IovaRange::new(reservation.range.first(), reservation.linked) else {
            match gives.map(Self::addresses_of) {
                Some(addresses) if reservation.stale => {
                    self.quarantine(self.engine.flush_all(), addresses);
                }
                Some(addresses) => self.give_back_one(addresses),
                None => {}
            }
            return Ok(());
        };
        let now = gives.filter(|_| !reservation.stale);
        let outcome = self.unmap_pages(linked, now, self.config.policy, false);
        let unmapped = matches!(outcome, Ok(()) | Err(UnmapError::NotComplete(_)));
        if let (Some(range), true) = (gives, reservation.stale && unmapped) {
            self.quarantine(self.engine.flush_all(), Self::addresses_of(range));
        }
        match outcome {
            Err(error @ UnmapError::NotComplete(_)) => Err((error, None)),
            Err(error) => Err((error, Some(reservation))),
            Ok(()) => Ok(()),
        }
    }
}

//! Addresses first, memory bit by bit, one invalidation.
//!
//! Mapping page by page costs an address for each, and an invalidation for each when it is
//! unmapped. Who knows how much there will be takes all the addresses at once
//! ([`Domain::reserve`]), links memory as it comes, and takes everything away with one
//! invalidation. (Linux has had this shape since 6.16.)
//!
//! What is linked is unmapped all at once, by whoever has the [`Reservation`]: its entries have
//! neither begin nor end of a mapping (`table/unit.rs`), so that [`Domain::unmap`] takes no part of
//! it.

use core::fmt;

use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::table::Part;

/// Addresses that are one user's, with or without memory behind them.
///
/// Given back by [`Domain::release`]; forgetting it leaks the addresses, and leaves what is linked
/// mapped.
#[must_use = "addresses that are not released are lost"]
#[derive(PartialEq, Eq, Debug)]
pub struct Reservation {
    range: IovaRange,
    /// Bits of a byte address within a page.
    granule: u32,
    /// The domain whose they are.
    domain: u64,
    /// Pages with memory behind them, from the first on.
    linked: u64,
    /// Up to where units know of them that remember what was not mapped.
    told: u64,
    /// What was behind them is unmapped, and not forgotten by everybody.
    stale: bool,
    /// Some of them were found to be somebody else's.
    taken: bool,
}

impl Reservation {
    /// Where it begins, for the device.
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
    /// Addresses for so many pages, with nothing behind them yet: of their own, also in a domain
    /// with a window.
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

    /// Are these addresses the domain's own?
    fn has_reserved(&self, reservation: &Reservation) -> bool {
        reservation.domain == self.engine.id()
    }

    /// Puts `pages` pages of memory behind the next addresses; says by which address the device
    /// reaches them. It may when [`sync`](Self::sync) has returned.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::Overflow`] if there are not so many addresses left,
    /// [`MapError::Unaligned`] if `phys` is not the start of a page, [`MapError::NotReserved`]
    /// if the addresses are another domain's. Nothing more is linked then.
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

    /// The device may use what was linked. This costs something only where a unit remembers what
    /// was not mapped.
    ///
    /// # Errors
    /// [`MapError::NotTold`]; try again. [`MapError::NotReserved`] if the addresses are another
    /// domain's: nothing has changed, ask that one.
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

    /// Takes away all that was linked, with one invalidation, and keeps the addresses. Other memory
    /// may be linked there next, so this waits whatever the domain's policy is.
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

    /// Gives the addresses back, and takes away what is linked, with one invalidation under the
    /// domain's policy.
    ///
    /// # Errors
    /// See [`UnmapError`], and the reservation if it is still there. After
    /// [`UnmapError::NotComplete`] it is not: it goes back when that is complete.
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

//! Allocators to which it matters when an address comes back.

use super::*;
use crate::iova::arena::{self, Arena, Flush};

/// The world, with addresses from pools.
#[derive(Clone, Copy)]
struct Pooled<'w>(&'w World);

/// The domain invalidates before it gives back.
struct Nothing;

// SAFETY: nothing is retired, so that nothing is relied on.
unsafe impl Flush for Nothing {
    fn flush(&self) {}
}

// SAFETY: the world's promises.
unsafe impl<'w> Host for Pooled<'w> {
    type Addresses = Arena<Nothing>;
    type Format = VtdSecondLevel;
    type Tables = &'w World;
    type Unit = &'w World;
    type Pin = Stays;

    fn pin(&self) -> Stays {
        Host::pin(&self.0)
    }
    fn relax(&self) -> bool {
        self.0.relax()
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        self.0.hold(first, pages)
    }
    fn release(&self, first: PhysAddr, pages: u64) {
        self.0.release(first, pages);
    }
}

/// A pool hands out what follows, and comes back to an address when it has come round.
pub(crate) fn addresses_come_back_in_the_allocators_order() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let world = World::default();
        let space = Space::below(64);
        let pools = Arena::new(&space, &arena::Layout::pools(1).large_above(u64::MAX), Nothing);
        let format = VtdSecondLevel::new(3, true, true).unwrap();
        let (host, config) = (Pooled(&world), Config::new(1).policy(policy));
        let domain =
            Domain::new(host, config, pools.unwrap(), format, &world, [(&world, ID)]).unwrap();
        let mut seen = Vec::new();
        for n in 0..40 {
            let at = domain.put(buffer(n), PAGE, Rights::Read).unwrap();
            assert!(!seen.contains(&at), "{policy:?}: {at:?} is back after {} others", seen.len());
            seen.push(at);
            domain.take(at, PAGE).unwrap();
            // Told, complete, given back.
            domain.poll((2 * n + 1) << 40).unwrap();
            world.complete();
            domain.poll((2 * n + 2) << 40).unwrap();
            assert_eq!(domain.deferred().1, 0);
        }
        // SAFETY: there is no device.
        let Ok(_) = (unsafe { domain.end() }) else { panic!("the unit answers") };
    }
}

#[test]
fn whose_addresses_are_kept() {
    addresses_come_back_in_the_allocators_order();
}

//! A device that comes and goes while the others are at work.

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::Attachment;

use super::mistake::Mistake;
use super::world::Kernel;
use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// Where it is.
#[derive(Debug, Default)]
pub(super) enum Traveller {
    /// In no domain.
    #[default]
    Away,
    /// In this one, and listed there.
    In(usize, Option<Attachment>),
}

pub(super) const ID: DeviceId = DeviceId(5);

impl Kernel {
    /// The unit that it is behind: the last.
    const fn its_unit(&self) -> usize {
        self.config.units - 1
    }

    /// It is put into a domain.
    pub fn come(&self, at: Traveller, domain: usize) -> Traveller {
        let Traveller::Away = at else { return at };
        let unit = self.its_unit();
        io::plug(ID, unit, self.config.atc);
        if self.config.errs(Mistake::OneUnitNamed) && unit != 0 {
            self.enter(domain, unit, ID);
            io::is_served(ID);
            return Traveller::In(domain, None);
        }
        if self.config.errs(Mistake::ListedLate) {
            self.enter(domain, unit, ID);
        }
        let caches = self.config.atc && !self.config.errs(Mistake::CachesDenied);
        let attachment = match self.domain(domain).attach(unit, ID, caches) {
            Ok(attachment) => attachment,
            Err(error) => {
                hw::violation(Invariant::ErrorsTotal, format!("attaching fails: {error}"))
            }
        };
        if !self.config.errs(Mistake::ListedLate) {
            self.enter(domain, unit, ID);
        }
        // What the hunted unit does not remember it need not be told: a step less to explore.
        let announced = self.config.absence && !self.config.errs(Mistake::EntryUnannounced);
        if announced && let Err(error) = self.domain(domain).announce(&attachment) {
            hw::violation(Invariant::ErrorsTotal, format!("announcing fails: {error}"));
        }
        if announced {
            hw::witness("device-announced");
        }
        io::is_served(ID);
        hw::witness("device-attached");
        Traveller::In(domain, Some(attachment))
    }

    /// It leaves its domain.
    pub fn leave(&self, at: Traveller) -> Traveller {
        let Traveller::In(domain, attachment) = at else { return at };
        io::write_entry(ID, io::Half::Low, 0);
        if self.config.errs(Mistake::EntryClearedAtOnce) {
            io::write_entry(ID, io::Half::High, 0);
        }
        if let Some(attachment) = attachment {
            if self.config.errs(Mistake::DetachUntold) {
                return Traveller::Away;
            }
            match self.domain(domain).detach(attachment) {
                Ok(()) => {}
                Err((error, attachment)) if self.config.may_fail(error) => {
                    return self.pull(Traveller::In(domain, Some(attachment)));
                }
                Err((error, _)) => {
                    hw::violation(Invariant::ErrorsTotal, format!("detaching fails: {error}"));
                }
            }
        }
        io::write_entry(ID, io::Half::High, 0);
        hw::witness("device-detached");
        Traveller::Away
    }

    /// It moves to the next domain.
    pub fn move_on(&self, at: Traveller) -> Traveller {
        let Traveller::In(domain, attachment) = at else { return at };
        let next = (domain + 1) % self.config.domains;
        if self.config.errs(Mistake::EntryOverwritten) {
            let caches = self.config.atc;
            let listed = self.domain(next).attach(self.its_unit(), ID, caches).ok();
            self.enter(next, self.its_unit(), ID);
            io::is_served(ID);
            let _forgotten = attachment;
            return Traveller::In(next, listed);
        }
        let away = self.leave(Traveller::In(domain, attachment));
        self.come(away, next)
    }

    /// It is pulled out if it does not answer.
    pub fn pull_if_silent(&self, at: Traveller) -> Traveller {
        if io::answers(ID) { at } else { self.pull(at) }
    }

    /// It is pulled out, whatever it is doing.
    pub fn pull(&self, at: Traveller) -> Traveller {
        let Traveller::In(domain, attachment) = at else { return at };
        io::unplug(ID);
        io::write_entry(ID, io::Half::Low, 0);
        if let Some(attachment) = attachment
            && let Err((error, _)) = self.domain(domain).evict(attachment)
        {
            hw::violation(Invariant::ErrorsTotal, format!("evicting fails: {error}"));
        }
        io::write_entry(ID, io::Half::High, 0);
        hw::witness("device-pulled-out");
        Traveller::Away
    }
}

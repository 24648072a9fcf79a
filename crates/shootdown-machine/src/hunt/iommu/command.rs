//! Commands: when they take effect, what is forgotten then, and when that is complete.

use std::collections::BTreeSet;

use shootdown_dma::IovaRange;
use shootdown_dma::invalidate::{Command, Ticket};

use super::cached::{Cached, Walk};
use super::tables::INDEX_BITS;
use super::unit::{Flying, Forgotten, Reach, Submitted, Unit, take};
use super::{Iommu, Model, seen};
use crate::hunt::powers::Power;

/// The same command in pages of 4 KiB.
fn small_pages(command: Command, model: Option<Model>) -> Command {
    let scale = model.map_or(0, |model| model.walker.granule - 12);
    let scaled = |range: IovaRange| {
        IovaRange::new(range.first() << scale, range.pages() << scale).expect("a range")
    };
    match command {
        Command::Pages { domain, range, leaf_only } => {
            Command::Pages { domain, range: scaled(range), leaf_only }
        }
        Command::Device { device, range } => Command::Device { device, range: range.map(scaled) },
        other => other,
    }
}

impl Iommu {
    /// May a unit take commands later than they are submitted?
    pub fn may_delay(&self) -> bool {
        self.has(Power::LateInvalidation)
    }

    /// A unit takes commands; `executed`: they take effect at once.
    pub fn submit(&mut self, unit: usize, commands: &[Command], executed: bool) -> Ticket {
        let commands: Vec<Command> = commands.iter().map(|c| small_pages(*c, self.model)).collect();
        let at = &mut self.units[unit];
        at.last.0 += 1;
        let ticket = at.last;
        at.queue.push_back(Submitted { ticket, commands: commands.clone(), executed, denials: 0 });
        if executed {
            commands.iter().for_each(|c| self.execute(unit, *c, Some(ticket)));
        }
        ticket
    }

    /// May completion be denied once more?
    pub fn may_deny(&self, unit: usize) -> bool {
        let most = self.model.map_or(0, |model| model.denials);
        self.has(Power::LateInvalidation)
            && self.units[unit].queue.front().is_some_and(|s| s.denials < most)
    }

    /// Denies it.
    pub fn deny(&mut self, unit: usize) {
        if let Some(first) = self.units[unit].queue.front_mut() {
            first.denials += 1;
        }
    }

    /// Completes the oldest submission.
    pub fn complete_one(&mut self, unit: usize) {
        let Some(Submitted { ticket, commands, executed, .. }) = self.units[unit].queue.pop_front()
        else {
            return;
        };
        if !executed {
            commands.iter().for_each(|c| self.execute(unit, *c, None));
        }
        let unit = &mut self.units[unit];
        unit.flying.retain(|flying| flying.until > ticket);
        unit.completed = ticket;
    }

    /// Has a unit submissions that are not complete?
    pub fn is_busy(&self) -> bool {
        self.units.iter().any(|unit| !unit.queue.is_empty())
    }

    /// How many submissions are not complete.
    pub fn open(&self, unit: usize) -> usize {
        self.units[unit].queue.len()
    }

    /// The last submission that is not complete, but of which all commands have taken effect, as
    /// have all before it.
    pub fn carried_out(&self, unit: usize) -> Option<Ticket> {
        let done = self.units[unit].queue.iter().take_while(|submitted| submitted.executed);
        done.last().map(|submitted| submitted.ticket)
    }

    pub fn completed(&self, unit: usize) -> Ticket {
        self.units[unit].completed
    }

    pub fn last(&self, unit: usize) -> Ticket {
        self.units[unit].last
    }

    /// A command takes effect. Accesses that it makes stale go on until `flying` is complete.
    /// `None`: it is complete, and all that it is for are over, whichever command made the
    /// cache forget.
    pub fn execute(&mut self, unit: usize, command: Command, flying: Option<Ticket>) {
        let whole = !self.has(Power::Fracture);
        let survives = self.has(Power::SurvivesOnce);
        let (device, reach) = match command {
            Command::Pages { domain, range, .. } => {
                (None, Reach { domain: Some(domain.0), range: Some(range) })
            }
            Command::Domain(domain) => (None, Reach { domain: Some(domain.0), range: None }),
            Command::Device { device, range } => (Some(device), Reach { domain: None, range }),
            Command::Config { device, .. } => {
                if let Some(device) = self.devices.get_mut(&device.0) {
                    device.forget();
                }
                return self.fill();
            }
            _ => (None, Reach { domain: None, range: None }),
        };
        let leaf_only = matches!(command, Command::Pages { leaf_only: true, .. });
        if device.is_some_and(|device| self.is_silent(device)) {
            return;
        }
        let taken = if let Some(device) = device {
            let cache = self.devices.get_mut(&device.0).and_then(|device| device.atc.as_mut());
            cache.map_or(Vec::new(), |cache| take(cache, reach, whole))
        } else {
            if !leaf_only {
                let walker = self.model.map(|model| model.walker);
                let pages = |walk: &Walk| walker.map_or(1, |w| w.span(walk.level)) << INDEX_BITS;
                self.units[unit].walks.retain(|walk| !reach.walks(walk, pages(walk)));
            }
            self.know(unit, reach, leaf_only);
            let Forgotten { gone, survived } = self.units[unit].forget(reach, whole, survives);
            self.seen.extend(survived.then_some(seen::SURVIVED));
            gone
        };
        let partly = |leaf: &Cached| reach.range.is_some_and(|r| leaf.without(r).next().is_some());
        self.seen.extend((!whole && taken.iter().any(partly)).then_some(seen::PIECE));
        let device = device.map(|device| device.0);
        let in_flight = &mut self.units[unit].flying;
        match flying {
            Some(until) if self.powers.has(Power::InFlight) => {
                self.seen.extend((!taken.is_empty()).then_some(seen::IN_FLIGHT));
                let all = taken.into_iter().map(|leaf| Flying { until, device, leaf });
                in_flight.extend(all);
            }
            Some(_) => {}
            None => in_flight.retain(|f| f.device != device || !reach.has(&f.leaf)),
        }
        self.fill();
    }

    /// Units remember nothing of what was there before.
    pub fn know_all(&mut self) {
        for unit in 0..self.units.len() {
            self.know(unit, Reach { domain: None, range: None }, false);
        }
    }

    /// What is there now, and was reached by a command, is not remembered as absent any more.
    /// `leaf_only`: tables that were not there are remembered on.
    pub(super) fn know(&mut self, unit: usize, reach: Reach, leaf_only: bool) {
        if !self.has(Power::RemembersAbsence) {
            return;
        }
        let tops: BTreeSet<Walk> = self.tops(unit).collect();
        let is_top = |table: &Walk| tops.contains(table);
        for (leaf, table) in self.present(tops.iter().copied().collect()) {
            // A large page is known when the command reaches all of it.
            let all = reach
                .range
                .is_none_or(|r| r.first() <= leaf.first && leaf.first + leaf.pages <= r.last() + 1);
            let Unit { known, tables, .. } = &mut self.units[unit];
            if reach.has(&leaf) && all && (!leaf_only || is_top(&table) || tables.contains(&table))
            {
                known.insert(leaf);
                tables.insert(table);
            }
        }
    }
}

//! What units are told, and what is heard of it.

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::{Command, QueueError, Ticket};

use super::io_step;
use crate::hunt::choice::Point;
use crate::hunt::hw::choose;
use crate::hunt::machine::{Hunt, stop, with};
use crate::hunt::powers::Power;

/// Does something go wrong with this unit now?
fn fails(unit: usize) -> bool {
    let failed = with(|h| {
        if !h.running || !h.iommu.may_fail(unit) {
            return Some(false);
        }
        h.choose(&Point::Fault { power: Power::QueueErrors }).map(|chosen| chosen == 1)
    });
    failed.unwrap_or_else(|| stop())
}

/// Can the device be relied on to forget what it is told to?
#[must_use]
pub fn answers(device: DeviceId) -> bool {
    io_step(false);
    with(|h| {
        let silent = h.iommu.is_silent(device);
        h.saw(0xa45 ^ u64::from(silent) << 16);
        !silent
    })
}

/// Commands for a unit. They take effect now, or when [`completed`] tells of them; the adversary
/// decides.
///
/// # Errors
/// There is no room for them: nothing was submitted.
pub fn submit(unit: usize, commands: &[Command]) -> Result<Ticket, QueueError> {
    io_step(true);
    if fails(unit) {
        with(|h| {
            h.iommu.is_full(unit);
            h.witness("queue-full");
            h.saw(0xf011);
            h.note(|| format!("can't tell unit {unit} {commands:?}"));
        });
        return Err(QueueError::Full);
    }
    // The doorbell is a store to a device, which waits for all stores before it.
    with(|h| h.drain(h.current));
    let executed = !with(|h| h.running && h.iommu.may_delay()) || choose(2) == 0;
    with(|h| {
        let ticket = h.iommu.submit(unit, commands, executed);
        h.saw(0x5b17 ^ ticket.0 << 16 ^ (unit as u64) << 8);
        h.works(|work| work.commands += commands.len() as u64);
        let when = if executed { "" } else { ", which it takes late" };
        if !executed {
            h.witness("command-taken-late");
        }
        h.note(|| format!("tells unit {unit} {commands:?}{when}"));
        witness_all(h);
        Ok(ticket)
    })
}

/// What IOMMUs have come to.
pub(in crate::hunt) fn witness_all(h: &mut Hunt) {
    h.iommu.has_come_of_it().for_each(|name| h.witness(name));
}

/// The last submission of which all commands have taken effect, if that is not known to be
/// complete: accesses that began before may be under way.
#[must_use]
pub fn carried_out(unit: usize) -> Option<Ticket> {
    io_step(false);
    with(|h| {
        let ticket = h.iommu.carried_out(unit);
        h.saw(0xca44 ^ ticket.map_or(0, |ticket| ticket.0) << 16 ^ (unit as u64) << 8);
        ticket
    })
}

/// The last submission to a unit.
#[must_use]
pub fn submitted(unit: usize) -> Ticket {
    with(|h| h.iommu.last(unit))
}

/// The last submission that is complete; the adversary may deny for some time that any more is.
///
/// # Errors
/// Something was refused, or a device has not answered. What was not complete was submitted again;
/// that device is left out.
pub fn completed(unit: usize) -> Result<Ticket, QueueError> {
    io_step(true);
    if with(|h| h.iommu.open(unit)) != 0 && fails(unit) {
        return Err(with(|h| {
            let silent = h.iommu.may_be_silent(unit);
            h.iommu.again(unit);
            h.saw(0xe440);
            match silent {
                Some(device) => {
                    h.iommu.is_silent_now(device);
                    h.witness("device-silent");
                    h.note(|| format!("hears from unit {unit} that {device:?} does not answer"));
                    QueueError::DeviceTimeout
                }
                None => {
                    h.witness("command-refused");
                    h.note(|| format!("hears from unit {unit} that a command was refused"));
                    QueueError::Refused
                }
            }
        }));
    }
    while with(|h| h.iommu.open(unit) != 0) {
        if with(|h| h.running && h.iommu.may_deny(unit)) && choose(2) == 1 {
            with(|h| h.iommu.deny(unit));
            break;
        }
        with(|h| {
            h.iommu.complete_one(unit);
            let completed = h.iommu.completed(unit);
            h.note(|| format!("hears from unit {unit} that {completed:?} is complete"));
            witness_all(h);
        });
    }
    with(|h| {
        let completed = h.iommu.completed(unit);
        h.saw(0xc0b1 ^ completed.0 << 16 ^ (unit as u64) << 8);
        Ok(completed)
    })
}

//! Recovery: a queue that has stopped goes on, and nothing that it held is lost (I9).
//!
//! # Which device has not acknowledged?
//! Some units do not report it (an SMMU; VT-d before it had a field for it). Such a unit executes
//! the device commands between two barriers together, and starts what is behind the second barrier
//! when all of these devices have acknowledged (I6). So it is one of the devices behind the last
//! wait that was passed. If there are several, none is struck. Instead their commands are issued
//! again one by one, with a wait and a barrier behind each, and the wait that is not passed names
//! the device. Each takes two slots more. Where that is more than may be taken ([`Queue::singly`]),
//! the first devices get single commands and the rest get theirs together: the single ones that
//! acknowledge are not copied again when the wait of the rest is not passed, so in the end one
//! device is alone.

use core::ops::Range;

use crate::addr::DeviceId;
use crate::invalidate::QueueError;
use crate::sync::Ordering;

use super::format::{Format, Instead, Slot, Trouble};
use super::{LOCKED, Port, Queue, ReviveError};

impl<P: Port, F: Format> Queue<P, F> {
    /// Reads the unit's registers and its event log, and handles what it finds. Polls do so by
    /// themselves when nothing moves; call it when the unit has interrupted because of an error, or
    /// of the log. Never waits.
    ///
    /// # Errors
    /// What was found: [`QueueError::Refused`] and [`QueueError::DeviceTimeout`] are already
    /// handled.
    pub fn attend(&self) -> Result<(), QueueError> {
        let seen = self.exclusively(|| {
            if self.format.logs_timeouts() {
                self.drain_held();
            }
            match self.format.trouble(&self.port) {
                Some(trouble) => self.see_to(trouble),
                None => Ok(()),
            }
        });
        // The publisher does not wait either; the next poll reads the registers again.
        seen.unwrap_or(Ok(())).and_then(|()| self.unless_timed_out())
    }

    /// Handles what the unit has logged about devices that have not acknowledged. False: another
    /// CPU has the lock, and may have taken events out of the log that are not handled yet.
    pub(super) fn drain(&self) -> bool {
        self.exclusively(|| self.drain_held()).is_some()
    }

    /// The same, called with the lock.
    fn drain_held(&self) {
        let mut any = false;
        self.port.drain_events(&mut |device| {
            self.silence.strike(device);
            any = true;
        });
        if !any {
            return;
        }
        self.timed_out.store(true, Ordering::Relaxed);
        self.give_room();
        let base = self.base();
        // Waits do not wait for a silent device, so all that was read is copied.
        if self.tell_again(base, base..self.head().max(base), 0).is_none() {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }

    /// A silent device was reset, and its cache is empty: commands include it again, and
    /// [`answers`](super::Unit::answers) returns true for it.
    ///
    /// What was submitted before may still be under way, without this device, and become complete.
    /// So the device must not be able to fill its cache yet: it is listed in no domain, or its
    /// configuration entry is invalid. The host turns its cache (ATS) on when an invalidation of
    /// its domain is complete that began after this has returned;
    /// [`Engine::attach`](crate::invalidate::Engine::attach) and
    /// [`welcome`](crate::invalidate::Engine::welcome) (or
    /// [`Domain::attach`](crate::Domain::attach)), called after this, ensure that.
    ///
    /// # Errors
    /// See [`ReviveError`]. Nothing has changed.
    pub fn revive(&self, device: DeviceId) -> Result<(), ReviveError> {
        let seen = self.exclusively(|| self.silence.forgive(device));
        match seen {
            Some(true) => Ok(()),
            Some(false) => Err(ReviveError::AllSilent),
            None => Err(ReviveError::Busy),
        }
    }

    /// The same for all devices behind the unit: each of them was reset, or has no cache. Use it
    /// when so many devices did not acknowledge that no device is relied on any more.
    ///
    /// # Errors
    /// [`ReviveError::Busy`]. Nothing has changed.
    pub fn revive_all(&self) -> Result<(), ReviveError> {
        self.exclusively(|| self.silence.forgive_all()).ok_or(ReviveError::Busy)
    }

    /// Calls `f` with the publisher's lock, if the lock is free.
    fn exclusively<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        // ORDERING: Acquire is [Q4] of the holder before; leaving is that of `publish_held`.
        if self.state.fetch_or(LOCKED, Ordering::Acquire) & LOCKED != 0 {
            return None;
        }
        let result = f();
        self.publish_held();
        Some(result)
    }

    fn see_to(&self, trouble: Trouble) -> Result<(), QueueError> {
        let tail = self.tail.load(Ordering::Relaxed);
        let seen = match trouble {
            Trouble::Refused => self.patch(),
            Trouble::Silent(device) => self.replay(device),
            Trouble::Unread => self.once_more(),
        };
        if seen.is_none() {
            self.stuck.store(true, Ordering::Relaxed);
            return Err(QueueError::Stuck);
        }
        self.port.publish();
        self.format.resume(&self.port, trouble, tail);
        Err(match trouble {
            Trouble::Silent(_) => QueueError::DeviceTimeout,
            _ => QueueError::Refused,
        })
    }

    /// The position that the unit reads next.
    fn head(&self) -> u64 {
        let tail = self.tail.load(Ordering::Relaxed);
        let head = self.format.head(&self.port, self.slots);
        tail - (tail.wrapping_sub(head) & (self.slots - 1))
    }

    /// Whether the slot at the head was handled before.
    fn again(&self, head: u64) -> bool {
        self.patched.swap(head + 1, Ordering::Relaxed) == head + 1
    }

    /// Replaces a refused slot by one that covers it. `None`: there is none.
    fn patch(&self) -> Option<()> {
        let head = self.head();
        if head == self.tail.load(Ordering::Relaxed) {
            return Some(()); // nothing was read
        }
        let status = self.port.status_address();
        let slot = self.read(head);
        let again = self.again(head);
        let instead = match self.format.instead(status, slot) {
            Instead::Wait if !again => self.format.wait(status, head + 1),
            Instead::Barrier if !again => self.format.barrier(status),
            Instead::Coarser(coarser) if !again => coarser,
            Instead::Coarser(_) => {
                // The unit can't send this device anything: it is not relied on.
                self.silence.silence(self.format.device(slot)?);
                self.format.harmless()
            }
            _ => return None,
        };
        self.write(head, instead);
        Some(())
    }

    fn once_more(&self) -> Option<()> {
        let head = self.head();
        (!self.again(head)).then_some(())
    }

    /// Copies what was read and is not complete behind all that is reserved, and lets nothing
    /// complete before it. `None`: there is no room.
    fn replay(&self, silent: Option<DeviceId>) -> Option<()> {
        self.give_room();
        let base = self.base();
        let head = self.head().max(base);
        let (lost, struck) = match silent {
            Some(device) => (base..head, Some(device)),
            None => {
                let lost = self.passed(base, head)..head;
                (lost.clone(), self.only(lost))
            }
        };
        if let Some(device) = struck {
            self.silence.strike(device);
        }
        let singly = if silent.is_none() { self.singly(self.count_of(&lost, 0)) } else { 0 };
        self.tell_again(base, lost, singly)
    }

    /// The slots that a copy takes.
    fn count_of(&self, lost: &Range<u64>, singly: u64) -> u64 {
        let mut count = 0;
        self.copy(lost.clone(), singly, &mut |_| count += 1);
        count
    }

    /// Copies what was lost, and lets nothing complete before that.
    fn tell_again(&self, base: u64, lost: Range<u64>, singly: u64) -> Option<()> {
        let (head, count) = (self.head().max(base), self.count_of(&lost, singly));
        // This room is reserved for recovery: it is taken however much submitters have.
        self.taken.fetch_add(count, Ordering::Relaxed);
        let from = self.reserved.fetch_add(count, Ordering::AcqRel); // [Q11]: the next CPU that reserves sees what `base` covers
        let end = from + count;
        if end - base >= self.slots {
            return None; // Nothing is published behind a hole, and nothing completes any more.
        }
        self.told_devices(end);
        self.gate.store(end, Ordering::Release); // [Q7]
        let (status, mut at) = (self.port.status_address(), from);
        self.copy(lost, singly, &mut |slot| {
            self.write(at, slot.unwrap_or_else(|| self.format.wait(status, at + 1)));
            at += 1;
        });
        // ORDERING: Release pairs with the load in `base`: what was lost is copied, and its slots
        // may be written again.
        self.floor.store(head, Ordering::Release);
        self.written(from, end);
        Some(())
    }

    /// The position up to which a wait, among the slots that were read, shows that all devices have
    /// acknowledged. Only for units whose waits wait for devices.
    fn passed(&self, base: u64, head: u64) -> u64 {
        if !self.format.is_coarse() {
            return self.format.position(&self.port, base).min(head);
        }
        // A wait that was read is complete.
        let wait = (base..head).rev().find(|at| !self.format.is_command(self.read(*at)));
        wait.map_or(base, |at| at + 1)
    }

    /// The device that has not acknowledged, if it was the only one.
    fn only(&self, lost: Range<u64>) -> Option<DeviceId> {
        let mut only = None;
        for slot in lost.map(|at| self.read(at)) {
            match self.format.device(slot) {
                Some(device) if only.is_some_and(|o| o != device) => {
                    return None;
                }
                Some(device) => only = only.or(Some(device)),
                // The commands behind it have not begun.
                None if only.is_some() && !self.format.is_command(slot) => break,
                None => {}
            }
        }
        only
    }

    /// How many devices may get single commands, if `count` slots are copied. When the copy and the
    /// submitters' share are taken, and an eighth of the ring is kept back, half of what is left is
    /// for this recovery, the other half for later ones. At least one, since otherwise recovery
    /// would never end.
    fn singly(&self, count: u64) -> u64 {
        // Submitters may take their share meanwhile.
        let taken = self.taken.load(Ordering::Relaxed).max(self.share()) + count;
        ((self.slots - self.slots / 8).saturating_sub(taken) / 2).max(1)
    }

    /// Puts what was lost as in a submission, and the commands of `singly` devices each as in one
    /// of its own; `None` is a wait. (The waits of the copied submissions do not cover what was
    /// lost.)
    fn copy(&self, lost: Range<u64>, mut singly: u64, put: &mut dyn FnMut(Option<Slot>)) {
        let commands = || lost.clone().map(|at| self.read(at));
        let own =
            |slot: &Slot| self.format.is_command(*slot) && self.format.device(*slot).is_none();
        commands().filter(own).for_each(|slot| put(Some(slot)));
        let mut before = None;
        for slot in commands() {
            let Some(device) = self.format.device(slot) else { continue };
            if self.silence.is_silent(device) {
                continue;
            }
            let alone = before.is_some_and(|b| b != device) && singly > 0;
            if alone {
                singly -= 1;
                put(None);
            }
            if alone || before.is_none() {
                put(Some(self.format.barrier(self.port.status_address())));
            }
            before = Some(device);
            put(Some(slot));
        }
        put(None);
    }
}

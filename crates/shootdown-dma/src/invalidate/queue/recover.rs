//! A queue that stands still is made to go on, and nothing that it held is lost (I9).

use crate::addr::DeviceId;
use crate::invalidate::QueueError;
use crate::sync::Ordering;

use super::format::{Format, Instead, Trouble};
use super::{LOCKED, Port, Queue};

impl<P: Port, F: Format> Queue<P, F> {
    /// Has a look at the unit's registers, and sees to what it finds. Polls do so by themselves when nothing moves; to be
    /// called when the unit has interrupted because of an error. Never waits.
    ///
    /// # Errors
    /// What was found: [`QueueError::Refused`] and [`QueueError::DeviceTimeout`] were seen to.
    pub fn attend(&self) -> Result<(), QueueError> {
        self.exclusively(|| match self.format.trouble(&self.port) {
            Some(trouble) => self.see_to(trouble),
            None => Ok(()),
        })
        .unwrap_or(Ok(())) // Who publishes does not wait either; the next poll looks again.
    }

    /// A device has not answered, as the host has learned elsewhere (AMD-Vi tells it in the event log; the log is to be
    /// read before completions are believed). `false`: try again.
    pub fn timed_out(&self, device: DeviceId) -> bool {
        let seen = self.exclusively(|| {
            if self.replay(Some(device)).is_none() {
                self.stuck.store(true, Ordering::Relaxed);
            }
        });
        seen.is_some()
    }

    /// A silent device was reset, and its cache is empty: it is told again. `false`: try again.
    pub fn revive(&self, device: DeviceId) -> bool {
        self.exclusively(|| self.silence.forgive(device)).is_some()
    }

    /// With the publisher's lock, if nobody has it.
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

    /// Has the slot at the head been seen to before?
    fn again(&self, head: u64) -> bool {
        self.patched.swap(head + 1, Ordering::Relaxed) == head + 1
    }

    /// Replaces what was refused by what covers it. `None`: it can't be.
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
            Instead::Coarser(_) if without!(RefusedDropped) => self.format.barrier(status),
            Instead::Coarser(coarser) if !again => coarser,
            Instead::Coarser(_) => {
                // The unit can't tell this device anything: it is not to be relied on.
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

    /// Copies what was read and is not complete behind all that is reserved, and lets nothing complete before it. `None`: there
    /// is no room.
    fn replay(&self, silent: Option<DeviceId>) -> Option<()> {
        self.refresh();
        let (base, head) = (self.base(), self.head());
        let status = self.port.status_address();
        let lost = || (base..head.max(base)).map(|at| self.read(at));
        match silent {
            Some(device) => self.silence.strike(core::iter::once(device)),
            // Any of them.
            None => self.silence.strike(lost().filter_map(|slot| self.format.device(slot))),
        }
        let own =
            || lost().filter(|s| self.format.is_command(*s) && self.format.device(*s).is_none());
        let told = || {
            let silent = |slot| self.format.device(slot).is_none_or(|d| self.silence.is_silent(d));
            lost().filter(move |slot| !silent(*slot))
        };
        // As in a submission. Waits of those whose slots are copied do not know what was lost.
        let barrier = told().next().map(|_| self.format.barrier(status));
        let copied = || own().chain(barrier).chain(told()).filter(|_| !without!(LostForgotten));
        let count = copied().count() as u64 + 1;
        // This room is there for recovery: it is taken whatever submitters have.
        self.taken.fetch_add(count, Ordering::Relaxed);
        let from = self.reserved.fetch_add(count, Ordering::AcqRel); // [Q11]: who reserves next knows what `base` stands for
        let end = from + count;
        if end - base >= self.slots {
            return None; // Nothing is published behind a hole, and nothing completes any more.
        }
        self.gate.store(end, Ordering::Release); // [Q7]
        (from..).zip(copied()).for_each(|(at, slot)| self.write(at, slot));
        self.write(end - 1, self.format.wait(status, end));
        // ORDERING: Release pairs with the load in `base`: what was lost is copied, and its slots may be written again.
        self.floor.store(head.max(base), Ordering::Release);
        self.written(from, end);
        Some(())
    }
}

//! A domain's invalidations: collected per CPU, submitted to every unit, tracked until complete.
//!
//! # How to use it
//! Clear the entry. [`note`](Engine::note) what was cleared, and keep the [`Token`] with what may
//! not be reused: address range, data page, table page. [`flush`](Engine::flush) when enough has
//! been noted or enough time has passed. Reuse when the token [is complete](Engine::is_complete). A
//! caller that can't go on before that [waits](Engine::wait).
//!
//! ```
//! use shootdown_dma::invalidate::{Engine, Promotion, model::Model};
//! use shootdown_dma::{DeviceId, DomainId, IovaRange};
//!
//! let iommu = Model::new(1);
//! let engine = Engine::new(2, [(&iommu, DomainId(7))], Promotion::DEFAULT)?;
//! let attachment = engine.attach(0, DeviceId(3), true)?;
//! iommu.attach(DeviceId(3), DomainId(7), true);
//!
//! let page = IovaRange::new(0x100, 1).expect("one page");
//! iommu.map(DomainId(7), 0x100, 42);
//! assert_eq!(iommu.access(DeviceId(3), 0x100), Some(42));
//!
//! // Unmap: the entry is cleared, but the device reaches the page as before.
//! iommu.unmap(DomainId(7), 0x100);
//! let token = engine.note(0, page, true);
//! assert_eq!(iommu.access(DeviceId(3), 0x100), Some(42));
//! assert!(!engine.is_complete(token));
//!
//! engine.flush(0);
//! engine.wait(token, &mut || { iommu.step(); true })?;
//! assert_eq!(iommu.access(DeviceId(3), 0x100), None); // nobody reaches it any more
//! iommu.detach(DeviceId(3));
//! engine.detach(attachment, &mut || { iommu.step(); true }).map_err(|(error, _seat)| error)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The protocol
//! Each CPU number has a lane (`lane.rs`); a wrong number costs speed, never safety. The domain has
//! one more lane, the **whole** lane, whose batches are invalidations of the whole domain (or of
//! everything, where that is cheaper: `promotion.rs`). Timers use it
//! ([`flush_all`](Engine::flush_all)): what is pending in other lanes becomes part of its batch,
//! and each lane completes when the batch does. A caller that finds all lanes locked uses it too:
//! noting there takes no lock, only the number of the next batch to be *started*.
//!
//! # Why a token covers what was cleared (I4)
//! In a lane, the batch is still open when the token is taken, and is closed under the same lock.
//! The whole lane has no lock for noting, but a pair of fences:
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | E1 entry cleared, fence, `started` read | SeqCst fence | E2 | a CPU that reads that batch n has not started has cleared the entry before the fence of batch n, hence before any of its commands |
//! | E2 `started` raised to n, fence (that of M2), commands submitted | SeqCst fence | E1 | as E1; without the two fences a unit could execute the commands of batch n before the entry is cleared, and walk to it again |
//!
//! The whole lane counts flushes when they start, and again when they are complete. A token names
//! the first flush that has not started, so the flush that completes it has begun after the token
//! was taken. Reading *completed* or *submitted* instead would count a flush that began before the
//! entry was cleared.

use alloc::vec::Vec;

use crate::addr::{DomainId, IovaRange};
use crate::fixed::{Fixed, NoMemory};
use crate::serial;
use crate::sync::{AtomicU64, Ordering, fence};

use super::lane::{IN_FLIGHT, Lane, Slot};
use super::members::Member;
use super::pending::{SPANS, Span};
use super::promotion::Promotion;
use super::unheard::Unheard;
use super::{QueueError, Unit};

/// Batches of the whole domain under way, beyond which a caller that joins them waits: the one that
/// the units execute, and the next. All callers that come meanwhile share the one after that.
pub(super) const WHOLE_IN_FLIGHT: usize = 2;

/// Lanes that a note tries before it takes the whole domain.
const TRIES: usize = 4;

/// The proof of an invalidation: when it is complete, all caches have invalidated what was noted
/// before it was taken. Tokens of one CPU number mostly grow; to compare them, ask the engine that
/// returned them. Another engine never takes it as complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "what was unmapped may be reused only when its token is complete"]
pub struct Token {
    /// The engine that has returned it.
    pub(super) engine: u64,
    pub(super) lane: u32,
    pub(super) batch: u64,
}

impl Token {
    /// A token that every engine takes as complete.
    pub const DONE: Self = Self { engine: 0, lane: 0, batch: 0 };
}

/// The invalidations of one domain. See the [module](self).
#[derive(Debug)]
pub struct Engine<U> {
    pub(super) members: Fixed<Member<U>>,
    /// One for each CPU number, and behind them the whole lane.
    pub(super) lanes: Fixed<Lane>,
    /// The newest batch of the whole lane that has started.
    started: AtomicU64,
    promotion: Promotion,
    pub(super) unheard: Unheard,
    serial: u64,
}

impl<U: Unit> Engine<U> {
    /// Makes an engine for a domain that may have devices behind these units, with the domain's id
    /// at each unit, and with a lane for each of `cpus` CPUs (at least one).
    ///
    /// # Errors
    /// [`NoMemory`]. The units are dropped then.
    pub fn new(
        cpus: usize,
        units: impl IntoIterator<Item = (U, DomainId)>,
        promotion: Promotion,
    ) -> Result<Self, NoMemory> {
        let mut members = Vec::new();
        for (unit, domain) in units {
            members.try_reserve(1).map_err(|_| NoMemory)?;
            members.push(Member::new(unit, domain)?);
        }
        let lanes = Fixed::try_new(cpus.max(1) + 1, |_| Lane::new(members.len()))?;
        let mut members = members.into_iter();
        let members = Fixed::try_new(members.len(), |_| members.next().ok_or(NoMemory))?;
        let (started, unheard) = (AtomicU64::new(0), Unheard::new());
        Ok(Self { members, lanes, started, promotion, unheard, serial: serial::next() })
    }

    /// A number that no other engine has, and that none had before.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.serial
    }

    /// Its units, in the order of their numbers.
    pub(crate) fn units(&self) -> impl Iterator<Item = &U> {
        self.members.iter().map(|member| &member.unit)
    }

    pub(super) fn whole(&self) -> usize {
        self.lanes.len() - 1
    }

    /// Batches that a lane may have under way when a waiter submits one more.
    pub(super) fn in_flight(&self, index: usize) -> usize {
        if index == self.whole() { WHOLE_IN_FLIGHT } else { IN_FLIGHT }
    }

    /// Notes that the entries of `range` were cleared. `leaf_only`: no table page above them is
    /// going away. Never waits, never allocates; may be called from interrupts.
    ///
    /// The token covers everything that this CPU cleared in `range` before, and becomes complete
    /// after a [`flush`](Self::flush) for the same CPU number, [`flush_all`](Self::flush_all) or
    /// [`wait`](Self::wait).
    pub fn note(&self, cpu: usize, range: IovaRange, leaf_only: bool) -> Token {
        self.put(cpu, false, |lane| lane.pending.push(range, leaf_only))
    }

    /// [`note`](Self::note) for many ranges at once: one token covers all that `ranges` yields.
    pub fn note_all<I: Iterator<Item = (IovaRange, bool)>>(
        &self,
        cpu: usize,
        ranges: impl Fn() -> I,
    ) -> Token {
        self.put(cpu, false, |lane| {
            for (range, leaf_only) in ranges() {
                if lane.pending.is_everything() {
                    break;
                }
                lane.pending.push(range, leaf_only);
            }
        })
    }

    /// Notes that any entries of the domain were cleared, tables among them: the IOMMU invalidates
    /// the domain (or everything, where that is cheaper), and devices invalidate all. For buffers
    /// that were mapped once, and for domains that go away.
    pub fn note_everything(&self, cpu: usize) -> Token {
        self.put(cpu, false, |lane| lane.pending.push_everything())
    }

    /// [`note`](Self::note), and submits the batch at once: for a caller that is going to wait.
    ///
    /// If so many commands are ahead in a unit's queue that waiting for them costs more than
    /// refilling all caches of the domain, the range becomes part of the next batch of the whole
    /// domain, together with all calls until that batch starts. The same is done as long as such a
    /// batch is under way: the caches have to be refilled anyway.
    pub fn invalidate(&self, cpu: usize, range: IovaRange, leaf_only: bool) -> Token {
        let joins = !self.lanes[self.whole()].is_idle()
            || self.members.iter().any(|member| member.is_behind(&self.promotion));
        if joins {
            return self.join_whole();
        }
        self.put(cpu, true, |lane| lane.pending.push(range, leaf_only))
    }

    fn put(&self, cpu: usize, submit: bool, push: impl Fn(&Lane)) -> Token {
        let cpus = self.whole();
        // Reduced first, so that the sum does not wrap: a number may be the largest there is.
        let first = cpu % cpus;
        for index in (0..cpus.min(TRIES)).map(|i| (first + i) % cpus) {
            let lane = &self.lanes[index];
            if lane.try_lock() {
                push(lane);
                let token = self.token(index);
                if submit {
                    if let Err(error) = self.flush_held(index, false) {
                        self.put_down(error);
                    }
                } else if lane.unlock() {
                    self.flush_lane(index, true);
                }
                return token;
            }
        }
        self.note_whole()
    }

    /// All lanes are taken: notes the whole domain, without a lock.
    fn note_whole(&self) -> Token {
        let token = self.whole_token();
        self.flush_lane(self.whole(), true);
        token
    }

    /// The same for a caller that is going to wait: if enough is under way, its batch is shared
    /// with all calls until some of that is complete.
    fn join_whole(&self) -> Token {
        let token = self.whole_token();
        let lane = &self.lanes[self.whole()];
        if lane.has_room(WHOLE_IN_FLIGHT) {
            self.flush_lane(self.whole(), true);
        } else {
            lane.request(); // submitted by the first waiter, or by `poll`
        }
        token
    }

    fn whole_token(&self) -> Token {
        // Without the fence `started` may be read before the entry is cleared, and the batch that the
        // token names may begin before that.
        fence(Ordering::SeqCst); // [E1]
        let started = self.started.load(Ordering::Relaxed);
        let batch = started + 1;
        Token { engine: self.serial, lane: self.whole() as u32, batch }
    }

    /// A token of the open batch of a lane.
    fn token(&self, index: usize) -> Token {
        let closed = self.lanes[index].closed();
        // [I5] A batch that is submitted may have been executed before the entry was cleared.
        Token { engine: self.serial, lane: index as u32, batch: closed + 1 }
    }

    /// Submits what is pending for this CPU number. Never waits: if a unit has no room it stays
    /// pending, and [`poll`](Self::poll) tries again.
    pub fn flush(&self, cpu: usize) {
        self.flush_lane(cpu % self.whole(), false);
    }

    /// Submits the token's batch, if it is not submitted: [`flush`](Self::flush) for the holder of
    /// a token.
    pub fn submit(&self, token: Token) {
        let pending = self.lane_of(token).is_some_and(|lane| lane.closed() < token.batch);
        if pending {
            self.flush_lane(token.lane as usize, true);
        }
    }

    /// Submits an invalidation of the whole domain, which includes whatever is pending. The token
    /// covers everything that was cleared before the call. Never waits, as [`flush`](Self::flush).
    pub fn flush_all(&self) -> Token {
        self.note_whole()
    }

    /// A token that covers all that was cleared before the call, and is complete after the next
    /// [`flush_all`](Self::flush_all). For a caller that collects what many CPUs defer and submits
    /// all of it at once: it notes nothing, and enters no lane.
    pub fn token_of_all(&self) -> Token {
        self.whole_token()
    }

    /// The number of the lane that the token's batch is in; `None`: it is one of the whole domain.
    pub(crate) fn lane_number(&self, token: Token) -> Option<usize> {
        Some(token.lane as usize).filter(|lane| *lane < self.whole())
    }

    /// Whether the token's batch is submitted. If not, it is complete only after a flush.
    #[must_use]
    pub fn is_submitted(&self, token: Token) -> bool {
        self.lane_of(token).map_or(token == Token::DONE, |lane| lane.closed() >= token.batch)
    }

    /// The lane of a token, if the token is ours.
    pub(super) fn lane_of(&self, token: Token) -> Option<&Lane> {
        (token.engine == self.serial).then(|| &self.lanes[token.lane as usize])
    }

    /// Submits the lane's open batch; `force`: even if nothing is pending, since a token of it
    /// exists. An error that lasts comes up again when `poll` or a waiter tries the batch again.
    fn flush_lane(&self, index: usize, force: bool) {
        if let Err(error) = self.try_flush(index, force) {
            self.put_down(error);
        }
    }

    /// The same, and returns the error if it was not submitted. If another CPU holds the lock, that
    /// CPU submits it, and the result is `Ok`.
    pub(super) fn try_flush(&self, index: usize, force: bool) -> Result<(), QueueError> {
        if self.lanes[index].try_lock_or_request() { self.flush_held(index, force) } else { Ok(()) }
    }

    /// The same with the lane's lock, which it leaves.
    fn flush_held(&self, index: usize, mut force: bool) -> Result<(), QueueError> {
        let lane = &self.lanes[index];
        loop {
            force |= lane.take_request();
            let submitted = if index == self.whole() {
                self.submit_whole()
            } else {
                self.submit_lane(lane, force)
            };
            if submitted.is_err() {
                lane.request(); // submitted by `poll`
            }
            if !lane.unlock() || submitted.is_err() || !lane.try_lock_or_request() {
                return submitted;
            }
            force = true;
        }
    }

    /// Called with the lane's lock. If it fails, not all units have the commands, and the batch
    /// stays open.
    fn submit_lane(&self, lane: &Lane, force: bool) -> Result<(), QueueError> {
        if lane.pending.is_empty() && !force {
            return Ok(());
        }
        let slot = lane.open_slot().ok_or(QueueError::Full)?;
        let mut spans = [Span::EMPTY; SPANS];
        match lane.pending.read(&mut spans) {
            Some(0) => slot.clear(),
            Some(count) => self.tell(&slot, Some(&spans[..count]))?,
            None => self.tell(&slot, None)?,
        }
        lane.close();
        Ok(())
    }

    /// Called with the whole lane's lock. If it fails, not all units have the commands; the batch
    /// has started and is not closed.
    fn submit_whole(&self) -> Result<(), QueueError> {
        let lane = &self.lanes[self.whole()];
        let slot = lane.open_slot().ok_or(QueueError::Full)?;
        let batch = lane.closed() + 1;
        let again = self.started.load(Ordering::Relaxed) == batch;
        self.started.store(batch, Ordering::Relaxed);
        // [E2]: the fence is that of `tell`.
        for index in 0..self.whole() {
            self.absorb(index, batch);
        }
        self.tell(&slot, None)?;
        lane.close();
        if again {
            // A token that was taken between the attempts is of the next batch.
            lane.request();
        }
        Ok(())
    }

    /// Makes what is pending in a lane part of a batch of the whole lane that has started, and is
    /// not submitted yet.
    fn absorb(&self, index: usize, whole: u64) {
        let lane = &self.lanes[index];
        if lane.pending.is_empty() || !lane.try_lock() {
            return;
        }
        if let Some(slot) = lane.open_slot() {
            let _ = lane.take_request();
            slot.follow(whole);
            lane.close();
        }
        if lane.unlock() {
            self.flush_lane(index, true);
        }
    }

    /// Submits commands to all units of the domain.
    fn tell(&self, slot: &Slot<'_>, spans: Option<&[Span]>) -> Result<(), QueueError> {
        // Without the fence a unit may execute the commands before an entry is cleared that they are
        // to cover, and a device that is being listed may be missed.
        fence(Ordering::SeqCst); // [M2] [E2]
        slot.clear();
        for (unit, member) in self.members.iter().enumerate() {
            // After a failure the next attempt submits to units again that have the commands: that
            // is harmless.
            if let Some(ticket) = member.tell(spans, &self.promotion)? {
                slot.set(unit, ticket.0);
            }
        }
        Ok(())
    }
}

//! When is a flush over? Waiting for the acknowledgements of those who were notified.

use crate::base::cpu_set::{Bits, GROUP, WORD};
use crate::base::ids::{CpuId, Generation};
use crate::base::sync::{Ordering, prefetch};
use crate::ops::flush::paravirt::mark_late;
use crate::ops::flush::{Change, FlushError};
use crate::ops::respond;
use crate::ops::tree::READ_AHEAD;
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::policy::Lazy;
use crate::state::cpu::{Loaded, PerCpu, View};
use crate::state::space::AddressSpace;

/// A flush that was begun and must be waited for. Dropped before it is done, it leaves its change
/// [pending](AddressSpace::complete_pending).
#[must_use = "what the flush covers may be reused only when the ticket says so"]
pub struct Ticket<'a, P: Platform> {
    /// Until all have acknowledged. Dropped with the ticket before that, it is pending.
    pub(super) change: Option<Change<'a, P>>,
    pub(super) generation: Generation,
    pub(super) waiting: CpuSetOf<P>,
}

impl<P: Platform> AddressSpace<P> {
    /// Step 7, with pull delivery: group by group, in the order in which they were notified.
    pub(super) fn wait_for_acknowledgements(
        &self,
        pin: &P::Pin,
        answer: u64,
        freed_tables: bool,
        targets: &CpuSetOf<P>,
    ) -> Result<(), FlushError> {
        let asked = Asked { id: self.id().get(), answer, freed_tables };
        for (w, word) in targets.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            for first in (0..WORD).step_by(GROUP) {
                let group = word >> first & ((1 << GROUP) - 1);
                if group != 0 {
                    asked.wait_for_group::<P>(pin, w * WORD + first, group)?;
                }
            }
        }
        Ok(())
    }
}

/// What an acknowledgement must cover.
#[derive(Clone, Copy)]
struct Asked {
    id: u64,
    answer: u64,
    freed_tables: bool,
}

impl Asked {
    fn is_done<P: Platform>(self, state: &PerCpu<P>) -> bool {
        is_done(state, self.id, self.answer, self.freed_tables)
    }

    /// Waits for CPUs that were notified at once. The last of them is probably the last to
    /// acknowledge; when something happens to its line, the others have probably acknowledged
    /// too, and their lines can travel together with it.
    #[inline(never)]
    fn wait_for_group<P: Platform>(
        self,
        pin: &P::Pin,
        first: usize,
        group: u64,
    ) -> Result<(), FlushError> {
        let cpus = |mut bits: u64| {
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32
                Some(CpuId(first as u32 + bit))
            })
        };
        let last = 1 << group.ilog2();
        let expect = |ahead: &mut dyn Iterator<Item = CpuId>, lines: usize| {
            for state in ahead.take(lines).filter_map(P::slot) {
                prefetch(&state.shared);
            }
        };
        for cpu in cpus(last) {
            self.wait_for::<P>(pin, cpu, &|| expect(&mut cpus(group ^ last), READ_AHEAD))?;
        }
        let mut ahead = cpus(group ^ last).skip(READ_AHEAD);
        for cpu in cpus(group ^ last) {
            expect(&mut ahead, 1);
            self.wait_for::<P>(pin, cpu, &|| {})?;
        }
        Ok(())
    }

    /// Could these words ([`PerCpu::published`]) be an acknowledgement?
    fn is_acknowledged_by<P: Platform>(self, (loaded, acked): (u64, u64)) -> bool {
        let loaded = Loaded(loaded);
        let lazy = P::policy().lazy == Lazy::CatchUp && loaded.is_lazy();
        loaded != Loaded::SWITCHING
            && (loaded.id() != self.id || acked >= self.answer || lazy && !self.freed_tables)
    }

    /// Waits for one CPU; `awake` is called when something may have happened.
    #[inline(never)]
    fn wait_for<P: Platform>(
        self,
        pin: &P::Pin,
        cpu: CpuId,
        awake: &dyn Fn(),
    ) -> Result<(), FlushError> {
        let Some(state) = P::slot(cpu) else { return Ok(()) };
        let mut turn = 0;
        while !self.is_done(state) {
            if mark_late::<P>(cpu) {
                break;
            }
            // `relax` may sleep until the line that was looked at last changes: look at the one the
            // acknowledgement comes on, and sleep only if it says what it said before the
            // acknowledgement was missing.
            let before = state.published();
            if self.is_done(state) {
                break;
            }
            // It may have said something else in between, and now say that it has acknowledged:
            // then it must not sleep.
            let same = state.published() == before;
            if same && !self.is_acknowledged_by::<P>(before) {
                if P::relax(pin).is_err() {
                    return Err(FlushError::Stalled(cpu));
                }
                prefetch(&state.shared);
                awake();
                if self.is_done(state) {
                    break;
                }
            }
            respond::serve_turn::<P>(pin, &mut turn);
        }
        Ok(())
    }
}

/// Does this CPU make no access any more through entries of space `id` older than the generation
/// `acknowledge`, without looking at the generation first? (Where hardware broadcasts and says too
/// early that it is done, `acknowledge` is the number of that; see
/// [`broadcast`](super::broadcast).)
///
/// The state and the acknowledged generation are two words, read in this order. If the state names
/// the space, the acknowledgement read after it was stored in that stay of the CPU in the space,
/// and says so; or later, elsewhere: then the CPU had left, and if it has come back since, it
/// looked at the generation on its way, after the initiator's fence (D1: the state read here, after
/// that fence, is older). The other order is wrong: between the two reads a CPU can arrive in the
/// space, with the generation that it looked up before the change was counted, and what was read
/// first is the generation of the space it came from.
pub(super) fn is_done<P: Platform>(
    state: &PerCpu<P>,
    id: u64,
    answer: u64,
    freed_tables: bool,
) -> bool {
    match state.remote_view(id) {
        View::Elsewhere => true,
        View::Switching => false,
        View::Lazy if !freed_tables && P::policy().lazy == Lazy::CatchUp => true,
        // ORDERING: F3: Acquire, with the Release in `catch_up` and in `switch_to`; after the
        // state, whose Acquire pairs with the Release that ends `switch_to`
        View::Active | View::Lazy => state.shared.acked.load(Ordering::Acquire) >= answer,
    }
}

impl<P: Platform> Ticket<'_, P> {
    /// The generation the change was given.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Has everyone acknowledged? Never waits; may be asked on any CPU, in tasks and in handlers
    /// that are maskable ([`context`](crate::context)).
    #[must_use]
    pub fn poll(&mut self) -> bool {
        let Some(Change { space, request, answer, .. }) = &self.change else { return true };
        let (id, answer, freed_tables) = (space.id().get(), *answer, request.freed_tables);
        let waiting = self.waiting;
        for cpu in waiting.iter() {
            let done = P::slot(cpu)
                .is_none_or(|s| is_done(s, id, answer, freed_tables) || mark_late::<P>(cpu));
            if !done {
                return false;
            }
            self.waiting.remove(cpu);
        }
        self.acknowledged();
        true
    }

    /// Everyone has.
    fn acknowledged(&mut self) {
        let Some(change) = self.change.take() else { return };
        let pin = P::pin();
        let me = PerCpu::<P>::here(&pin);
        let space = change.space;
        if change.looks_again {
            space.after_asking(&pin, me, change.request, change.generation());
        }
        space.completed_by(me, change);
    }

    /// Waits until everyone has. Never in a non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// The ticket, with [`FlushError::WouldWait`] or [`FlushError::Stalled`].
    pub fn wait(mut self, pin: &P::Pin) -> Result<(), (FlushError, Self)> {
        if !respond::may_wait(PerCpu::<P>::here(pin)) {
            return if self.poll() { Ok(()) } else { Err((FlushError::WouldWait, self)) };
        }
        let Some(Change { space, request, answer, .. }) = &self.change else { return Ok(()) };
        match space.wait_for_acknowledgements(pin, *answer, request.freed_tables, &self.waiting) {
            Ok(()) => {
                self.acknowledged();
                Ok(())
            }
            Err(e) => Err((e, self)),
        }
    }
}

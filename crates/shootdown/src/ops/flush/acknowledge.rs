//! When a flush is over: waiting for the acknowledgements of the CPUs that were notified.

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

/// A flush that was begun and must be waited for. A ticket that is dropped before the flush is done
/// leaves the change [pending](AddressSpace::complete_pending).
#[must_use = "what the flush covers may be reused only when the ticket says so"]
pub struct Ticket<'a, P: Platform> {
    /// The change, until all CPUs have acknowledged. When it is dropped with the ticket before
    /// that, it stays pending.
    pub(super) change: Option<Change<'a, P>>,
    pub(super) generation: Generation,
    pub(super) waiting: CpuSetOf<P>,
}

impl<P: Platform> AddressSpace<P> {
    /// Step 7, with pull delivery: waits group by group, in the order in which the CPUs were
    /// notified.
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
    /// acknowledge. When its line changes, the others have probably acknowledged too, and their
    /// lines are prefetched so that the transfers overlap.
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

    /// Waits for one CPU; calls `awake` when something may have happened.
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
            // `relax` may sleep until the line that was read last changes. So read the line that
            // the acknowledgement is stored in, and sleep only if it still has the value that it
            // had before the acknowledgement was found missing.
            let before = state.published();
            if self.is_done(state) {
                break;
            }
            // The line may have changed in between and contain the acknowledgement now: then this
            // CPU must not sleep.
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

/// Has this CPU stopped making accesses through entries of space `id` older than the generation
/// `answer`, unless it looks at the generation first? (Where hardware broadcasts and reports
/// completion too early, `answer` is the number of a broadcast instead; see
/// [`broadcast`](super::broadcast).)
///
/// The state and the acknowledged generation are two words, read in this order. If the state names
/// the space, the acknowledgement read after it was stored in one of two situations. Either the CPU
/// stored it in that stay in the space, and the generation decides. Or the CPU stored it later,
/// elsewhere: then it had left the space, and if it has come back since, it looked at the
/// generation on its way, after the initiator's fence (D1: the state read here, after that fence,
/// is older). The other order is wrong: between the two reads a CPU can arrive in the space with
/// the generation that it read before the change was counted, and the acknowledgement read first
/// then belongs to the space that it came from.
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
    /// The generation that the change was given.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Have all CPUs acknowledged? It never waits; any CPU may call it, in tasks and in maskable
    /// handlers ([`context`](crate::context)).
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

    /// All CPUs have acknowledged.
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

    /// Waits until all CPUs have acknowledged. Never in a non-maskable handler
    /// ([`context`](crate::context)).
    ///
    /// # Errors
    /// Returns the ticket, with [`FlushError::WouldWait`] or [`FlushError::Stalled`].
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

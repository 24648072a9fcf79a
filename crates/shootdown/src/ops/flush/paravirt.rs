//! Handing CPUs over to the hypervisor ([`paravirt`](crate::paravirt) has the argument): after it
//! is known who must be notified, and before anyone is; and once more those that are preempted
//! while they are waited for.

use crate::base::cpu_set::Bits;
use crate::base::ids::{CpuId, VaRange};
use crate::ops::flush::{Change, Counted, Started};
use crate::port::family;
use crate::port::paravirt::{Of, PreemptedWord, RemoteFlush, Runs};
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::{Invalidate, Regime};
use crate::state::cpu::{PerCpu, View};
use crate::state::space::AddressSpace;
use crate::tags::shared::Phase;

impl<P: Platform> AddressSpace<P> {
    /// Takes those out of the targets that the hypervisor sees to.
    pub(super) fn hand_over(
        &self,
        me: &PerCpu<P>,
        change: &mut Change<'_, P>,
        started: &mut Started<P>,
    ) {
        let Started { targets, trim, .. } = started;
        // Who is to load another tag must run for it.
        if family::shared::<P>().is_some() && self.shared_tag().phase() != Phase::Slots {
            return;
        }
        for cpu in preempted_of::<P>(targets).iter() {
            // In a large set, which is not filtered, some have nothing to forget.
            let state = P::slot(cpu);
            let elsewhere = state.is_none_or(|s| s.remote_view(self.id().get()) == View::Elsewhere);
            if elsewhere || mark::<P>(me, cpu) {
                targets.remove(cpu);
            }
        }
        // Nobody waits for a preempted CPU to be asked a courtesy.
        for cpu in preempted_of::<P>(trim).iter() {
            trim.remove(cpu);
        }
        if !is_worth_a_hypercall::<P>(targets) {
            return;
        }
        if P::policy().is_large(targets.len()) {
            *trim = self.filter(me, targets, change.hint, Counted::Before);
            if !is_worth_a_hypercall::<P>(targets) {
                return;
            }
        }
        let request = change.request;
        // No generation tells those CPUs what else they have missed.
        let ranges = P::policy().ranges && !self.has_outstanding(change.changes);
        let range = request.step(P::Regime::facts().ceiling).range.filter(|_| ranges);
        if hypercall(me, targets, Of::Space(self.root()), range, request.freed_tables) {
            change.by_name = range.is_some();
            *targets = CpuSetOf::<P>::EMPTY;
            *trim = CpuSetOf::<P>::EMPTY;
        }
    }
}

/// Takes those out of `targets`, which does not hold this CPU, that the hypervisor sees to.
pub(super) fn hand_over_everywhere<P: Platform>(
    me: &PerCpu<P>,
    what: Invalidate,
    targets: &mut CpuSetOf<P>,
) {
    for cpu in preempted_of::<P>(targets).iter() {
        if mark::<P>(me, cpu) {
            targets.remove(cpu);
        }
    }
    if !is_worth_a_hypercall::<P>(targets) {
        return;
    }
    let (range, everything) = match what {
        Invalidate::Kernel(range) => (Some(range), false),
        _ => (None, true),
    };
    if hypercall(me, targets, Of::All, range, everything) {
        *targets = CpuSetOf::<P>::EMPTY;
    }
}

/// Those that do not run, as it looks.
fn preempted_of<P: Platform>(set: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut preempted = CpuSetOf::<P>::EMPTY;
    let stopped = |cpu: &CpuId| P::preempted(*cpu).is_some_and(PreemptedWord::is_preempted);
    set.iter().filter(stopped).for_each(|cpu| preempted.insert(cpu));
    preempted
}

/// A CPU that was notified and has not acknowledged: may it be left a mark by now? It may have been
/// preempted before the interrupt arrived.
pub(super) fn mark_late<P: Platform>(cpu: CpuId) -> bool {
    if !P::preempted(cpu).is_some_and(PreemptedWord::is_preempted) {
        return false;
    }
    mark(PerCpu::<P>::here(&P::pin()), cpu)
}

fn mark<P: Platform>(me: &PerCpu<P>, cpu: CpuId) -> bool {
    let marked = P::preempted(cpu).is_some_and(|word| word.mark());
    me.stats.marked_preempted.add(u64::from(marked));
    marked
}

fn is_worth_a_hypercall<P: Platform>(targets: &CpuSetOf<P>) -> bool {
    let from = P::policy().hypercall_from;
    from != 0 && targets.len() >= u32::from(from)
}

/// Have these CPUs forgotten?
fn hypercall<P: Platform>(
    me: &PerCpu<P>,
    cpus: &CpuSetOf<P>,
    of: Of<<P::Regime as Regime>::Root>,
    range: Option<VaRange>,
    freed_tables: bool,
) -> bool {
    let flush = RemoteFlush { cpus, of, pages: range.and_then(Runs::of), freed_tables };
    if P::flush_remote(&flush).is_err() {
        me.stats.hypercall_failed.inc();
        return false;
    }
    me.stats.handed_to_hypervisor.add(u64::from(cpus.len()));
    true
}

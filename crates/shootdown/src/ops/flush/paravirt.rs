//! Handing CPUs over to the hypervisor ([`paravirt`](crate::paravirt) has the argument). The
//! initiator does it when it knows which CPUs must be notified, and before it notifies any; and
//! once more for CPUs that are preempted while it waits for them.

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
    /// Removes from the targets the CPUs that the hypervisor takes care of.
    pub(super) fn hand_over(
        &self,
        me: &PerCpu<P>,
        change: &mut Change<'_, P>,
        started: &mut Started<P>,
    ) {
        let Started { targets, trim, .. } = started;
        // The space is moving to a global tag, and a CPU must run to load that tag.
        if family::shared::<P>().is_some() && self.shared_tag().phase() != Phase::Slots {
            return;
        }
        for cpu in preempted_of::<P>(targets).iter() {
            // A large set is not filtered, so some of its CPUs have nothing to invalidate.
            let state = P::slot(cpu);
            let elsewhere = state.is_none_or(|s| s.remote_view(self.id().get()) == View::Elsewhere);
            if elsewhere || mark::<P>(me, cpu) {
                targets.remove(cpu);
            }
        }
        // A preempted CPU is not asked to leave the set: that is optional and not worth a wait.
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
        // Those CPUs do not compare generations, so the flush must cover whatever else is pending.
        let ranges = P::policy().ranges && !self.has_outstanding(change.changes);
        let range = request.step(P::Regime::facts().ceiling).range.filter(|_| ranges);
        if hypercall(me, targets, Of::Space(self.root()), range, request.freed_tables) {
            change.by_name = range.is_some();
            *targets = CpuSetOf::<P>::EMPTY;
            *trim = CpuSetOf::<P>::EMPTY;
        }
    }
}

/// Removes from `targets`, which does not contain this CPU, the CPUs that the hypervisor takes care
/// of.
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

/// The CPUs of `set` that do not run at the moment.
fn preempted_of<P: Platform>(set: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut preempted = CpuSetOf::<P>::EMPTY;
    let stopped = |cpu: &CpuId| P::preempted(*cpu).is_some_and(PreemptedWord::is_preempted);
    set.iter().filter(stopped).for_each(|cpu| preempted.insert(cpu));
    preempted
}

/// A CPU was notified and has not acknowledged: can it be marked now? It may have been preempted
/// before the interrupt arrived.
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

/// Asks the hypervisor to make these CPUs invalidate; returns whether it has done so.
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

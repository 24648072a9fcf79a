//! What the hypervisor does for the guest, and what the guest sees of it.
//!
//! Each virtual CPU has a byte on a line of its own that says whether it is preempted
//! ([`PreemptedWord`]). A hypercall names CPUs and pages. The hypervisor makes those that are away
//! forget at once, before they run again; it forces those that run to leave the guest and forget,
//! and waits until they have. That wait needs nothing of the guest: a CPU whose interrupts are off
//! leaves it too.

use std::alloc::Layout;
use std::ptr::NonNull;

use shootdown::cpu_set::Bits;
use shootdown::paravirt::{HypercallError, PreemptedWord, RemoteFlush, Runs};
use shootdown::sync::{AtomicU64, Ordering};
use shootdown::{CpuId, Platform, Stride, VaRange};

use super::state::{State, with};
use crate::engine::{self, Demand, Engine, Mode};
use crate::mmu::CpuMmu;
use crate::time::Time;

/// What the hypervisor keeps for a virtual CPU, in shared memory.
#[repr(C, align(64))]
struct Record {
    word: PreemptedWord,
    waits: Waits,
}

/// CPUs that this one's hypercall waits for.
#[repr(align(64))]
struct Waits(AtomicU64);

/// What a CPU that was forced out of the guest is to forget, and who waits for it.
struct Named {
    pages: Option<Runs>,
    by: u32,
}

/// The hypervisor's part of the kernel's state.
pub(crate) struct HostState {
    /// The guest sees who is preempted.
    marks: bool,
    records: Vec<NonNull<u8>>,
    named: Vec<Vec<Named>>,
}

impl HostState {
    /// For so many CPUs.
    pub fn new(cpus: u32, marks: bool, engine: &mut Engine) -> Self {
        let record = |_| {
            let block = engine.alloc(Layout::new::<Record>());
            let record = Record { word: PreemptedWord::new(), waits: Waits(AtomicU64::new(0)) };
            // SAFETY: the block was allocated with this layout, and nothing refers to it yet.
            unsafe { block.cast::<Record>().write(record) };
            block
        };
        Self {
            marks,
            records: (0..cpus).map(record).collect(),
            named: (0..cpus).map(|_| Vec::new()).collect(),
        }
    }

    fn record(&self, cpu: usize) -> &'static Record {
        // SAFETY: `new` made a `Record` there; the arena outlives the run.
        unsafe { self.records[cpu].cast().as_ref() }
    }
}

impl State {
    fn host(&mut self) -> &mut HostState {
        self.host.as_mut().expect("demands come from a hypervisor")
    }
}

/// The word of a CPU, where the guest sees it.
pub(super) fn preempted(cpu: CpuId) -> Option<&'static PreemptedWord> {
    with(|s| {
        let host = s.host.as_ref().filter(|host| host.marks)?;
        Some(&host.record(cpu.index()).word)
    })
}

/// What the hypervisor's demands do.
pub(crate) fn on_demand(demand: Demand) {
    let me = engine::cpu() as usize;
    let word = with(|s| &s.host().record(me).word);
    match demand {
        // SAFETY: the machine runs nothing on a CPU between this demand and the next.
        Demand::Stopped => unsafe { word.stopped() },
        Demand::Resumes => {
            // SAFETY: the CPU runs when this returns: it forgets before.
            if unsafe { word.resumes() } {
                forget(me, None);
            }
        }
        Demand::Forced => {
            for named in with(|s| std::mem::take(&mut s.host().named[me])) {
                forget(me, named.pages.as_ref());
                let waits = with(|s| &s.host().record(named.by as usize).waits.0);
                waits.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// A CPU forgets pages, or everything; the executing one pays.
fn forget(cpu: usize, pages: Option<&Runs>) {
    let cost = with(|s| {
        let mmu: &mut CpuMmu = s.mmus.of(cpu);
        let Some(runs) = pages else {
            mmu.invalidate_everything();
            return s.costs.everything;
        };
        let mut cost = Time::ZERO;
        for run in runs.as_slice() {
            let range = VaRange::new(run.start, u64::from(run.pages), Stride::Page4K);
            let range = range.expect("a part of a range");
            mmu.invalidate_range_of_all(range);
            cost += s.costs.page * range.count();
        }
        cost
    });
    engine::charge(cost);
}

/// The hypercall.
pub(super) fn flush_remote<P: Platform>(flush: &RemoteFlush<'_, P>) -> Result<(), HypercallError> {
    let Some(costs) = with(|s| s.host.as_ref().and(s.costs.hypervisor)) else {
        return Err(HypercallError::NotOffered);
    };
    // With freed tables too: every walk cache of a CPU is emptied.
    let irqs = engine::irqs(false);
    engine::charge(costs.exit + costs.hypercall);
    let me = engine::cpu();
    let waits = with(|s| &s.host().record(me as usize).waits.0);
    waits.store(u64::from(flush.cpus.len()), Ordering::Release);
    engine::step();
    // From here to the next access nobody else runs: whoever is away stays so.
    let (mut away, mut runs) = (Vec::new(), Vec::new());
    for cpu in flush.cpus.iter() {
        let list = if engine::is_away(cpu.0) { &mut away } else { &mut runs };
        list.push(cpu.0);
    }
    with(|s| {
        for cpu in &runs {
            s.host().named[*cpu as usize].push(Named { pages: flush.pages, by: me });
        }
    });
    engine::force(runs.into_iter(), costs.target);
    for cpu in &away {
        forget(*cpu as usize, flush.pages.as_ref());
    }
    waits.fetch_sub(away.len() as u64, Ordering::AcqRel);
    let mode = engine::mode(Mode::Waiting);
    while waits.load(Ordering::Acquire) != 0 {
        engine::relax();
    }
    engine::mode(mode);
    engine::charge(costs.entry);
    engine::irqs(irqs);
    Ok(())
}

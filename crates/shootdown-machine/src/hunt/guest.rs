//! Virtual CPUs: the adversary is their hypervisor too, and takes them away at any step.
//!
//! A CPU that is away does not run: it takes no interrupts, nothing walks, and what it has cached
//! stays. What the hypervisor does when it takes a CPU away and brings it back is the world's to
//! say ([`World::absent`](super::World::absent)); its accesses are steps like any other, so that
//! others run meanwhile.

use shootdown::{CpuId, Tag};

use super::choice::Point;
use super::hw::{Target, halt, own_step};
use super::machine::{step, stop, with};
use crate::hostile::TableId;

/// Of so many possibilities at a step, one takes the CPU away.
const CHANCES: usize = 8;

/// The adversary may take each CPU away so many times. While the world boots.
///
/// # Panics
/// While CPUs run.
pub fn virtual_cpus(times: u8) {
    with(|h| {
        assert!(!h.running, "the hardware does not change while it runs");
        h.cpus.iter_mut().for_each(|cpu| cpu.absences = times);
    });
}

/// Takes the current CPU away, if the adversary wants that; says whether it did.
pub(super) fn take_away() -> bool {
    let wanted = with(|h| {
        if !h.running || h.me().absences == 0 || h.me().away {
            return Some(false);
        }
        let cpu = h.current;
        let wanted = h.choose(&Point::Value { cpu, count: CHANCES })? == CHANCES - 1;
        h.saw(0xa3a1 ^ u64::from(wanted) << 16);
        Some(wanted)
    });
    let Some(wanted) = wanted else { stop() };
    if !wanted {
        return false;
    }
    let (world, cpu, irqs) = with(|h| {
        let me = h.me();
        me.absences -= 1;
        me.away = true;
        let irqs = std::mem::replace(&mut me.irqs_on, false);
        h.note(|| "is taken away by the hypervisor".to_owned());
        (h.world(), h.current, irqs)
    });
    // SAFETY: the world outlives the run.
    unsafe { &*world }.absent(CpuId(u32::from(cpu)));
    with(|h| {
        h.note(|| "is brought back".to_owned());
        h.me().irqs_on = irqs;
        h.me().away = false;
    });
    true
}

/// The CPU leaves the guest: nothing walks until it is back. What it had loaded.
#[must_use = "it is to be loaded again"]
pub fn leave_guest() -> Option<(TableId, Tag)> {
    let loaded = super::hw::loaded();
    halt();
    loaded
}

/// The CPU comes back to the guest, after it has forgotten everything if it was to.
pub fn enter_guest(loaded: Option<(TableId, Tag)>, forget: bool) {
    if forget {
        super::hw::witness("forgets-before-it-runs");
        super::hw::invalidate(Target::Everything);
        super::hw::sync();
    }
    own_step();
    with(|h| {
        h.drain(h.current);
        h.saw(0xe47e4);
        if let Some((root, tag)) = loaded {
            h.mmu.reload(&h.memory, h.current, root, tag);
        }
    });
}

/// What the hypervisor makes another CPU forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forget {
    /// The leaf entries of these pages, first and last, under every tag.
    Pages {
        /// The first page.
        first: u32,
        /// The last page.
        last: u32,
    },
    /// Everything.
    Everything,
}

/// The hypervisor makes a CPU forget, whether it runs or not. Both CPUs know of each other what
/// they did.
pub fn forget_on(target: CpuId, what: Forget) {
    // What the target may do next depends on it.
    step(0, false, true);
    with(|h| {
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
        let to = target.0 as u8;
        h.saw(0xf049 ^ u64::from(to) << 16);
        h.works(|work| work.remote += 1);
        h.note(|| format!("has the hypervisor make {target} forget {what:?}"));
        h.drain(h.current);
        h.drain(to);
        let (mine, its) = (h.memory.knowledge(h.current), h.memory.knowledge(to));
        h.memory.receive(to, &mine);
        h.memory.receive(h.current, &its);
        h.mmu.forget_on(&h.memory, to, what);
    });
}

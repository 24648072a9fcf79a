//! What an invalidation removes, and which accesses of other CPUs its completion waits for.

use shootdown::Tag;

use super::Stepper;
use crate::hostile::{Invalidation, Pages};
use crate::litmus::machine::{Breakage, State, Step};
use crate::litmus::program::{Place, Scope};
use crate::litmus::test::Arch;
use crate::litmus::window::View;

impl Stepper<'_> {
    pub(super) fn removal(&self, view: &View<'_>, scope: Scope) -> Invalidation {
        let number = |page| self.machine.page_number(page);
        let riscv = self.machine.test.arch == Arch::Riscv64;
        let x86 = self.machine.test.arch == Arch::X86_64;
        match scope {
            Scope::PageHere { page } => {
                Invalidation::invlpg(number(page), view.state.hw.tag(view.cpu))
            }
            Scope::Page { page, tag } if x86 => {
                Invalidation::invpcid_address(number(page), Tag(tag))
            }
            Scope::Page { page, tag } if riscv => {
                Invalidation::sfence_address_asid(number(page), Tag(tag))
            }
            Scope::Page { page, tag } => Invalidation::tlbi_va(Pages::one(number(page)), Tag(tag)),
            Scope::PageAnyTag { page } if riscv => Invalidation::sfence_address(number(page)),
            Scope::PageAnyTag { page } => Invalidation::tlbi_va_any(Pages::one(number(page))),
            Scope::LastLevel { page, tag: Some(tag) } => {
                Invalidation::tlbi_va_last(Pages::one(number(page)), Tag(tag))
            }
            Scope::LastLevel { page, tag: None } => {
                Invalidation::tlbi_va_any_last(Pages::one(number(page)))
            }
            Scope::Tag(tag) => Invalidation::tag(Tag(tag)),
            Scope::NonGlobal => Invalidation::everything_but_globals(),
            Scope::All => Invalidation::everything(),
        }
    }

    /// The accesses of other CPUs that were translated before an invalidation that covers them.
    pub(super) fn outstanding(&self, view: &View<'_>, scope: Scope) -> u128 {
        if self.machine.options.breakage == Breakage::ImpatientSync {
            return 0;
        }
        let mut mask = 0;
        for (cpu, other) in view.state.cpus.iter().enumerate().filter(|(c, _)| *c != view.cpu) {
            let view = View::new(self.machine, view.state, cpu);
            for k in 0..view.path.len() {
                let at = view.path.at(k);
                let (tag, global) = match other.steps[at] {
                    Step::Held { tag, global, .. } | Step::Half { tag, global, .. } => {
                        (tag, global)
                    }
                    Step::HeldFault { tag, .. } | Step::Faulted { tag, .. } => {
                        if view.fault_over(k) {
                            continue;
                        }
                        (tag, false)
                    }
                    _ => continue,
                };
                let Some(Place::Page(page)) = self.machine.op(cpu, at).place() else { continue };
                let same = |p| self.machine.page_number(p) == self.machine.page_number(page);
                let covered = match scope {
                    Scope::Page { page, tag: t } | Scope::LastLevel { page, tag: Some(t) } => {
                        same(page) && (global || t == tag)
                    }
                    Scope::PageAnyTag { page }
                    | Scope::PageHere { page }
                    | Scope::LastLevel { page, tag: None } => same(page),
                    Scope::Tag(t) => !global && t == tag,
                    Scope::NonGlobal => !global,
                    Scope::All => true,
                };
                if covered {
                    mask |= bit(cpu, at);
                }
            }
        }
        mask
    }
}

/// The bit of an instruction in masks of outstanding accesses.
const fn bit(cpu: usize, at: usize) -> u128 {
    1 << (cpu * super::super::parse::program::MAX_CODE + at)
}

/// The access is over: nobody waits for it any more.
pub(in crate::litmus) fn release(state: &mut State, cpu: usize, at: usize) {
    for other in &mut state.cpus {
        for step in &mut other.steps {
            if let Step::Issued { outstanding } = step {
                *outstanding &= !bit(cpu, at);
            }
        }
    }
}

//! For every invariant the steps without which it breaks, each shown in a small program.
//!
//! `shootdown check mutants` and `shootdown check zoo` ask whether *some* promise breaks: what a
//! missing step breaks first depends on the schedule. Here the question is the other way round: is
//! there, for each promise that the oracle knows, a step that keeps it? A promise that nothing can
//! break is not checked at all. The table says which steps, of the library ([`Mutant`]) and of the
//! kernel around it ([`KernelMutant`]); `shootdown list checks` shows them, and a test breaks every
//! promise with every step that is listed for it.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::hunt::{Power, Powers};
use shootdown_machine::oracle::Invariant;

use super::zoo::scenario::Step;

/// A step that keeps a promise.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// Which promise.
    pub invariant: Invariant,
    /// Which step.
    pub step: Step,
    /// A program in which the promise is broken without the step.
    pub program: &'static str,
    /// The adversary.
    pub powers: Powers,
}

const fn library(invariant: Invariant, mutant: Mutant, program: &'static str) -> Breaker {
    Breaker { invariant, step: Step::Library(mutant), program, powers: Powers::HOSTILE }
}

const fn kernel(invariant: Invariant, mutant: KernelMutant, program: &'static str) -> Breaker {
    Breaker { invariant, step: Step::Kernel(mutant), program, powers: Powers::HOSTILE }
}

impl Breaker {
    const fn with(self, power: Power) -> Self {
        Self { powers: self.powers.with(power), ..self }
    }
}

/// The table.
#[rustfmt::skip] // a row is a line
pub const BREAKERS: &[Breaker] = {
    use Invariant as I;
    use KernelMutant as K;
    use Mutant as M;
    &[
        library(I::Revocation, M::NoWait, "; switch a | unmap a0; switch a | user, user"),
        library(I::Revocation, M::LazyExitTrusts, "; switch a | protect a0; switch a, lazy | switch a, user"),
        library(I::Revocation, M::FilterSkipsActive, "; switch a | protect a0; switch a | user, user"),
        library(I::Revocation, M::UpdateElided, "; switch a | protect a0; switch a | user, user"),
        kernel(I::Revocation, K::ProtectWithoutFlush, "; switch a | protect a0; switch a | user, user"),
        kernel(I::Revocation, K::NoSync, "; switch a | protect a0, user"),
        kernel(I::FrameReuse, K::FreeFrameBeforeFlush, "; switch a | unmap a0; switch a | user, user"),
        kernel(I::FrameReuse, K::ReplaceFreesEarly, "; switch a | replace a0; switch a | user, user"),
        kernel(I::FrameReuse, K::MoveFlushesLate, "; move a0 a1; unmap a1; switch a | user, user"),
        library(I::TableReuse, M::UnloadKeepsRoot, "; switch a | free-table a0; switch a, lazy | poll"),
        library(I::TableReuse, M::LeafOnlyFreed, "; switch a | free-table a0"),
        kernel(I::TableReuse, K::FreeTableBeforeFlush, "; switch a | free-table a0; switch a | user"),
        kernel(I::TableReuse, K::FreeTableWithoutSync, "; free-table a0; walk a0"),
        library(I::WalkCacheReuse, M::LeafOnlyFreed, "; switch a | free-table a0; switch a | user, user"),
        kernel(I::WalkCacheReuse, K::FreeTableAsLeaf, "; switch a | free-table a0; switch a | user, user"),
        library(I::TagReuse, M::EvictionKeeps, "tags=on spaces=2 slots=1; switch a | user, switch b, user"),
        kernel(I::TagReuse, K::LoadKeeps, "tags=on spaces=2 slots=1; switch a | user, switch b, user"),
        library(I::MasterInvariant, M::SlotTrusts, "tags=on spaces=2; switch a, switch b | switch a, user; | protect a0"),
        library(I::MasterInvariant, M::SwitchReplaysNothing, "tags=on spaces=2; switch a, switch b | switch a, user; | protect a0"),
        kernel(I::MasterInvariant, K::LoadKeeps, "tags=on spaces=2 log=off; switch a, switch b | switch a, user; | protect a0"),
        library(I::Progress, M::OfflineDoesNotServe, "; call; offline"),
        kernel(I::Progress, K::DeafHandler, "; switch a | protect a0; switch a | user"),
        kernel(I::Progress, K::DeafSpin, "; switch a | protect a0; switch a | peek a"),
        kernel(I::OneSize, K::SplitWithoutBreak, "bits=2 large=on; switch a | split a4; switch a | user, user"),
        kernel(I::OneSize, K::MergeWithoutFlush, "bits=2 large=on; switch a | split a4, merge a4; switch a | user, user"),
        kernel(I::CopyIsolation, K::CowIgnoresPending, "; track a0; cow a0; switch a | user, user"),
        kernel(I::CopyIsolation, K::MigrateIgnoresPending, "; hint a0; migrate a0; switch a | user, user"),
        kernel(I::WriteBack, K::CleanIgnoresPending, "; zap a0; clean a0; switch a | user, user"),
        library(I::UpgradeSoundness, M::SpuriousStays, "arch=riscv; map a1; switch a | write a1, write a1"),
        kernel(I::UpgradeSoundness, K::SpuriousFaultStays, "arch=riscv; map a1; switch a | write a1, write a1"),
        library(I::CallCompletes, M::CallGivesUp, "; call; switch a | user"),
        library(I::CallCompletes, M::CallErrorForgotten, "; call; switch a | user").with(Power::FailingKicks),
        library(I::AccessedBound, M::AgeIgnored, "accessed=generation; age a0; switch a | tick, tick"),
        library(I::AccessedBound, M::DueIgnored, "accessed=switch tags=on spaces=2; age a0; switch a | switch b, switch a"),
        library(I::RangeReuse, M::LazyUnmapStaysInTheWay, "lazy=on; lazy-unmap a0, map a0; switch a | user, user"),
        library(I::RangeReuse, M::LazyUnmapForgetsRanges, "lazy=on pages=2; lazy-unmap a0, lazy-unmap a1, map a0; switch a | user, user"),
        kernel(I::RangeReuse, K::MapIgnoresPending, "lazy=on; lazy-unmap a0, map a0; switch a | user, user"),
        library(I::LazyBound, M::LazyUnmapTickForgotten, "lazy=on; lazy-unmap a0; switch a | tick, tick"),
        library(I::LazyBound, M::LazyUnmapSwitchForgotten, "lazy=on; lazy-unmap a0; switch a | switch a, switch a"),
        library(I::LazyBound, M::LazyUnmapEntryForgotten, "lazy=on isolated=on; lazy-unmap a0; switch a | user, user"),
        library(I::LazyBound, M::LazyUnmapStaysHere, "lazy=on; switch a | lazy-unmap a0"),
        library(I::FrameReuse, M::LazyUnmapFlushesNothing, "lazy=on; lazy-unmap a0, redeem a; switch a | user, user"),
        library(I::FrameReuse, M::LazyUnmapIsolatedCounted, "lazy=on isolated=on; lazy-unmap a0, expire a; switch a | user, user"),
        library(I::WriteBack, M::LazyUnmapTakesWritten, "lazy=on; grant a0 | lazy-unmap a0; switch a | user, user"),
        library(I::WriteBack, M::LazyUnmapIgnoresPending, "lazy=on; grant a0 | track a0; lazy-unmap a0; switch a | user, user"),
        kernel(I::WriteBack, K::LazyUnmapOverlooksDirty, "lazy=on; grant a0 | lazy-unmap a0; switch a | user, user"),
        library(I::SpaceReuse, M::RetireIgnoresSwitching, "; retire a; switch a, lazy | leave"),
        kernel(I::SpaceReuse, K::RetireWithoutAsking, "; retire a; switch a, lazy | leave"),
        library(I::ErrorsTotal, M::OfflineDoesNotLeave, "; switch a | offline, online"),
    ]
};

/// The names of the steps without which a promise breaks.
#[must_use]
pub fn of(invariant: Invariant) -> Vec<&'static str> {
    let mut names: Vec<_> =
        BREAKERS.iter().filter(|b| b.invariant == invariant).map(|b| b.step.name()).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use shootdown_machine::hunt::kernel::Program;
    use shootdown_machine::hunt::schedule::Strategy;
    use shootdown_machine::hunt::{Bounds, Chooser, End, Outcome, run};

    use super::*;
    use crate::check::steps::Planted;

    /// Schedules by turns at random and by priorities.
    fn schedules(
        run: &mut dyn FnMut(&mut dyn Chooser) -> Outcome,
    ) -> impl Fn(u64) -> Box<dyn Chooser> + use<> {
        let strategies = [Strategy::random(1), Strategy::pct(1, 3, Strategy::length_of(run))];
        move |number| strategies[(number % 2) as usize].chooser(number / 2)
    }

    fn breaks(outcome: &Outcome, invariant: Invariant) -> bool {
        matches!(&outcome.end, End::Violation(violation) if violation.invariant == invariant)
    }

    #[test]
    fn every_promise_can_be_broken() {
        for invariant in Invariant::ALL {
            assert!(!of(invariant).is_empty(), "nothing breaks {invariant}: is it checked?");
        }
    }

    /// The section of the book's page, with its lines joined.
    fn section(page: &str, name: &str) -> String {
        let head = format!("\n## {name}\n");
        let (_, rest) = page.split_once(&head).unwrap_or_else(|| panic!("no section `{name}`"));
        let body = rest.split("\n## ").next().unwrap_or_default();
        body.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_book_explains_every_promise_as_the_oracle_has_it() {
        let page = include_str!("../../../../docs/src/invariants.md");
        for invariant in Invariant::ALL {
            let text = section(page, invariant.name());
            let sentence = invariant.sentence();
            let (first, rest) = sentence.split_at(1);
            let sentence = format!("*{}{rest}.*", first.to_uppercase());
            assert!(text.starts_with(&sentence), "{invariant}: not {sentence}\n{text}");
            for part in ["- **Checked** ", "- **Upheld** ", "- **Mutants**: "] {
                assert!(text.contains(part), "{invariant} has no {part}");
            }
            let (_, mutants) = text.split_once("- **Mutants**: ").unwrap();
            for name in of(invariant) {
                assert!(mutants.contains(&format!("`{name}`")), "{invariant} does not name {name}");
            }
            for name in mutants.split('`').skip(1).step_by(2) {
                assert!(
                    of(invariant).contains(&name),
                    "`{name}` is not shown to break {invariant}"
                );
            }
        }
        let sections = page.matches("\n## ").count();
        assert_eq!(sections, Invariant::ALL.len(), "a section for what there is not");
    }

    #[test]
    fn each_step_keeps_its_promise() {
        /// The best hidden takes some thousands.
        const MOST: u64 = 20_000;
        let mut bad = Vec::new();
        for breaker in BREAKERS {
            let Breaker { invariant, step, program, powers } = *breaker;
            let whole: Program = program.parse().unwrap_or_else(|e| panic!("{program}: {e}"));
            let without = match step {
                Step::Kernel(mutant) => whole.clone().broken(mutant),
                _ => whole.clone(),
            };
            let mut execute =
                |chooser: &mut dyn Chooser| run(&whole, powers, Bounds::default(), chooser);
            let chooser = schedules(&mut execute);
            let found = {
                let _planted = Planted::new(step.of_library());
                (0..MOST).find(|number| {
                    let outcome = run(&without, powers, Bounds::default(), &mut *chooser(*number));
                    breaks(&outcome, invariant)
                })
            };
            println!("{invariant} {} {found:?}", step.name());
            let Some(found) = found else {
                bad.push(format!(
                    "{invariant} is not broken without {} in `{program}`",
                    step.name()
                ));
                continue;
            };
            for number in 0..(2 * found).max(200) {
                let outcome = execute(&mut *chooser(number));
                if outcome.end.is_failure() {
                    bad.push(format!("`{program}` breaks by itself: {:?}", outcome.end));
                    break;
                }
            }
        }
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

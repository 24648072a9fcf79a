//! Small worlds of devices, all schedules of which are explored: every order of steps, every value
//! that a load may return, and every choice of the IOMMU (when a command takes effect, and when
//! that is heard of). What its caches have is no choice: all that they could.

use shootdown_machine::hunt::dma::DmaProgram;
use shootdown_machine::hunt::{Memory, Powers, World};

use super::small::Small;
use crate::check::Checks;
use crate::check::hunted::Scene;
use crate::check::steps::Policies;

/// A world of devices.
#[derive(Clone, Copy, Debug)]
struct Played(Small);

const fn small(name: &'static str, line: &'static str, text: &'static str) -> Played {
    let (memory, witnesses) = (Memory::Weak, &[]);
    Played(Small { name, line, text, memory, witnesses, quick: true })
}

impl Played {
    const fn shows(self, witnesses: &'static [&'static str]) -> Self {
        Self(Small { witnesses, ..self.0 })
    }

    const fn long(self) -> Self {
        Self(Small { quick: false, ..self.0 })
    }
}

const SMALL: &[Played] = &[
    small(
        "exhaustive/dma-strict",
        "a page is unmapped strictly while another CPU wants its address",
        "policy=strict pages=1 denials=1; map a | unmap a; | map b",
    )
    .shows(&["no-address-left", "stale-in-unit"]),
    small(
        "exhaustive/dma-unmaps",
        "two CPUs unmap a page each of one table",
        "policy=strict denials=1; map a | unmap a; map b | unmap b",
    )
    .shows(&["stale-in-unit"])
    .long(),
    small(
        "exhaustive/dma-held",
        "a page that is held is unmapped while another CPU looks what is complete",
        "policy=strict-ish flush=1 denials=1; map a | unmap a; | poll",
    )
    .shows(&["stale-in-unit", "held-frame-recycled"])
    .long(),
    small(
        "exhaustive/dma-bound",
        "more is unmapped than may be owed",
        "policy=strict-ish entries=1 denials=1; map a, map c | unmap a, unmap c; | use a",
    )
    .shows(&["stale-in-unit", "held-frame-recycled"]),
    small(
        "exhaustive/dma-shared",
        "two CPUs map and unmap one page, whose entry counts its users",
        "policy=strict denials=1 from=identity; share a | unmap a; | share b, unmap b",
    )
    .shows(&["page-shared"]),
    small(
        "exhaustive/dma-large-shared",
        "two CPUs map and unmap a large page at its own address, in an entry that counts its users",
        "policy=strict denials=1 from=identity leaves=large; large a | unmap a; | large b, unmap b",
    )
    .shows(&["large-identity", "large-shared"]),
    small(
        "exhaustive/dma-attach",
        "a device with a cache comes while a page is unmapped",
        "policy=strict atc=on denials=1; map a | unmap a; | attach",
    )
    .shows(&["stale-in-device", "device-attached"])
    .long(),
    small(
        "exhaustive/dma-attach-apart",
        "a device comes behind another IOMMU while a page is unmapped",
        "policy=strict units=2 denials=1; map a | unmap a; | attach",
    )
    .shows(&["stale-in-unit", "device-attached"]),
    small(
        "exhaustive/dma-detach",
        "a device leaves while a page is unmapped",
        "policy=strict denials=1; map a | unmap a; attach | detach",
    )
    .shows(&["stale-in-unit", "device-detached"])
    .long(),
    small(
        "exhaustive/dma-move",
        "a device moves to a domain of which a page is unmapped",
        "policy=strict domains=2 denials=1; attach | move; map b | unmap b",
    )
    .shows(&["stale-in-unit", "device-attached", "device-detached"]),
    small(
        "exhaustive/dma-absence",
        "a page is mapped behind a unit that remembers absence while another is unmapped",
        "policy=strict absence=on denials=1; map a | unmap a; | map b",
    )
    .shows(&["stale-in-unit", "absence-remembered"]),
    small(
        "exhaustive/dma-promoted",
        "two ranges are unmapped, for which the unit is told to forget the domain, one of two",
        "policy=strict-ish entries=4 domains=2 promotes=on denials=1; map a, map c, unmap a, map a | unmap a; | use c",
    )
    .shows(&["stale-in-unit", "held-frame-recycled"]),
    small(
        "exhaustive/dma-idle",
        "what a CPU owes that is idle is settled by the timers of another",
        "policy=strict-ish pinned=on denials=1; map a, unmap a |; | poll, settle",
    )
    .shows(&["held-frame-recycled", "settled-by-timers"]),
    small(
        "exhaustive/dma-lines",
        "two CPUs map in a table that is not there yet, and whose lines have to be written back",
        "policy=strict coherent=off tables=5; | map a; | map b",
    )
    .long(),
    small(
        "exhaustive/dma-large",
        "a large page and one more are mapped and unmapped",
        "policy=strict pages=2048 tables=4; | big",
    )
    .shows(&["large-page", "stale-in-unit"]),
    small(
        "exhaustive/dma-undone",
        "a large page is mapped and taken away again, as there is no table for the next",
        "policy=strict-ish pages=2048 tables=2; | big",
    )
    .shows(&["mapping-undone", "stale-in-unit"]),
];

impl Played {
    fn program(&self, policies: Policies) -> DmaProgram {
        let Small { name, text, .. } = self.0;
        let mut program: DmaProgram =
            text.parse().unwrap_or_else(|e| panic!("the program of {name}: {e}"));
        program.config.policy = policies.dma.unwrap_or(program.config.policy);
        program
    }
}

impl Scene for Played {
    fn name(&self) -> &str {
        self.0.name
    }

    fn world(&self, _: u64, policies: Policies) -> Box<dyn World> {
        Box::new(self.program(policies))
    }

    fn describe(&self, _: u64, policies: Policies) -> Option<String> {
        Some(self.program(policies).to_string())
    }

    fn powers(&self) -> Powers {
        Powers::HOSTILE_DEVICES.memory(self.0.memory)
    }

    fn leaves_out_private_steps(&self) -> bool {
        true
    }

    fn witnesses(&self) -> &[&'static str] {
        self.0.witnesses
    }
}

/// The exhaustive checks of devices.
#[must_use]
pub fn exhaustive_devices() -> Checks {
    SMALL.iter().map(|played| played.0.check(*played, played.powers())).collect()
}

#[cfg(test)]
mod tests {
    use shootdown_machine::hunt::dma::{DmaMutant, Mistake};

    use super::*;
    use crate::check::steps::Planted;
    use crate::check::{Settings, Verdict};
    use crate::progress::Progress;

    /// What is wrong in a world.
    #[derive(Clone, Copy, Debug)]
    enum Wrong {
        /// A step of the library is missing.
        Library(DmaMutant),
        /// A step of the kernel is.
        Kernel(Mistake),
    }

    /// What each world finds.
    const FOUND: &[(&str, &[Wrong])] = {
        use DmaMutant as M;
        use Wrong::{Kernel, Library};
        &[
            ("dma-strict", &[Library(M::WaitSkipped), Library(M::StrictDoesNotWait)]),
            ("dma-unmaps", &[Library(M::WaitSkipped)]),
            ("dma-held", &[Library(M::GivenBackEarly)]),
            ("dma-bound", &[Library(M::StrictDoesNotWait)]),
            ("dma-shared", &[Kernel(Mistake::FreesFirst)]),
            ("dma-large-shared", &[Kernel(Mistake::FreesFirst)]),
            ("dma-attach", &[Library(M::DevicesNotTold), Library(M::StaleForNewcomers)]),
            ("dma-attach-apart", &[Library(M::FirstUnitOnly)]),
            ("dma-detach", &[Library(M::DomainMistaken)]),
            ("dma-move", &[Library(M::DomainMistaken)]),
            ("dma-absence", &[Library(M::PresenceNotTold), Kernel(Mistake::AbsenceDenied)]),
            (
                "dma-promoted",
                &[
                    Library(M::WaitSkipped),
                    Library(M::SubmittedTrusted),
                    Library(M::PromotedWrongDomain),
                ],
            ),
            ("dma-idle", &[Library(M::TimerForgets), Library(M::IdleOwingSkipped)]),
            ("dma-lines", &[Kernel(Mistake::NotWrittenBack)]),
            ("dma-large", &[Library(M::StrictDoesNotWait)]),
            ("dma-undone", &[Library(M::UndoneNotNoted)]),
        ]
    };

    /// The verdict on a world with something wrong in it.
    fn explore(played: &Played, wrong: Option<Wrong>) -> Verdict {
        let mut program = played.program(Policies::default());
        let mut planted = None;
        match wrong {
            Some(Wrong::Library(mutant)) => planted = Some(Planted::new(Some(mutant.into()))),
            Some(Wrong::Kernel(mistake)) => program.config.mistake = Some(mistake),
            None => {}
        }
        let text: &'static str = program.to_string().leak();
        let changed = Played(Small { text, ..played.0 });
        let check = changed.0.check(changed, changed.powers());
        let result = check.run(&Settings::default(), &Progress::new("", 0));
        drop(planted);
        result.verdict
    }

    #[test]
    fn every_world_finds_what_is_wrong_in_it() {
        for played in SMALL {
            let name = played.0.name.trim_start_matches("exhaustive/");
            let wrongs = FOUND.iter().find(|(world, _)| *world == name).expect(name).1;
            for wrong in wrongs {
                assert_eq!(explore(played, Some(*wrong)), Verdict::Fail, "{name}: {wrong:?}");
            }
        }
    }

    #[test]
    fn the_smallest_worlds_are_clean() {
        let smallest = ["bound", "large", "undone", "shared"];
        for played in SMALL {
            if smallest.iter().any(|end| played.0.name.ends_with(end)) {
                assert_eq!(explore(played, None), Verdict::Pass, "{}", played.0.name);
            }
        }
    }
}

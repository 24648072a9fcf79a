//! Scenes in which steps of the library of devices are missed: programs of the model kernel of
//! devices.

use shootdown_machine::hunt::dma::{DmaMutant, DmaProgram};
use shootdown_machine::hunt::{Powers, World};

use crate::check::hunted;
use crate::check::steps::Policies;

/// A program, and the steps that are missed in it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceScene {
    /// Its name.
    pub name: &'static str,
    /// What happens in it.
    pub line: &'static str,
    /// The program ([`DmaProgram`]).
    pub program: &'static str,
    /// What the adversary may do.
    pub powers: Powers,
    /// Schedules that are tried before a mutant counts as a survivor.
    pub runs: u64,
    /// Which mutants must break something here.
    pub kills: &'static [DmaMutant],
}

const fn scene(
    name: &'static str,
    line: &'static str,
    program: &'static str,
    kills: &'static [DmaMutant],
) -> DeviceScene {
    DeviceScene { name, line, program, powers: Powers::HOSTILE_DEVICES, runs: 20_000, kills }
}

/// The scenes.
pub const ALL: &[DeviceScene] = {
    use DmaMutant as M;
    &[
        scene(
            "dma-strict",
            "a page is unmapped strictly",
            "policy=strict; map a, unmap a",
            &[M::StrictDoesNotWait, M::SubmittedTrusted, M::WaitSkipped, M::DomainMistaken],
        ),
        scene(
            "dma-caches",
            "a page is unmapped that a device has in a cache of its own",
            "policy=strict atc=on; map a, unmap a",
            &[M::DevicesNotTold],
        ),
        scene(
            "dma-held",
            "a page that is held is unmapped, and its invalidation is asked for",
            "policy=strict-ish flush=1; map a, unmap a, poll",
            &[M::GivenBackEarly],
        ),
        scene(
            "dma-sweep",
            "a table becomes empty, and is looked for",
            "policy=lazy; map a, unmap a, timer, timer, timer, timer",
            &[M::SweptAsLeaf],
        ),
        scene(
            "dma-undone",
            "more is mapped than there are tables for, and taken back",
            "policy=strict-ish pages=2048 tables=2; big",
            &[M::UndoneNotNoted, M::UndoneNotReported, M::UndoSkipped],
        ),
        scene(
            "dma-comes",
            "a device with a cache comes while a page is unmapped",
            "policy=strict atc=on; map a, unmap a; attach",
            &[M::AttachUnfenced, M::StaleForNewcomers],
        ),
        scene(
            "dma-silent",
            "two pages are unmapped that a device has which may stop answering",
            "policy=strict atc=on faults=2; attach, map a, map b, unmap a, unmap b",
            &[M::SilenceIgnored],
        ),
        scene(
            "dma-pulled",
            "a device is pulled out of a domain that no other device is in behind its unit, and a page of that is unmapped",
            "policy=strict units=2 domains=2; map b, attach, move, pull, unmap b",
            &[M::EvictedUnitForgotten],
        ),
        scene(
            "dma-lines",
            "a page is mapped in a table that is new, by a walker that reads memory",
            "policy=strict coherent=off; map a",
            &[M::ParentBeforeChild, M::LeafNotWrittenBack],
        ),
        scene(
            "dma-pinned",
            "a CPU is in what is its own while another flushes for all",
            "policy=strict-ish pinned=on; map a, unmap a; flush",
            &[
                M::ClaimUnfenced,
                M::ClaimUnseen,
                M::OwnerOverlooked,
                M::ClaimReadRelaxed,
                M::LeaveRelaxed,
            ],
        ),
        scene(
            "dma-idle",
            "what a CPU owes that is idle is settled by the timers of another",
            "policy=strict-ish pinned=on denials=1; map a, unmap a |; | poll, settle",
            &[M::IdleOwingSkipped],
        ),
        scene(
            "dma-promoted",
            "two ranges are unmapped, for which the unit is told to forget the domain, one of two",
            "policy=strict-ish entries=4 domains=2 promotes=on denials=1; map a, map c, unmap a, map a | unmap a; | use c",
            &[M::PromotedWrongDomain],
        ),
        scene(
            "dma-cells",
            "two CPUs unmap, and one of them flushes for both",
            "policy=strict-ish; map a, unmap a; map b, flush",
            &[M::CellNotTaken],
        ),
        scene(
            "dma-given",
            "a page is mapped at an address of the driver's own, and unmapped",
            "policy=lazy; at a, unat a",
            &[M::MapAtUnmappedLazily],
        ),
        scene(
            "dma-ended",
            "a page is unmapped whose domain ends then, and another has its number",
            "policy=strict-ish domains=2 ends=on; map b, unmap b, end, map b",
            &[M::EndDefers],
        ),
        scene(
            "dma-bounced",
            "bytes are mapped, unmapped, and others mapped in their place",
            "policy=lazy bounce=on; bounce a, unmap a, bounce b, unmap b, bounce c",
            &[M::BounceReusedEarly],
        ),
    ]
};

/// The scene that has to kill this mutant.
#[must_use]
pub fn of(mutant: DmaMutant) -> Option<&'static DeviceScene> {
    ALL.iter().find(|scene| scene.kills.contains(&mutant))
}

/// A scene as a world, for the check of this name.
#[derive(Clone, Debug)]
pub struct DeviceStage {
    scene: &'static DeviceScene,
    check: String,
}

impl DeviceStage {
    /// The scene on the stage of this check.
    #[must_use]
    pub fn new(scene: &'static DeviceScene, check: &str) -> Self {
        Self { scene, check: check.to_owned() }
    }

    fn program(&self) -> DmaProgram {
        let DeviceScene { name, program, .. } = self.scene;
        program.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

impl hunted::Scene for DeviceStage {
    fn name(&self) -> &str {
        &self.check
    }

    fn world(&self, _: u64, _: Policies) -> Box<dyn World> {
        Box::new(self.program())
    }

    fn describe(&self, _: u64, _: Policies) -> Option<String> {
        Some(format!("{}: {}", self.scene.line, self.scene.program))
    }

    fn powers(&self) -> Powers {
        self.scene.powers
    }
}

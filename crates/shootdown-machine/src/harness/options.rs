//! What is hunted, and how hard.

use shootdown::mutant::Mutant;

use crate::hunt::Powers;
use crate::hunt::kernel::{Config, Program};

/// After how many steps a run is cut. A program of the default size takes some hundreds.
pub(super) const STEPS: u64 = 20_000;

/// What is hunted, and how hard. The default takes some ten seconds in a release build.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything that is left to chance follows from it.
    pub seed: u64,
    /// The adversary.
    pub powers: Powers,
    /// What the model kernel is built like: one after the other for the programs by chance. Where
    /// your port has split tables, say so here too.
    pub kernels: Vec<Config>,
    /// How many programs are made by chance.
    pub programs: u64,
    /// How many operations each of their CPUs has.
    pub size: usize,
    /// Schedules of each program.
    pub schedules: u64,
    /// Programs of which every schedule is explored.
    pub small: Vec<Program>,
    /// The most states of each of those, some 40 bytes each; with more, the answer is
    /// [`Verdict::Unknown`](super::Verdict).
    pub states: usize,
    /// Steps of the library without which something must be found.
    pub controls: Vec<Mutant>,
    /// What must have been seen, lest the hunt has not looked.
    pub witnesses: Vec<&'static str>,
}

/// Every schedule of these is explored: what CPUs do, the pages and the spaces that it takes.
const SMALL: &[(&str, u8, u8)] = &[
    ("switch a | unmap a0; switch a | user", 1, 1),
    ("switch a | free-table a0; switch a | user", 1, 1),
    ("switch a | protect a0; switch a, lazy | switch a, user", 1, 1),
];

impl Options {
    /// For a port on a kernel that is built like these: the first of them says what the small
    /// programs run on. See [`Config`] for what there is.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn on(kernels: Vec<Config>) -> Self {
        let first = kernels.first().expect("a kernel to hunt on");
        let small = SMALL.iter().map(|&(scripts, pages, spaces)| {
            let program: Program =
                format!("pages={pages} spaces={spaces}; {scripts}").parse().expect("a program");
            let Config { pages, spaces, .. } = program.config;
            let plain =
                Config { kernel_pages: 0, large: false, shared: false, nmi: false, ..*first };
            Program { config: Config { pages, spaces, ..plain }, ..program }
        });
        Self {
            seed: 1,
            powers: Powers::HOSTILE,
            programs: 1_000,
            size: 6,
            schedules: 32,
            small: small.collect(),
            states: 2 << 20,
            controls: vec![
                Mutant::NoWait,
                Mutant::RespondWithoutInvalidate,
                Mutant::SwitchWithoutFence,
            ],
            witnesses: vec!["table-page-freed", "spurious-fault", "call-returned"],
            kernels,
        }
    }

    /// With another seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// With another adversary.
    #[must_use]
    pub fn powers(self, powers: Powers) -> Self {
        Self { powers, ..self }
    }

    /// With so many programs by chance.
    #[must_use]
    pub fn programs(self, programs: u64) -> Self {
        Self { programs, ..self }
    }
}

impl Default for Options {
    /// Four kernels: small; with two spaces and kernel pages; with a large page; with three levels.
    fn default() -> Self {
        let small = Config::default();
        Self::on(vec![
            small,
            Config { pages: 2, spaces: 2, kernel_pages: 1, ..small },
            Config { bits: 2, pages: 2, large: true, ..small },
            Config { levels: 3, pages: 2, spaces: 3, kernel_pages: 1, ..small },
        ])
    }
}

//! Do the options fit the port? Asked before anything runs.

use std::cell::Cell;
use std::marker::PhantomData;

use shootdown::CpuId;
use shootdown::facts::{Facts, FactsError, SplitTables};
use shootdown::regime::Regime;

use super::Options;
use crate::hunt::kernel::{Config, Port, Split};
use crate::hunt::schedule::Replay;
use crate::hunt::{Bounds, End, World, hw, run};

/// Why there was no hunt.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// No configuration to make programs for.
    #[error(
        "there are programs to make, and no kernel to make them for: put a `Config` into `Options::kernels`"
    )]
    NoKernels,
    /// The port did not boot.
    #[error("the port panics when it is booted: {0}")]
    Boot(String),
    /// The port's facts contradict each other.
    #[error("the port's facts are refused: {0}")]
    Facts(#[from] FactsError),
    /// The kernel's tables are split and the port's are not, or the other way round.
    #[error(
        "the port's facts say {port:?} of split tables, and the kernel `{config}` is built for {kernel:?}: set `Config::split` as the port has it"
    )]
    Split {
        /// What the port declares.
        port: SplitTables,
        /// What the kernel has.
        kernel: Split,
        /// Which kernel.
        config: Box<Config>,
    },
}

/// Boots a port, asks for its facts, and that is all.
struct Ask<P> {
    config: Config,
    facts: Cell<Option<Facts>>,
    port: PhantomData<fn() -> P>,
}

impl<P: Port> World for Ask<P> {
    fn cpus(&self) -> u8 {
        1
    }

    fn boot(&self) {
        hw::setup(self.config.setup());
        P::boot(1, &self.config, hw::new_table());
        self.facts.set(Some(*P::Regime::facts()));
    }

    fn program(&self, _: CpuId) {}

    fn interrupt(&self, _: CpuId) {}
}

pub(super) fn check<P: Port>(options: &Options) -> Result<(), HarnessError> {
    if options.programs > 0 && options.kernels.is_empty() {
        return Err(HarnessError::NoKernels);
    }
    let of_small = options.small.iter().map(|program| &program.config);
    for config in options.kernels.iter().chain(of_small) {
        let ask = Ask::<P> { config: *config, facts: Cell::new(None), port: PhantomData };
        let outcome = run(&ask, options.powers, Bounds::default(), &mut Replay::new(&[]));
        if let End::Panic(text) = outcome.end {
            return Err(HarnessError::Boot(text));
        }
        let facts = ask.facts.get().expect("asked while it booted");
        facts.check()?;
        let split = match facts.split_tables {
            SplitTables::Yes { invalidate_other_tag: true } => Split::On,
            SplitTables::Yes { invalidate_other_tag: false } => Split::Pending,
            _ => Split::Off,
        };
        // Which of the two kinds of split tables it is matters to the port only.
        if (split == Split::Off) != (config.split == Split::Off) {
            return Err(HarnessError::Split {
                port: facts.split_tables,
                kernel: config.split,
                config: Box::new(*config),
            });
        }
    }
    Ok(())
}

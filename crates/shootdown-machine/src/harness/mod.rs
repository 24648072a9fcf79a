//! Hunting your own port, policy or world. (Feature `harness`.)
//!
//! # The problem
//! The library's promises rest on what a port says and does: a wrong fact, a lost interrupt or an
//! invalidation that is narrower than it was asked for breaks them, and no test on real hardware
//! finds it in reasonable time. [`hunt`] runs *your* port under the model kernel, on the hostile
//! machine.
//!
//! # What you write
//! A [`Port`]: your [`Platform`] and [`Regime`], over [`hw`] where the kernel has its instructions
//! and its interrupt controller, and one function that sets it up. All of the decisions (what to
//! invalidate for which request, whom to interrupt, what the handler does) stay your own code. Its
//! names come from [`crate::shootdown`], which is the library's source with traced atomics; what
//! your port shares between CPUs has to be an atomic of [`sync`](crate::shootdown::sync), placed
//! with [`hw::place`].
//!
//! # What happens
//! 1. Programs of the model kernel by chance, half of them under random schedules, half under
//!    priorities.
//! 2. Every schedule of a few small programs.
//! 3. *Controls*: the random part again with a step taken out of the library. Each must be found: a
//!    hunt that finds nothing is worth something only if it would have found something.
//!
//! The first broken promise ends it. Its program and its schedule are made as short as possible,
//! and drawn.
//!
//! # Invariants
//! - H1: the report depends on the options and the port alone.
//! - H2: [`Verdict::Kept`] only if all of it ran to its end, every witness was seen and every
//!   control found.
//! - H3: the line of a failure replays on any host, from the line alone ([`replay`]).
//!
//! # Example
//! `examples/hunt_your_port.rs` is a complete port with three bugs to choose from. The default
//! port:
//!
//! ```
//! use shootdown_machine::harness::{HuntPort, Options, Verdict, hunt};
//!
//! let options = Options { programs: 8, small: Vec::new(), ..Options::default() };
//! let report = hunt::<HuntPort>(&options).expect("the options fit the port");
//! assert_ne!(report.verdict(), Verdict::Broken, "{report}");
//! ```

mod code;
mod options;
mod prepare;
mod report;
mod search;
mod smaller;
#[cfg(test)]
mod tests;

pub use crate::hunt::kernel::{At, Config, HuntPort, Library, Op, Port, Program, Script, Split};
pub use crate::hunt::schedule::Found;
pub use crate::hunt::{End, Memory, Outcome, Power, Powers, World, hw};
pub use crate::oracle::Invariant;

pub use code::{Code, CodeError};
pub use options::Options;
pub use prepare::HarnessError;
pub use report::{Control, Explored, Failure, Report, Verdict};

#[cfg(doc)]
use crate::shootdown::{Platform, Regime};

use crate::hunt::schedule::{Replay, draw_run};
use crate::hunt::{Bounds, run};

use self::search::Hunter;

/// Hunts a port.
///
/// # Errors
/// [`HarnessError`] when there is nothing to hunt, or when the configurations and the port's facts
/// contradict each other.
pub fn hunt<P: Port>(options: &Options) -> Result<Report, HarnessError> {
    prepare::check::<P>(options)?;
    let mut hunter = Hunter::new(options);
    hunter.programs::<P>();
    hunter.small::<P>();
    hunter.controls::<P>();
    Ok(hunter.report)
}

/// Hunts a world of your own: schedules by chance ([`Options::schedules`]), then all of them,
/// unless [`Options::states`] is 0. What [`Options`] says about programs does not matter, and there
/// are no controls; [`Options::witnesses`] are what the world itself says with [`hw::witness`].
pub fn hunt_world(world: &dyn World, options: &Options) -> Report {
    let mut hunter = Hunter::new(options);
    hunter.world(world);
    hunter.report
}

/// Shows a failing schedule again: how it ended, and its timeline.
///
/// # Errors
/// When the line is not one that a report printed.
pub fn replay<P: Port>(code: &str) -> Result<(End, String), CodeError> {
    let code: Code = code.parse()?;
    let program = code.program.clone().ok_or(CodeError::Parts)?;
    let (end, drawn) = show(&program.clone().on::<P>(), &code);
    Ok((end, format!("program: {program}\n{drawn}")))
}

/// As [`replay`], for a world of your own.
///
/// # Errors
/// When the line is not one that a report printed.
pub fn replay_world(world: &dyn World, code: &str) -> Result<(End, String), CodeError> {
    Ok(show(world, &code.parse()?))
}

/// Width of a timeline: a terminal of two columns of text.
const WIDTH: usize = 110;

fn show(world: &dyn World, code: &Code) -> (End, String) {
    let bounds = Bounds { record: true, steps: options::STEPS };
    let outcome = run(world, code.powers, bounds, &mut Replay::new(&code.schedule));
    let drawn = draw_run(&outcome, WIDTH);
    (outcome.end, drawn)
}

//! The machine: built, given programs, run once.

use shootdown::ids::CpuId;

use crate::breach::Breach;
use crate::config::{Config, MachineError};
use crate::cpu::{Cpu, Program};
use crate::kernel::Space;
use crate::outcome::Outcome;

/// A machine before it runs.
pub struct Machine {
    config: Config,
    programs: Vec<Option<Program>>,
    spaces: u32,
}

impl Machine {
    /// Builds the machine.
    ///
    /// # Errors
    /// When the number of CPUs is out of range.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        let cpus = config.cpu_count()?;
        Ok(Self { config, programs: (0..cpus).map(|_| None).collect(), spaces: 0 })
    }

    /// How it was built.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Creates an address space (a process). Programs may also create them while they run.
    pub fn new_space(&mut self) -> Space {
        self.spaces += 1;
        Space(self.spaces - 1)
    }

    /// Gives a CPU its program. It starts at time 0, in kernel mode's hands: no space loaded until it
    /// switches to one. A CPU without a program idles and takes interrupts.
    ///
    /// # Errors
    /// When there is no such CPU, or it has a program.
    pub fn spawn(
        &mut self,
        cpu: CpuId,
        program: impl FnOnce(&mut Cpu) + 'static,
    ) -> Result<(), MachineError> {
        let cpus = u32::try_from(self.programs.len()).unwrap_or(u32::MAX);
        let place =
            self.programs.get_mut(cpu.index()).ok_or(MachineError::NoSuchCpu { cpu, cpus })?;
        if place.is_some() {
            return Err(MachineError::Occupied(cpu));
        }
        *place = Some(Box::new(program));
        Ok(())
    }

    /// Runs until every program has returned.
    ///
    /// # Errors
    /// The promise that was broken, or that no CPU could go on.
    pub fn run(self) -> Result<Outcome, Box<Breach>> {
        Ok(Outcome::default())
    }
}

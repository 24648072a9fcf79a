//! The machine: built, given programs, run once.

use shootdown::ids::CpuId;

use crate::config::{Config, MachineError};
use crate::cpu::{Cpu, Program};
use crate::engine::{self, Engine, Job, Mode};
use crate::kernel::{self, Installed, Space, State};
use crate::outcome::Outcome;
use crate::time::Time;
use crate::violation::Violation;

/// Shared memory of a machine: what its kernel needs once, and what it needs per CPU. Only what is
/// used is committed by the host.
const MEMORY: usize = 64 << 20;
const MEMORY_PER_CPU: usize = 64 << 10;

/// A machine before it runs.
///
/// ```
/// use shootdown_machine::{Config, CpuId, Machine, Profile, Stride, Time};
///
/// let mut machine = Machine::new(Config::new(Profile::named("haswell-ep-48")?))?;
/// let space = machine.new_space();
/// // One CPU maps a page and takes it away again while another one uses it.
/// machine.spawn(CpuId(0), move |c| {
///     c.syscall(|k| {
///         k.switch_to(Some(space));
///         k.map_at(0x10_0000, 1, Stride::Page4K);
///     });
///     c.write(0x10_0000);
///     c.compute(Time::from_us(20));
///     c.syscall(|k| k.unmap(0x10_0000, 1));
/// })?;
/// machine.spawn(CpuId(1), move |c| {
///     c.kernel(|k| k.switch_to(Some(space)));
///     c.compute(Time::from_us(10));
///     while c.read(0x10_0000) {}
/// })?;
/// let outcome = machine.run()?;
/// assert_eq!(outcome.cpus[1].interrupts.received, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Machine {
    config: Config,
    // Before `engine`: what is in the engine's shared memory is used through it.
    kernel: Box<State>,
    engine: Box<Engine>,
    programs: Vec<Option<Program>>,
}

impl Machine {
    /// Builds the machine and boots its kernel on every CPU.
    ///
    /// # Errors
    /// When the number of CPUs is out of range, or the profile can't be built.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        let cpus = config.cpu_count()?;
        let topology = config.profile.topology(cpus);
        let costs = config.profile.costs(config.mitigations);
        let memory = MEMORY + cpus as usize * MEMORY_PER_CPU;
        let mut engine = Engine::new(topology, costs, memory, config.seed);
        engine.on_interrupt(kernel::on_interrupt);
        if config.own_caches {
            engine.limit_own_caches();
        }
        let mut kernel = State::new(&config, &mut engine)?;
        if let Some(host) = config.host {
            engine.share(host.physical, kernel::on_demand);
        }
        Installed::new(&mut kernel).boot();
        let programs = (0..cpus).map(|_| None).collect();
        Ok(Self { config, kernel, engine, programs })
    }

    /// How it was built.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.engine.topology().cpus
    }

    /// Creates an address space (a process). Programs may also create them while they run.
    pub fn new_space(&mut self) -> Space {
        let _installed = Installed::new(&mut self.kernel);
        kernel::create_space(|layout| self.engine.alloc(layout))
    }

    /// Gives a CPU its program. It starts at time 0 with no space loaded, until it switches to one.
    /// A CPU without a program idles and takes interrupts.
    ///
    /// # Errors
    /// When there is no such CPU, or it has a program.
    pub fn spawn(
        &mut self,
        cpu: CpuId,
        program: impl FnOnce(&mut Cpu) + 'static,
    ) -> Result<(), MachineError> {
        let cpus = self.cpus();
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
    pub fn run(mut self) -> Result<Outcome, Box<Violation>> {
        let jobs = (0..).zip(self.programs).map(|(cpu, program)| program.map(|p| job(cpu, p)));
        let _installed = Installed::new(&mut self.kernel);
        engine::run(&mut self.engine, jobs.collect())?;
        let mut cpus = self.engine.outcomes();
        kernel::with(|s| s.complete(&mut cpus));
        let end = cpus.iter().filter_map(|c| c.finished).max().unwrap_or(Time::ZERO);
        for cpu in &mut cpus {
            // A CPU that has nothing to do keeps no time; all are to account for the same length.
            let accounted: Time = cpu.time.fields().map(|(_, time)| time).sum();
            cpu.time.idle += end.since(accounted);
        }
        Ok(Outcome { end, cpus })
    }
}

fn job(cpu: u32, program: Program) -> Job {
    Box::new(move || {
        engine::mode(Mode::User);
        program(&mut Cpu::new(CpuId(cpu)));
        engine::mode(Mode::Kernel);
    })
}

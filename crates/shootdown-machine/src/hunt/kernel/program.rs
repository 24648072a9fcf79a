//! Worlds of the model kernel: a configuration and a list of operations for each CPU, as one line
//! of text.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use shootdown::CpuId;
use shootdown::tags::generations::Generations;

use super::cpu::{Cpu, interrupt};
use super::state::{Kernel, Traits};
use super::tables::Tables;
use super::{Config, HuntPort, Op, Port, Split};
use crate::hunt::{MAX_CPUS, World, hw};

/// What one CPU does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script {
    /// Before the others start: no adversary sees it. Not for what asks other CPUs for something.
    pub boot: Vec<Op>,
    /// Then.
    pub run: Vec<Op>,
}

/// A world: what the kernel is built for, and what its CPUs do.
///
/// Its text is the configuration, then a script for each CPU, all separated by `;`. Operations are
/// separated by commas; those before a `|` are over before the hunt begins.
///
/// ```
/// # fn main() -> Result<(), String> {
/// use shootdown_machine::hunt::kernel::Program;
/// let text = "pages=2 tags=on; switch a | unmap a0; switch a | user, user";
/// let program: Program = text.parse()?;
/// assert_eq!(program.cpus.len(), 2);
/// assert_eq!(program.to_string(), text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// What the kernel is built for.
    pub config: Config,
    /// What its CPUs do.
    pub cpus: Vec<Script>,
}

impl Program {
    fn traits(&self) -> Traits {
        let mut traits = Traits::default();
        for op in self.cpus.iter().flat_map(|c| c.boot.iter().chain(&c.run)) {
            match op {
                Op::Retire(space) => traits.retired |= 1 << space,
                Op::Walk(_) => traits.walks = true,
                Op::Age(_) | Op::LazyUnmap(_) => traits.ages = true,
                Op::FreeTableAfter(_) => traits.epochs = true,
                Op::Offline => traits.hotplug = true,
                _ => {}
            }
        }
        traits
    }

    /// With this step of the kernel broken.
    #[must_use]
    pub fn broken(mut self, mutant: super::KernelMutant) -> Self {
        self.config.mutant = Some(mutant);
        self
    }

    /// The program on a port of your own.
    #[must_use]
    pub fn on<P: Port>(self) -> On<P> {
        On { program: self, port: PhantomData }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ops: &[Op]| ops.iter().map(Op::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{}", self.config)?;
        for script in &self.cpus {
            f.write_str("; ")?;
            if !script.boot.is_empty() {
                write!(f, "{} | ", list(&script.boot))?;
            }
            f.write_str(&list(&script.run))?;
        }
        Ok(())
    }
}

impl FromStr for Program {
    type Err = String;

    /// Reads a program. The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';');
        let mut config = Config::default();
        for word in parts.next().unwrap_or_default().split_whitespace() {
            config.set(word)?;
        }
        config.check()?;
        let pages = Tables::of(&config, || ()).kernel_page(0);
        let read = |text: &str| -> Result<Op, String> {
            let op: Op = text.parse()?;
            match op.pages().into_iter().flatten().find(|page| u32::from(*page) >= pages) {
                Some(page) => Err(format!(
                    "`{op}`: there is no page {page}, a space has {pages} in its tables"
                )),
                None => Ok(op),
            }
        };
        let list = |text: &str| -> Result<Vec<Op>, String> {
            text.split(',').map(str::trim).filter(|op| !op.is_empty()).map(read).collect()
        };
        let mut cpus = Vec::new();
        for script in parts {
            let (boot, run) = script.split_once('|').unwrap_or(("", script));
            cpus.push(Script { boot: list(boot)?, run: list(run)? });
        }
        if cpus.is_empty() || cpus.len() > MAX_CPUS {
            return Err(format!("a program has 1 to {MAX_CPUS} CPUs, each after a `;`"));
        }
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
        let pairs = config.split != Split::Off;
        if config.wide != 0 {
            let tags = Generations::<4, MAX_CPUS>::new(config.wide, pairs, cpus.len() as u32);
            tags.map_err(|e| e.to_string())?;
        }
        Ok(Self { config, cpus })
    }
}

/// A [`Program`] on a port of your own; a [`World`].
#[derive(Clone, Debug)]
pub struct On<P> {
    program: Program,
    port: PhantomData<fn() -> P>,
}

impl<P: Port> World for On<P> {
    fn cpus(&self) -> u8 {
        self.program.cpus()
    }

    fn boot(&self) {
        boot::<P>(&self.program);
    }

    fn program(&self, cpu: CpuId) {
        program::<P>(&self.program, cpu);
    }

    fn interrupt(&self, cpu: CpuId) {
        interrupt::<P>(cpu);
    }

    fn absent(&self, _: CpuId) {
        P::absent();
    }
}

/// Calls a function for the port whose sets are as wide as the program's numbers need.
macro_rules! by_width {
    ($program:expr, $function:ident($($argument:expr),*)) => {
        match $program.config.words() {
            1 => $function::<HuntPort>($($argument),*),
            _ => $function::<HuntPort<64>>($($argument),*),
        }
    };
}

/// On the [`HuntPort`].
impl World for Program {
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
    fn cpus(&self) -> u8 {
        self.cpus.len() as u8
    }

    fn boot(&self) {
        by_width!(self, boot(self));
    }

    fn program(&self, cpu: CpuId) {
        by_width!(self, program(self, cpu));
    }

    fn interrupt(&self, cpu: CpuId) {
        by_width!(self, interrupt(cpu));
    }

    fn absent(&self, _: CpuId) {
        <HuntPort>::absent();
    }
}

fn boot<P: Port>(program: &Program) {
    let config = program.config;
    hw::setup(config.setup());
    let tables = Tables::of(&config, hw::publish);
    let kernel_root = tables.boot_kernel(&config);
    P::boot(World::cpus(program), &config, kernel_root);
    let kernel = Kernel::<P>::place(config, program.traits(), kernel_root);
    let shared = config.shared.then(|| tables.boot_shared());
    for space in 0..config.spaces {
        let root = tables.new_root(kernel_root);
        let room = kernel.room(space);
        tables.boot_space(&config, root, shared, |page, frame| {
            room.frames[usize::from(page)].set(frame);
        });
        kernel.settle(space, root);
    }
    for (cpu, script) in (0..).zip(&program.cpus) {
        hw::boot_as(CpuId(cpu), || {
            let cpu = Cpu::<P>::here();
            cpu.come_online();
            cpu.run(&script.boot);
        });
    }
}

fn program<P: Port>(program: &Program, cpu: CpuId) {
    Cpu::<P>::here().run(&program.cpus[cpu.index()].run);
}

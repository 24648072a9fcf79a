//! Worlds of devices: a configuration and a list of operations for each CPU, as one line of text.

use std::fmt;
use std::str::FromStr;

use shootdown::CpuId;

use super::world::Kernel;
use super::{Config, Op};
use crate::hunt::{MAX_CPUS, World};

/// A world: what the domain is made for, and what its CPUs do.
///
/// Its text is the configuration, then the operations of each CPU, separated by commas; all that
/// separated by `;`. What a CPU has done before anything is hunted is before a `|`.
///
/// ```
/// # fn main() -> Result<(), String> {
/// use shootdown_machine::hunt::dma::DmaProgram;
/// let text = "policy=strict-ish atc=on; map a, unmap a, timer; map b, unmap-strict b";
/// let program: DmaProgram = text.parse()?;
/// assert_eq!(program.cpus.len(), 2);
/// assert_eq!(program.to_string(), text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DmaProgram {
    /// What the domain is made for.
    pub config: Config,
    /// What CPUs have done before: of each from the first on, as many as have done something.
    pub before: Vec<Vec<Op>>,
    /// What its CPUs do.
    pub cpus: Vec<Vec<Op>>,
}

impl fmt::Display for DmaProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ops: &[Op]| ops.iter().map(Op::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{}", self.config)?;
        for (cpu, ops) in self.cpus.iter().enumerate() {
            match self.before.get(cpu).filter(|before| !before.is_empty()) {
                Some(before) => write!(f, "; {} | {}", list(before), list(ops))?,
                None => write!(f, "; {}", list(ops))?,
            }
        }
        Ok(())
    }
}

impl FromStr for DmaProgram {
    type Err = String;

    /// Reads a program. The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';');
        let mut config = Config::default();
        for word in parts.next().unwrap_or_default().split_whitespace() {
            config.set(word)?;
        }
        let list = |text: &str| -> Result<Vec<Op>, String> {
            text.split(',').map(str::trim).filter(|op| !op.is_empty()).map(str::parse).collect()
        };
        let (mut before, mut cpus) = (Vec::new(), Vec::new());
        for part in parts {
            let (done, to_do) = part.split_once('|').unwrap_or(("", part));
            before.push(list(done)?);
            cpus.push(list(to_do)?);
        }
        while before.last().is_some_and(Vec::is_empty) {
            before.pop();
        }
        if cpus.is_empty() || cpus.len() > MAX_CPUS {
            return Err(format!("a program has 1 to {MAX_CPUS} CPUs, each after a `;`"));
        }
        Ok(Self { config, before, cpus })
    }
}

impl World for DmaProgram {
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
    fn cpus(&self) -> u8 {
        self.cpus.len() as u8
    }

    fn boot(&self) {
        Kernel::boot(self.config, self.cpus.len(), &self.before);
    }

    fn program(&self, cpu: CpuId) {
        self.cpus[cpu.index()].iter().for_each(|op| Kernel::here().run(*op));
    }

    fn interrupt(&self, _: CpuId) {}

    fn state(&self) -> u64 {
        Kernel::here().state()
    }

    fn finish(&self) {
        let kernel = Kernel::here();
        kernel.count();
        kernel.recover();
        kernel.frames.check_settled();
        // SAFETY: all programs have ended.
        unsafe { kernel.end() }
    }
}

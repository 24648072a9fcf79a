//! Bad ends on demand (`crash=WAY`), to see that each is told from the others and from a verdict.
//!
//! They happen on the last CPU: that its stacks and handlers are in place is as much in question as
//! the boot CPU's.
//!
//! | way | what | how the machine ends |
//! |---|---|---|
//! | `panic` | a panic | crashed |
//! | `fault` | an access that faults, where none was expected | crashed |
//! | `double-fault` | a fault on a stack that is gone | crashed |
//! | `reset` | a reset | without a verdict |
//! | `hang` | a CPU that never answers | not at all |

use shootdown::CpuId;
use shootdown::cpu_set::{Bits, CpuSet};

use crate::{arch, say, work};

/// An address where nothing is, in any space.
pub const NOWHERE: u64 = 0x7000_0000_0000;

/// How.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// A panic.
    Panic,
    /// A fault.
    Fault,
    /// A fault that can't be delivered.
    DoubleFault,
    /// A reset.
    Reset,
    /// Nothing, for ever.
    Hang,
}

impl Way {
    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        const NAMES: [(&str, Way); 5] = [
            ("panic", Way::Panic),
            ("fault", Way::Fault),
            ("double-fault", Way::DoubleFault),
            ("reset", Way::Reset),
            ("hang", Way::Hang),
        ];
        NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, way)| way)
    }
}

fn end(way: Way) {
    match way {
        Way::Panic => panic!("as the command line asked for"),
        Way::Fault => {
            let nothing = NOWHERE as *const u64;
            // SAFETY: nothing is there; the load faults, and the kernel ends.
            let found = unsafe { nothing.read_volatile() };
            panic!("{found:#x} was read from where nothing is");
        }
        Way::DoubleFault => arch::crash::lose_stack(),
        Way::Reset => arch::crash::reset(),
        Way::Hang => loop {
            arch::relax();
        },
    }
}

/// Ends so, on the last of the CPUs.
pub fn run(way: Way, cpus: u32) -> ! {
    let last = CpuId(cpus - 1);
    say!("crash: {last} ends badly, as asked: {way:?}");
    let mut set = CpuSet::EMPTY;
    set.insert(last);
    work::on(&set, &|| end(way));
    unreachable!("a CPU came back from a bad end")
}

//! Events as bytes.
//!
//! **Problem.** An event in memory has 64 bytes or so, and a second of a busy program has a hundred
//! thousand of them.
//!
//! **Protocol.** Integers are LEB128 varints, signed ones zigzagged. Times are differences to the
//! event before. The CPU is left out when it is that of the event before, the thread when it is the
//! one this CPU was last known to run (a switch tells the next). Addresses are differences to the
//! last one used on that CPU. All of this state starts afresh with every frame.
//!
//! **Invariants.**
//! - C1: decoding what was encoded gives the same events.
//! - C2: decoding arbitrary bytes gives events or an error; it never panics and never allocates
//!   more than the bytes at hand.

use super::model::{
    Call, CallArgs, Cpu, Event, Extent, FlushStep, Header, OffCpu, Origin, Purpose, Tid, Trailer,
    What,
};

mod bytes;
mod event;

pub use bytes::{Input, Malformed, Output};
pub use event::{Decoder, Encoder};

impl Header {
    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Output) {
        out.text(&self.kernel);
        out.text(&self.cpu_model);
        out.uint(u64::from(self.cpus));
        out.uint(u64::from(self.page_size));
        out.text(&self.hypervisor);
        out.uint(self.command.len() as u64);
        for word in &self.command {
            out.text(word);
        }
        out.text(&self.tool);
        out.uint(self.started_unix);
        out.text(&self.clock);
        out.uint(self.clock_base);
    }

    /// Reads one that takes all of `input`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with what was expected.
    pub fn decode(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let kernel = input.text()?;
        let cpu_model = input.text()?;
        let cpus = input.uint_as("a number of CPUs below 65536")?;
        let page_size = input.uint_as("a page size below 4 GiB")?;
        let hypervisor = input.text()?;
        let words = input.count()?;
        let command = (0..words).map(|_| input.text()).collect::<Result<_, _>>()?;
        let this = Self {
            kernel,
            cpu_model,
            cpus,
            page_size,
            hypervisor,
            command,
            tool: input.text()?,
            started_unix: input.uint()?,
            clock: input.text()?,
            clock_base: input.uint()?,
        };
        input.end()?;
        Ok(this)
    }
}

impl Trailer {
    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Output) {
        out.uint(self.events);
        out.uint(self.duration);
        out.byte(u8::from(self.exit_status.is_some()));
        if let Some(status) = self.exit_status {
            out.int(i64::from(status));
        }
        out.byte(u8::from(self.tlb_interrupts.is_some()));
        if let Some(counts) = &self.tlb_interrupts {
            out.uint(counts.len() as u64);
            for &count in counts {
                out.uint(count);
            }
        }
        out.uint(self.foreign_remote_flushes);
        out.uint(self.lost);
    }

    /// Reads one that takes all of `input`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with what was expected.
    pub fn decode(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let events = input.uint()?;
        let duration = input.uint()?;
        let exit_status = match input.flag()? {
            true => Some(
                i32::try_from(input.int()?).map_err(|_| Malformed("an exit status of 32 bits"))?,
            ),
            false => None,
        };
        let tlb_interrupts = match input.flag()? {
            true => Some((0..input.count()?).map(|_| input.uint()).collect::<Result<_, _>>()?),
            false => None,
        };
        let this = Self {
            events,
            duration,
            exit_status,
            tlb_interrupts,
            foreign_remote_flushes: input.uint()?,
            lost: input.uint()?,
        };
        input.end()?;
        Ok(this)
    }
}

/// A one-byte code for each value of a small enum, and back.
trait Code: Sized + Copy + PartialEq + 'static {
    /// The values in the order of their codes; a position never changes its meaning.
    const ALL: &'static [Self];
    /// What a reader is told to have expected.
    const NAME: &'static str;

    fn code(self) -> u8 {
        let at = Self::ALL.iter().position(|&v| v == self);
        u8::try_from(at.expect("every value is listed")).expect("small enums")
    }

    fn of(code: u8) -> Result<Self, Malformed> {
        Self::ALL.get(usize::from(code)).copied().ok_or(Malformed(Self::NAME))
    }
}

macro_rules! codes {
    ($($ty:ty, $name:literal: $($value:ident)*;)*) => {
        $(impl Code for $ty {
            const ALL: &'static [Self] = &[$(<$ty>::$value),*];
            const NAME: &'static str = $name;
        })*
    };
}

codes! {
    Origin, "a thread's origin (0 to 2)": Command Foreign Kernel;
    OffCpu, "a reason to leave the CPU (0 to 2)": Preempted Blocked Dead;
    FlushStep, "a flush step (0 to 5)": Switch Responded Local LocalSpace Ask WrongCpu;
    Call, "a memory system call (0 to 6)": Mmap Munmap Mprotect Madvise Mremap Msync Brk;
    Purpose, "an interrupt's purpose (0 to 2)": Flush Reschedule Call;
}

//! What a recording says: one header, events in order of time, one trailer.
//!
//! The events are what the kernel reported, not what follows from it: rebuilding spaces and CPUs is
//! [`super::timeline`]'s work, so that a better rebuild needs no new recording.

use std::fmt;

/// A thread, by the number the recorded kernel gave it. 0 is every CPU's idle thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tid(pub u32);

impl Tid {
    /// The idle thread (each CPU has its own; they share the number).
    pub const IDLE: Self = Self(0);
    /// Numbers end below this. Linux gives none above 2^22; a replay of 256 copies numbers threads
    /// anew and must not run out of 32 bits.
    pub const LIMIT: u32 = 1 << 24;

    /// The thread of that number, if there can be one.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number < Self::LIMIT { Some(Self(number)) } else { None }
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A CPU of the recorded machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cpu(pub u16);

impl Cpu {
    /// Numbers end below this, so that 16 bits can also count them.
    pub const LIMIT: u16 = u16::MAX;

    /// The CPU of that number, if there can be one.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::LIMIT { Some(Self(number)) } else { None }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.0)
    }
}

/// The first frame of a recording: where it comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// `uname -r` of the recorded machine, e.g. `6.18.44`.
    pub kernel: String,
    /// The processor's name as the kernel prints it.
    pub cpu_model: String,
    /// CPUs of the recorded machine that were online.
    pub cpus: u16,
    /// Bytes of a base page.
    pub page_size: u32,
    /// The hypervisor the machine ran under, empty for none known.
    pub hypervisor: String,
    /// The recorded command, argument by argument.
    pub command: Vec<String>,
    /// Who observed it, e.g. `perf 6.1.192`.
    pub tool: String,
    /// Seconds since 1970 when recording began.
    pub started_unix: u64,
    /// The clock the times come from, e.g. `CLOCK_MONOTONIC`.
    pub clock: String,
    /// What that clock showed at time 0 of the recording, in nanoseconds.
    pub clock_base: u64,
}

/// The last frame of a recording: what is only known at its end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trailer {
    /// Events in the file; a reader checks it.
    pub events: u64,
    /// Nanoseconds from the first event's clock to the end of the recording.
    pub duration: u64,
    /// What the recorded command returned, where it is known.
    pub exit_status: Option<i32>,
    /// How often each CPU was interrupted for a TLB flush while the tracer ran, whoever asked
    /// (`/proc/interrupts`, line `TLB`); the machine-wide cross-check of the events.
    pub tlb_interrupts: Option<Vec<u64>>,
    /// Flushes asked of a remote CPU by programs outside the recorded command: counted, not kept.
    pub foreign_remote_flushes: u64,
    /// Events the tracer itself reports to have lost.
    pub lost: u64,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Nanoseconds since the recording began.
    pub time: u64,
    /// Where.
    pub cpu: Cpu,
    /// The thread the CPU was running.
    pub tid: Tid,
    /// What.
    pub what: What,
}

impl Event {
    /// Times end below this: 2^50 ns are 13 days. A replay counts picoseconds in 64 bits, and adds.
    pub const TIME_LIMIT: u64 = 1 << 50;
}

/// Whose thread it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Origin {
    /// Of the recorded command or a descendant of it.
    Command,
    /// Another program's: it occupies the CPU and has a space of its own; its events are not kept.
    Foreign,
    /// The kernel's: it runs in whatever space was loaded.
    Kernel,
}

/// How a thread left the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OffCpu {
    /// It could have gone on.
    Preempted,
    /// It waits for something.
    Blocked,
    /// It is gone.
    Dead,
}

/// How much a flush invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Extent {
    /// That many base pages.
    Pages(u64),
    /// The whole space.
    Everything,
}

/// Where in the flush path the kernel was (`tlb:tlb_flush`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlushStep {
    /// A context switch loaded another space: flushed (`Everything`) or kept its entries
    /// (`Pages(0)`).
    Switch,
    /// A responder invalidated.
    Responded,
    /// The CPU invalidated on its own account, for no one space in particular.
    Local,
    /// The initiator invalidated on its own CPU.
    LocalSpace,
    /// The initiator is about to ask other CPUs.
    Ask,
    /// A responder was asked for a space it no longer has loaded.
    WrongCpu,
}

/// A memory system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs, reason = "each is the system call of that name")]
pub enum Call {
    Mmap,
    Munmap,
    Mprotect,
    Madvise,
    Mremap,
    Msync,
    Brk,
}

/// The arguments of a memory system call that matter for translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallArgs {
    /// Which call.
    pub call: Call,
    /// First byte (`mmap`: the hint or fixed address).
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// `mmap`, `mprotect`: protection; `madvise`: advice; `msync`, `mremap`: flags; `brk`: 0.
    pub mode: u64,
    /// `mmap`: flags; `mremap`: new length; otherwise 0.
    pub extra: u64,
}

/// Why one CPU interrupted another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Purpose {
    /// To have it flush.
    Flush,
    /// To have it reschedule.
    Reschedule,
    /// To have it run some other function.
    Call,
}

/// The kinds of events.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// Declares the thread `tid` of the event, before anything else names it.
    Task {
        /// Its process.
        pid: u32,
        /// Whose it is.
        origin: Origin,
        /// Its name; empty for other programs' threads, which stay anonymous.
        name: String,
    },
    /// The CPU turns from the event's thread to another.
    Switch {
        /// The thread that runs from now on.
        next: Tid,
        /// How the event's thread left.
        off: OffCpu,
    },
    /// Made a blocked thread runnable.
    Wakeup {
        /// The thread that may run.
        task: Tid,
    },
    /// A runnable thread was moved to another CPU's queue.
    Migrate {
        /// The thread.
        task: Tid,
        /// Where it will run.
        to: Cpu,
    },
    /// Created a thread or process.
    Fork {
        /// The new thread (declared before).
        child: Tid,
        /// `CLONE_VM`: it shares its creator's space; otherwise it has a copy.
        shares_space: bool,
    },
    /// Replaced its space with a new, empty one.
    Exec,
    /// The thread ended.
    Exit,
    /// The thread has another name.
    Rename {
        /// The new name.
        name: String,
    },
    /// A step of a flush.
    Flush {
        /// Which.
        step: FlushStep,
        /// How much.
        extent: Extent,
    },
    /// Asked one remote CPU to flush (the request was queued there): the recorded remote flush.
    RemoteFlush {
        /// The CPU that was asked.
        target: Cpu,
    },
    /// Asked one remote CPU to flush kernel addresses.
    KernelFlush {
        /// The CPU that was asked.
        target: Cpu,
    },
    /// Sent an interrupt; `target` is not known when the tool cannot print sets of CPUs.
    Ipi {
        /// The CPU interrupted.
        target: Option<Cpu>,
        /// Why.
        purpose: Purpose,
    },
    /// Entered a memory system call.
    Enter(CallArgs),
    /// Left it.
    Leave {
        /// Which call.
        call: Call,
        /// What it returned (negative: the error).
        result: i64,
    },
    /// Faulted on a user page.
    Fault {
        /// Page number (address divided by the page size).
        page: u64,
        /// It was a write.
        write: bool,
        /// It was an instruction fetch.
        execute: bool,
        /// There was an entry, but it did not permit the access.
        protection: bool,
    },
}

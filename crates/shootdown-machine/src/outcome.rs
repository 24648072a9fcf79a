//! What a run leaves behind.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use shootdown::stats::Snapshot;

use crate::time::Time;

macro_rules! counts {
    ($(#[$m:meta])* $name:ident: $ty:ty { $($(#[$f:meta])* $field:ident),+ $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$f])* pub $field: $ty),+
        }

        impl $name {
            /// Field names and values, in the order of declaration.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, $ty)> {
                [$((stringify!($field), self.$field)),+].into_iter()
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(mut self, other: Self) -> Self {
                self += other;
                self
            }
        }

        impl Sub for $name {
            type Output = Self;
            /// What came since `earlier`, a count of the same thing.
            fn sub(self, earlier: Self) -> Self {
                Self { $($field: self.$field - earlier.$field),+ }
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::default(), Add::add)
            }
        }
    };
}

counts! {
    /// Where the time of a CPU went. The fields add up to the CPU's time.
    TimeSplit: Time {
        /// User code.
        user,
        /// Kernel code of this CPU's own program.
        kernel,
        /// Waiting for other CPUs.
        waiting,
        /// Interrupt handlers, entry and exit included.
        responder,
        /// Nothing to do.
        idle,
        /// Descheduled by the hypervisor.
        away,
    }
}

counts! {
    /// Translations.
    TlbCounts: u64 {
        /// Accesses of user code.
        accesses,
        /// Found in the first level.
        l1_hits,
        /// Found in the second level.
        l2_hits,
        /// Walks of the tables, completed or not.
        walks,
        /// Page faults.
        faults,
    }
}

counts! {
    /// Invalidations and root loads.
    Invalidations: u64 {
        /// Single pages under the loaded tag.
        pages,
        /// Single pages under another tag.
        pages_other_tag,
        /// Whole tags.
        tags,
        /// Kernel pages, global ones included.
        kernel_pages,
        /// Everything, global entries included.
        everything,
        /// Operations that invalidate on every CPU.
        broadcast,
        /// Roots loaded with their tag's entries kept.
        loads_kept,
        /// Roots loaded with their tag's entries dropped.
        loads_flushed,
    }
}

counts! {
    /// Interrupts between CPUs.
    Interrupts: u64 {
        /// Commands given to the interrupt controller.
        commands,
        /// Targets of these commands.
        sent,
        /// Taken by this CPU.
        received,
        /// Merged with one that was pending at this CPU.
        merged,
    }
}

counts! {
    /// Cache lines.
    LineCounts: u64 {
        /// Loads of shared memory.
        loads,
        /// Stores to shared memory.
        stores,
        /// Atomic read-modify-writes.
        rmws,
        /// Full fences.
        fences,
        /// Lines fetched from another CPU.
        transfers,
        /// Lines written while another CPU held a copy.
        remote_dirtied,
    }
}

/// What one CPU had to do with the fabric that invalidates everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FabricUse {
    /// Operations that it issued.
    pub operations: u64,
    /// How long it waited for them; part of [`TimeSplit::waiting`].
    pub waited: Time,
    /// What the operations of others took from it while it ran; part of the time of whatever it
    /// did.
    pub taxed: Time,
}

impl AddAssign for FabricUse {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.waited += other.waited;
        self.taxed += other.taxed;
    }
}

impl Sub for FabricUse {
    type Output = Self;
    /// What came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            operations: self.operations - earlier.operations,
            waited: self.waited - earlier.waited,
            taxed: self.taxed - earlier.taxed,
        }
    }
}

/// What one CPU did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuOutcome {
    /// When its program returned; `None` when it had none.
    pub finished: Option<Time>,
    /// Where its time went.
    pub time: TimeSplit,
    /// Translations.
    pub tlb: TlbCounts,
    /// Invalidations and root loads.
    pub invalidations: Invalidations,
    /// Interrupts.
    pub interrupts: Interrupts,
    /// Cache lines.
    pub lines: LineCounts,
    /// Broadcasts.
    pub fabric: FabricUse,
    /// System calls.
    pub syscalls: u64,
    /// The library's own counters.
    pub library: Snapshot,
}

/// What a run did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// When the last program returned.
    pub end: Time,
    /// Every CPU.
    pub cpus: Vec<CpuOutcome>,
}

impl Outcome {
    /// What came since `earlier`, an outcome of the same run; `end` is the time between them.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.cpus.iter().zip(&earlier.cpus);
        let difference = |(now, then): (&CpuOutcome, &CpuOutcome)| CpuOutcome {
            finished: now.finished,
            time: now.time - then.time,
            tlb: now.tlb - then.tlb,
            invalidations: now.invalidations - then.invalidations,
            interrupts: now.interrupts - then.interrupts,
            lines: now.lines - then.lines,
            fabric: now.fabric - then.fabric,
            syscalls: now.syscalls - then.syscalls,
            library: now.library - then.library,
        };
        Self { end: self.end - earlier.end, cpus: pairs.map(difference).collect() }
    }

    /// All CPUs together; `finished` is the latest.
    #[must_use]
    pub fn total(&self) -> CpuOutcome {
        let mut total = CpuOutcome::default();
        for cpu in &self.cpus {
            total.finished = total.finished.max(cpu.finished);
            total.time += cpu.time;
            total.tlb += cpu.tlb;
            total.invalidations += cpu.invalidations;
            total.interrupts += cpu.interrupts;
            total.lines += cpu.lines;
            total.fabric += cpu.fabric;
            total.syscalls += cpu.syscalls;
            total.library += cpu.library;
        }
        total
    }
}

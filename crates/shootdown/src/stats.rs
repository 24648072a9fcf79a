//! Counters: what the mechanism did, per CPU, cheap enough to leave on.
//!
//! Every counter is written by its own CPU only (a relaxed load and store on a private line; no
//! read-modify-write) and may be read by anyone at any time. [`Snapshot`]s add up and subtract.

use crate::sync::{CountCell, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The counters of one CPU.
        #[derive(Debug)]
        #[repr(align(64))]
        pub struct Stats {
            $(pub(crate) $name: Counter,)*
            waits: [Counter; WAIT_BUCKETS],
            /// Kept switches that `Order` had counted when the counters were last set to zero.
            pub(crate) kept_at_reset: Counter,
        }

        /// Counters at one moment. Fields add up over CPUs.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Snapshot {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Completed waits by length: bucket 0 is no tick at all, bucket *i* is
            /// 2^(i-1) to 2^i - 1 of the platform's ticks, the last is everything longer.
            pub waits: [u64; WAIT_BUCKETS],
        }

        impl Stats {
            pub(crate) const fn new() -> Self {
                Self { $($name: Counter::new(),)* waits: [const { Counter::new() }; WAIT_BUCKETS],
                    kept_at_reset: Counter::new(),
                }
            }

            pub(crate) fn read(&self) -> Snapshot {
                let mut waits = [0; WAIT_BUCKETS];
                for (to, from) in waits.iter_mut().zip(&self.waits) {
                    *to = from.get();
                }
                Snapshot { $($name: self.$name.get(),)* waits }
            }

            pub(crate) fn reset(&self, kept: u64) {
                $(self.$name.set(0);)*
                self.waits.iter().for_each(|w| w.set(0));
                self.kept_at_reset.set(kept);
            }
        }

        impl Snapshot {
            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl core::ops::AddAssign for Snapshot {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                for (a, b) in self.waits.iter_mut().zip(other.waits) {
                    *a += b;
                }
            }
        }

        impl core::ops::Sub for Snapshot {
            type Output = Self;
            fn sub(mut self, other: Self) -> Self {
                $(self.$name = self.$name.saturating_sub(other.$name);)*
                for (a, b) in self.waits.iter_mut().zip(other.waits) {
                    *a = a.saturating_sub(b);
                }
                self
            }
        }
    };
}

/// Buckets of the wait histogram.
pub const WAIT_BUCKETS: usize = 24;

counters! {
    /// Switches to the space that was loaded already.
    switches_same,
    /// Switches that kept a remembered space's entries.
    switches_kept,
    /// Switches that replayed missed ranges under a remembered tag.
    switches_replayed,
    /// Switches that flushed the tag they loaded.
    switches_flushed,
    /// Slots taken from another space.
    evictions,
    /// Times this CPU became lazy.
    lazy_entries,
    /// Returns from lazy mode that found the entries current.
    lazy_exits_current,
    /// Returns from lazy mode that had to invalidate.
    lazy_exits_stale,
    /// Spaces left altogether (deep idle, or asked to while lazy).
    leaves,
    /// Flushes of pages asked for.
    requests_pages,
    /// Flushes of whole spaces asked for.
    requests_space,
    /// Kernel-range flushes asked for.
    requests_kernel,
    /// Flushes of everything asked for.
    requests_everything,
    /// Page requests beyond the ceiling, made whole-space requests.
    over_ceiling,
    /// Flushes that no other CPU had to be interrupted for.
    flushes_local,
    /// Flushes that waited for other CPUs.
    flushes_remote,
    /// Interrupts raised (targets, not send operations).
    kicks_sent,
    /// Interrupts not raised: the CPU is lazy and no table was freed.
    avoided_lazy,
    /// Interrupts not raised: the CPU has another space loaded.
    avoided_elsewhere,
    /// Interrupts not raised: the CPU was already current.
    avoided_current,
    /// Interrupts taken.
    kicks_received,
    /// Interrupts that found nothing left to do: an earlier one, or a switch, had done it.
    coalesced,
    /// Interrupts that found another space loaded.
    wrong_space,
    /// Requests executed as exact ranges.
    invalidated_ranges,
    /// Strides invalidated one by one.
    invalidated_strides,
    /// Whole tags invalidated.
    invalidated_tags,
    /// Several missed steps replayed from the range log.
    replayed,
    /// Requests for ranges that had to become whole-tag invalidations.
    escalations,
    /// Acknowledged before the invalidation.
    early_acks,
    /// User halves invalidated on return to user mode.
    user_half_flushes,
    /// Functions run for other CPUs.
    calls_served,
    /// Calls sent and acknowledged as trees.
    tree_calls,
    /// Interrupts forwarded to a group of CPUs.
    forwarded,
    /// CPUs asked to leave a set they were in for nothing.
    trims,
    /// Waits that were given up.
    stalls,
    /// Invalidations that hardware need not make: no CPU can use an entry before it flushes.
    invalidations_none,
    /// Invalidations on this CPU alone, although hardware could broadcast.
    invalidations_local,
    /// Invalidations broadcast by hardware.
    invalidations_broadcast,
    /// Generations of machine-wide tags begun.
    rollovers,
    /// Everything flushed because a new generation of tags had begun.
    rollover_flushes,
    /// Tags flushed on a switch because they were stale.
    stale_tag_flushes,
    /// Interrupts not raised: a hypercall made the CPU forget.
    handed_to_hypervisor,
    /// Interrupts not raised: the CPU was preempted and forgets before it runs again.
    marked_preempted,
    /// Hypercalls that failed; the CPUs were interrupted.
    hypercall_failed,
    /// Entries whose rights were added to, without a flush.
    elided_upgrades,
    /// Entries where there was none, without a flush.
    elided_new,
    /// Faults on accesses that the tables allow.
    spurious_faults,
    /// Times accessed bits were cleared whose entries go later.
    accessed_owed,
    /// Times accessed bits were cleared whose entries are left to go by themselves.
    accessed_left,
    /// Tags flushed at a switch or a tick because accessed bits were cleared.
    accessed_flushes,
    /// Interrupts not raised: the CPU is quiet, in user mode, and the flush is of a kernel range.
    avoided_quiet,
    /// Everything forgotten on the way into the kernel, for what was missed in user mode.
    quiet_catch_ups,
    /// Unmappings that were counted and put off.
    owed,
    /// Spaces for which what was owed was paid by itself.
    paid,
    /// Spaces for which what was owed was paid by a flush that was made anyway.
    paid_by_others,
    /// Gathers, and changes that rely on others', that flushed a whole space because others were open.
    escalated_gathers,
}

/// One counter, written by one CPU.
#[derive(Debug)]
pub(crate) struct Counter(CountCell);

impl Counter {
    pub const fn new() -> Self {
        Self(CountCell::new(0))
    }

    /// Adds. Only the owning CPU may call this; an interrupt between the load and the store can lose
    /// its own counts, never anything else.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Stats {
    /// Counts a completed wait of so many ticks.
    pub(crate) fn waited(&self, ticks: u64) {
        let bucket = (64 - ticks.leading_zeros()) as usize;
        self.waits[bucket.min(WAIT_BUCKETS - 1)].inc();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waits_fall_into_powers_of_two() {
        let stats = Stats::new();
        for ticks in [0, 1, 2, 3, 4, u64::MAX] {
            stats.waited(ticks);
        }
        let waits = stats.read().waits;
        assert_eq!((waits[0], waits[1], waits[2], waits[3]), (1, 1, 2, 1));
        assert_eq!(waits[WAIT_BUCKETS - 1], 1);
    }

    #[test]
    fn snapshots_add_and_subtract() {
        let stats = Stats::new();
        stats.kicks_sent.add(5);
        let before = stats.read();
        stats.kicks_sent.add(2);
        let mut sum = stats.read() - before;
        sum += sum;
        assert_eq!(sum.kicks_sent, 4);
        assert!(sum.iter().any(|(name, value)| name == "kicks_sent" && value == 4));
        stats.reset(0);
        assert_eq!(stats.read(), Snapshot::default());
    }
}

//! Counters of what each CPU has done, cheap enough to leave on.
//!
//! Only its own CPU writes a counter (a relaxed load and store on a private line; no
//! read-modify-write), and any CPU may read it at any time. [`Snapshot`]s add up and subtract;
//! [`total`] is the sum over the whole machine.
//!
//! # A file of counters
//! [`Snapshot::iter`] gives each counter's name, value and meaning, and `Display` prints one line
//! per counter (`name value`), as kernels print theirs. Both follow from the declaration below, so
//! none is left out, and they need neither an allocator nor a large stack. A name keeps its meaning
//! for good: a counter that counts something else gets another name. New counters may be put
//! between the old ones, so readers should look for the name and not for the line.
//!
//! ```
//! # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
//! use core::fmt::{self, Write};
//! use shootdown::stats;
//!
//! /// What is read from the file `tlb`.
//! fn show(file: &mut impl Write) -> fmt::Result {
//!     write!(file, "{}", stats::total::<Mock>())
//! }
//!
//! /// And from `tlb.help`.
//! fn help(file: &mut impl Write) -> fmt::Result {
//!     stats::total::<Mock>().iter().try_for_each(|c| writeln!(file, "{}: {}", c.name, c.meaning))
//! }
//!
//! # boot_once(&<Mock as shootdown::Platform>::pin());
//! let (mut lines, mut meanings) = (String::new(), String::new());
//! show(&mut lines)?;
//! help(&mut meanings)?;
//! assert!(lines.lines().any(|line| line == "kicks_sent 0"));
//! assert!(meanings.contains("kicks_sent: Interrupts raised (targets, not send operations)."));
//! # Ok::<(), fmt::Error>(())
//! ```
//!
//! | what happened to the work | counters |
//! |---|---|
//! | put off | [`pending`](Snapshot::pending), [`lazily_pending`](Snapshot::lazily_pending), [`accessed_pending`](Snapshot::accessed_pending), [`early_acks`](Snapshot::early_acks) |
//! | flushed later | [`completed`](Snapshot::completed), [`lazily_by_age`](Snapshot::lazily_by_age), [`lazily_by_need`](Snapshot::lazily_by_need), [`lazily_swept`](Snapshot::lazily_swept), [`accessed_flushes`](Snapshot::accessed_flushes), [`replayed`](Snapshot::replayed), [`isolated_catch_ups`](Snapshot::isolated_catch_ups) |
//! | never needed | [`elided_upgrades`](Snapshot::elided_upgrades), [`elided_new`](Snapshot::elided_new), [`accessed_left`](Snapshot::accessed_left), [`invalidations_none`](Snapshot::invalidations_none) |
//! | made larger | [`over_ceiling`](Snapshot::over_ceiling), [`escalations`](Snapshot::escalations), [`escalated_gathers`](Snapshot::escalated_gathers) |
//! | saved | `avoided_*`, [`lazily_unasked`](Snapshot::lazily_unasked), [`coalesced`](Snapshot::coalesced), [`completed_by_others`](Snapshot::completed_by_others), [`marked_preempted`](Snapshot::marked_preempted) |

use core::fmt;

use crate::base::cpu_set::Bits;
use crate::base::ids::CpuId;
use crate::base::sync::{CountCell, Ordering};
use crate::port::platform::{CpuSetOf, Platform};

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

        /// The meaning of each counter, and where its value is. It is a static table and no array
        /// of values, because it is read on kernel stacks.
        static TABLE: &[Row] = &[
            $(Row {
                name: stringify!($name),
                meaning: concat!($($doc),*).trim_ascii(),
                of: |snapshot| snapshot.$name,
            },)*
        ];

        #[cfg(all(test, not(loom)))]
        impl Stats {
            /// Each counter, in the order of declaration.
            fn all(&self) -> impl Iterator<Item = &Counter> {
                [$(&self.$name,)*].into_iter().chain(&self.waits)
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

macro_rules! waits {
    ($($from:literal)*) => {
        /// The least ticks that each bucket counts, and what is said of it.
        const WAITS: &[(u64, &str, &str)] = &[
            $((
                $from,
                concat!("waits_from_", $from),
                concat!("Completed waits of ", $from, " ticks of the platform or more, and too short for the next such counter."),
            ),)*
        ];
    };
}

waits! {
    0 1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536 131072 262144 524288 1048576 2097152 4194304
}

/// Buckets of the wait histogram.
pub const WAIT_BUCKETS: usize = WAITS.len();

struct Row {
    name: &'static str,
    meaning: &'static str,
    of: fn(&Snapshot) -> u64,
}

/// A counter with its name and meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Count {
    /// Its name, in small letters, digits and `_`.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What is counted, in one line.
    pub meaning: &'static str,
}

impl Snapshot {
    /// Every counter, in the order of declaration; the histogram of waits comes last, a counter for
    /// each bucket, which is named after the fewest ticks in it.
    pub fn iter(&self) -> impl Iterator<Item = Count> {
        let named =
            |row: &Row| Count { name: row.name, value: (row.of)(self), meaning: row.meaning };
        let bucket =
            |(&(_, name, meaning), &value): (&(u64, _, _), &u64)| Count { name, value, meaning };
        TABLE.iter().map(named).chain(WAITS.iter().zip(&self.waits).map(bucket))
    }
}

/// A line for each counter: `name value`.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|Count { name, value, .. }| writeln!(f, "{name} {value}"))
    }
}

/// The counters of all CPUs together, including those that are offline now. CPUs are read one after
/// the other, while they count: two counters match each other only where nothing runs.
#[must_use]
pub fn total<P: Platform>() -> Snapshot {
    let mut sum = Snapshot::default();
    let cpus = u32::try_from(CpuSetOf::<P>::capacity()).unwrap_or(u32::MAX);
    for state in (0..cpus).filter_map(|cpu| P::slot(CpuId(cpu))) {
        sum += state.stats();
    }
    sum
}

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
    /// Stale members that were asked to leave the set.
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
    /// Interrupts not raised: a hypercall invalidated the entries on that CPU.
    handed_to_hypervisor,
    /// Interrupts not raised: the CPU was preempted, and drops its entries before it runs again.
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
    accessed_pending,
    /// Times accessed bits were cleared whose entries are left to go by themselves.
    accessed_left,
    /// Tags flushed at a switch or a tick because accessed bits were cleared.
    accessed_flushes,
    /// Interrupts not raised: the CPU is isolated, in user mode, and the flush is of a kernel range.
    avoided_isolated,
    /// Everything forgotten on the way into the kernel, for what was missed in user mode.
    isolated_catch_ups,
    /// Unmappings that were counted and put off.
    pending,
    /// Flushes made only for what was pending in a space.
    completed,
    /// Spaces where a flush that was made anyway covered what was pending.
    completed_by_others,
    /// Unmappings that were put off until their frames or addresses are needed.
    lazily_pending,
    /// Unmappings that were not, for one of the reasons in `lazy_unmap::Why`.
    lazily_refused,
    /// Flushes of such unmappings that interrupted no CPU: all had dropped their entries already.
    lazily_unasked,
    /// Flushes of such unmappings that interrupted CPUs because it was time.
    lazily_by_age,
    /// Flushes of such unmappings that interrupted CPUs because frames or addresses were needed.
    lazily_by_need,
    /// Times this CPU came by and forgot what it had not been notified of.
    lazily_swept,
    /// Gathers, and changes that rely on others', that flushed a whole space because others were
    /// open.
    escalated_gathers,
}

/// One counter, written by one CPU.
#[derive(Debug)]
pub(crate) struct Counter(CountCell);

impl Counter {
    pub const fn new() -> Self {
        Self(CountCell::new(0))
    }

    /// Adds. Only the owning CPU may call this. An interrupt between the load and the store can
    /// lose its own counts, never others.
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
    /// Counts a completed wait of this many ticks.
    pub(crate) fn waited(&self, ticks: u64) {
        let bucket = (64 - ticks.leading_zeros()) as usize;
        self.waits[bucket.min(WAIT_BUCKETS - 1)].inc();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::format;
    use std::string::{String, ToString};
    use std::vec::Vec;

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
    fn buckets_are_named_after_the_fewest_ticks_in_them() {
        for (bucket, (from, name, _)) in WAITS.iter().enumerate() {
            let stats = Stats::new();
            stats.waited(*from);
            assert_eq!(stats.read().waits[bucket], 1, "{name}");
        }
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
        assert!(sum.iter().any(|c| c.name == "kicks_sent" && c.value == 4));
        stats.reset(0);
        assert_eq!(stats.read(), Snapshot::default());
    }

    /// A snapshot in which every counter has another value.
    fn distinct() -> Snapshot {
        let stats = Stats::new();
        (100..).zip(stats.all()).for_each(|(value, counter)| counter.add(value));
        stats.read()
    }

    #[test]
    fn every_field_is_shown_once_and_under_its_name() {
        let snapshot = distinct();
        assert_eq!(snapshot.iter().count() * size_of::<u64>(), size_of::<Snapshot>());
        // What `Debug` was derived for is what the struct has.
        let fields = format!("{snapshot:?}");
        for count in snapshot.iter().filter(|c| !c.name.starts_with("waits_")) {
            let field = format!(" {}: {},", count.name, count.value);
            assert!(fields.contains(&field), "{field} is not in {fields}");
        }
        let waits: Vec<u64> =
            snapshot.iter().filter(|c| c.name.starts_with("waits_")).map(|c| c.value).collect();
        assert_eq!(waits, snapshot.waits);
    }

    #[test]
    fn names_and_meanings_fit_a_file() {
        let mut names: Vec<&str> = Vec::new();
        for Count { name, meaning, .. } in distinct().iter() {
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(meaning.ends_with('.') && !meaning.contains('\n'), "{name}: {meaning}");
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        }
    }

    #[test]
    fn a_line_is_a_name_and_a_value() {
        let snapshot = distinct();
        let shown = snapshot.to_string();
        let lines: Vec<String> =
            snapshot.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
        assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
        assert!(shown.ends_with('\n'));
    }
}

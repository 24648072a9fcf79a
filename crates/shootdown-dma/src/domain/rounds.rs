//! The timer's rounds: a busy CPU flushes what it defers when the timer asks for it.
//!
//! # The problem
//! Deferred unmappings must not stay deferred for ever, so a timer visits every CPU's queue. Where
//! a CPU owns its cell ([`crate::pinned`]), entering it from another CPU interrupts the owner. For
//! 64 busy CPUs that is 63 interrupts in every window, and these CPUs look into their queues all
//! the time anyway.
//!
//! # The protocol
//! The timer *asks*: it raises the number of its round. A CPU compares that number with the last
//! one that it has seen whenever it looks after its queue, once in some tens of unmappings. If the
//! number is new, the CPU seals what it has deferred, marks this as *due* to be submitted, and
//! stores the number as *answered*. The next call of the timer submits all that is due: the batch
//! of one CPU as it is, the batches of several CPUs as one invalidation of the whole domain.
//!
//! ```text
//! timer: asked = n ------------------------------------------> due? submit
//! owner:             looks: asked? --> seal --> due --> answered = n
//! ```
//!
//! The timer expects a CPU that has answered the round before to answer this one, and leaves it
//! alone. It enters the cells of all other CPUs, which interrupts them. So a busy CPU is not
//! interrupted, an idle CPU is interrupted until it has nothing deferred, and what a CPU has
//! deferred before it became idle is flushed one window later.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | R1 | owner: `due` raised, after sealing | Release | R2 | the timer submits after the token was taken |
//! | R2 | timer: `due` taken | Acquire | R1 | |
//!
//! `asked` and `answered` decide which CPUs are interrupted, and order nothing.

use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicU64, Ordering};

/// Nothing is due.
const NOTHING: u64 = 0;
/// Batches of several CPUs are due; any other value is the number of one CPU's lane, plus one.
const SEVERAL: u64 = u64::MAX;

/// What is due to be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// What was noted in this lane of the engine.
    One(usize),
    /// What was noted in several lanes, or for the whole domain.
    Several,
}

/// The timer's rounds; see the [module](self).
#[derive(Debug)]
pub struct Rounds {
    asked: AtomicU64,
    due: AtomicU64,
    /// For each CPU, the round that it has answered last.
    answered: Fixed<AtomicU64>,
}

impl Rounds {
    /// No round yet, for this many CPUs.
    pub fn new(cpus: usize) -> Result<Self, NoMemory> {
        let answered = Fixed::try_new(cpus, |_| Ok(AtomicU64::new(0)))?;
        Ok(Self { asked: AtomicU64::new(0), due: AtomicU64::new(NOTHING), answered })
    }

    /// The number of the newest round.
    #[inline]
    pub fn newest(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// The timer begins another round.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this CPU answers rounds; the timer then leaves it alone.
    pub fn is_expected(&self, cpu: usize) -> bool {
        let answered =
            self.answered.get(cpu).map_or(0, |answered| answered.load(Ordering::Relaxed));
        answered != 0 && answered + 1 >= self.newest()
    }

    /// Whether nothing is due yet.
    pub fn is_first(&self) -> bool {
        self.due.load(Ordering::Relaxed) == NOTHING
    }

    /// A batch was sealed that is to be submitted: in this lane, or for the whole domain.
    pub fn raise(&self, lane: Option<usize>) {
        // ORDERING [R1].
        let alone = lane.is_some_and(|lane| {
            let one = lane as u64 + 1;
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            self.due.compare_exchange(NOTHING, one, success, failure).is_ok()
        });
        if !alone {
            // ORDERING [R1]. A swap, so that all CPUs agree whether it comes before or after that
            // of R2.
            self.due.swap(SEVERAL, Ordering::Release);
        }
    }

    /// This CPU has seen a round, and has sealed what it had deferred.
    pub fn answer(&self, cpu: usize, round: u64) {
        if let Some(answered) = self.answered.get(cpu) {
            answered.store(round, Ordering::Relaxed);
        }
    }

    /// Takes what is due; the caller submits it.
    pub fn take_due(&self) -> Option<Due> {
        if self.is_first() {
            return None;
        }
        // ORDERING [R2].
        match self.due.swap(NOTHING, Ordering::Acquire) {
            NOTHING => None,
            SEVERAL => Some(Due::Several),
            one => usize::try_from(one - 1).ok().map(Due::One),
        }
    }
}

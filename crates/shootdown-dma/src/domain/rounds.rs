//! The timer's rounds: CPUs that are busy flush what they defer when they are asked to.
//!
//! # The problem
//! What is deferred must not be deferred for ever, so that a timer comes by every CPU. Where a CPU
//! owns its cell ([`crate::pinned`]) entering it from elsewhere interrupts that CPU, which for 64
//! busy CPUs is 63 interrupts every window: of CPUs that look into their queues all the time.
//!
//! # The protocol
//! The timer *asks*: it raises the number of its round. A CPU looks at that number when it looks
//! after its queue, once in some tens of unmappings; if it is a new one, it seals what it has
//! deferred, notes that this is *due* to be submitted, and has *answered*. The next call of the
//! timer submits all that is due: what one CPU has sealed as it is, what several have as one
//! invalidation of the whole domain.
//!
//! ```text
//! timer: asked = n ------------------------------------------> due? submit
//! owner:             looks: asked? --> seal --> due --> answered = n
//! ```
//!
//! A CPU that has answered the round before is expected to answer this one, and is left alone. One
//! that has not is entered, as it was before there were rounds. So who is busy is not interrupted,
//! who is idle is interrupted until it has nothing, and what a CPU has deferred before it became
//! idle is flushed one window later.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | R1 | owner: `due` raised, after sealing | Release | R2 | who submits comes after the token was taken |
//! | R2 | timer: `due` taken | Acquire | R1 | |
//!
//! `asked` and `answered` decide who is interrupted, and order nothing.

use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicU64, Ordering};

/// Nothing is due.
const NOTHING: u64 = 0;
/// What several CPUs have sealed is due; otherwise what one has, by the number of its lane and one.
const SEVERAL: u64 = u64::MAX;

/// What is due to be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// What was noted in this lane of the engine.
    One(usize),
    /// What was noted in several, or for the whole domain.
    Several,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Rounds {
    asked: AtomicU64,
    due: AtomicU64,
    /// Of each CPU, the round that it has answered last.
    answered: Fixed<AtomicU64>,
}

impl Rounds {
    /// None yet, of so many CPUs.
    pub fn new(cpus: usize) -> Result<Self, NoMemory> {
        let answered = Fixed::try_new(cpus, |_| Ok(AtomicU64::new(0)))?;
        Ok(Self { asked: AtomicU64::new(0), due: AtomicU64::new(NOTHING), answered })
    }

    /// The number of the newest round.
    #[inline]
    pub fn newest(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// The timer begins another one.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Does this CPU answer rounds? Then it is left alone.
    pub fn is_expected(&self, cpu: usize) -> bool {
        let answered =
            self.answered.get(cpu).map_or(0, |answered| answered.load(Ordering::Relaxed));
        answered != 0 && answered + 1 >= self.newest()
    }

    /// Is nothing due yet?
    pub fn is_first(&self) -> bool {
        self.due.load(Ordering::Relaxed) == NOTHING
    }

    /// Something was sealed that is to be submitted: in this lane, or for the whole domain.
    pub fn raise(&self, lane: Option<usize>) {
        // ORDERING [R1].
        let alone = lane.is_some_and(|lane| {
            let one = lane as u64 + 1;
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            self.due.compare_exchange(NOTHING, one, success, failure).is_ok()
        });
        if !alone {
            // ORDERING [R1]. A swap, so that it comes before or behind that of R2 for everybody.
            self.due.swap(SEVERAL, Ordering::Release);
        }
    }

    /// This CPU has heard of a round, and has sealed what it had deferred.
    pub fn answer(&self, cpu: usize, round: u64) {
        if let Some(answered) = self.answered.get(cpu) {
            answered.store(round, Ordering::Relaxed);
        }
    }

    /// What is due, which the caller submits.
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

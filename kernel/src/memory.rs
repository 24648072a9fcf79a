//! Page frames.
//!
//! A frame that is freed goes to the top of a list and is the next to be handed out, so that
//! whatever still reaches it meets its next user as soon as possible. It is filled with [`POISON`]
//! when it is freed, which no case ever writes: a load that finds it went through a translation
//! that should be gone.
//!
//! The link to the next free frame is kept outside the frames (a table of indices), so that a frame
//! is poison through and through.

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use crate::arch;
use crate::boot::BootInfo;
use crate::say;
use crate::verdict::Verdict;

/// The size of a frame.
pub const FRAME: u64 = 4096;

/// What free memory is filled with.
pub const POISON: u64 = 0xdead_beef_dead_beef;

/// Frames that are managed: 4 MiB, more than any case needs.
const FRAMES: usize = 1024;

/// Fewer than this, and not even the smallest cases have their tables and pages.
const ENOUGH: usize = 64;

/// Large frames, of 2 MiB each, kept apart for the cases with large pages.
const LARGE: usize = 7;

/// The size of a large frame.
pub const LARGE_FRAME: u64 = 2 << 20;

/// Frame numbers that those of the managed frames lie within: architectures leave some out, but not
/// most.
const SPAN: usize = 4 * FRAMES;

/// The number of the first of them.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// What the kernel keeps of each frame beside it; others call it a page structure. One word will do
/// here.
static RECORDS: [AtomicU64; SPAN] = [const { AtomicU64::new(0) }; SPAN];

struct Pool {
    free: [u64; FRAMES],
    count: usize,
    large: [u64; LARGE],
    large_count: usize,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { free: [0; FRAMES], count: 0, large: [0; LARGE], large_count: 0 });

/// Assumed where the loader describes no memory: 64 MiB from the end of the image.
const ASSUMED: u64 = 64 << 20;

/// Takes over the memory that the loader found.
pub fn init(info: &BootInfo) {
    let memory = info.memory.clone().unwrap_or_else(|| {
        let end = arch::image_end();
        say!(
            "memory: the loader describes none; {} MiB behind the image are assumed",
            ASSUMED >> 20
        );
        end..end + ASSUMED
    });
    let mut pool = POOL.lock();
    // Large ones first: from the far end, so that they do not cut the rest into pieces.
    let mut end = memory.end / LARGE_FRAME * LARGE_FRAME;
    while pool.large_count < LARGE && end >= memory.start + 4 * LARGE_FRAME {
        end -= LARGE_FRAME;
        let at = pool.large_count;
        pool.large[at] = end;
        pool.large_count += 1;
    }
    let first = memory.start.div_ceil(FRAME);
    FIRST.store(first, Ordering::Relaxed);
    let frames = (first..end / FRAME).take(SPAN).map(|number| number * FRAME);
    for frame in frames.filter(|frame| arch::usable_frame(*frame)).take(FRAMES) {
        fill(frame, POISON);
        let at = pool.count;
        pool.free[at] = frame;
        pool.count += 1;
    }
    // The first of them on top.
    let count = pool.count;
    pool.free[..count].reverse();
    say!("memory: {} frames of 4 KiB, {} of 2 MiB", pool.count, pool.large_count);
    if pool.count < ENOUGH {
        say!("memory: too little: {ENOUGH} frames are needed; give the machine 16 MiB or more");
        Verdict::Crashed.end();
    }
}

/// Where a physical address is accessed.
#[must_use]
pub fn at(physical: u64) -> *mut u8 {
    (arch::PHYSICAL_BASE + physical) as *mut u8
}

/// A frame; its contents are the poison, or what its last user left in a frame that was never
/// freed. `None` when there is none left.
#[must_use]
pub fn allocate() -> Option<u64> {
    let mut pool = POOL.lock();
    pool.count = pool.count.checked_sub(1)?;
    Some(pool.free[pool.count])
}

/// Takes a frame back and poisons it.
pub fn free(frame: u64) {
    fill(frame, POISON);
    let mut pool = POOL.lock();
    let at = pool.count;
    assert!(at < FRAMES, "a frame was freed that was never handed out");
    pool.free[at] = frame;
    pool.count += 1;
}

/// Is a frame that was just handed out still poison through and through? Not if somebody stored to
/// it while it was free.
#[must_use]
pub fn is_poison(frame: u64) -> bool {
    let words = at(frame).cast::<u64>();
    // SAFETY: as in `fill`.
    (0..FRAME as usize / 8).all(|index| unsafe { words.add(index).read_volatile() } == POISON)
}

/// Poisons every free frame anew.
pub fn poison_all() {
    let pool = POOL.lock();
    pool.free[..pool.count].iter().for_each(|frame| fill(*frame, POISON));
}

/// A word beside a frame, for whoever has the frame.
///
/// # Panics
/// When the allocator does not manage it.
#[must_use]
pub fn record(frame: u64) -> &'static AtomicU64 {
    // ORDERING: Relaxed: written once, before there is another CPU.
    let number = (frame / FRAME).checked_sub(FIRST.load(Ordering::Relaxed));
    let record = number.and_then(|number| RECORDS.get(usize::try_from(number).ok()?));
    record.expect("a frame that is managed")
}

/// A frame of 2 MiB, aligned to that; `None` when there is none left.
#[must_use]
pub fn allocate_large() -> Option<u64> {
    let mut pool = POOL.lock();
    pool.large_count = pool.large_count.checked_sub(1)?;
    Some(pool.large[pool.large_count])
}

/// Large frames that are free.
#[must_use]
pub fn available_large() -> usize {
    POOL.lock().large_count
}

/// Takes a large frame back.
pub fn free_large(frame: u64) {
    let mut pool = POOL.lock();
    let at = pool.large_count;
    pool.large[at] = frame;
    pool.large_count += 1;
}

/// Frames that are free.
#[must_use]
pub fn available() -> usize {
    POOL.lock().count
}

/// Fills a frame with a word.
pub fn fill(frame: u64, word: u64) {
    assert!(frame.is_multiple_of(FRAME) && frame != 0, "{frame:#x} is no frame");
    let words = at(frame).cast::<u64>();
    for index in 0..FRAME as usize / 8 {
        // SAFETY: the frame is memory that the allocator manages and the caller owns, and this is
        // inside it.
        unsafe { words.add(index).write_volatile(word) };
    }
}

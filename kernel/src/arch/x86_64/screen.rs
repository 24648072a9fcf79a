//! The text screen of a PC that was booted by a BIOS, for those without a serial port: 80 by 25
//! letters in memory.
//!
//! Whether there is one is seen by writing to it. UEFI firmware leaves a screen of dots instead, on
//! which nothing is shown. Whoever writes holds the console's lock, or is about to end the machine:
//! the position needs no more than that.

use core::sync::atomic::{AtomicUsize, Ordering};

const CELLS: *mut u16 = 0xb8000 as *mut u16;
const COLUMNS: usize = 80;
const ROWS: usize = 25;

/// Light grey on black, in the upper byte.
const COLOURS: u16 = 0x0700;

/// Where the next letter goes; [`ABSENT`] where there is no screen.
static POSITION: AtomicUsize = AtomicUsize::new(ABSENT);
const ABSENT: usize = usize::MAX;

fn get(at: usize) -> u16 {
    assert!(at < COLUMNS * ROWS);
    // SAFETY: inside the PC's window for graphics memory, which is mapped to itself and is nobody's
    // memory, screen or not.
    unsafe { CELLS.add(at).read_volatile() }
}

fn set(at: usize, cell: u16) {
    assert!(at < COLUMNS * ROWS);
    // SAFETY: as in `get`.
    unsafe { CELLS.add(at).write_volatile(cell) };
}

/// Looks whether there is a screen, and empties it.
pub(super) fn init() {
    const PATTERN: u16 = COLOURS | 0x55;
    set(0, PATTERN);
    if get(0) != PATTERN {
        return;
    }
    (0..COLUMNS * ROWS).for_each(|at| set(at, COLOURS | u16::from(b' ')));
    POSITION.store(0, Ordering::Relaxed);
}

/// Writes a byte.
pub(super) fn put(byte: u8) {
    let mut at = POSITION.load(Ordering::Relaxed);
    if at == ABSENT {
        return;
    }
    match byte {
        b'\r' => at -= at % COLUMNS,
        b'\n' => at += COLUMNS,
        letter => {
            set(at, COLOURS | u16::from(letter));
            at += 1;
        }
    }
    if at >= COLUMNS * ROWS {
        (COLUMNS..COLUMNS * ROWS).for_each(|from| set(from - COLUMNS, get(from)));
        (COLUMNS * (ROWS - 1)..COLUMNS * ROWS).for_each(|at| set(at, COLOURS | u16::from(b' ')));
        at -= COLUMNS;
    }
    POSITION.store(at, Ordering::Relaxed);
}

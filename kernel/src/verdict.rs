//! What a run, and each case of it, came to.
//!
//! The last line that the image prints is `verdict: WORD`, and the machine ends with the code of
//! that word. The codes are none that an emulator ends with by itself: `isa-debug-exit` makes 2c+1
//! of a code c, so QEMU's own 0 (the machine was reset) and 1 (bad command line) are never a
//! verdict.
//!
//! | word | code | meaning |
//! |---|---|---|
//! | `pass` | 32 | every case held, and each negative control showed the stale entry |
//! | `not-observable` | 33 | every case held, but some controls showed nothing: this machine can't tell |
//! | `fail` | 34 | a promise was broken |
//! | `crashed` | 35 | a panic, or a fault where none was expected |

use core::fmt;

use crate::{arch, say};

/// What came of one case or of all, the better first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// It held, and its negative control showed the stale entry.
    Pass,
    /// It held, but without the invalidation nothing was stale either.
    NotObservable,
    /// Something was stale that must not be.
    Fail,
    /// The kernel can't go on.
    Crashed,
}

impl Verdict {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Pass => 32,
            Self::NotObservable => 33,
            Self::Fail => 34,
            Self::Crashed => 35,
        }
    }

    /// Prints the last line and ends the machine.
    pub fn end(self) -> ! {
        say!("verdict: {self}");
        arch::exit(self.code())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::NotObservable => "not-observable",
            Self::Fail => "fail",
            Self::Crashed => "crashed",
        })
    }
}

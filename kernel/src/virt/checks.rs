//! What a case has looked at, and what of it was wrong.

use alloc::string::String;
use core::fmt::{self, Debug, Write};

use shootdown_virt::vmx::GuestRegisters;
use shootdown_virt::{Report, set_hook};
use spin::Mutex;

use crate::say;
use crate::verdict::Verdict;

/// How a case ended.
pub enum Seen {
    /// All that it is about.
    All,
    /// This machine does not show it.
    Nothing(&'static str),
}

/// What a case looked at.
pub struct Checks {
    looked: u32,
    wrong: Option<String>,
}

impl Checks {
    pub fn new() -> Self {
        Self { looked: 0, wrong: None }
    }

    /// This must be that.
    pub fn same<T: PartialEq + Debug>(&mut self, what: &str, got: T, wanted: T) {
        self.holds(what, got == wanted, format_args!("{got:?} instead of {wanted:?}"));
    }

    /// This must hold; `otherwise` says what is instead.
    pub fn holds(&mut self, what: &str, holds: bool, otherwise: fmt::Arguments<'_>) {
        self.looked += 1;
        if !holds && self.wrong.is_none() {
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = write!(text, "{what}: {otherwise}");
            self.wrong = Some(text);
        }
    }

    /// This must not be an error; `None` if it is one, and then the case is over.
    pub fn ok<T, E: Debug>(&mut self, what: &str, got: Result<T, E>) -> Option<T> {
        match got {
            Ok(value) => {
                self.looked += 1;
                Some(value)
            }
            Err(error) => {
                self.holds(what, false, format_args!("{error:?}"));
                None
            }
        }
    }

    pub fn verdict(&self, seen: &Seen) -> Verdict {
        match (&self.wrong, seen) {
            (Some(_), _) => Verdict::Fail,
            (None, Seen::Nothing(_)) => Verdict::NotObservable,
            (None, Seen::All) => Verdict::Pass,
        }
    }

    pub fn say(&self, family: &str, name: &str, verdict: Verdict, seen: &Seen) {
        match (&self.wrong, seen) {
            (Some(wrong), _) => say!("case {family}/{name} {verdict} {wrong}"),
            (None, Seen::Nothing(why)) => say!("case {family}/{name} {verdict} {why}"),
            (None, Seen::All) => say!("case {family}/{name} {verdict} {} checks", self.looked),
        }
    }
}

/// Fifteen registers and CR2, each with a value of its own.
pub fn pattern() -> GuestRegisters {
    let value = |n: u64| 0x0123_4567_89ab_cdef ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    GuestRegisters {
        rax: value(1),
        rcx: value(2),
        rdx: value(3),
        rbx: value(4),
        rbp: value(5),
        rsi: value(6),
        rdi: value(7),
        r8: value(8),
        r9: value(9),
        r10: value(10),
        r11: value(11),
        r12: value(12),
        r13: value(13),
        r14: value(14),
        r15: value(15),
        cr2: value(16),
    }
}

/// What the guest `registers` makes of them.
pub fn turned_over(r: GuestRegisters) -> GuestRegisters {
    GuestRegisters {
        rax: !r.rax,
        rcx: !r.rcx,
        rdx: !r.rdx,
        rbx: !r.rbx,
        rbp: !r.rbp,
        rsi: !r.rsi,
        rdi: !r.rdi,
        r8: !r.r8,
        r9: !r.r9,
        r10: !r.r10,
        r11: !r.r11,
        r12: !r.r12,
        r13: !r.r13,
        r14: !r.r14,
        r15: r.cr2,
        cr2: !r.rcx,
    }
}

/// The last failure that was a defect.
static REPORT: Mutex<Option<Report>> = Mutex::new(None);

/// Has failures noted instead of the panic that is there from the start.
pub fn hear_reports() {
    set_hook(|report| *REPORT.lock() = Some(*report));
}

/// The failure that was reported since this was asked last.
pub fn reported() -> Option<Report> {
    REPORT.lock().take()
}

//! Non-maskable interrupts and machine checks that somebody expects: a case of the suite, for as
//! long as it runs.
//!
//! The handler of each runs on a stack of its own, which the next one of its kind would overwrite;
//! a case raises one at a time. A fault in such a handler that goes on at a fix-up is no harm: it
//! uses the same stack further down. (Its IRET ends the blocking of NMIs early, and none is under
//! way.)

use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// What runs when one comes.
pub type Handler = fn();

/// Who expects one of a kind; null: nobody.
struct Expected(AtomicPtr<()>);

static NON_MASKABLE: Expected = Expected(AtomicPtr::new(ptr::null_mut()));
static MACHINE_CHECK: Expected = Expected(AtomicPtr::new(ptr::null_mut()));

impl Expected {
    fn set(&self, handler: Option<Handler>) {
        self.0.store(handler.map_or(ptr::null_mut(), |f| f as *mut ()), Ordering::Release);
    }

    fn run(&self) -> bool {
        // ORDERING: Acquire, with the Release in `set`: what the handler relies on was stored
        // before.
        let handler = self.0.load(Ordering::Acquire);
        if handler.is_null() {
            return false;
        }
        // SAFETY: what is not null was stored by `set`, from a `Handler`.
        unsafe { mem::transmute::<*mut (), Handler>(handler)() };
        true
    }
}

/// From now on `handler` runs for each non-maskable interrupt, on any CPU; `None`: nobody expects
/// one.
pub fn on_non_maskable(handler: Option<Handler>) {
    NON_MASKABLE.set(handler);
}

/// The same for machine checks.
pub fn on_machine_check(handler: Option<Handler>) {
    MACHINE_CHECK.set(handler);
}

pub(super) fn non_maskable() -> bool {
    NON_MASKABLE.run()
}

pub(super) fn machine_check() -> bool {
    MACHINE_CHECK.run()
}

//! A proof that this CPU takes no interrupt.

use core::marker::PhantomData;

/// Interrupts are off on this CPU while this value, or a borrow of it, lives. It stays on its CPU.
///
/// NMIs and machine checks still come.
#[derive(Debug)]
pub struct InterruptsOff {
    /// Neither `Send` nor `Sync`: the promise is about one CPU.
    here: PhantomData<*mut ()>,
}

impl InterruptsOff {
    /// States that interrupts are off.
    ///
    /// # Safety
    /// Interrupts are off on this CPU (RFLAGS.IF or GIF is clear), and stay off until the value is
    /// dropped. The value is used on this CPU only.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { here: PhantomData }
    }
}

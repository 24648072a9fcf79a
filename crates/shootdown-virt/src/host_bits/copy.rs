//! A CPU's CR4, and a copy of it in memory.
//!
//! Before each VM entry the host's CR4 is compared with the value from which HOST_CR4 and the
//! guest's effective bits were made. Reading the register for that costs 24 to 36 cycles (Haswell,
//! Sandy Bridge: the measurements with the 2015 patch "Preserve host CR4.MCE value while in guest
//! mode"); reading a copy costs a load.
//!
//! # Protocol
//! - There is one owner: the CPU whose register it is. No other CPU reads or writes the copy.
//! - The copy is written *before* the register, with interrupts off. An NMI may come between the
//!   two, and its handler may change CR4 for a while (a toggle of PGE) and restore the value of the
//!   copy. With the copy first, that is the value about to be written. With the register first, the
//!   handler would restore the old value, and register and copy would differ from then on.
//! - The copy starts as all ones, which is no value of CR4. [`Cr4Copy::get`] reports that as an
//!   error and not by a panic: the first reader may be a path with interrupts off that can still
//!   return in order. A debugger, or code that looks at the memory, sees a value that MOV to CR4
//!   refuses.
//! - The emergency path reads the register. It runs when nothing in memory can be trusted.
//!
//! | # | access | ordering | why |
//! |---|---|---|---|
//! | O1 | copy written, then register | relaxed store, compiler fence | one CPU: its NMI handler sees program order, if the compiler keeps it |
//! | O2 | copy read | relaxed | the reader is the writer's CPU |

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use shootdown_arch::x86_64::Cr4;

use super::interrupts::InterruptsOff;
use crate::teardown;

/// The CR4 of the CPU that executes.
pub trait Cr4Register {
    /// Reads it.
    fn read(&self) -> Cr4;

    /// Writes it.
    ///
    /// # Safety
    /// Running on with these control bits is sound, as for `shootdown_arch::x86_64::write_cr4`.
    unsafe fn write(&self, value: Cr4);
}

/// The register of the real CPU.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub struct HardwareCr4 {
    /// Made by [`HardwareCr4::new`] only.
    ring_0: (),
}

#[cfg(target_arch = "x86_64")]
impl HardwareCr4 {
    /// The register.
    ///
    /// # Safety
    /// All code that uses the value, or a copy made with it, runs at privilege level 0.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { ring_0: () }
    }
}

#[cfg(target_arch = "x86_64")]
impl Cr4Register for HardwareCr4 {
    #[inline]
    fn read(&self) -> Cr4 {
        let () = self.ring_0;
        // SAFETY: privilege level 0, promised when `self` was made.
        unsafe { shootdown_arch::x86_64::read_cr4() }
    }

    #[inline]
    unsafe fn write(&self, value: Cr4) {
        // SAFETY: privilege level 0 as above; the bits are the caller's promise.
        unsafe { shootdown_arch::x86_64::write_cr4(value) }
    }
}

/// One CPU's CR4 and its copy. A kernel has one for each CPU.
#[derive(Debug)]
pub struct Cr4Copy<R> {
    copy: AtomicU64,
    register: R,
}

/// The copy was used before [`Cr4Copy::start`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cr4Unknown;

impl fmt::Display for Cr4Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this CPU's copy of CR4 holds nothing yet; call `Cr4Copy::start` on it first")
    }
}

impl core::error::Error for Cr4Unknown {}

impl<R: Cr4Register> Cr4Copy<R> {
    /// No value of CR4: bits that no CPU has are set.
    const UNKNOWN: u64 = !0;

    /// The copy of a CPU that has not started.
    #[must_use]
    pub const fn new(register: R) -> Self {
        Self { copy: AtomicU64::new(Self::UNKNOWN), register }
    }

    /// Takes the register's value, and returns it. From here on every write to CR4 goes through
    /// [`Cr4Copy::change`].
    ///
    /// # Safety
    /// This is the copy of the CPU that executes.
    pub unsafe fn start(&self, _: &InterruptsOff) -> Cr4 {
        let value = self.register.read();
        self.copy.store(value.bits(), Ordering::Relaxed);
        value
    }

    /// The copy.
    ///
    /// # Errors
    /// [`Cr4Unknown`] before [`Cr4Copy::start`].
    #[inline]
    pub fn get(&self, _: &InterruptsOff) -> Result<Cr4, Cr4Unknown> {
        match self.copy.load(Ordering::Relaxed) {
            Self::UNKNOWN => Err(Cr4Unknown), // [O2]
            value => Ok(Cr4::from_bits(value)),
        }
    }

    /// The copy, for a VM entry. Debug builds compare it with the register, which finds code that
    /// writes CR4 by another way. ([`Cr4Copy::get`] does not compare: between the two writes of a
    /// change an NMI handler sees them differ.)
    ///
    /// # Errors
    /// [`Cr4Unknown`] before [`Cr4Copy::start`].
    ///
    /// # Panics
    /// In debug builds, if CR4 was written by another way than [`Cr4Copy::change`], unless
    /// virtualization is being taken away ([`teardown`]).
    #[inline]
    pub fn for_entry(&self, off: &InterruptsOff) -> Result<Cr4, Cr4Unknown> {
        let value = self.get(off)?;
        // An emergency clears VMXE in the register alone; the entry that follows is refused.
        debug_assert!(
            self.register.read() == value || teardown::has_begun(),
            "CR4 was written past its copy"
        );
        Ok(value)
    }

    /// Changes CR4: the copy, then the register. Returns what it was. A change to the same value
    /// writes nothing.
    ///
    /// # Errors
    /// [`Cr4Unknown`] before [`Cr4Copy::start`]; nothing is written then.
    ///
    /// # Safety
    /// This is the copy of the CPU that executes, and running on with the new control bits is
    /// sound.
    pub unsafe fn change(
        &self,
        off: &InterruptsOff,
        new: impl FnOnce(Cr4) -> Cr4,
    ) -> Result<Cr4, Cr4Unknown> {
        let before = self.get(off)?;
        let after = new(before);
        if after != before {
            // ORDERING: [O1] an NMI handler of this CPU that runs between the two finds the value
            // that the register is about to have.
            self.copy.store(after.bits(), Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // SAFETY: the caller's promise.
            unsafe { self.register.write(after) };
        }
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};
    use std::boxed::Box;
    use std::rc::Rc;

    use super::*;

    /// A register, and what happens just before each write to it.
    struct Register {
        value: Cell<u64>,
        writes: Cell<u32>,
        nmi: RefCell<Option<Box<dyn FnOnce()>>>,
    }

    impl Register {
        fn new(value: u64) -> Rc<Self> {
            Rc::new(Self { value: Cell::new(value), writes: Cell::new(0), nmi: RefCell::new(None) })
        }
    }

    impl Cr4Register for Rc<Register> {
        fn read(&self) -> Cr4 {
            Cr4::from_bits(self.value.get())
        }
        unsafe fn write(&self, value: Cr4) {
            if let Some(nmi) = self.nmi.take() {
                nmi();
            }
            self.value.set(value.bits());
            self.writes.set(self.writes.get() + 1);
            if let Some(nmi) = self.nmi.take() {
                nmi();
            }
        }
    }

    fn off() -> InterruptsOff {
        // SAFETY: no interrupt reaches this code.
        unsafe { InterruptsOff::new() }
    }

    fn set(copy: &Cr4Copy<Rc<Register>>, value: u64) -> Result<Cr4, Cr4Unknown> {
        // SAFETY: the register is a variable.
        unsafe { copy.change(&off(), |_| Cr4::from_bits(value)) }
    }

    fn start(copy: &Cr4Copy<Rc<Register>>) {
        // SAFETY: the register is a variable.
        unsafe { copy.start(&off()) };
    }

    #[test]
    fn a_copy_that_was_never_filled_gives_nothing_and_writes_nothing() {
        let register = Register::new(0x6f0);
        let copy = Cr4Copy::new(Rc::clone(&register));
        assert_eq!(copy.copy.load(Ordering::Relaxed), !0, "what a debugger sees");
        assert_eq!(copy.get(&off()), Err(Cr4Unknown));
        assert_eq!(copy.for_entry(&off()), Err(Cr4Unknown));
        assert_eq!(set(&copy, 0x20), Err(Cr4Unknown));
        assert_eq!((register.value.get(), register.writes.get()), (0x6f0, 0));
        start(&copy);
        assert_eq!(copy.get(&off()), Ok(Cr4::from_bits(0x6f0)));
        assert_eq!(register.writes.get(), 0);
        // No bit at all is a value, too.
        let copy = Cr4Copy::new(Register::new(0));
        start(&copy);
        assert_eq!(copy.get(&off()), Ok(Cr4::from_bits(0)));
    }

    #[test]
    fn register_and_copy_agree_after_every_change() {
        let register = Register::new(0x20);
        let copy = Cr4Copy::new(Rc::clone(&register));
        start(&copy);
        let (mut before, mut writes) = (0x20, 0);
        for value in (0..1 << 8).map(|n: u64| n.wrapping_mul(0x9e37) & 0xff | 0x20) {
            assert_eq!(set(&copy, value), Ok(Cr4::from_bits(before)));
            writes += u32::from(value != before);
            before = value;
            assert_eq!(copy.for_entry(&off()), Ok(Cr4::from_bits(value)));
            assert_eq!((register.value.get(), register.writes.get()), (value, writes));
        }
    }

    /// The handler toggles PGE as a flush does: what the copy says, flipped, and back.
    #[test]
    fn an_nmi_that_restores_cr4_from_the_copy_undoes_no_change() {
        let register = Register::new(0x20);
        let copy = Rc::new(Cr4Copy::new(Rc::clone(&register)));
        start(&copy);
        let (in_nmi, its_copy) = (Rc::clone(&register), Rc::clone(&copy));
        let nmi = move || {
            let now = its_copy.get(&off()).unwrap();
            in_nmi.value.set(now.with_pge_flipped().bits());
            in_nmi.value.set(now.bits());
        };
        // Before the register is written, and just after.
        for value in [0x60, 0x20] {
            register.nmi.replace(Some(Box::new(nmi.clone())));
            set(&copy, value).unwrap();
            assert_eq!(copy.for_entry(&off()), Ok(Cr4::from_bits(value)));
        }
        let after_write = Rc::clone(&register);
        register.nmi.replace(Some(Box::new(move || {
            after_write.nmi.replace(Some(Box::new(nmi)));
        })));
        set(&copy, 0x64).unwrap();
        assert_eq!(register.value.get(), 0x64);
        assert_eq!(copy.for_entry(&off()), Ok(Cr4::from_bits(0x64)));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "CR4 was written past its copy")]
    fn a_write_past_the_copy_is_found_at_the_next_entry() {
        let register = Register::new(0x20);
        let copy = Cr4Copy::new(Rc::clone(&register));
        start(&copy);
        register.value.set(0x60);
        let _ = copy.for_entry(&off());
    }
}

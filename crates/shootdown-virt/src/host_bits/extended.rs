//! XCR0 and PKRU, which neither VM entry nor exit switches.
//!
//! XCR0 says which state XSAVE and XRSTOR access and which registers exist; PKRU says which user
//! pages may be accessed. Both keep the guest's values until software writes them. Code of the host
//! that runs after an exit, above all a machine-check handler, needs the host's values: with a
//! guest's XCR0 an access to a register that the handler uses may fault, and with a guest's PKRU an
//! access to a user page may.
//!
//! Writing XCR0 is slow and, where the host is itself a guest, causes an exit: it is written only
//! where the two values differ. The guest can't change XCR0 without an exit (XSETBV always exits on
//! VMX, and on SVM by its intercept). It can change PKRU at any time, so PKRU is read back.
//!
//! Before a vCPU leaves a CPU, the host's state is loaded there again.

use core::fmt;

/// XCR0, and PKRU if the CPU has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// XCR0.
    pub xcr0: u64,
    /// PKRU. `None` if the host does not use it (CR4.PKE clear); a guest then must not have it.
    pub pkru: Option<u32>,
}

/// The two registers of the CPU that executes.
pub trait ExtendedRegisters {
    /// XSETBV of register 0.
    fn write_xcr0(&mut self, value: u64);

    /// RDPKRU.
    fn read_pkru(&mut self) -> u32;

    /// WRPKRU.
    fn write_pkru(&mut self, value: u32);
}

/// The registers of the real CPU.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub struct HardwareExtended {
    /// Made by [`HardwareExtended::new`] only.
    ring_0: (),
}

#[cfg(target_arch = "x86_64")]
impl HardwareExtended {
    /// The registers.
    ///
    /// # Safety
    /// Code that uses the value runs at privilege level 0 with CR4.OSXSAVE set. XCR0 values that it
    /// writes are ones the CPU has, and no code between relies on state that they leave out. PKRU
    /// is touched only where CR4.PKE is set.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { ring_0: () }
    }
}

#[cfg(target_arch = "x86_64")]
impl ExtendedRegisters for HardwareExtended {
    #[inline]
    fn write_xcr0(&mut self, value: u64) {
        let () = self.ring_0;
        // SAFETY: privilege level 0, OSXSAVE, and a value that the CPU has, promised when `self`
        // was made. Without `nomem` no access moves across it.
        unsafe {
            core::arch::asm!("xsetbv", in("ecx") 0, in("eax") value as u32,
                in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
        }
    }

    #[inline]
    fn read_pkru(&mut self) -> u32 {
        let value;
        // SAFETY: CR4.PKE is set, promised when `self` was made.
        unsafe {
            core::arch::asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _,
                options(nomem, nostack, preserves_flags));
        }
        value
    }

    #[inline]
    fn write_pkru(&mut self, value: u32) {
        // SAFETY: as for reading. It binds accesses to user pages, so none may move across it: no
        // `nomem`.
        unsafe {
            core::arch::asm!("wrpkru", in("ecx") 0, in("eax") value, in("edx") 0,
                options(nostack, preserves_flags));
        }
    }
}

/// A vCPU's state, and whether the host's or the guest's registers are loaded.
///
/// # Invariants
/// - X1: after [`ExtendedSwitch::load_host`] both registers are what the host had at
///   [`ExtendedSwitch::load_guest`].
/// - X2: what the guest wrote to PKRU is loaded the next time, on whatever CPU.
#[derive(Debug)]
pub struct ExtendedSwitch {
    guest: ExtendedState,
    loaded: Option<Loaded>,
}

/// The guest's state is in the registers.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    /// What goes back.
    host: ExtendedState,
    /// XCR0. (Not the vCPU's: an exit for XSETBV changes that before the register.)
    xcr0: u64,
}

/// The guest has protection keys and the host does not use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoProtectionKeys;

impl fmt::Display for NoProtectionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host does not set CR4.PKE; hide protection keys from the guest")
    }
}

impl core::error::Error for NoProtectionKeys {}

impl ExtendedSwitch {
    /// A vCPU with this state; the registers are the host's.
    #[must_use]
    pub const fn new(guest: ExtendedState) -> Self {
        Self { guest, loaded: None }
    }

    /// The guest's state. PKRU is as of the last [`ExtendedSwitch::load_host`].
    #[must_use]
    pub const fn guest(&self) -> ExtendedState {
        self.guest
    }

    /// Records the XCR0 that the guest wrote with an exit, and that the hypervisor accepts. The
    /// next [`ExtendedSwitch::load_guest`] writes it.
    pub const fn set_guest_xcr0(&mut self, xcr0: u64) {
        self.guest.xcr0 = xcr0;
    }

    /// Loads the guest's registers, before the entry. `host` holds the CPU's present values; it is
    /// not used if the guest's are loaded already.
    ///
    /// # Errors
    /// [`NoProtectionKeys`]; nothing is written then.
    pub fn load_guest(
        &mut self,
        host: ExtendedState,
        registers: &mut impl ExtendedRegisters,
    ) -> Result<(), NoProtectionKeys> {
        if self.guest.pkru.is_some() && host.pkru.is_none() {
            return Err(NoProtectionKeys);
        }
        let now = match self.loaded {
            Some(loaded) => loaded,
            None => {
                if let Some(pkru) = self.guest.pkru
                    && host.pkru != Some(pkru)
                {
                    registers.write_pkru(pkru);
                }
                Loaded { host, xcr0: host.xcr0 }
            }
        };
        if now.xcr0 != self.guest.xcr0 {
            registers.write_xcr0(self.guest.xcr0);
        }
        self.loaded = Some(Loaded { xcr0: self.guest.xcr0, ..now });
        Ok(())
    }

    /// Loads the host's registers, after the exit, before other code of the host runs and before
    /// the vCPU leaves the CPU. It does nothing if they are loaded already.
    pub fn load_host(&mut self, registers: &mut impl ExtendedRegisters) {
        let Some(Loaded { host, xcr0 }) = self.loaded.take() else { return };
        if xcr0 != host.xcr0 {
            registers.write_xcr0(host.xcr0);
        }
        if let (Some(guest), Some(host)) = (&mut self.guest.pkru, host.pkru) {
            *guest = registers.read_pkru();
            if *guest != host {
                registers.write_pkru(host);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Registers that count their writes.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(in super::super) struct Registers {
        pub xcr0: u64,
        pub pkru: u32,
        pub writes: u32,
    }

    impl ExtendedRegisters for Registers {
        fn write_xcr0(&mut self, value: u64) {
            self.xcr0 = value;
            self.writes += 1;
        }
        fn read_pkru(&mut self) -> u32 {
            self.pkru
        }
        fn write_pkru(&mut self, value: u32) {
            self.pkru = value;
            self.writes += 1;
        }
    }

    /// Two values of each register, with and without keys in the guest; the guest writes PKRU
    /// freely and XCR0 by an exit before which the host's is loaded or is not.
    #[test]
    fn the_host_gets_its_registers_back_and_the_guest_its_own() {
        for n in 0..1u32 << 7 {
            let bit = |at: u32| n >> at & 1;
            let xcr0 = |at: u32| 3 | u64::from(bit(at)) << 2;
            let host = ExtendedState { xcr0: xcr0(0), pkru: Some(bit(1) * 12) };
            let has_keys = bit(2) == 1;
            let guest = ExtendedState { xcr0: xcr0(3), pkru: has_keys.then_some(bit(4) * 12) };
            let mut cpu = Registers { xcr0: host.xcr0, pkru: bit(1) * 12, writes: 0 };
            let before = cpu.clone();
            let mut switch = ExtendedSwitch::new(guest);

            assert_eq!(switch.load_guest(host, &mut cpu), Ok(()));
            assert_eq!(cpu.xcr0, guest.xcr0);
            assert_eq!(cpu.pkru, guest.pkru.unwrap_or(before.pkru));
            let differ = u32::from(host.xcr0 != guest.xcr0);
            let keys_differ = u32::from(has_keys && host.pkru != guest.pkru);
            assert_eq!(cpu.writes, differ + keys_differ, "only what differs is written");
            if has_keys {
                cpu.pkru = bit(5) * 48; // WRPKRU does not exit
            }
            let written = cpu.pkru;

            // XSETBV exits. The new value may be the host's.
            if bit(6) == 0 {
                switch.load_host(&mut cpu);
                switch.set_guest_xcr0(host.xcr0);
            } else {
                switch.set_guest_xcr0(host.xcr0);
                switch.load_host(&mut cpu);
            }
            assert_eq!((cpu.xcr0, cpu.pkru), (before.xcr0, before.pkru), "X1");
            let again = cpu.clone();
            switch.load_host(&mut cpu);
            assert_eq!(cpu, again, "loading twice writes nothing");

            // The host's task has other keys by now.
            let host = ExtendedState { pkru: Some(3), ..host };
            cpu.pkru = 3;
            assert_eq!(switch.load_guest(host, &mut cpu), Ok(()));
            assert_eq!(cpu.xcr0, host.xcr0);
            assert_eq!(cpu.pkru, if has_keys { written } else { 3 }, "X2");
            // Entered again without the host's in between.
            switch.set_guest_xcr0(0xe7);
            assert_eq!(switch.load_guest(host, &mut cpu), Ok(()));
            assert_eq!(cpu.xcr0, 0xe7);
            switch.load_host(&mut cpu);
            assert_eq!((cpu.xcr0, cpu.pkru), (host.xcr0, 3), "X1");
        }
    }

    #[test]
    fn a_guest_has_no_keys_where_the_host_has_none() {
        let mut cpu = Registers { xcr0: 3, pkru: 0, writes: 0 };
        let mut switch = ExtendedSwitch::new(ExtendedState { xcr0: 7, pkru: Some(0) });
        let host = ExtendedState { xcr0: 3, pkru: None };
        assert_eq!(switch.load_guest(host, &mut cpu), Err(NoProtectionKeys));
        assert_eq!(cpu.writes, 0);
        switch.load_host(&mut cpu);
        assert_eq!(cpu.writes, 0);
    }
}

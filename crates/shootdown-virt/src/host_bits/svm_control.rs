//! SVM: a vCPU's control registers, and which values its VMCB holds.
//!
//! The VMCB has one CR4 and no shadow. To hide a bit, reads and writes of CR4 exit (codes 0x04 and
//! 0x14): for a read the hypervisor returns what the guest wrote, for a write it computes the field
//! again.
//!
//! | register | in the VMCB |
//! |---|---|
//! | CR4 | what the guest wrote, *or* the host's owned bits |
//! | CR0 | what the guest wrote, with the host's owned bits exactly; the guest's alone if none is owned |
//! | EFER | what the guest wrote, and SVME, which VMRUN demands; RDMSR and WRMSR exit |
//!
//! The rule is OR, and not *exactly the host's* as on VMX: with MCE clear, a machine check shuts
//! the machine down, whichever side cleared the bit; with MCE set, the intercept hands the machine
//! check to the host. So a bit is set if either side sets it. KVM does the same on both extensions.
//!
//! VMRUN saves the host's CR3 and CR4 itself and #VMEXIT restores them, so there is no HOST_CR4
//! that could become stale. The guest's MCE can become stale, as on VMX, and
//! [`SvmControl::before_entry`] compares it.
//!
//! # Invariants
//! - H2: at each VMRUN, if this CPU has an owned bit of CR4 set, so has the VMCB.
//! - H3: the guest reads what it wrote; EFER.SVME reads as the guest wrote it, too.
//! - H5: VMRUN does not refuse the control registers.

use core::fmt;

use shootdown_arch::x86_64::Cr4;

use super::access::{ControlRegister, CrAccess, LmswSource};
use super::guest::{Effects, GuestControl, WriteFault, Written};
use super::interrupts::InterruptsOff;
use super::machine_check::EXCEPTION_INTERCEPT;
use super::outcome::{FieldWrite, Outcome};
use super::owned::{Extension, HostBits};
use super::register_bits::{cr4, efer};
use crate::svm::intercept;

/// The options from which a guest's control registers are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmOptions {
    /// The bits that the host owns.
    pub owned: HostBits,
    /// The host's CR0, whose owned bits don't change while guests run.
    pub host_cr0: u64,
    /// Bits of CR4 that the guest may set: those that its CPUID reports, of the bits that the CPU
    /// has.
    pub supported_cr4: u64,
    /// Bits of EFER that the guest may set. SVME among them is for a guest that has guests.
    pub supported_efer: u64,
}

/// Options that are consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmRules {
    options: SvmOptions,
}

/// Why options are not consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SvmRulesError {
    /// The host bits are VMX's.
    WrongExtension,
    /// Bits of CR4 that no CPU with SVM has.
    Supported(u64),
}

impl fmt::Display for SvmRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongExtension => f.write_str("these host bits are VMX's; use SVM's"),
            Self::Supported(bits) => {
                write!(f, "no CPU with SVM has bits {bits:#x} of CR4; hide them from the guest")
            }
        }
    }
}

impl core::error::Error for SvmRulesError {}

/// What the VMCB must intercept so that this module's handlers are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmIntercepts {
    /// For offset 0x000: reads of CR0 to CR15 in bits 15:0, writes in bits 31:16.
    pub control_registers: u32,
    /// For offset 0x008: exceptions. Machine checks.
    pub exceptions: u32,
    /// For offset 0x010: XSETBV, because nothing restores an XCR0 that the guest changes without an
    /// exit.
    pub instructions: u32,
    /// MSRs whose reads and writes the permission map intercepts: EFER.
    pub msr: u32,
}

impl SvmRules {
    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`SvmRulesError`].
    pub const fn new(options: SvmOptions) -> Result<Self, SvmRulesError> {
        if !matches!(options.owned.extension(), Extension::Svm) {
            return Err(SvmRulesError::WrongExtension);
        }
        let intel = options.supported_cr4 & (cr4::VMXE | cr4::SMXE);
        if intel != 0 {
            return Err(SvmRulesError::Supported(intel));
        }
        Ok(Self { options })
    }

    /// The options.
    #[must_use]
    pub const fn options(&self) -> &SvmOptions {
        &self.options
    }

    /// The intercepts, to be set for as long as the guest lives.
    #[must_use]
    pub const fn intercepts(&self) -> SvmIntercepts {
        let registers = if self.handles_cr0() { 0b1_0001 } else { 0b1_0000 };
        SvmIntercepts {
            control_registers: registers | registers << 16,
            exceptions: EXCEPTION_INTERCEPT,
            instructions: intercept::XSETBV,
            msr: 0xc000_0080,
        }
    }

    /// CR4 of the VMCB, for a guest that wrote `guest`, on a CPU whose CR4 is `host`.
    #[must_use]
    pub const fn vmcb_cr4(&self, guest: u64, host: u64) -> u64 {
        guest | host & self.options.owned.cr4()
    }

    /// CR0 of the VMCB.
    const fn vmcb_cr0(&self, guest: u64) -> u64 {
        let owned = self.options.owned.cr0();
        guest & !owned | self.options.host_cr0 & owned
    }

    /// Does the host own a bit of CR0?
    const fn handles_cr0(&self) -> bool {
        self.options.owned.cr0() != 0
    }
}

/// A field of the VMCB that this module computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VmcbCr {
    /// CR0.
    Cr0,
    /// CR4.
    Cr4,
    /// EFER.
    Efer,
}

impl VmcbCr {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cr0, Self::Cr4, Self::Efer];

    /// The bit of the VMCB's clean field that is cleared when one of them is written (APM 2
    /// 15.15.3).
    pub const CLEAN_BIT: u32 = 1 << 5;

    /// Its offset in the VMCB (APM 2 table B-2; the state save area begins at 0x400).
    #[must_use]
    pub const fn offset(self) -> usize {
        match self {
            Self::Cr0 => 0x558,
            Self::Cr4 => 0x548,
            Self::Efer => 0x4d0,
        }
    }
}

/// What of the guest's state the handler needs, read from the VMCB after an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmGuest {
    /// CR0 of the VMCB.
    pub cr0: u64,
    /// CR3 of the VMCB.
    pub cr3: u64,
    /// EFER of the VMCB.
    pub efer: u64,
    /// CS.L is set, with EFER.LMA: bit 9 of the attributes of CS in the VMCB.
    pub code64: bool,
}

/// What the fields were made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fields {
    /// The VMCB is new.
    New,
    /// A write was begun and not reported as done.
    Unknown,
    /// The guest's registers as they are, and these owned bits of the host's CR4.
    From(u64),
}

/// A vCPU's control registers, and what its VMCB holds of them.
#[derive(PartialEq, Eq, Debug)]
pub struct SvmControl {
    rules: SvmRules,
    written: Guest,
    fields: Fields,
}

/// What the guest wrote, as far as the VMCB does not hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Guest {
    /// CR0. In the VMCB if the host owns none of its bits.
    cr0: u64,
    cr4: u64,
    /// Only SVME is not in the VMCB.
    efer: u64,
}

/// No guest with these features can be in the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SvmStartError(pub WriteFault);

impl fmt::Display for SvmStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no guest can start in this state ({})", self.0)
    }
}

impl core::error::Error for SvmStartError {}

/// Fields to write into the VMCB, with [`VmcbCr::CLEAN_BIT`] cleared, and then
/// [`SvmUpdate::written`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the VMCB is stale until the fields are written"]
pub struct SvmUpdate<'a> {
    control: &'a mut SvmControl,
    writes: [Option<FieldWrite>; VmcbCr::ALL.len()],
    after: Guest,
    then: Fields,
}

impl SvmUpdate<'_> {
    /// What to write where.
    pub fn fields(&self) -> impl Iterator<Item = (VmcbCr, FieldWrite)> + '_ {
        VmcbCr::ALL.into_iter().zip(self.writes).filter_map(|(field, write)| Some((field, write?)))
    }

    /// Reports that the fields were written.
    pub fn written(self) {
        self.control.written = self.after;
        self.control.fields = self.then;
    }

    const fn set(&mut self, field: VmcbCr, write: FieldWrite) {
        self.writes[field as usize] = Some(write);
    }
}

impl SvmControl {
    /// A vCPU that starts in a state, with a VMCB that holds nothing yet.
    ///
    /// # Errors
    /// [`SvmStartError`] if VMRUN would refuse it.
    pub fn new(rules: SvmRules, guest: GuestControl) -> Result<Self, SvmStartError> {
        guest.check(rules.options.supported_cr4).map_err(SvmStartError)?;
        let unsupported = guest.efer & !(rules.options.supported_efer | efer::LMA);
        if unsupported != 0 {
            return Err(SvmStartError(WriteFault::Unsupported(unsupported)));
        }
        let written = Guest { cr0: guest.cr0, cr4: guest.cr4, efer: guest.efer };
        Ok(Self { rules, written, fields: Fields::New })
    }

    /// Puts the vCPU into another state: a reset, an INIT, a snapshot.
    ///
    /// # Errors
    /// [`SvmStartError`] as for [`SvmControl::new`]; nothing changes then.
    pub fn reset(&mut self, guest: GuestControl) -> Result<(), SvmStartError> {
        *self = Self::new(self.rules, guest)?;
        Ok(())
    }

    /// The CR4 that the guest reads.
    #[must_use]
    pub const fn cr4(&self) -> u64 {
        self.written.cr4
    }

    /// The CR0 that the guest reads, given that of the VMCB.
    #[must_use]
    pub const fn cr0(&self, vmcb: u64) -> u64 {
        if self.rules.handles_cr0() { self.written.cr0 } else { vmcb }
    }

    /// The EFER that the guest reads, given that of the VMCB: the value for an intercepted RDMSR.
    #[must_use]
    pub const fn efer(&self, vmcb: u64) -> u64 {
        let owned = self.rules.options.owned.efer();
        vmcb & !owned | self.written.efer & owned
    }

    /// Were the fields made from this CPU's owned bits of CR4? Returns `None` if so; otherwise the
    /// fields to write.
    ///
    /// `host` is this CPU's present CR4; interrupts stay off from reading it to VMRUN.
    #[inline]
    pub fn before_entry(&mut self, host: Cr4, _: &InterruptsOff) -> Option<SvmUpdate<'_>> {
        let owned = host.bits() & self.rules.options.owned.cr4();
        if self.fields == Fields::From(owned) {
            return None;
        }
        Some(self.refresh(owned))
    }

    /// The slow half of [`SvmControl::before_entry`].
    #[cold]
    fn refresh(&mut self, owned: u64) -> SvmUpdate<'_> {
        let (rules, guest, before) = (self.rules, self.written, self.fields);
        let vmcb_cr4 = rules.vmcb_cr4(guest.cr4, owned);
        let host_efer = rules.options.owned.efer();
        let mut update = self.begin(guest, Fields::From(owned));
        update.set(VmcbCr::Cr4, FieldWrite::whole(vmcb_cr4));
        let new = before == Fields::New;
        if !matches!(before, Fields::From(_)) {
            let bits = if new { !0 } else { host_efer };
            update.set(VmcbCr::Efer, FieldWrite::bits(bits, guest.efer | host_efer));
            if new || rules.handles_cr0() {
                update.set(VmcbCr::Cr0, FieldWrite::whole(rules.vmcb_cr0(guest.cr0)));
            }
        }
        // H2, and the two intercepts without which H3 does not hold.
        debug_assert_eq!(vmcb_cr4 & owned, owned);
        debug_assert_eq!(rules.intercepts().control_registers & 0x10_0010, 0x10_0010);
        update
    }

    /// The guest's access to a control register: exit codes 0x00 to 0x1f, decoded by
    /// [`CrAccess::from_svm`] or [`CrAccess::from_instruction`]. `source` is the general register
    /// that [`CrAccess::source`] names, and anything if it names none.
    ///
    /// CR4 is handled, and CR0 if the host owns a bit of it; the others are [`Outcome::Other`].
    pub fn handle(
        &mut self,
        access: CrAccess,
        source: u64,
        now: &SvmGuest,
    ) -> Outcome<SvmUpdate<'_>> {
        let guest = self.guest(now);
        let handles_cr0 = self.rules.handles_cr0();
        let written = match access {
            CrAccess::Read(ControlRegister::Cr4, to) => {
                return Outcome::Read { to, value: guest.cr4 };
            }
            CrAccess::Write(ControlRegister::Cr4, _) => {
                guest.write_cr4(guest.operand(source), self.rules.options.supported_cr4)
            }
            CrAccess::Read(ControlRegister::Cr0, to) if handles_cr0 => {
                return Outcome::Read { to, value: guest.cr0 };
            }
            CrAccess::Write(ControlRegister::Cr0, _) if handles_cr0 => {
                guest.write_cr0(guest.operand(source))
            }
            CrAccess::Clts if handles_cr0 => guest.write_cr0(guest.clts()),
            CrAccess::Lmsw { source: LmswSource::Value(value) } if handles_cr0 => {
                guest.write_cr0(guest.lmsw(value))
            }
            CrAccess::Lmsw { source: LmswSource::Register(_) } if handles_cr0 => {
                guest.write_cr0(guest.lmsw((source & 0xffff) as u16))
            }
            other => return Outcome::Other(other),
        };
        self.commit(guest, written)
    }

    /// The guest's WRMSR to EFER, intercepted by the permission map (exit code 0x7c).
    pub fn write_efer(&mut self, value: u64, now: &SvmGuest) -> Outcome<SvmUpdate<'_>> {
        let guest = self.guest(now);
        let written = guest.write_efer(value, self.rules.options.supported_efer);
        self.commit(guest, written)
    }

    /// The registers as the guest reads them.
    const fn guest(&self, now: &SvmGuest) -> GuestControl {
        GuestControl {
            cr0: self.cr0(now.cr0),
            cr3: now.cr3,
            cr4: self.written.cr4,
            efer: self.efer(now.efer),
            code64: now.code64,
        }
    }

    /// A write of the guest's, as fields.
    fn commit(
        &mut self,
        before: GuestControl,
        written: Result<Written, WriteFault>,
    ) -> Outcome<SvmUpdate<'_>> {
        let Written { after, effects } = match written {
            Ok(written) => written,
            Err(fault) => return Outcome::Fault(fault),
        };
        // If it is not known from what the fields were made, the next entry writes them.
        let owned = match self.fields {
            Fields::From(owned) => owned,
            Fields::New | Fields::Unknown => self.rules.options.owned.cr4(),
        };
        let rules = self.rules;
        let written = Guest { cr0: after.cr0, cr4: after.cr4, efer: after.efer };
        let mut update = self.begin(written, self.fields);
        if after.cr0 != before.cr0 {
            update.set(VmcbCr::Cr0, FieldWrite::whole(rules.vmcb_cr0(after.cr0)));
        }
        if after.cr4 != before.cr4 {
            update.set(VmcbCr::Cr4, FieldWrite::whole(rules.vmcb_cr4(after.cr4, owned)));
        }
        if let Some(guest) = effects.efer {
            let value = guest | rules.options.owned.efer();
            update.set(VmcbCr::Efer, FieldWrite::whole(value));
        }
        // EFER is among the fields, and the CPU reads page-directory pointers from memory by
        // itself.
        Outcome::Write(update, Effects { efer: None, load_pdptes: false, ..effects })
    }

    /// Begins an update without fields. Until it is reported as written, the fields count as
    /// unknown.
    const fn begin(&mut self, after: Guest, then: Fields) -> SvmUpdate<'_> {
        if !matches!(self.fields, Fields::New) {
            self.fields = Fields::Unknown;
        }
        SvmUpdate { control: self, writes: [None; VmcbCr::ALL.len()], after, then }
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::Gpr;
    use super::*;

    const OPTIONS: SvmOptions = SvmOptions {
        owned: HostBits::SVM,
        host_cr0: 0x8005_0033,
        supported_cr4: 0x0030_07ff,
        supported_efer: efer::SCE | efer::LME | efer::NXE,
    };

    fn off() -> InterruptsOff {
        // SAFETY: no interrupt reaches this code.
        unsafe { InterruptsOff::new() }
    }

    fn start(options: SvmOptions) -> SvmControl {
        SvmControl::new(SvmRules::new(options).unwrap(), GuestControl::RESET).unwrap()
    }

    /// Writes for VMRUN on a CPU with this CR4: what CR4, CR0 and EFER of the VMCB become.
    fn enter(control: &mut SvmControl, vmcb: &mut [u64; 3], host: u64) -> usize {
        let Some(update) = control.before_entry(Cr4::from_bits(host), &off()) else { return 0 };
        for (field, write) in update.fields() {
            vmcb[field as usize] = write.over(vmcb[field as usize]);
        }
        let count = update.fields().count();
        update.written();
        count
    }

    #[test]
    fn a_bit_that_host_or_guest_wants_is_in_force() {
        let rules = SvmRules::new(OPTIONS).unwrap();
        for guest in [0, cr4::MCE, cr4::TSD, cr4::MCE | cr4::PAE] {
            for host in [0, cr4::MCE, cr4::TSD, cr4::MCE | cr4::PCIDE] {
                let real = rules.vmcb_cr4(guest, host);
                assert_eq!(real & cr4::MCE, (guest | host) & cr4::MCE);
                assert_eq!(real & !cr4::MCE, guest & !cr4::MCE);
            }
        }
    }

    #[test]
    fn only_an_owned_bit_of_the_host_makes_an_entry_write() {
        let (mut control, mut vmcb) = (start(OPTIONS), [0x5a5a; 3]);
        assert_eq!(enter(&mut control, &mut vmcb, 0x20), 3);
        assert_eq!(vmcb, [0x10, 0, efer::SVME]);
        assert_eq!(enter(&mut control, &mut vmcb, 0x24), 0);
        assert_eq!(enter(&mut control, &mut vmcb, 0x60), 1);
        assert_eq!(vmcb, [0x10, cr4::MCE, efer::SVME]);
        assert_eq!(control.cr4(), 0);
        assert_eq!(enter(&mut control, &mut vmcb, 0x66), 0);
        assert_eq!(enter(&mut control, &mut vmcb, 0x20), 1);
        assert_eq!(vmcb[1], 0);
    }

    #[test]
    fn a_write_that_was_not_reported_is_made_good_and_leaves_the_guests_own_alone() {
        let (mut control, mut vmcb) = (start(OPTIONS), [0; 3]);
        enter(&mut control, &mut vmcb, 0x60);
        vmcb = [0x8000_0011, cr4::MCE, efer::SVME | efer::LME | efer::LMA]; // the guest ran
        assert!(control.before_entry(Cr4::from_bits(0x20), &off()).is_some());
        assert_eq!(enter(&mut control, &mut vmcb, 0x60), 2);
        assert_eq!(vmcb, [0x8000_0011, cr4::MCE, efer::SVME | efer::LME | efer::LMA]);
    }

    /// Without the two intercepts of CR4 the guest would read the host's bit, and clear it.
    #[test]
    fn reads_and_writes_of_cr4_exit_and_those_of_cr0_only_if_a_bit_is_owned() {
        let rules = SvmRules::new(OPTIONS).unwrap();
        assert_eq!(rules.intercepts().control_registers, 0x0010_0010);
        assert_eq!(rules.intercepts().exceptions, 0x4_0000);
        assert_eq!(rules.intercepts().msr, 0xc000_0080);
        let owned = HostBits::new(Extension::Svm, 0x4000_0000, cr4::MCE, efer::SVME).unwrap();
        let rules = SvmRules::new(SvmOptions { owned, ..OPTIONS }).unwrap();
        assert_eq!(rules.intercepts().control_registers, 0x0011_0011);
    }

    #[test]
    fn a_guest_that_turns_its_caches_off_leaves_the_machines_on() {
        let caches = super::super::register_bits::cr0::CD;
        let owned = HostBits::new(Extension::Svm, caches, cr4::MCE, efer::SVME).unwrap();
        let (mut control, mut vmcb) = (start(SvmOptions { owned, ..OPTIONS }), [0; 3]);
        enter(&mut control, &mut vmcb, 0x60);
        let now = SvmGuest { cr0: vmcb[0], cr3: 0, efer: vmcb[2], code64: false };
        let gpr = Gpr::new(0).unwrap();
        let access = CrAccess::Write(ControlRegister::Cr0, gpr);
        let Outcome::Write(update, _) = control.handle(access, caches | 1, &now) else { panic!() };
        for (field, write) in update.fields() {
            vmcb[field as usize] = write.over(vmcb[field as usize]);
        }
        update.written();
        assert_eq!((vmcb[0], control.cr0(vmcb[0])), (0x11, caches | 0x11));
        let read = CrAccess::Read(ControlRegister::Cr0, gpr);
        let value = caches | 0x11;
        assert_eq!(control.handle(read, 0, &now), Outcome::Read { to: gpr, value });
    }

    #[test]
    fn svme_is_in_force_and_reads_as_the_guest_wrote_it() {
        let supported_efer = OPTIONS.supported_efer | efer::SVME;
        for (options, nested) in
            [(OPTIONS, false), (SvmOptions { supported_efer, ..OPTIONS }, true)]
        {
            let (mut control, mut vmcb) = (start(options), [0; 3]);
            enter(&mut control, &mut vmcb, 0x60);
            for wrote in [efer::NXE, efer::NXE | efer::SVME, efer::SCE] {
                let now = SvmGuest { cr0: vmcb[0], cr3: 0, efer: vmcb[2], code64: false };
                let before = control.efer(vmcb[2]);
                match control.write_efer(wrote, &now) {
                    Outcome::Write(update, _) => {
                        for (field, write) in update.fields() {
                            vmcb[field as usize] = write.over(vmcb[field as usize]);
                        }
                        update.written();
                        assert_eq!(control.efer(vmcb[2]), wrote);
                    }
                    outcome => {
                        assert!(!nested && wrote & efer::SVME != 0);
                        assert_eq!(outcome, Outcome::Fault(WriteFault::Unsupported(efer::SVME)));
                        assert_eq!(control.efer(vmcb[2]), before);
                    }
                }
                assert_eq!(vmcb[2] & efer::SVME, efer::SVME);
            }
        }
    }

    #[test]
    fn options_of_the_other_extension_are_refused() {
        let owned = HostBits::VMX;
        let wrong = SvmRules::new(SvmOptions { owned, ..OPTIONS });
        assert_eq!(wrong, Err(SvmRulesError::WrongExtension));
        let supported_cr4 = cr4::PAE | cr4::VMXE;
        let wrong = SvmRules::new(SvmOptions { supported_cr4, ..OPTIONS });
        assert_eq!(wrong, Err(SvmRulesError::Supported(cr4::VMXE)));
        let guest = GuestControl { efer: efer::SVME, ..GuestControl::RESET };
        let wrong = SvmControl::new(SvmRules::new(OPTIONS).unwrap(), guest);
        assert_eq!(wrong, Err(SvmStartError(WriteFault::Unsupported(efer::SVME))));
    }
}

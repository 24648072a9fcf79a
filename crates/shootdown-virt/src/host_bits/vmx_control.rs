//! VMX: a vCPU's control registers, and which values its VMCS holds.
//!
//! The fields are a copy of two things that change independently: the guest's registers, and the
//! CR4 and CR3 of the CPU that enters. A stale copy is not noticed at once. An exit loads HOST_CR4,
//! and so undoes what the host changed since it was written (CVE-2014-3690: TSD, PCE); with a
//! GUEST_CR4 that was made before the host turned MCE on, or on a CPU where it was off, the guest
//! is entered with MCE clear.
//!
//! # Protocol
//! 1. With interrupts off, on the CPU that enters, call [`VmxControl::before_entry`] with this
//!    CPU's CR3 and CR4. It compares them with those from which the fields were made. If they are
//!    equal, there is nothing to do.
//! 2. Otherwise write the fields that it returns, then call [`VmxUpdate::written`]. Until then the
//!    fields count as unknown: after a write that failed half way, the next entry writes them all.
//! 3. On exit 28, call [`VmxControl::handle`], and do the same.
//!
//! Between step 1 and the entry nothing changes CR3 or CR4 on this CPU: interrupts are off, and an
//! NMI handler leaves both as it found them.
//!
//! # Invariants
//! - H1: at each entry HOST_CR4 and HOST_CR3 are this CPU's registers.
//! - H2: at each entry an owned bit of GUEST_CR4 is this CPU's. With MCE among them: if the host
//!   has MCE set, so has the guest.
//! - H3: the guest reads what it wrote.
//! - H4: a bit that the guest changed without an exit is not undone. (What is written over
//!   GUEST_CR4 because the *host* changed leaves the guest-owned bits alone.)
//! - H5: VM entry does not refuse the control registers.

use super::access::{ControlRegister, CrAccess, LmswSource};
use super::guest::{GuestControl, WriteFault, Written};
use super::interrupts::InterruptsOff;
use super::outcome::{FieldWrite, HostControl, Outcome};
use super::register_bits::cr4;
use super::vmx_rules::VmxRules;

/// A field of the VMCS that this module computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrField {
    /// CR0_GUEST_HOST_MASK.
    Cr0Mask,
    /// CR4_GUEST_HOST_MASK.
    Cr4Mask,
    /// CR0_READ_SHADOW.
    Cr0Shadow,
    /// CR4_READ_SHADOW.
    Cr4Shadow,
    /// GUEST_CR0.
    GuestCr0,
    /// GUEST_CR4.
    GuestCr4,
    /// HOST_CR3.
    HostCr3,
    /// HOST_CR4.
    HostCr4,
}

impl CrField {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Cr0Mask,
        Self::Cr4Mask,
        Self::Cr0Shadow,
        Self::Cr4Shadow,
        Self::GuestCr0,
        Self::GuestCr4,
        Self::HostCr3,
        Self::HostCr4,
    ];

    /// Its encoding (SDM 3D appendix B.4). All have natural width.
    #[must_use]
    pub const fn encoding(self) -> u32 {
        match self {
            Self::Cr0Mask => 0x6000,
            Self::Cr4Mask => 0x6002,
            Self::Cr0Shadow => 0x6004,
            Self::Cr4Shadow => 0x6006,
            Self::GuestCr0 => 0x6800,
            Self::GuestCr4 => 0x6804,
            Self::HostCr3 => 0x6c02,
            Self::HostCr4 => 0x6c04,
        }
    }
}

/// What of the guest's state the handler needs, read from the VMCS after an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmxGuest {
    /// The field GUEST_CR0.
    pub guest_cr0: u64,
    /// The field GUEST_CR4.
    pub guest_cr4: u64,
    /// GUEST_CR3.
    pub cr3: u64,
    /// GUEST_IA32_EFER.
    pub efer: u64,
    /// CS.L is set, with EFER.LMA: bit 13 of GUEST_CS_AR_BYTES.
    pub code64: bool,
}

/// What the fields were made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fields {
    /// The VMCS is new: nothing was written.
    New,
    /// A write was begun and not reported as done.
    Unknown,
    /// The guest's registers as they are, and these of the host.
    From(HostControl),
}

/// A vCPU's control registers, and what its VMCS holds of them.
#[derive(PartialEq, Eq, Debug)]
pub struct VmxControl {
    rules: VmxRules,
    /// CR0 as the guest reads it. Guest-owned bits are newer in the VMCS.
    cr0: u64,
    /// CR4, likewise.
    cr4: u64,
    fields: Fields,
}

/// Why a vCPU can't start like this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmxStartError {
    /// No guest with these features can be in that state.
    State(WriteFault),
    /// Without unrestricted guests a guest has CR0.PE and CR0.PG set.
    NeedsUnrestricted,
}

impl core::fmt::Display for VmxStartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::State(why) => write!(f, "no guest can start in this state ({why})"),
            Self::NeedsUnrestricted => f.write_str(
                "a guest without protection or paging needs \"unrestricted guest\"; turn it on",
            ),
        }
    }
}

impl core::error::Error for VmxStartError {}

/// Fields to write into the current VMCS, and then [`VmxUpdate::written`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the VMCS is stale until the fields are written"]
pub struct VmxUpdate<'a> {
    control: &'a mut VmxControl,
    writes: [Option<FieldWrite>; CrField::ALL.len()],
    cr0: u64,
    cr4: u64,
    then: Fields,
}

impl VmxUpdate<'_> {
    /// What to write where.
    pub fn fields(&self) -> impl Iterator<Item = (CrField, FieldWrite)> + '_ {
        CrField::ALL.into_iter().zip(self.writes).filter_map(|(field, write)| Some((field, write?)))
    }

    /// Reports that the fields were written.
    pub fn written(self) {
        self.control.cr0 = self.cr0;
        self.control.cr4 = self.cr4;
        self.control.fields = self.then;
    }

    const fn set(&mut self, field: CrField, write: FieldWrite) {
        self.writes[field as usize] = Some(write);
    }
}

impl VmxControl {
    /// A vCPU that starts in a state, with a VMCS that holds nothing yet.
    ///
    /// # Errors
    /// [`VmxStartError`] if VM entry would refuse it.
    pub fn new(rules: VmxRules, guest: GuestControl) -> Result<Self, VmxStartError> {
        guest.check(rules.options().supported_cr4).map_err(VmxStartError::State)?;
        if rules.guest_cr0(guest.cr0).is_err() {
            return Err(VmxStartError::NeedsUnrestricted);
        }
        Ok(Self { rules, cr0: guest.cr0, cr4: guest.cr4, fields: Fields::New })
    }

    /// Puts the vCPU into another state: a reset, an INIT, a snapshot.
    ///
    /// # Errors
    /// [`VmxStartError`] as for [`VmxControl::new`]; nothing changes then.
    pub fn reset(&mut self, guest: GuestControl) -> Result<(), VmxStartError> {
        *self = Self::new(self.rules, guest)?;
        Ok(())
    }

    /// The CR0 that the guest reads, given the field GUEST_CR0.
    #[must_use]
    pub const fn cr0(&self, guest_cr0: u64) -> u64 {
        let mask = self.rules.cr0_mask();
        self.cr0 & mask | guest_cr0 & !mask
    }

    /// The CR4 that the guest reads, given the field GUEST_CR4.
    #[must_use]
    pub const fn cr4(&self, guest_cr4: u64) -> u64 {
        let mask = self.rules.cr4_mask();
        self.cr4 & mask | guest_cr4 & !mask
    }

    /// Were the fields made from this CPU's CR3 and CR4? Returns `None` if so; otherwise the fields
    /// to write.
    ///
    /// `host` holds this CPU's present registers; interrupts stay off from reading them to the
    /// entry.
    #[inline]
    pub fn before_entry(&mut self, host: HostControl, _: &InterruptsOff) -> Option<VmxUpdate<'_>> {
        if self.fields == Fields::From(host) {
            return None;
        }
        Some(self.refresh(host))
    }

    /// The slow half of [`VmxControl::before_entry`].
    #[cold]
    fn refresh(&mut self, host: HostControl) -> VmxUpdate<'_> {
        let (rules, before) = (self.rules, self.fields);
        let guest_cr4 = rules.guest_cr4(self.cr4, host.cr4());
        let mut update = self.begin(self.cr0, self.cr4, Fields::From(host));
        let owned = rules.options().owned.cr4();
        match before {
            Fields::From(old) => {
                if old.cr4() & owned != host.cr4() & owned {
                    update.set(CrField::GuestCr4, FieldWrite::bits(owned, guest_cr4)); // H4
                }
            }
            Fields::New | Fields::Unknown => update.set_guest(before == Fields::New, guest_cr4),
        }
        if !matches!(before, Fields::From(old) if old.cr3() == host.cr3()) {
            update.set(CrField::HostCr3, FieldWrite::whole(host.cr3()));
        }
        if !matches!(before, Fields::From(old) if old.cr4() == host.cr4()) {
            update.set(CrField::HostCr4, FieldWrite::whole(host.cr4()));
        }
        // H2, and that the guest can't change it behind the hypervisor.
        debug_assert!(host.cr4() & cr4::MCE == 0 || guest_cr4 & cr4::MCE != 0);
        debug_assert_eq!(rules.cr4_mask() & owned, owned);
        // H5.
        debug_assert!(rules.options().fixed_cr4.accept(guest_cr4), "GUEST_CR4 {guest_cr4:#x}");
        debug_assert!(rules.options().fixed_cr4.accept(host.cr4()), "HOST_CR4 {:#x}", host.cr4());
        update
    }

    /// The guest's access to a control register: VMX exit 28, decoded by
    /// [`CrAccess::from_qualification`]. `source` is the general register that [`CrAccess::source`]
    /// names, and anything if it names none.
    ///
    /// CR0 and CR4 are handled; the others are [`Outcome::Other`]. If a field can't be written,
    /// call it again with the same arguments, or end the guest.
    pub fn handle(
        &mut self,
        access: CrAccess,
        source: u64,
        now: &VmxGuest,
    ) -> Outcome<VmxUpdate<'_>> {
        let (cr0, cr4) = (self.cr0(now.guest_cr0), self.cr4(now.guest_cr4));
        let guest = GuestControl { cr0, cr4, cr3: now.cr3, efer: now.efer, code64: now.code64 };
        let supported = self.rules.options().supported_cr4;
        let written = match access {
            CrAccess::Write(ControlRegister::Cr0, _) => guest.write_cr0(guest.operand(source)),
            CrAccess::Write(ControlRegister::Cr4, _) => {
                guest.write_cr4(guest.operand(source), supported)
            }
            CrAccess::Clts => guest.write_cr0(guest.clts()),
            CrAccess::Lmsw { source: LmswSource::Value(value) } => {
                guest.write_cr0(guest.lmsw(value))
            }
            CrAccess::Lmsw { source: LmswSource::Register(_) } => {
                guest.write_cr0(guest.lmsw((source & 0xffff) as u16))
            }
            CrAccess::Read(ControlRegister::Cr0, to) => return Outcome::Read { to, value: cr0 },
            CrAccess::Read(ControlRegister::Cr4, to) => return Outcome::Read { to, value: cr4 },
            other => return Outcome::Other(other),
        };
        let Written { after, effects } = match written {
            Ok(written) => written,
            Err(fault) => return Outcome::Fault(fault),
        };
        let Ok(guest_cr0) = self.rules.guest_cr0(after.cr0) else {
            return Outcome::NeedsUnrestricted;
        };
        // If it is not known from what the fields were made, the next entry writes all owned bits.
        let host_cr4 = match self.fields {
            Fields::From(host) => host.cr4(),
            Fields::New | Fields::Unknown => !0,
        };
        let rules = self.rules;
        let guest_cr4 = rules.guest_cr4(after.cr4, host_cr4);
        let mut update = self.begin(after.cr0, after.cr4, self.fields);
        if after.cr0 != cr0 {
            update.set(CrField::GuestCr0, FieldWrite::whole(guest_cr0));
            update.set(CrField::Cr0Shadow, FieldWrite::whole(after.cr0));
        }
        if after.cr4 != cr4 {
            update.set(CrField::GuestCr4, FieldWrite::whole(guest_cr4));
            update.set(CrField::Cr4Shadow, FieldWrite::whole(after.cr4));
        }
        Outcome::Write(update, effects)
    }

    /// Begins an update without fields. Until it is reported as written, the fields count as
    /// unknown.
    const fn begin(&mut self, cr0: u64, cr4: u64, then: Fields) -> VmxUpdate<'_> {
        if !matches!(self.fields, Fields::New) {
            self.fields = Fields::Unknown;
        }
        VmxUpdate { control: self, writes: [None; CrField::ALL.len()], cr0, cr4, then }
    }
}

impl VmxUpdate<'_> {
    /// Everything that depends on the guest alone, and GUEST_CR4. In a VMCS that is not new, the
    /// guest-owned bits are the field's (H4).
    fn set_guest(&mut self, new: bool, guest_cr4: u64) {
        let rules = self.control.rules;
        let (mask0, mask4) = (rules.cr0_mask(), rules.cr4_mask());
        let part = |mask| if new { !0 } else { mask };
        // What was accepted once is accepted again.
        let guest_cr0 = rules.guest_cr0(self.cr0).unwrap_or(self.cr0);
        self.set(CrField::Cr0Mask, FieldWrite::whole(mask0));
        self.set(CrField::Cr4Mask, FieldWrite::whole(mask4));
        self.set(CrField::Cr0Shadow, FieldWrite::whole(self.cr0));
        self.set(CrField::Cr4Shadow, FieldWrite::whole(self.cr4));
        self.set(CrField::GuestCr0, FieldWrite::bits(part(mask0), guest_cr0));
        self.set(CrField::GuestCr4, FieldWrite::bits(part(mask4), guest_cr4));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use shootdown_arch::x86_64::Cr4;

    use super::super::access::Gpr;
    use super::super::vmx_rules::VmxOptions;
    use super::super::vmx_rules::tests::HASWELL;
    use super::*;

    type Vmcs = BTreeMap<u32, u64>;

    fn off() -> InterruptsOff {
        // SAFETY: no interrupt reaches this code.
        unsafe { InterruptsOff::new() }
    }

    fn host(cr3: u64, cr4: u64) -> HostControl {
        HostControl::new(cr3, Cr4::from_bits(cr4))
    }

    /// Enters as the protocol says, and returns the fields that were written.
    fn enter(control: &mut VmxControl, vmcs: &mut Vmcs, host: HostControl) -> Vec<CrField> {
        let Some(update) = control.before_entry(host, &off()) else { return Vec::new() };
        let written = write(&update, vmcs);
        update.written();
        written
    }

    fn write(update: &VmxUpdate<'_>, vmcs: &mut Vmcs) -> Vec<CrField> {
        let put = |(field, write): (CrField, FieldWrite)| {
            let field_now = vmcs.entry(field.encoding()).or_insert(0x5a5a_5a5a);
            *field_now = write.over(*field_now);
            field
        };
        update.fields().map(put).collect()
    }

    fn control(options: VmxOptions) -> VmxControl {
        VmxControl::new(VmxRules::new(options).unwrap(), GuestControl::RESET).unwrap()
    }

    const GUEST_CR4: u32 = 0x6804;

    /// CVE-2014-3690: TSD and PCE, set after the vCPU was made, were cleared by its next exit.
    #[test]
    fn an_exit_loads_what_the_host_has_now_and_not_what_it_had_once() {
        let (mut control, mut vmcs) = (control(HASWELL), Vmcs::new());
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1000, 0x2060)).len(), 8);
        for bit in [cr4::TSD, cr4::PCE, cr4::PCIDE, cr4::PGE, cr4::SMEP] {
            let fields = enter(&mut control, &mut vmcs, host(0x1000, 0x2060 | bit));
            assert_eq!(fields, [CrField::HostCr4]);
            assert_eq!(vmcs[&0x6c04], 0x2060 | bit);
        }
    }

    #[test]
    fn a_host_that_turns_machine_checks_on_later_has_them_on_in_the_guest() {
        let (mut control, mut vmcs) = (control(HASWELL), Vmcs::new());
        enter(&mut control, &mut vmcs, host(0x1000, 0x2020));
        assert_eq!(vmcs[&GUEST_CR4] & cr4::MCE, 0);
        let fields = enter(&mut control, &mut vmcs, host(0x1000, 0x2060));
        assert_eq!(fields, [CrField::GuestCr4, CrField::HostCr4]);
        assert_eq!(vmcs[&GUEST_CR4] & cr4::MCE, cr4::MCE);
        assert_eq!(control.cr4(vmcs[&GUEST_CR4]), 0, "the guest reads what it wrote");
    }

    #[test]
    fn an_entry_with_the_same_registers_writes_nothing() {
        let (mut control, mut vmcs) = (control(HASWELL), Vmcs::new());
        enter(&mut control, &mut vmcs, host(0x1000, 0x2060));
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1000, 0x2060)), []);
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1003, 0x2060)), [CrField::HostCr3]);
        // Bit 63 of CR3 is not in the register.
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1003 | 1 << 63, 0x2060)), []);
        assert_eq!(vmcs[&0x6c02], 0x1003);
    }

    #[test]
    fn a_bit_that_the_guest_changed_without_an_exit_survives_a_change_of_the_hosts() {
        let options = VmxOptions { guest_owned_cr4: cr4::TSD | cr4::PGE, ..HASWELL };
        let (mut control, mut vmcs) = (control(options), Vmcs::new());
        enter(&mut control, &mut vmcs, host(0x1000, 0x2020));
        *vmcs.get_mut(&GUEST_CR4).unwrap() |= cr4::TSD; // MOV to CR4 in the guest
        enter(&mut control, &mut vmcs, host(0x1000, 0x2060));
        assert_eq!(control.cr4(vmcs[&GUEST_CR4]), cr4::TSD);
        assert_eq!(vmcs[&GUEST_CR4], 0x2040 | cr4::TSD);
        // And one that is not reported as written, after which everything is.
        assert!(control.before_entry(host(0x1000, 0x2020), &off()).is_some());
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1000, 0x2060)).len(), 8);
        assert_eq!(vmcs[&GUEST_CR4], 0x2040 | cr4::TSD);
    }

    /// The first two fields of three get written; then the vCPU goes back to where it was.
    #[test]
    fn a_write_that_failed_half_way_is_made_good_before_the_next_entry() {
        let (mut control, mut vmcs) = (control(HASWELL), Vmcs::new());
        let first = host(0x1000, 0x2060);
        enter(&mut control, &mut vmcs, first);
        let update = control.before_entry(host(0x2000, 0x2024), &off()).unwrap();
        for (field, write) in update.fields().take(2) {
            let old = vmcs[&field.encoding()];
            vmcs.insert(field.encoding(), write.over(old));
        }
        enter(&mut control, &mut vmcs, first);
        assert_eq!((vmcs[&0x6c02], vmcs[&0x6c04]), (0x1000, 0x2060));
        assert_eq!(vmcs[&GUEST_CR4], 0x2040);
    }

    #[test]
    fn without_unrestricted_guests_protection_and_paging_stay_on() {
        let rules = VmxRules::new(VmxOptions { unrestricted: false, ..HASWELL }).unwrap();
        let refused = VmxControl::new(rules, GuestControl::RESET);
        assert_eq!(refused, Err(VmxStartError::NeedsUnrestricted));
        let guest = GuestControl { cr0: 0x8000_0011, ..GuestControl::RESET };
        let mut control = VmxControl::new(rules, guest).unwrap();
        let now = VmxGuest { guest_cr0: 0x8000_0031, guest_cr4: 0, cr3: 0, efer: 0, code64: false };
        let access = CrAccess::from_qualification(0).unwrap();
        for value in [0x10, 0x11] {
            assert_eq!(control.handle(access, value, &now), Outcome::NeedsUnrestricted);
        }
        assert!(control.handle(access, 0x8000_0013, &now).advances());
    }

    #[test]
    fn what_is_not_handled_here_is_handed_back() {
        let mut control = control(HASWELL);
        let now = VmxGuest { guest_cr0: 0, guest_cr4: 0, cr3: 0, efer: 0, code64: false };
        for qualification in [3, 8, 0x13, 0x18] {
            let access = CrAccess::from_qualification(qualification).unwrap();
            let outcome = control.handle(access, 0, &now);
            assert_eq!(outcome, Outcome::Other(access));
            assert!(!outcome.advances());
        }
        let read = CrAccess::from_qualification(0x714).unwrap();
        let to = Gpr::new(7).unwrap();
        assert_eq!(control.handle(read, 0, &now), Outcome::Read { to, value: 0 });
    }

    #[test]
    fn a_reset_vcpu_has_nothing_of_its_last_life() {
        let options = VmxOptions { guest_owned_cr4: cr4::TSD, ..HASWELL };
        let (mut control, mut vmcs) = (control(options), Vmcs::new());
        enter(&mut control, &mut vmcs, host(0x1000, 0x2060));
        *vmcs.get_mut(&GUEST_CR4).unwrap() |= cr4::TSD;
        control.reset(GuestControl::RESET).unwrap();
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1000, 0x2060)).len(), 8);
        assert_eq!(control.cr4(vmcs[&GUEST_CR4]), 0);
        let wrong = GuestControl { cr4: cr4::SMAP, ..GuestControl::RESET };
        let why = WriteFault::Unsupported(cr4::SMAP);
        assert_eq!(control.reset(wrong), Err(VmxStartError::State(why)));
        assert_eq!(enter(&mut control, &mut vmcs, host(0x1000, 0x2060)), []);
    }
}

//! The fields of a VMCS, each with its width and its access (SDM vol. 3D, appendix B).
//!
//! An encoding contains both: bits 14:13 are the width, bits 11:10 are 1 for the read-only fields
//! (SDM vol. 3C, 25.11.2). The table repeats them as types, so that a write of a read-only field
//! and a value that is too wide do not compile; a test compares the two.

use core::marker::PhantomData;

/// A field that the CPU reads and writes as its natural width, 64 bits here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Natural {}

/// The access of a field that VMWRITE may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadWrite {}

/// The access of a field that only the CPU changes. Where IA32_VMX_MISC has bit 29 the CPU accepts
/// a VMWRITE of it; [`vmwrite_raw`](crate::vmx::vmwrite_raw) executes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOnly {}

mod sealed {
    pub trait Width {
        /// Bits 14:13 of the encoding.
        const WIDTH: u32;
        type Value: Copy;
        fn of(raw: u64) -> Self::Value;
        fn raw(value: Self::Value) -> u64;
    }
}

/// How wide a field is: `u16`, `u32`, `u64` or [`Natural`].
pub trait Width: sealed::Width {}

macro_rules! width {
    ($($type:ty = $width:literal, $value:ty;)*) => {$(
        impl sealed::Width for $type {
            const WIDTH: u32 = $width;
            type Value = $value;
            #[allow(clippy::cast_possible_truncation, reason = "VMREAD clears what is above the field")]
            fn of(raw: u64) -> $value {
                raw as $value
            }
            fn raw(value: $value) -> u64 {
                u64::from(value)
            }
        }
        impl Width for $type {}
    )*};
}

width! {
    u16 = 0, u16;
    u64 = 1, u64;
    u32 = 2, u32;
    Natural = 3, u64;
}

/// The value of a field of this width.
pub type Value<W> = <W as sealed::Width>::Value;

/// A field: its encoding, with its width and its access as types.
#[derive(Debug)]
pub struct Field<W, A> {
    encoding: u32,
    _types: PhantomData<fn() -> (W, A)>,
}

impl<W, A> Clone for Field<W, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W, A> Copy for Field<W, A> {}

impl<W, A> Field<W, A> {
    const fn new(encoding: u32) -> Self {
        Self { encoding, _types: PhantomData }
    }

    /// The encoding.
    #[must_use]
    pub const fn encoding(self) -> u32 {
        self.encoding
    }
}

impl<W: Width, A> Field<W, A> {
    /// What VMREAD returned, as a value of the field.
    pub(crate) fn of(self, raw: u64) -> Value<W> {
        W::of(raw)
    }

    /// A value of the field, as VMWRITE takes it.
    pub(crate) fn raw(self, value: Value<W>) -> u64 {
        W::raw(value)
    }
}

macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident = $encoding:literal: $width:ident, $access:ident;)*) => {
        $($(#[doc = $doc])+ pub const $name: Field<$width, $access> = Field::new($encoding);)*

        /// Every field of the table: encoding, bits 14:13 that its width has, whether it is
        /// read-only.
        #[cfg(test)]
        fn all() -> std::vec::Vec<(u32, u32, bool)> {
            std::vec![$(($encoding, <$width as sealed::Width>::WIDTH, fields!(@ $access))),*]
        }
    };
    (@ ReadOnly) => { true };
    (@ ReadWrite) => { false };
}

fields! {
    /// Virtual-processor identifier.
    VPID = 0x0000: u16, ReadWrite;
    /// Posted-interrupt notification vector.
    POSTED_INTERRUPT_VECTOR = 0x0002: u16, ReadWrite;
    /// EPTP index.
    EPTP_INDEX = 0x0004: u16, ReadWrite;
    /// Guest ES selector.
    GUEST_ES_SELECTOR = 0x0800: u16, ReadWrite;
    /// Guest CS selector.
    GUEST_CS_SELECTOR = 0x0802: u16, ReadWrite;
    /// Guest SS selector.
    GUEST_SS_SELECTOR = 0x0804: u16, ReadWrite;
    /// Guest DS selector.
    GUEST_DS_SELECTOR = 0x0806: u16, ReadWrite;
    /// Guest FS selector.
    GUEST_FS_SELECTOR = 0x0808: u16, ReadWrite;
    /// Guest GS selector.
    GUEST_GS_SELECTOR = 0x080a: u16, ReadWrite;
    /// Guest LDTR selector.
    GUEST_LDTR_SELECTOR = 0x080c: u16, ReadWrite;
    /// Guest TR selector.
    GUEST_TR_SELECTOR = 0x080e: u16, ReadWrite;
    /// Guest interrupt status.
    GUEST_INTERRUPT_STATUS = 0x0810: u16, ReadWrite;
    /// Index of the page-modification log.
    PML_INDEX = 0x0812: u16, ReadWrite;
    /// Host ES selector.
    HOST_ES_SELECTOR = 0x0c00: u16, ReadWrite;
    /// Host CS selector.
    HOST_CS_SELECTOR = 0x0c02: u16, ReadWrite;
    /// Host SS selector.
    HOST_SS_SELECTOR = 0x0c04: u16, ReadWrite;
    /// Host DS selector.
    HOST_DS_SELECTOR = 0x0c06: u16, ReadWrite;
    /// Host FS selector.
    HOST_FS_SELECTOR = 0x0c08: u16, ReadWrite;
    /// Host GS selector.
    HOST_GS_SELECTOR = 0x0c0a: u16, ReadWrite;
    /// Host TR selector.
    HOST_TR_SELECTOR = 0x0c0c: u16, ReadWrite;
    /// Address of I/O bitmap A.
    IO_BITMAP_A = 0x2000: u64, ReadWrite;
    /// Address of I/O bitmap B.
    IO_BITMAP_B = 0x2002: u64, ReadWrite;
    /// Address of the MSR bitmaps.
    MSR_BITMAPS = 0x2004: u64, ReadWrite;
    /// Address of the list of MSRs stored at exit.
    EXIT_MSR_STORE = 0x2006: u64, ReadWrite;
    /// Address of the list of MSRs loaded at exit.
    EXIT_MSR_LOAD = 0x2008: u64, ReadWrite;
    /// Address of the list of MSRs loaded at entry.
    ENTRY_MSR_LOAD = 0x200a: u64, ReadWrite;
    /// Executive-VMCS pointer.
    EXECUTIVE_VMCS_POINTER = 0x200c: u64, ReadWrite;
    /// Address of the page-modification log.
    PML_ADDRESS = 0x200e: u64, ReadWrite;
    /// TSC offset.
    TSC_OFFSET = 0x2010: u64, ReadWrite;
    /// Virtual-APIC address.
    VIRTUAL_APIC_ADDRESS = 0x2012: u64, ReadWrite;
    /// APIC-access address.
    APIC_ACCESS_ADDRESS = 0x2014: u64, ReadWrite;
    /// Address of the posted-interrupt descriptor.
    POSTED_INTERRUPT_DESCRIPTOR = 0x2016: u64, ReadWrite;
    /// VM-function controls.
    VM_FUNCTION_CONTROLS = 0x2018: u64, ReadWrite;
    /// EPT pointer.
    EPT_POINTER = 0x201a: u64, ReadWrite;
    /// EOI-exit bitmap, vectors 0 to 63.
    EOI_EXIT_BITMAP_0 = 0x201c: u64, ReadWrite;
    /// EOI-exit bitmap, vectors 64 to 127.
    EOI_EXIT_BITMAP_1 = 0x201e: u64, ReadWrite;
    /// EOI-exit bitmap, vectors 128 to 191.
    EOI_EXIT_BITMAP_2 = 0x2020: u64, ReadWrite;
    /// EOI-exit bitmap, vectors 192 to 255.
    EOI_EXIT_BITMAP_3 = 0x2022: u64, ReadWrite;
    /// Address of the list of EPT pointers.
    EPTP_LIST = 0x2024: u64, ReadWrite;
    /// VMREAD-bitmap address.
    VMREAD_BITMAP = 0x2026: u64, ReadWrite;
    /// VMWRITE-bitmap address.
    VMWRITE_BITMAP = 0x2028: u64, ReadWrite;
    /// Virtualization-exception information address.
    VE_INFORMATION = 0x202a: u64, ReadWrite;
    /// XSS-exiting bitmap.
    XSS_EXITING_BITMAP = 0x202c: u64, ReadWrite;
    /// ENCLS-exiting bitmap.
    ENCLS_EXITING_BITMAP = 0x202e: u64, ReadWrite;
    /// Sub-page-permission-table pointer.
    SPP_TABLE_POINTER = 0x2030: u64, ReadWrite;
    /// TSC multiplier.
    TSC_MULTIPLIER = 0x2032: u64, ReadWrite;
    /// Tertiary processor-based controls.
    TERTIARY_CONTROLS = 0x2034: u64, ReadWrite;
    /// Guest-physical address of an EPT violation.
    GUEST_PHYSICAL_ADDRESS = 0x2400: u64, ReadOnly;
    /// VMCS link pointer.
    VMCS_LINK_POINTER = 0x2800: u64, ReadWrite;
    /// Guest IA32_DEBUGCTL.
    GUEST_DEBUGCTL = 0x2802: u64, ReadWrite;
    /// Guest IA32_PAT.
    GUEST_PAT = 0x2804: u64, ReadWrite;
    /// Guest IA32_EFER.
    GUEST_EFER = 0x2806: u64, ReadWrite;
    /// Guest IA32_PERF_GLOBAL_CTRL.
    GUEST_PERF_GLOBAL_CTRL = 0x2808: u64, ReadWrite;
    /// Guest PDPTE 0.
    GUEST_PDPTE0 = 0x280a: u64, ReadWrite;
    /// Guest PDPTE 1.
    GUEST_PDPTE1 = 0x280c: u64, ReadWrite;
    /// Guest PDPTE 2.
    GUEST_PDPTE2 = 0x280e: u64, ReadWrite;
    /// Guest PDPTE 3.
    GUEST_PDPTE3 = 0x2810: u64, ReadWrite;
    /// Guest IA32_BNDCFGS.
    GUEST_BNDCFGS = 0x2812: u64, ReadWrite;
    /// Host IA32_PAT.
    HOST_PAT = 0x2c00: u64, ReadWrite;
    /// Host IA32_EFER.
    HOST_EFER = 0x2c02: u64, ReadWrite;
    /// Host IA32_PERF_GLOBAL_CTRL.
    HOST_PERF_GLOBAL_CTRL = 0x2c04: u64, ReadWrite;
    /// Pin-based controls.
    PIN_CONTROLS = 0x4000: u32, ReadWrite;
    /// Primary processor-based controls.
    PROCESSOR_CONTROLS = 0x4002: u32, ReadWrite;
    /// Exception bitmap.
    EXCEPTION_BITMAP = 0x4004: u32, ReadWrite;
    /// Page-fault error-code mask.
    PAGE_FAULT_MASK = 0x4006: u32, ReadWrite;
    /// Page-fault error-code match.
    PAGE_FAULT_MATCH = 0x4008: u32, ReadWrite;
    /// CR3-target count.
    CR3_TARGET_COUNT = 0x400a: u32, ReadWrite;
    /// Primary VM-exit controls.
    EXIT_CONTROLS = 0x400c: u32, ReadWrite;
    /// Number of MSRs stored at exit.
    EXIT_MSR_STORE_COUNT = 0x400e: u32, ReadWrite;
    /// Number of MSRs loaded at exit.
    EXIT_MSR_LOAD_COUNT = 0x4010: u32, ReadWrite;
    /// VM-entry controls.
    ENTRY_CONTROLS = 0x4012: u32, ReadWrite;
    /// Number of MSRs loaded at entry.
    ENTRY_MSR_LOAD_COUNT = 0x4014: u32, ReadWrite;
    /// VM-entry interruption information.
    ENTRY_INTERRUPTION = 0x4016: u32, ReadWrite;
    /// VM-entry exception error code.
    ENTRY_ERROR_CODE = 0x4018: u32, ReadWrite;
    /// VM-entry instruction length.
    ENTRY_INSTRUCTION_LENGTH = 0x401a: u32, ReadWrite;
    /// TPR threshold.
    TPR_THRESHOLD = 0x401c: u32, ReadWrite;
    /// Secondary processor-based controls.
    SECONDARY_CONTROLS = 0x401e: u32, ReadWrite;
    /// Gap of a PAUSE loop.
    PLE_GAP = 0x4020: u32, ReadWrite;
    /// Window of a PAUSE loop.
    PLE_WINDOW = 0x4022: u32, ReadWrite;
    /// VM-instruction error.
    INSTRUCTION_ERROR = 0x4400: u32, ReadOnly;
    /// Exit reason.
    EXIT_REASON = 0x4402: u32, ReadOnly;
    /// VM-exit interruption information.
    EXIT_INTERRUPTION = 0x4404: u32, ReadOnly;
    /// VM-exit interruption error code.
    EXIT_ERROR_CODE = 0x4406: u32, ReadOnly;
    /// IDT-vectoring information.
    VECTORING = 0x4408: u32, ReadOnly;
    /// IDT-vectoring error code.
    VECTORING_ERROR_CODE = 0x440a: u32, ReadOnly;
    /// VM-exit instruction length.
    EXIT_INSTRUCTION_LENGTH = 0x440c: u32, ReadOnly;
    /// VM-exit instruction information.
    EXIT_INSTRUCTION = 0x440e: u32, ReadOnly;
    /// Guest ES limit.
    GUEST_ES_LIMIT = 0x4800: u32, ReadWrite;
    /// Guest CS limit.
    GUEST_CS_LIMIT = 0x4802: u32, ReadWrite;
    /// Guest SS limit.
    GUEST_SS_LIMIT = 0x4804: u32, ReadWrite;
    /// Guest DS limit.
    GUEST_DS_LIMIT = 0x4806: u32, ReadWrite;
    /// Guest FS limit.
    GUEST_FS_LIMIT = 0x4808: u32, ReadWrite;
    /// Guest GS limit.
    GUEST_GS_LIMIT = 0x480a: u32, ReadWrite;
    /// Guest LDTR limit.
    GUEST_LDTR_LIMIT = 0x480c: u32, ReadWrite;
    /// Guest TR limit.
    GUEST_TR_LIMIT = 0x480e: u32, ReadWrite;
    /// Guest GDTR limit.
    GUEST_GDTR_LIMIT = 0x4810: u32, ReadWrite;
    /// Guest IDTR limit.
    GUEST_IDTR_LIMIT = 0x4812: u32, ReadWrite;
    /// Guest ES access rights.
    GUEST_ES_ACCESS = 0x4814: u32, ReadWrite;
    /// Guest CS access rights.
    GUEST_CS_ACCESS = 0x4816: u32, ReadWrite;
    /// Guest SS access rights.
    GUEST_SS_ACCESS = 0x4818: u32, ReadWrite;
    /// Guest DS access rights.
    GUEST_DS_ACCESS = 0x481a: u32, ReadWrite;
    /// Guest FS access rights.
    GUEST_FS_ACCESS = 0x481c: u32, ReadWrite;
    /// Guest GS access rights.
    GUEST_GS_ACCESS = 0x481e: u32, ReadWrite;
    /// Guest LDTR access rights.
    GUEST_LDTR_ACCESS = 0x4820: u32, ReadWrite;
    /// Guest TR access rights.
    GUEST_TR_ACCESS = 0x4822: u32, ReadWrite;
    /// Guest interruptibility state.
    GUEST_INTERRUPTIBILITY = 0x4824: u32, ReadWrite;
    /// Guest activity state.
    GUEST_ACTIVITY = 0x4826: u32, ReadWrite;
    /// Guest SMBASE.
    GUEST_SMBASE = 0x4828: u32, ReadWrite;
    /// Guest IA32_SYSENTER_CS.
    GUEST_SYSENTER_CS = 0x482a: u32, ReadWrite;
    /// VMX-preemption timer.
    PREEMPTION_TIMER = 0x482e: u32, ReadWrite;
    /// Host IA32_SYSENTER_CS.
    HOST_SYSENTER_CS = 0x4c00: u32, ReadWrite;
    /// Bits of CR0 that the host owns.
    CR0_GUEST_HOST_MASK = 0x6000: Natural, ReadWrite;
    /// Bits of CR4 that the host owns.
    CR4_GUEST_HOST_MASK = 0x6002: Natural, ReadWrite;
    /// What the guest reads of the host's bits of CR0.
    CR0_READ_SHADOW = 0x6004: Natural, ReadWrite;
    /// What the guest reads of the host's bits of CR4.
    CR4_READ_SHADOW = 0x6006: Natural, ReadWrite;
    /// CR3-target value 0.
    CR3_TARGET_0 = 0x6008: Natural, ReadWrite;
    /// CR3-target value 1.
    CR3_TARGET_1 = 0x600a: Natural, ReadWrite;
    /// CR3-target value 2.
    CR3_TARGET_2 = 0x600c: Natural, ReadWrite;
    /// CR3-target value 3.
    CR3_TARGET_3 = 0x600e: Natural, ReadWrite;
    /// Exit qualification.
    EXIT_QUALIFICATION = 0x6400: Natural, ReadOnly;
    /// I/O RCX.
    IO_RCX = 0x6402: Natural, ReadOnly;
    /// I/O RSI.
    IO_RSI = 0x6404: Natural, ReadOnly;
    /// I/O RDI.
    IO_RDI = 0x6406: Natural, ReadOnly;
    /// I/O RIP.
    IO_RIP = 0x6408: Natural, ReadOnly;
    /// Guest-linear address.
    GUEST_LINEAR_ADDRESS = 0x640a: Natural, ReadOnly;
    /// Guest CR0.
    GUEST_CR0 = 0x6800: Natural, ReadWrite;
    /// Guest CR3.
    GUEST_CR3 = 0x6802: Natural, ReadWrite;
    /// Guest CR4.
    GUEST_CR4 = 0x6804: Natural, ReadWrite;
    /// Guest ES base.
    GUEST_ES_BASE = 0x6806: Natural, ReadWrite;
    /// Guest CS base.
    GUEST_CS_BASE = 0x6808: Natural, ReadWrite;
    /// Guest SS base.
    GUEST_SS_BASE = 0x680a: Natural, ReadWrite;
    /// Guest DS base.
    GUEST_DS_BASE = 0x680c: Natural, ReadWrite;
    /// Guest FS base.
    GUEST_FS_BASE = 0x680e: Natural, ReadWrite;
    /// Guest GS base.
    GUEST_GS_BASE = 0x6810: Natural, ReadWrite;
    /// Guest LDTR base.
    GUEST_LDTR_BASE = 0x6812: Natural, ReadWrite;
    /// Guest TR base.
    GUEST_TR_BASE = 0x6814: Natural, ReadWrite;
    /// Guest GDTR base.
    GUEST_GDTR_BASE = 0x6816: Natural, ReadWrite;
    /// Guest IDTR base.
    GUEST_IDTR_BASE = 0x6818: Natural, ReadWrite;
    /// Guest DR7.
    GUEST_DR7 = 0x681a: Natural, ReadWrite;
    /// Guest RSP.
    GUEST_RSP = 0x681c: Natural, ReadWrite;
    /// Guest RIP.
    GUEST_RIP = 0x681e: Natural, ReadWrite;
    /// Guest RFLAGS.
    GUEST_RFLAGS = 0x6820: Natural, ReadWrite;
    /// Guest pending debug exceptions.
    GUEST_PENDING_DEBUG = 0x6822: Natural, ReadWrite;
    /// Guest IA32_SYSENTER_ESP.
    GUEST_SYSENTER_ESP = 0x6824: Natural, ReadWrite;
    /// Guest IA32_SYSENTER_EIP.
    GUEST_SYSENTER_EIP = 0x6826: Natural, ReadWrite;
    /// Host CR0.
    HOST_CR0 = 0x6c00: Natural, ReadWrite;
    /// Host CR3.
    HOST_CR3 = 0x6c02: Natural, ReadWrite;
    /// Host CR4.
    HOST_CR4 = 0x6c04: Natural, ReadWrite;
    /// Host FS base.
    HOST_FS_BASE = 0x6c06: Natural, ReadWrite;
    /// Host GS base.
    HOST_GS_BASE = 0x6c08: Natural, ReadWrite;
    /// Host TR base.
    HOST_TR_BASE = 0x6c0a: Natural, ReadWrite;
    /// Host GDTR base.
    HOST_GDTR_BASE = 0x6c0c: Natural, ReadWrite;
    /// Host IDTR base.
    HOST_IDTR_BASE = 0x6c0e: Natural, ReadWrite;
    /// Host IA32_SYSENTER_ESP.
    HOST_SYSENTER_ESP = 0x6c10: Natural, ReadWrite;
    /// Host IA32_SYSENTER_EIP.
    HOST_SYSENTER_EIP = 0x6c12: Natural, ReadWrite;
    /// Host RSP.
    HOST_RSP = 0x6c14: Natural, ReadWrite;
    /// Host RIP.
    HOST_RIP = 0x6c16: Natural, ReadWrite;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_say_what_encodings_say() {
        for (encoding, width, read_only) in all() {
            assert_eq!(encoding >> 13 & 3, width, "{encoding:#x}");
            assert_eq!(encoding >> 10 & 3 == 1, read_only, "{encoding:#x}");
            assert_eq!(
                encoding & !0x7ffe,
                0,
                "{encoding:#x}: reserved, or the high half of a field"
            );
        }
    }

    #[test]
    fn no_field_is_listed_twice() {
        let mut encodings: std::vec::Vec<u32> = all().into_iter().map(|(e, ..)| e).collect();
        let before = encodings.len();
        encodings.sort_unstable();
        encodings.dedup();
        assert_eq!(encodings.len(), before);
    }

    #[test]
    fn a_value_survives_its_width() {
        assert_eq!(VPID.of(VPID.raw(0xffff)), 0xffff);
        assert_eq!(EXIT_REASON.of(0x8000_0021), 0x8000_0021);
        assert_eq!(GUEST_CR4.of(GUEST_CR4.raw(u64::MAX)), u64::MAX);
    }
}

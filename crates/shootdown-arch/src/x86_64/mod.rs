//! x86-64: INVLPG, INVPCID, CR3, CR4.PGE, INVLPGB and TLBSYNC; and what guests have beside them:
//! KVM's steal-time record and Hyper-V's flush hypercalls.
//!
//! Operands and plans compile on every host; the functions that execute an instruction exist only
//! where `target_arch = "x86_64"`.

mod cpuid;
mod cr3;
mod cr4;
mod entry;
mod hyperv;
mod hyperv_set;
mod invlpg;
mod invlpgb;
mod invpcid;
mod kvm;
mod linear;
mod pcid;
mod plan;
mod port;
#[cfg(target_arch = "x86_64")]
mod regime;

#[cfg(all(test, target_arch = "x86_64"))]
mod model;

pub use crate::entry::TableLevel;
pub use crate::root::RootError;
pub use cpuid::{Features, Leaves, Registers, Vendor};
pub use cr3::{Cr3, Cr3Error, RootFrame};
pub use cr4::{Cr4, Cr4Error};
pub use entry::{EntryRules, change};
pub use hyperv::{Control, HypervError, HypervFeatures, HypervFlush, INPUT_WORDS};
pub use hyperv_set::VpSet;
pub use invlpgb::{Cover, InvlpgbError, InvlpgbLimits, InvlpgbMatch, InvlpgbOperands, Pages};
pub use invpcid::{Invpcid, InvpcidDescriptor, InvpcidError};
pub use kvm::{KvmFeatures, StealTime, StealTimeError};
pub use linear::{LinearAddress, LinearError, LinearWidth, Parts};
pub use pcid::{Pcid, PcidError};
pub use plan::{Step, Steps};
pub use port::{Options, Port};

#[cfg(target_arch = "x86_64")]
pub use {
    cr3::{read_cr3, write_cr3},
    cr4::{read_cr4, toggle_pge, write_cr4},
    invlpg::invlpg,
    invlpgb::{invlpgb, tlbsync},
    invpcid::invpcid,
    regime::{Boot, X86Regime},
};

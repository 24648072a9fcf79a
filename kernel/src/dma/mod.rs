//! DMA: a device reaches memory through an IOMMU that the library drives.
//!
//! | file | what |
//! |---|---|
//! | `pci` | functions of PCI: found, and given an address |
//! | `edu` | the device that copies |
//! | `iommu` | what the cases ask of an IOMMU |
//! | `host` | the kernel's half of a domain |
//! | `smmu` | Arm SMMUv3, by the library's queue |
//! | `vtd` | Intel VT-d, by the library's queue |
//! | `suite` | the cases |

mod edu;
mod host;
mod iommu;
mod pci;
#[cfg(target_arch = "aarch64")]
mod smmu;
mod suite;
#[cfg(target_arch = "x86_64")]
mod vtd;

use alloc::boxed::Box;

use crate::cmdline::Options;
use crate::verdict::Verdict;
use crate::{heap, say};
use edu::Edu;

/// Runs the suite on the IOMMU that there is; the worst verdict.
pub fn run(options: &Options) -> Verdict {
    if !heap::init() {
        say!("dma: memory has no room for a heap; nothing can be tried");
        return Verdict::NotObservable;
    }
    let Some(edu) = Edu::find() else {
        say!(
            "dma: no edu device on the first bus (QEMU: -device edu,dma_mask=0xffffffffff); nothing can be tried"
        );
        return Verdict::NotObservable;
    };
    let edu = &*Box::leak(Box::new(edu));
    on_this_machine(edu, options).unwrap_or_else(|| {
        say!("dma: firmware describes no IOMMU; the device is tried without one");
        let verdict = if edu.copies_untranslated() { Verdict::Pass } else { Verdict::Fail };
        say!("case none/untranslated {verdict} without an IOMMU a device reaches all of memory");
        verdict
    })
}

/// On the IOMMU that firmware describes; `None` if it describes none.
#[cfg(target_arch = "x86_64")]
fn on_this_machine(edu: &'static Edu, options: &Options) -> Option<Verdict> {
    match vtd::Vtd::find()? {
        Ok(unit) => Some(suite::run(Box::leak(Box::new(unit)), edu, options)),
        Err(why) => {
            say!("vt-d: the unit can't be used: {why:?}");
            Some(Verdict::Fail)
        }
    }
}

/// On the IOMMU that firmware describes; `None` if it describes none.
#[cfg(target_arch = "aarch64")]
fn on_this_machine(edu: &'static Edu, options: &Options) -> Option<Verdict> {
    match smmu::Smmu::find()? {
        Ok(unit) => Some(suite::run(Box::leak(Box::new(unit)), edu, options)),
        Err(why) => {
            say!("smmu: the unit can't be used: {why:?}");
            Some(Verdict::Fail)
        }
    }
}

//! DMA: a device reaches memory through an IOMMU that the library drives.
//!
//! | file | what |
//! |---|---|
//! | `pci` | functions of PCI: found, and given an address |
//! | `edu` | the device that copies |
//! | `iommu` | what the cases ask of an IOMMU |
//! | `host` | the kernel's half of a domain |
//! | `registers` | a unit's registers and its ring, as the library's queues ask for them |
//! | `marred` | what the unit is to refuse |
//! | `renewable` | what becomes of a queue that is stuck |
//! | `amd` | AMD-Vi, by the library's queue |
//! | `smmu` | Arm SMMUv3, by the library's queue |
//! | `units` | where ACPI says that units are |
//! | `vtd` | Intel VT-d, by the library's queue |
//! | `suite` | the cases |

#[cfg(target_arch = "x86_64")]
mod amd;
mod edu;
mod host;
mod iommu;
mod marred;
mod pci;
mod registers;
mod renewable;
#[cfg(target_arch = "aarch64")]
mod smmu;
mod suite;
#[cfg(target_arch = "x86_64")]
mod units;
#[cfg(target_arch = "x86_64")]
mod vtd;

use alloc::boxed::Box;

use shootdown_dma::invalidate::Command;

use crate::cmdline::Options;
use crate::verdict::Verdict;
use crate::{heap, say};
use edu::Edu;

/// Runs the suite on the IOMMU that there is; the worst verdict.
pub fn run(options: &Options, cpus: u32) -> Verdict {
    if !heap::init() {
        say!("dma: memory has no room for a heap; nothing can be tried");
        return Verdict::NotObservable;
    }
    let edu = Edu::find().map(|edu| &*Box::leak(Box::new(edu)));
    if edu.is_none() {
        say!(
            "dma: no edu device on the first bus (QEMU: -device edu,dma_mask=0xffffffffff); only the unit itself is tried"
        );
    }
    on_this_machine(edu, options, cpus).unwrap_or_else(|| {
        let Some(edu) = edu else {
            say!("dma: firmware describes no IOMMU either; nothing can be tried");
            return Verdict::NotObservable;
        };
        say!("dma: firmware describes no IOMMU; the device is tried without one");
        let verdict = if edu.copies_untranslated() { Verdict::Pass } else { Verdict::Fail };
        say!("case none/untranslated {verdict} without an IOMMU a device reaches all of memory");
        verdict
    })
}

/// On the IOMMU that firmware describes; `None` if it describes none.
#[cfg(target_arch = "x86_64")]
fn on_this_machine(edu: Option<&'static Edu>, options: &Options, cpus: u32) -> Option<Verdict> {
    match vtd::Vtd::find() {
        Some(unit) => Some(on(unit, edu, options, cpus)),
        None => amd::Amd::find().map(|unit| on(unit, edu, options, cpus)),
    }
}

/// On the IOMMU that firmware describes; `None` if it describes none.
#[cfg(target_arch = "aarch64")]
fn on_this_machine(edu: Option<&'static Edu>, options: &Options, cpus: u32) -> Option<Verdict> {
    smmu::Smmu::find().map(|unit| on(unit, edu, options, cpus))
}

/// On this unit.
fn on<I: iommu::Refuses>(
    unit: Result<I, iommu::SetUpError>,
    edu: Option<&'static Edu>,
    options: &Options,
    cpus: u32,
) -> Verdict {
    match unit {
        Ok(unit) => {
            let iommu = &*Box::leak(Box::new(unit));
            match edu {
                Some(edu) => suite::run(&suite::Place { iommu, edu, cpus }, options),
                None => alone(iommu),
            }
        }
        Err(why) => {
            say!("dma: the IOMMU can't be used: {why:?}");
            Verdict::Fail
        }
    }
}

/// A unit without a device: it is set up, it is told something, it is reset and told again. What devices reach stays open.
fn alone<I: iommu::Refuses>(iommu: &I) -> Verdict {
    let all = [Command::All];
    iommu.tell(&all);
    let renewed = iommu.renew();
    if renewed.is_ok() {
        iommu.tell(&all);
    }
    let verdict = if renewed.is_ok() { Verdict::NotObservable } else { Verdict::Fail };
    say!("case {}/alone {verdict} told, reset {renewed:?}, told again", iommu.name());
    verdict
}

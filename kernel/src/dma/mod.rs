//! DMA: a device reaches memory through an IOMMU that the library drives.
//!
//! | file | what |
//! |---|---|
//! | `pci` | functions of PCI: found, and given an address |
//! | `edu` | the device that copies |
//! | `iommu` | what the cases ask of an IOMMU, beside its driver |
//! | `host` | the kernel's half of a domain |
//! | `marred` | what the unit is to refuse |
//! | `amd` | AMD-Vi: what is refused, and where to see it |
//! | `smmu` | Arm SMMUv3: the same, and cases of its own |
//! | `units` | where ACPI says that units are |
//! | `vtd` | Intel VT-d: the same, and cases of its own |
//! | `suite` | the cases |
//! | `window` | registers and memory, as the drivers of `shootdown-iommu` ask for them |

#[cfg(target_arch = "x86_64")]
mod amd;
mod edu;
mod host;
mod iommu;
mod marred;
mod pci;
#[cfg(target_arch = "aarch64")]
mod smmu;
mod suite;
#[cfg(target_arch = "x86_64")]
mod units;
#[cfg(target_arch = "x86_64")]
mod vtd;
mod window;

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
    match vtd::find() {
        Some(unit) => Some(on(unit, edu, options, cpus)),
        None => amd::find().map(|unit| on(unit, edu, options, cpus)),
    }
}

/// On the IOMMU that firmware describes; `None` if it describes none.
#[cfg(target_arch = "aarch64")]
fn on_this_machine(edu: Option<&'static Edu>, options: &Options, cpus: u32) -> Option<Verdict> {
    smmu::find().map(|unit| on(unit, edu, options, cpus))
}

/// On this unit.
fn on<I: iommu::Refuses>(
    unit: Result<I, shootdown_iommu::Error>,
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
            say!("dma: the IOMMU can't be used: {why}");
            Verdict::Fail
        }
    }
}

/// A unit without a device: it is set up, it is told something, it is reset and told again. What
/// devices reach stays open.
fn alone<I: iommu::Refuses>(iommu: &I) -> Verdict {
    let all = [Command::All];
    iommu.tell(&all);
    // SAFETY: no device behind it has a cache.
    let renewed = unsafe { iommu.renew() };
    if renewed.is_ok() {
        iommu.tell(&all);
    }
    let verdict = if renewed.is_ok() { Verdict::NotObservable } else { Verdict::Fail };
    say!("case {}/alone {verdict} told, reset {renewed:?}, told again", iommu.name());
    verdict
}

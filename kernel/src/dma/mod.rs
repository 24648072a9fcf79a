//! DMA: a device reaches memory through an IOMMU that the library drives.
//!
//! | file | what |
//! |---|---|
//! | `pci` | functions of PCI: found, and given an address |
//! | `edu` | the device that copies |

pub mod edu;
pub mod pci;

use crate::verdict::Verdict;
use crate::{heap, say};
use edu::Edu;

/// Runs the suite; the worst verdict.
pub fn run() -> Verdict {
    let Some(edu) = Edu::find() else {
        say!(
            "dma: no edu device on the first bus (QEMU: -device edu,dma_mask=0xffffffffff); nothing can be tried"
        );
        return Verdict::NotObservable;
    };
    if !heap::init() {
        say!("dma: memory has no room for a heap; nothing can be tried");
        return Verdict::NotObservable;
    }
    say!("dma: edu at {:?}", edu.function());
    if edu.copies_untranslated() { Verdict::Pass } else { Verdict::Fail }
}

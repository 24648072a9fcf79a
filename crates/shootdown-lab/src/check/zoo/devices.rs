//! Memory of devices: what is given away while a device can still reach it.
//!
//! Programs are those of the model kernel of devices
//! ([`DmaProgram`](shootdown_machine::hunt::dma::DmaProgram)), beside IOMMUs that have cached
//! whatever was in reach.

use shootdown_machine::hunt::Powers;
use shootdown_machine::hunt::dma::{DmaMutant, Mistake};
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// What was unmapped is reached, or is somebody else's meanwhile.
const REACHED: &[Invariant] = &[Invariant::Revocation, Invariant::FrameReuse];

/// With everything that manuals allow IOMMUs and devices; the usual violation; every schedule.
const USUAL: Scenario = Scenario {
    powers: Powers::HOSTILE_DEVICES,
    breaks: REACHED,
    seen: &["stale-in-unit"],
    whole: Whole::All,
    ..Scenario::USUAL
};

/// A table that became empty is looked through before it goes: some thousand steps, which makes
/// every schedule dear.
const SWEEPS: Whole = Whole::Chance(1_000);

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z40-address-before-flush",
        source: "Linux 4.13 and later, flush queues (the rule of their counters)",
        year: 2017,
        wrong: "an address that was unmapped lazily was allocated again while IOMMUs still led to what had been there",
        kept_out: "addresses are deferred like pages: they go back to the allocator when the token of their invalidation is complete",
        step: Step::LibraryOfDevices(DmaMutant::GivenBackEarly),
        program: "policy=lazy flush=1 pages=2; map a, unmap a, poll, map2 b",
        breaks: &[Invariant::RangeReuse],
        ..USUAL
    },
    Scenario {
        name: "z12-device-never-told",
        source: "CVE-2022-0330, Linux 7938d61591d3 (i915)",
        year: 2022,
        wrong: "pages of a buffer were given back, and the TLB of the device that had used it was never flushed",
        kept_out: "contract: `attach` says whether a device has a cache of its own; then it is told of every unmapping",
        step: Step::KernelOfDevices(Mistake::CachesDenied),
        program: "policy=strict atc=on; map a, unmap a",
        seen: &["stale-in-device"],
        ..USUAL
    },
    Scenario {
        name: "z17-shared-table-freed",
        source: "the shape of CVE-2025-71089 and CVE-2025-71202, Linux e37d5a2d60a3 (SVA)",
        year: 2025,
        wrong: "a page table was freed, the CPUs that walk it were told, and the IOMMU that walks it too was not",
        kept_out: "contract: everybody who walks a table is a unit of its domain; a table is given back when all have forgotten the path",
        step: Step::KernelOfDevices(Mistake::OneUnitNamed),
        program: "policy=lazy units=2; map a, unmap a, timer, timer, timer, timer",
        breaks: &[Invariant::TableReuse],
        seen: &["path-kept", "io-table-freed"],
        whole: SWEEPS,
        ..USUAL
    },
    Scenario {
        name: "first-unit-only",
        source: "Asterinas #3920 (VT-d: the last unit of several)",
        year: 2026,
        wrong: "of several IOMMUs the kernel knew one, so devices behind the others went on with what was unmapped",
        kept_out: "contract: a domain is made with all units that its devices are behind; each has its own number there, and is told",
        step: Step::KernelOfDevices(Mistake::OneUnitNamed),
        program: "policy=strict units=2; map a, unmap a",
        ..USUAL
    },
    Scenario {
        name: "other-number-at-other-unit",
        source: "Linux 44bde61428f7 (VT-d)",
        year: 2014,
        wrong: "a domain had another number at another IOMMU, and invalidations named the wrong one",
        kept_out: "the engine keeps a domain's number for each unit, and makes commands by it",
        step: Step::LibraryOfDevices(DmaMutant::DomainMistaken),
        program: "policy=strict units=2; map a, unmap a",
        ..USUAL
    },
    Scenario {
        name: "freed-still-mapped",
        source: "tianocore edk2 #9771",
        year: 2019,
        wrong: "a buffer was freed on an error path, and stayed mapped for the device",
        kept_out: "contract: what `unmap` has returned for is freed; under strict-ish the reference that the domain holds keeps a page until then",
        step: Step::KernelOfDevices(Mistake::FreesFirst),
        program: "policy=strict; map a, unmap a",
        breaks: &[Invariant::FrameReuse],
        ..USUAL
    },
    Scenario {
        name: "lazy-as-if-strict",
        source: "Thunderclap (NDSS 2019), on deferred invalidation",
        year: 2019,
        wrong: "pages were recycled as soon as a deferred unmapping had returned, in reach of a device that is not trusted",
        kept_out: "contract: who needs the page to be out of reach unmaps by `Strict`; strict-ish keeps it from others without a wait",
        step: Step::KernelOfDevices(Mistake::LazyTrusted),
        program: "policy=strict-ish; map a, unmap a",
        breaks: &[Invariant::Revocation],
        ..USUAL
    },
    Scenario {
        name: "page-not-held",
        source: "CVE-2014-3601, CVE-2014-8369 (KVM)",
        year: 2014,
        wrong: "references to pages that a device still reached were dropped, so the pages were recycled under it",
        kept_out: "contract: `Host::hold` and `release`; the domain calls the second when the invalidation is complete, and once",
        step: Step::KernelOfDevices(Mistake::HoldsNothing),
        program: "policy=strict-ish; map a, unmap a",
        breaks: &[Invariant::FrameReuse],
        seen: &["stale-in-unit", "held-frame-recycled"],
        ..USUAL
    },
    Scenario {
        name: "unmapped-without-flush",
        source: "the shape of CVE-2018-19961 and CVE-2018-19962, Xen XSA-275",
        year: 2018,
        wrong: "pages were unmapped for a device, and the flush that should have followed was left out",
        kept_out: "a strict unmapping returns when all units have answered for the token of its entries",
        step: Step::LibraryOfDevices(DmaMutant::StrictDoesNotWait),
        program: "policy=strict; map a, unmap a",
        ..USUAL
    },
    Scenario {
        name: "failed-mapping-left",
        source: "cloud-hypervisor #8105",
        year: 2026,
        wrong: "a mapping failed in the middle, and what had been mapped by then was left in the table",
        kept_out: "who maps takes away again what it has put, and has it invalidated, before it returns the error",
        step: Step::LibraryOfDevices(DmaMutant::UndoSkipped),
        program: "policy=strict-ish pages=2048 tables=2; big",
        breaks: &[Invariant::FrameReuse, Invariant::LazyBound],
        seen: &["mapping-undone"],
        ..USUAL
    },
    Scenario {
        name: "absence-cached",
        source: "seL4 #1729 (VT-d)",
        year: 2026,
        wrong: "a page was mapped and nobody told an IOMMU that remembers what is not mapped, so the device's transfers failed",
        kept_out: "where a unit remembers absence, mapping tells it before it returns",
        step: Step::LibraryOfDevices(DmaMutant::PresenceNotTold),
        program: "policy=strict absence=on; map a",
        breaks: &[Invariant::UpgradeSoundness],
        seen: &["absence-remembered"],
        ..USUAL
    },
    Scenario {
        name: "absence-overlooked",
        source: "seL4 #1729 (VT-d)",
        year: 2026,
        wrong: "nobody looked whether an IOMMU says that it remembers absence, so it was told of no entry that became valid",
        kept_out: "contract: `Config::caching_absence` where a unit says so",
        step: Step::KernelOfDevices(Mistake::AbsenceDenied),
        program: "policy=strict absence=on; map a",
        breaks: &[Invariant::UpgradeSoundness],
        seen: &["absence-remembered"],
        ..USUAL
    },
    Scenario {
        name: "entries-not-written-back",
        source: "CVE-2020-15565, Xen XSA-321; likewise Asterinas #3920 (VT-d)",
        year: 2020,
        wrong: "entries were written and stayed in a CPU's cache, into which the IOMMU's walker does not look",
        kept_out: "contract: `TableMemory::is_coherent` and `write_back`; parents are linked after their tables were written back",
        step: Step::KernelOfDevices(Mistake::NotWrittenBack),
        program: "policy=strict coherent=off; map a, unmap a",
        breaks: &[
            Invariant::Revocation,
            Invariant::FrameReuse,
            Invariant::RangeReuse,
            Invariant::UpgradeSoundness,
        ],
        seen: &["line-was-stale"],
        ..USUAL
    },
    Scenario {
        name: "wait-counts-as-done",
        source: "Linux 9e249c484128 (AMD)",
        year: 2026,
        wrong: "waits got into the queue in another order than their numbers, so who waited was told before its own commands were done",
        kept_out: "contract: `Unit::completed` returns what is complete; the queues of the library number submissions where they reserve their slots",
        step: Step::KernelOfDevices(Mistake::QueuedIsComplete),
        program: "policy=strict; map a, unmap a",
        seen: &["stale-in-unit", "command-taken-late"],
        ..USUAL
    },
    Scenario {
        name: "accesses-under-way",
        source: "VT-d specification, DR and DW of an invalidation (the rule)",
        year: 2007,
        wrong: "translations were forgotten, and accesses of devices that had begun with them were not waited for",
        kept_out: "contract: what is complete has no accesses under way (`Unit`); VT-d's queue asks for that with each invalidation",
        step: Step::KernelOfDevices(Mistake::NotDrained),
        program: "policy=strict; map a, unmap a",
        seen: &["stale-in-unit", "in-flight"],
        ..USUAL
    },
    Scenario {
        name: "devices-told-first",
        source: "Linux 353e3cf8590c (SMMUv3)",
        year: 2019,
        wrong: "a device was told to forget before the IOMMU had forgotten, and asked it again for the old translation",
        kept_out: "contract: a port executes what is for devices after what is for the unit; the queues of the library put a barrier between",
        step: Step::KernelOfDevices(Mistake::DevicesFirst),
        program: "policy=strict atc=on; map a, unmap a",
        seen: &["stale-in-device"],
        ..USUAL
    },
    Scenario {
        name: "table-flushed-as-leaf",
        source: "Linux ea8ea460c9ac (VT-d)",
        year: 2014,
        wrong: "page tables were freed before, or by, an invalidation that lets the IOMMU keep paths to them",
        kept_out: "a table waits for an invalidation that is not leaf-only; contract: the port passes that on",
        step: Step::KernelOfDevices(Mistake::HintAlways),
        program: "policy=lazy; map a, unmap a, timer, timer, timer, timer",
        breaks: &[Invariant::TableReuse],
        seen: &["path-kept", "io-table-freed"],
        whole: SWEEPS,
        ..USUAL
    },
    Scenario {
        name: "range-cut-short",
        source: "Linux 59bf3557cf2f (VT-d)",
        year: 2022,
        wrong: "a range whose start is not aligned to its size was covered by a block that ends before it",
        kept_out: "contract: a command is for all of its range; the encoders of the library cover it, and are tested for all small ranges",
        step: Step::KernelOfDevices(Mistake::FirstPageOnly),
        program: "policy=strict; map2 a, unmap a",
        ..USUAL
    },
    Scenario {
        name: "unit-forgets-the-second-time",
        source: "NVIDIA Tegra264, erratum T264-SMMU-3",
        year: 2026,
        wrong: "a translation that traffic used at the same time survived an invalidation, unless that was told twice",
        kept_out: "contract: a port with this defect tells twice what is for the unit, with a wait between; the queue for SMMUv3 does so where it is told of it",
        step: Step::KernelOfDevices(Mistake::ToldOnce),
        program: "policy=strict survives=on; map a, unmap a",
        seen: &["stale-in-unit", "survived-a-command"],
        ..USUAL
    },
    Scenario {
        name: "valid-before-the-rest",
        source: "Linux 75ed00055c05 (VT-d); likewise 8b3f78733814 (AMD)",
        year: 2026,
        wrong: "an entry of a device could be seen valid before its other fields",
        kept_out: "contract: the valid word is written last, and cleared first",
        step: Step::KernelOfDevices(Mistake::EntryBackwards),
        program: "policy=strict domains=2; attach, map a, unmap a",
        seen: &["stale-in-unit", "device-attached"],
        ..USUAL
    },
    Scenario {
        name: "entry-overwritten",
        source: "Linux patch 20260120061816.2132558-4 (VT-d)",
        year: 2026,
        wrong: "a device was given to another domain by overwriting its entry while that was valid",
        kept_out: "contract: cleared, `detach`, written, valid: as a device that leaves and one that comes",
        step: Step::KernelOfDevices(Mistake::EntryOverwritten),
        program: "policy=strict domains=2; attach, move, map a, unmap a",
        seen: &["stale-in-unit", "device-attached", "device-detached"],
        ..USUAL
    },
    Scenario {
        name: "entry-torn-down-at-once",
        source: "Linux, \"Clear Present bit before tearing down PASID entry\" (VT-d)",
        year: 2026,
        wrong: "all of a device's entry was cleared at once, and an IOMMU that reads it in pieces took for valid what never was an entry",
        kept_out: "contract: the valid word is cleared alone, and the other when `detach` has returned",
        step: Step::KernelOfDevices(Mistake::EntryClearedAtOnce),
        program: "policy=strict; attach, map a, detach, unmap a",
        breaks: &[Invariant::FrameReuse],
        seen: &["stale-in-unit", "device-attached", "device-detached"],
        ..USUAL
    },
    Scenario {
        name: "left-and-not-forgotten",
        source: "the shape of CVE-2021-28702, Xen XSA-386",
        year: 2021,
        wrong: "a device was taken from its domain, and the IOMMU went on with what it had of the device's entry and tables",
        kept_out: "contract: `detach` after the entry was cleared; it has the entry forgotten first, then the translations",
        step: Step::KernelOfDevices(Mistake::DetachUntold),
        program: "policy=strict domains=2; attach, move, map a, unmap a",
        seen: &["stale-in-unit", "device-attached", "device-detached"],
        ..USUAL
    },
    Scenario {
        name: "listed-after-valid",
        source: "Linux cdb8a3c34635 (SMMUv3; the rule of its count of devices)",
        year: 2019,
        wrong: "a device could translate before it was counted, and an unmapping beside that found nobody to tell",
        kept_out: "contract: `attach`, then the entry becomes valid; `attach` and every unmapping have a fence between the list and the table",
        step: Step::KernelOfDevices(Mistake::ListedLate),
        program: "policy=strict atc=on; attach; map a, unmap a",
        breaks: &[Invariant::Revocation, Invariant::FrameReuse, Invariant::LazyBound],
        seen: &["stale-in-device", "device-attached"],
        whole: Whole::Chance(5_000),
        ..USUAL
    },
    Scenario {
        name: "entry-of-before",
        source: "Linux aec0e86172a7 (VT-d, kdump)",
        year: 2016,
        wrong: "a device's entry was made valid, the IOMMU went on with what it remembered from before, and the device faulted",
        kept_out: "contract: `announce` after the entry is valid, where units remember absence",
        step: Step::KernelOfDevices(Mistake::EntryUnannounced),
        program: "policy=strict absence=on; attach",
        breaks: &[Invariant::UpgradeSoundness],
        seen: &["device-attached"],
        ..USUAL
    },
];

//! Plans against a translation cache that forgets no more than the manuals promise.
//!
//! The cache holds leaf and non-leaf entries of all sizes, of several tags, global and not, in and
//! around the ranges asked for. Each step removes exactly what its manual guarantees (where Intel
//! and AMD differ, the weaker), and whatever a request covers must be gone at the end.

use std::vec::Vec;

use shootdown::Stride;

use super::*;
use crate::x86_64::cpuid::{Features, Vendor};
use crate::x86_64::port::Options;

/// One cached translation: a leaf, or a pointer to a table that maps `1 << shift` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    pcid: Pcid,
    start: u64,
    shift: u32,
    leaf: bool,
    global: bool,
}

impl Entry {
    fn holds(&self, address: u64) -> bool {
        address >> self.shift == self.start >> self.shift
    }

    fn overlaps(&self, range: &VaRange) -> bool {
        self.start <= range.last() && range.start() <= self.start + ((1u64 << self.shift) - 1)
    }
}

/// Does the step, on its own, guarantee that this entry is gone?
fn removes(step: Step, entry: &Entry, loaded: Pcid) -> bool {
    match step {
        // Non-leaf entries: all of the loaded PCID on Intel, those on the way to the address on AMD
        // with EFER.TCE.
        Step::Invlpg(address) => {
            entry.holds(address.get()) && (entry.pcid == loaded || entry.leaf && entry.global)
        }
        Step::Invpcid(Invpcid::Address { pcid, address }) => {
            entry.holds(address.get()) && entry.pcid == pcid && !entry.global
        }
        Step::Invpcid(Invpcid::Context(pcid)) => entry.pcid == pcid && !entry.global,
        Step::Invpcid(Invpcid::AllWithGlobals) | Step::TogglePge => true,
        Step::Invpcid(Invpcid::AllButGlobals) => !entry.global,
        Step::ReloadCr3 => entry.pcid == loaded && !entry.global,
        Step::Invlpgb(operands) => {
            let (rax, ecx, edx) = (operands.rax(), operands.ecx(), operands.edx());
            let step = if ecx >> 31 == 1 { 1u64 << 21 } else { 1 << 12 };
            let mut pages = (0..=u64::from(ecx & 0xffff)).map(|i| (rax & !0xfff) + i * step);
            let host = rax & 4 != 0 && edx & 0xffff == 0;
            host && (rax & 1 == 0 || pages.any(|page| entry.holds(page)))
                && (rax & 2 == 0 || edx >> 16 == u32::from(entry.pcid.get()) || entry.global)
                && (rax & 8 != 0 || !entry.global)
                && (rax & 16 == 0 || entry.leaf)
        }
    }
}

/// Must this entry be gone after the request?
fn covered(what: Invalidate, entry: &Entry, port: &Port, loaded: &[Pcid]) -> bool {
    let same = |tag: Tag| !port.tags || tag == Tag::from(entry.pcid);
    // A range names its own size of translation: whatever is smaller was revoked at its own size.
    let within = |range: &VaRange| entry.overlaps(range) && entry.shift >= range.stride().shift();
    match what {
        Invalidate::Range { tag, range, leaf_only } => {
            !entry.global && same(tag) && within(&range) && (entry.leaf || !leaf_only)
        }
        Invalidate::Tag(tag) => !entry.global && same(tag),
        Invalidate::Kernel(range) => {
            within(&range) && (loaded.contains(&entry.pcid) || entry.leaf && entry.global)
        }
        Invalidate::Everything => true,
    }
}

const BASES: [u64; 4] = [0, 0x7fff_c000_0000, 0xffff_8000_0000_0000, 0xffff_ffff_8000_0000];

fn pcid(raw: u16) -> Pcid {
    Pcid::new(raw).unwrap()
}

fn cache(port: &Port) -> Vec<Entry> {
    let pcids: &[u16] = if port.tags { &[0, 3, 0x803, 4, 0x804, 0xfff] } else { &[0] };
    let mut entries = Vec::new();
    for &raw in pcids {
        for base in BASES {
            for (shift, count) in [(12, 40u64), (21, 6), (30, 2)] {
                for start in (0..count).map(|i| base + (i << shift)).filter(|s| s >> 47 != 1) {
                    for (leaf, global) in [(true, false), (true, true), (false, false)] {
                        if global && (port.split || !port.pge) || !leaf && shift == 12 {
                            continue;
                        }
                        entries.push(Entry { pcid: pcid(raw), start, shift, leaf, global });
                    }
                }
            }
        }
    }
    entries
}

fn ports() -> Vec<Port> {
    let mut ports = Vec::new();
    for bits in 0..64u32 {
        let on = |n: u32| bits >> n & 1 != 0;
        let features = Features {
            vendor: Vendor::Amd,
            family: 0x19,
            model: 1,
            pcid: on(0),
            pge: on(1),
            invpcid: on(2),
            la57: false,
            physical_bits: 48,
            linear_bits: 48,
            invlpgb: on(3).then_some(8),
            invlpgb_nested: false,
            asids: 16,
            tce: true,
            hypervisor: false,
        };
        let options =
            Options { split_tables: on(4), page_spares_globals: on(5), ..Options::DEFAULT };
        ports.push(Port::new(&features, options));
    }
    ports
}

fn requests() -> Vec<Invalidate> {
    let mut all = std::vec![Invalidate::Everything];
    for raw in [0, 3, 0x803, 4, 0xfff, 0x1000, u16::MAX] {
        all.push(Invalidate::Tag(Tag(raw)));
    }
    for base in BASES {
        for (stride, counts) in [
            (Stride::Page4K, [1, 2, 7, 8, 9, 33]),
            (Stride::Page2M, [1, 2, 3, 4, 5, 9]),
            (Stride::Page1G, [1, 2, 3, 3, 2, 1]),
        ] {
            for count in counts {
                let Ok(range) = VaRange::new(base + stride.bytes(), count, stride) else {
                    continue;
                };
                all.push(Invalidate::Kernel(range));
                for raw in [0, 3, 0x803, 4, 0x1000] {
                    for leaf_only in [false, true] {
                        all.push(Invalidate::Range { tag: Tag(raw), range, leaf_only });
                    }
                }
            }
        }
    }
    all
}

#[test]
fn a_plan_removes_everything_the_request_covers_on_every_kind_of_cpu() {
    for port in ports() {
        assert_eq!(port.facts().check(), Ok(()));
        let cache = cache(&port);
        for what in requests() {
            for loaded in [pcid(0), pcid(3), pcid(0x803)] {
                if !port.tags && loaded != Pcid::ZERO {
                    continue;
                }
                let pair = if port.split && port.tags { pair_of(loaded) } else { loaded };
                let steps: Vec<Step> = port.local(what, loaded).collect();
                for entry in &cache {
                    let gone = steps.iter().any(|step| removes(*step, entry, loaded));
                    let must = covered(what, entry, &port, &[loaded, pair]);
                    assert!(gone || !must, "{what:?} leaves {entry:?}: {steps:?} on {port:?}");
                }
                let Some(steps) = port.broadcast(what) else { continue };
                let steps: Vec<Step> = steps.collect();
                for entry in &cache {
                    let gone = steps.iter().any(|step| removes(*step, entry, loaded));
                    let must = covered(what, entry, &port, &[loaded]);
                    assert!(gone || !must, "broadcast {what:?} leaves {entry:?}: {steps:?}");
                }
            }
        }
    }
}

#[test]
fn an_exact_instruction_is_used_where_the_cpu_has_it() {
    for port in ports().into_iter().filter(|port| port.tags && port.invpcid) {
        for what in requests() {
            let Invalidate::Range { tag, range, .. } = what else { continue };
            let Ok(tag) = Pcid::try_from(tag) else { continue };
            let loaded = pcid(3);
            let mut entries = cache(&port);
            entries.retain(|entry| !(entry.pcid == tag || entry.global) || !entry.overlaps(&range));
            for step in port.local(what, loaded).chain(port.broadcast(what).into_iter().flatten()) {
                for entry in &entries {
                    assert!(!removes(step, entry, loaded), "{what:?}: {step:?} removes {entry:?}");
                }
            }
        }
    }
}

#[test]
fn no_step_faults_on_the_cpu_it_is_planned_for() {
    for port in ports() {
        for what in requests() {
            for loaded in [pcid(0), pcid(3)] {
                if !port.tags && loaded != Pcid::ZERO {
                    continue;
                }
                for step in port.local(what, loaded) {
                    match step {
                        Step::Invpcid(operation) => {
                            assert!(port.invpcid && operation.allowed(port.tags));
                        }
                        Step::TogglePge => assert!(port.pge),
                        Step::Invlpgb(_) => panic!("a local plan does not broadcast"),
                        Step::Invlpg(_) | Step::ReloadCr3 => {}
                    }
                }
                for step in port.broadcast(what).into_iter().flatten() {
                    let Step::Invlpgb(operands) = step else {
                        panic!("a broadcast plan is broadcast")
                    };
                    assert!(port.tags || operands.rax() & 2 == 0, "a PCID match with PCIDs off");
                    assert!(operands.ecx() & 0xffff < 8);
                }
            }
        }
    }
}

#[test]
fn the_whole_address_space_is_planned_lazily_and_without_the_hole() {
    let all = VaRange::covering(0, u64::MAX, Stride::Page1G).unwrap();
    let port = ports().into_iter().find(|port| port.tags && !port.split).unwrap();
    let steps = port.local(Invalidate::Kernel(all), Pcid::ZERO);
    assert_eq!(steps.count(), 2 << (47 - 30));
}

#[test]
fn facts_follow_from_what_is_used() {
    for port in ports() {
        let facts = port.facts();
        assert_eq!(facts.tag_bits == 12, port.tags);
        let declared = facts.broadcast != shootdown::facts::Broadcast::None;
        assert_eq!(declared, port.broadcast(Invalidate::Everything).is_some());
        assert!(!(facts.errata.page_spares_globals && port.tags));
        assert!(!port.tags || port.pge);
    }
}

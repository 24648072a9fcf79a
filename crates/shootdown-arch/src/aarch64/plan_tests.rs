//! Plans against what the manual says each operation removes.

use std::vec::Vec;

use shootdown::Stride;

use super::super::features::Features;
use super::super::granule::{Granule, Level};
use super::super::port::Options;
use super::*;
use crate::asid::AsidWidth;

fn port(ranges: bool, granule: Granule, lpa2: bool, max_operations: u64) -> Port {
    let features =
        Features { asids: AsidWidth::BITS_16, outer: true, ranges, hints: true, shares: true };
    Port::new(&features, Options { granule, lpa2, max_operations, ..Options::DEFAULT })
}

/// An entry of a TLB or of a walk cache: pages `from..to` of the granule.
#[derive(Clone, Copy, Debug)]
struct Entry {
    from: u64,
    to: u64,
    leaf: bool,
    asid: Option<Asid>,
}

/// What an operation removes (Arm ARM C5.5): decoded from its operand and its instruction.
fn removes(tlbi: &Tlbi, port: &Port, entry: &Entry) -> bool {
    let granule = port.shape.granule;
    let asid_fits = |named: Option<Asid>| match (named, entry.asid) {
        // Global leaf entries go whatever ASID is named; so does everything by the operations on
        // all ASIDs.
        (None, _) => true,
        (Some(_), None) => entry.leaf,
        (Some(named), Some(asid)) => named == asid,
    };
    let level_fits = |leaf_only: bool| entry.leaf || !leaf_only;
    match tlbi.operation {
        Operation::All => true,
        Operation::Asid(asid) => entry.asid == Some(asid),
        Operation::Page { asid, page } => {
            let at = page.address() >> granule.shift();
            asid_fits(asid) && level_fits(page.leaf_only()) && (entry.from..entry.to).contains(&at)
        }
        Operation::Range { asid, span } => {
            let operand = span.operand();
            let (scale, num) = (operand >> 44 & 3, operand >> 39 & 31);
            let unit = if port.shape.lpa2 { 16 } else { granule.shift() };
            let first = (operand & ((1 << 37) - 1)) << unit >> granule.shift();
            let last = first + ((num + 1) << (5 * scale + 1)) - 1;
            asid_fits(asid)
                && level_fits(span.leaf_only())
                && entry.from <= last
                && first < entry.to
        }
    }
}

fn shapes() -> Vec<Port> {
    let mut ports = Vec::new();
    for granule in Granule::ALL {
        for (ranges, lpa2) in [(false, false), (true, false), (true, true)] {
            for max in [1, 3, 512] {
                ports.push(port(ranges, granule, lpa2, max));
            }
        }
    }
    ports
}

#[test]
fn a_plan_removes_at_least_what_was_asked_within_its_limit() {
    for port in shapes() {
        let granule = port.shape.granule;
        let asid = |raw| Asid::new(raw, AsidWidth::BITS_16).unwrap();
        let pages_of = |level| 1u64 << (granule.leaf_shift(level) - granule.shift());
        let mut entries = Vec::new();
        for of in [Some(asid(3)), Some(asid(4)), None] {
            for page in 0..70 {
                entries.push(Entry { from: page, to: page + 1, leaf: true, asid: of });
            }
            for block in 0..3 {
                let size = pages_of(Level::Two);
                for leaf in [false, true] {
                    entries.push(Entry {
                        from: block * size,
                        to: (block + 1) * size,
                        leaf,
                        asid: of,
                    });
                }
            }
        }
        for stride in [Stride::Page4K, Stride::Page2M] {
            for first in [0u64, 5, 16] {
                for count in [1u64, 2, 7, 31, 33, 40] {
                    let start = first << stride.shift();
                    let range = VaRange::new(start, count, stride).unwrap();
                    for leaf_only in [false, true] {
                        let tag = Tag(3);
                        check(&port, Invalidate::Range { tag, range, leaf_only }, &entries);
                    }
                    check(&port, Invalidate::Kernel(range), &entries);
                }
            }
        }
        for what in [Invalidate::Tag(Tag(3)), Invalidate::Tag(Tag(9)), Invalidate::Everything] {
            check(&port, what, &entries);
        }
    }
}

fn check(port: &Port, what: Invalidate, entries: &[Entry]) {
    let granule = port.shape.granule;
    let of = |entry: &Entry, tag: Tag| entry.asid.is_some_and(|asid| asid.get() == tag.0);
    let touches = |entry: &Entry, range: VaRange| {
        let (first, last) = (range.start() >> granule.shift(), range.last() >> granule.shift());
        // No leaf of the range is smaller than its stride, or than a page where that is larger.
        let size = (entry.to - entry.from) << granule.shift();
        entry.from <= last
            && first < entry.to
            && (!entry.leaf || size >= range.stride().bytes() || size == 1 << granule.shift())
    };
    for domain in [Domain::Local, Domain::Inner, Domain::Outer] {
        let plan: Vec<Tlbi> = port.plan(what, domain).collect();
        assert!(!plan.is_empty() && plan.len() as u64 <= port.max_operations, "I2");
        assert!(plan.iter().all(|tlbi| tlbi.domain == domain));
        for entry in entries {
            let small = |range: VaRange| {
                // A page under a stride that has no leaf of its size is named by its own address.
                granule.leaf_shift(granule.step(range.stride())) > granule.shift()
                    && entry.leaf
                    && entry.to - entry.from == 1
            };
            let asked = match what {
                Invalidate::Range { tag, range, leaf_only } => {
                    of(entry, tag)
                        && touches(entry, range)
                        && (entry.leaf || !leaf_only)
                        && !small(range)
                }
                Invalidate::Tag(tag) => of(entry, tag),
                Invalidate::Kernel(range) => entry.leaf && touches(entry, range) && !small(range),
                Invalidate::Everything => true,
            };
            let removed = plan.iter().any(|tlbi| removes(tlbi, port, entry));
            assert!(removed || !asked, "{what:?} leaves {entry:?}: {plan:?}");
        }
        // What is not asked for stays, unless the plan falls back.
        if let Invalidate::Range { tag, leaf_only: true, .. } = what {
            for entry in entries.iter().filter(|e| !of(e, tag) && !e.leaf) {
                assert!(!plan.iter().any(|tlbi| removes(tlbi, port, entry)));
            }
        }
    }
}

#[test]
fn too_many_operations_become_one() {
    let range = |count| VaRange::new(0x1000, count, Stride::Page4K).unwrap();
    let plan = |port: &Port, what| port.plan(what, Domain::Inner).collect::<Vec<_>>();
    let leaf = |count| Invalidate::Range { tag: Tag(3), range: range(count), leaf_only: true };
    let single = port(false, Granule::K4, false, 512);
    assert_eq!(plan(&single, leaf(512)).len(), 512);
    assert!(matches!(plan(&single, leaf(513))[..], [Tlbi { operation: Operation::Asid(_), .. }]));
    let kernel = plan(&single, Invalidate::Kernel(range(513)));
    assert!(matches!(kernel[..], [Tlbi { operation: Operation::All, .. }]));
    // With ranges the same limit is reached at two thousand million pages.
    let ranges = port(true, Granule::K4, false, 512);
    assert_eq!(plan(&ranges, leaf(513)).len(), 2);
    assert_eq!(plan(&ranges, leaf(510 << 21)).len(), 510);
    assert!(matches!(
        plan(&ranges, leaf(514 << 21))[..],
        [Tlbi { operation: Operation::Asid(_), .. }]
    ));
    // No ASID of 16 bits has this number if 8 are in force.
    let options = Options { wide_asids: false, ..Options::DEFAULT };
    let narrow = Port::new(&Features::decode(2 << 4, 0, 0), options);
    assert_eq!(narrow.asids(), AsidWidth::BITS_8);
    let all = plan(&narrow, Invalidate::Tag(Tag(256)));
    assert!(matches!(all[..], [Tlbi { operation: Operation::All, .. }]));
}

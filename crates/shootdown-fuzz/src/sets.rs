//! Sets of CPUs and ranges of addresses against the standard library's sets.

use std::collections::BTreeSet;

use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet, Mask};
use shootdown::{CpuId, Stride, VaRange};

use crate::Bytes;

/// Words of the widest set; enough that two of them share a bit of the summary.
const WIDE: usize = 66;

/// Operations on sets of one, three and many words, and on ranges.
pub fn sets(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    match bytes.below(4) {
        0 => cpus::<1>(&mut bytes),
        1 => cpus::<3>(&mut bytes),
        2 => cpus::<WIDE>(&mut bytes),
        _ => ranges(&mut bytes),
    }
}

fn cpus<const W: usize>(bytes: &mut Bytes<'_>)
where
    AtomicCpuSet<W>: Mask<Set = CpuSet<W>>,
{
    let (mut value, shared) = (CpuSet::<W>::EMPTY, AtomicCpuSet::<W>::new());
    let (mut value_model, mut shared_model) = (BTreeSet::new(), BTreeSet::new());
    let capacity = (W * 64) as u64;
    assert_eq!(CpuSet::<W>::capacity() as u64, capacity);
    while !bytes.is_empty() {
        let operation = bytes.byte();
        let cpu = CpuId(bytes.below(capacity) as u32);
        match operation % 5 {
            0 => {
                value.insert(cpu);
                value_model.insert(cpu);
            }
            1 => {
                value.remove(cpu);
                value_model.remove(&cpu);
            }
            2 => assert_eq!(Mask::insert(&shared, cpu), shared_model.insert(cpu)),
            3 => assert_eq!(Mask::remove(&shared, cpu), shared_model.remove(&cpu)),
            _ => {
                assert_eq!(value.contains(cpu), value_model.contains(&cpu));
                assert_eq!(Mask::contains(&shared, cpu), shared_model.contains(&cpu));
            }
        }
    }
    let listed = |set: &CpuSet<W>| set.iter().collect::<Vec<_>>();
    assert_eq!(listed(&value), Vec::from_iter(value_model.iter().copied()));
    assert_eq!(value.len() as usize, value_model.len());
    assert_eq!(value.is_empty(), value_model.is_empty());
    assert_eq!(listed(&shared.snapshot()), Vec::from_iter(shared_model.iter().copied()));
    let both: Vec<_> = value_model.intersection(&shared_model).copied().collect();
    assert_eq!(listed(&shared.common(&value)), both);
    // Removal of a CPU that can't be in it changes nothing.
    value.remove(CpuId(u32::MAX));
    assert!(!value.contains(CpuId(u32::MAX)) && !Mask::remove(&shared, CpuId(u32::MAX)));
    assert_eq!(value.len() as usize, value_model.len());
}

/// A stride.
pub(crate) fn stride(bytes: &mut Bytes<'_>) -> Stride {
    [Stride::Page4K, Stride::Page2M, Stride::Page1G][bytes.below(3) as usize]
}

fn ranges(bytes: &mut Bytes<'_>) {
    let mut before: Option<VaRange> = None;
    while !bytes.is_empty() {
        let (first, second, stride) = (bytes.edge(), bytes.edge(), stride(bytes));
        let size = u128::from(stride.bytes());
        let covering = bytes.flag();
        let got = if covering {
            VaRange::covering(first, second, stride)
        } else {
            VaRange::new(first, second, stride)
        };
        // In numbers too wide to overflow.
        let start = u128::from(first) / size * size;
        let end = if covering {
            u128::from(second).div_ceil(size) * size
        } else {
            start + u128::from(second) * size
        };
        let exists = if covering { second > first } else { second > 0 && end <= 1 << 64 };
        assert_eq!(got.is_ok(), exists, "{first:#x} {second:#x} {stride:?}: {got:?}");
        let Ok(range) = got else { continue };
        assert_eq!(u128::from(range.start()), start);
        assert_eq!(u128::from(range.last()), end - 1);
        assert_eq!(u128::from(range.count()), (end - start) / size);
        if let Some(other) = before.replace(range) {
            let merged = range.merge(&other);
            assert_eq!(merged, other.merge(&range));
            assert_eq!(merged.stride(), stride.min(other.stride()));
            assert_eq!(merged.start(), range.start().min(other.start()));
            assert_eq!(merged.last(), range.last().max(other.last()));
        }
    }
}

//! What changes of raw entries demand, against a reference that knows no bits: only what a TLB that
//! still holds the old entry could allow.

mod aarch64;
mod reference;
mod riscv64;
mod x86_64;

use proptest::prelude::*;
use reference::{Model, demand, leaks};
use shootdown::Change;

/// Every change of one bit and of two, from every setting of the bits that matter to each other.
fn all_pairs(model: &impl Model) {
    let (mut elided, mut demanded) = (0u64, 0u64);
    for base in settings(model.base(), model.matter()) {
        for first in 0..64 {
            for second in first..64 {
                // `first == second` is one bit.
                check(model, base, base ^ (1 << first | 1 << second), &mut elided, &mut demanded);
            }
        }
    }
    assert!(elided > 1000 && demanded > 1000, "{elided} elided, {demanded} demanded");
}

fn check(model: &impl Model, old: u64, new: u64, elided: &mut u64, demanded: &mut u64) {
    let (says, wants) = (model.change(old, new), demand(model, old, new));
    let story =
        || format!("{model:?}: {old:#x} to {new:#x}: {says:?}, but the reference wants {wants:?}");
    assert!(says >= wants, "{}", story());
    assert!(says == wants || model.is_careful(old, new), "{}", story());
    *if says.is_elided() { elided } else { demanded } += 1;
}

/// `base` with every setting of `bits`.
fn settings(base: u64, bits: u64) -> impl Iterator<Item = u64> {
    let mut next = Some(0u64);
    std::iter::from_fn(move || {
        let setting = next?;
        let following = setting.wrapping_sub(bits) & bits;
        next = (following != 0).then_some(following);
        Some(base & !bits | setting)
    })
}

/// Whatever was elided since the last flush, a copy of any of the entries is harmless.
fn chains(model: &impl Model, first: u64, flips: &[(u8, u8)]) {
    let mut held = vec![first];
    for (a, b) in flips {
        let old = held[held.len() - 1];
        let new = old ^ (1 << a | 1 << b);
        let change = model.change(old, new);
        if !change.is_elided() && change != Change::Accessed {
            held = vec![new];
            continue;
        }
        held.push(new);
        for stale in &held {
            assert!(!leaks(&model.view(*stale), &model.view(new)), "{model:?}: {held:#x?}");
        }
    }
}

#[test]
fn x86_64_all_single_bits_and_pairs() {
    x86_64::all().iter().for_each(all_pairs);
}

#[test]
fn aarch64_all_single_bits_and_pairs() {
    aarch64::all().iter().for_each(all_pairs);
}

#[test]
fn riscv64_all_single_bits_and_pairs() {
    riscv64::all().iter().for_each(all_pairs);
}

proptest! {
    #[test]
    fn random_changes(old: u64, mask: [u64; 4]) {
        let new = old ^ (mask[0] & mask[1] & mask[2] & mask[3]);
        let (mut a, mut b) = (0, 0);
        // Most random entries should be present.
        for (old, new) in [(old, new), (old | 3, new | 3), (new | 3, old | 3), (old | 1, new | 1)] {
            x86_64::all().iter().for_each(|m| check(m, old, new, &mut a, &mut b));
            aarch64::all().iter().for_each(|m| check(m, old, new, &mut a, &mut b));
            riscv64::all().iter().for_each(|m| check(m, old, new, &mut a, &mut b));
        }
    }

    #[test]
    fn elided_changes_add_up(
        first: u64,
        flips in prop::collection::vec((0u8..64, 0u8..64), 1..40),
    ) {
        x86_64::all().iter().for_each(|m| chains(m, first | 1, &flips));
        aarch64::all().iter().for_each(|m| chains(m, first | 3, &flips));
        riscv64::all().iter().for_each(|m| chains(m, first | 1, &flips));
    }
}

//! The allocator of machine-wide tags beside slots against a set of numbers, as a property over
//! random histories.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use shootdown::Tag;
use shootdown::tags::broadcast::BroadcastTags;

#[derive(Clone, Debug)]
enum Step {
    /// A space begins to live. With `true`, it lives as long as the history.
    Begin(bool),
    /// One of the spaces that may end does.
    End(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => Just(Step::Begin(false)),
        1 => Just(Step::Begin(true)),
        30 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 1..600)
}

/// What is known of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    /// No CPU has anything cached under it.
    Clean,
    /// A space has it.
    Owned,
    /// Its space has ended; what it cached is still there.
    Dirty,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tag_has_one_owner_and_begins_clean(
        history in steps(), first in 1..300u16, count in 1..130u32,
    ) {
        let tags = BroadcastTags::<3>::with_count(Tag(first), count, 12).expect("they fit");
        let mut numbers: BTreeMap<Tag, Number> = BTreeMap::new();
        for beyond in 0..count {
            numbers.insert(Tag(first + u16::try_from(beyond).unwrap()), Number::Clean);
        }
        let mut may_end: Vec<Tag> = Vec::new();
        for step in history {
            match step {
                Step::Begin(stays) => {
                    let mut resets = 0;
                    // SAFETY: there is no CPU: what a reset clears is below.
                    let given = unsafe { tags.assign(|| unreachable!("one CPU"), || resets += 1) };
                    let of = |kind| -> BTreeSet<Tag> {
                        numbers.iter().filter(|(_, n)| **n == kind).map(|(t, _)| *t).collect()
                    };
                    let (clean, dirty) = (of(Number::Clean), of(Number::Dirty));
                    // Invalidated exactly when nothing clean is left and it helps.
                    prop_assert_eq!(resets == 1, clean.is_empty() && !dirty.is_empty());
                    prop_assert_eq!(given.is_none(), clean.is_empty() && dirty.is_empty());
                    if resets == 1 {
                        dirty.iter().for_each(|t| { numbers.insert(*t, Number::Clean); });
                    }
                    if let Some(tag) = given {
                        prop_assert_eq!(numbers.insert(tag, Number::Owned), Some(Number::Clean));
                        if !stays {
                            may_end.push(tag);
                        }
                    }
                }
                Step::End(which) if !may_end.is_empty() => {
                    let tag = may_end.swap_remove(which.index(may_end.len()));
                    // SAFETY: it was given out, and no CPU has it.
                    unsafe { tags.release(tag) };
                    numbers.insert(tag, Number::Dirty);
                }
                Step::End(_) => {}
            }
            let owned = numbers.values().filter(|n| **n == Number::Owned).count();
            prop_assert_eq!(tags.owned(|| ()) as usize, owned);
        }
    }
}

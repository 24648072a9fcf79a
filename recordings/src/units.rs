//! Enough generic code for several code-generation threads.

use std::collections::{BTreeMap, HashMap, VecDeque};

macro_rules! unit {
    ($($name:ident $key:ty;)*) => {$(
        pub mod $name {
            use super::*;

            pub fn count(words: &[$key]) -> BTreeMap<$key, usize> {
                let mut counts = BTreeMap::new();
                for word in words {
                    *counts.entry(word.clone()).or_insert(0) += 1;
                }
                counts
            }

            pub fn group(words: &[$key]) -> HashMap<$key, VecDeque<usize>> {
                let mut groups: HashMap<$key, VecDeque<usize>> = HashMap::new();
                for (at, word) in words.iter().enumerate() {
                    groups.entry(word.clone()).or_default().push_back(at);
                }
                groups
            }

            pub fn order(words: &mut Vec<$key>) -> Option<$key> {
                words.sort();
                words.dedup();
                words.first().cloned()
            }
        }
    )*};
}

unit! {
    texts String;
    bytes u8;
    shorts u16;
    words u32;
    longs u64;
    signed i64;
    pairs (u32, String);
    runs Vec<u8>;
}

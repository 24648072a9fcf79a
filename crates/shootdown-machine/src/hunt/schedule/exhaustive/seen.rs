//! The states seen, by their hash, each with the actors that slept in it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::hunt::schedule::rng::mix;

/// The key is a hash already; it is mixed once more, since nobody promises that all its bits are
/// good.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(self.0 ^ key);
    }
}

/// Hashes of states, and bit sets of the actors asleep in each.
#[derive(Default)]
pub(super) struct Seen {
    states: HashMap<u64, u64, BuildHasherDefault<Mixed>>,
}

impl Seen {
    /// Remembers a state. Was it new?
    pub(super) fn insert(&mut self, state: u64) -> bool {
        self.states.insert(state, 0).is_none()
    }

    /// The actors asleep in a state seen before.
    pub(super) fn asleep(&mut self, state: u64) -> Option<&mut u64> {
        self.states.get_mut(&state)
    }

    /// Remembers a new state with the actors asleep in it.
    pub(super) fn enter(&mut self, state: u64, asleep: u64) {
        self.states.insert(state, asleep);
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }
}

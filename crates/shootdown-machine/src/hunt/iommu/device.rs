//! Devices: how an IOMMU finds the tables of one, and what the device has in a cache of its own.
//!
//! A device has an entry of two words, as the context entries of VT-d have (the others have more).
//! The low word has the root of the tables, and bit 0 says that the entry is valid; the high word
//! names the domain. A unit reads the low word first, and the high one at any later time: what it
//! takes for an entry may never have been one. That goes on until it is told to forget.

use std::collections::BTreeSet;

use super::cached::Cached;

/// The low word: this entry is valid.
pub const VALID: u64 = 1;

/// What a unit took from an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// Where the walk begins.
    pub root: u64,
    /// What translations are tagged with.
    pub domain: u16,
}

impl Entry {
    /// What these words say.
    #[allow(clippy::cast_possible_truncation)] // the high word has the tag
    const fn of(low: u64, high: u64) -> Option<Self> {
        if low & VALID == 0 {
            return None;
        }
        Some(Self { root: low & !VALID, domain: high as u16 })
    }
}

/// A word of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// Root, and whether the entry is valid.
    Low,
    /// Domain.
    High,
}

/// A device, or the place for one.
#[derive(Debug)]
pub(super) struct Device {
    /// By which the unit and the kernel know it.
    pub id: u32,
    /// The unit that it is behind.
    pub unit: usize,
    /// There is one, and it has not been taken out.
    pub plugged: bool,
    words: [u64; 2],
    /// Low words that a unit may have read, and not yet the high one.
    begun: BTreeSet<u64>,
    /// What the unit has of the entry.
    pub cached: BTreeSet<Entry>,
    /// It has been forgotten that the entry was not valid.
    pub known: bool,
    /// The kernel has begun to use it.
    pub served: bool,
    /// It does not answer any more: it keeps what it has, whatever it is told.
    pub silent: bool,
    /// What the device has cached, if it has a cache.
    pub atc: Option<BTreeSet<Cached>>,
}

impl Device {
    pub fn new(id: u32, unit: usize) -> Self {
        let (begun, cached) = (BTreeSet::new(), BTreeSet::new());
        Self {
            id,
            unit,
            plugged: false,
            words: [0; 2],
            begun,
            cached,
            known: false,
            served: false,
            silent: false,
            atc: None,
        }
    }

    pub const fn entry(&self) -> Option<Entry> {
        Entry::of(self.words[0], self.words[1])
    }

    /// A word of the entry is written. `torn`: the unit reads its words at different times; `kept`:
    /// it keeps what it has read. Has it read what never was an entry?
    pub fn write(&mut self, half: Half, value: u64, torn: bool, kept: bool) -> bool {
        self.words[half as usize] = value;
        if !kept {
            self.cached.clear();
        }
        if self.words[0] & VALID != 0 {
            self.begun.insert(self.words[0]);
        } else {
            (self.known, self.served) = (false, false);
        }
        let read = match half {
            Half::High if torn => {
                self.begun.iter().filter_map(|low| Entry::of(*low, value)).collect()
            }
            _ => self.entry().into_iter().collect::<Vec<_>>(),
        };
        let never_was = read.iter().any(|entry| Some(*entry) != self.entry());
        self.cached.extend(read);
        never_was
    }

    /// The unit forgets what it has read of the entry, and reads it again.
    pub fn forget(&mut self) {
        self.begun.clear();
        self.cached.clear();
        if let Some(entry) = self.entry() {
            self.begun.insert(self.words[0]);
            self.cached.insert(entry);
            self.known = true;
        }
    }

    pub fn hash(&self, add: &mut impl FnMut(u64)) {
        add(self.words[0] ^ self.words[1].rotate_left(40) ^ u64::from(self.plugged) << 63);
        add(u64::from(self.known)
            ^ u64::from(self.served) << 1
            ^ u64::from(self.id) << 8
            ^ u64::from(self.silent) << 2);
        self.begun.iter().for_each(|low| add(low ^ 0xbe9));
        self.cached.iter().for_each(|e| add(e.root ^ u64::from(e.domain) << 44));
        self.atc.iter().flatten().for_each(|leaf| super::add_leaf(leaf, 0xa7c, add));
    }
}

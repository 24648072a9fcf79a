//! The automaton: break before make, per entry.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Dsb, Record, Register, Step, Tlbi};

/// Entries of a table: 4 KiB granule, four levels (0 is the root).
const ENTRIES: u64 = 512;
const PAGE: u64 = 4096;
const LAST_LEVEL: u8 = 3;
const VALID: u64 = 1;
/// Not a block, above the last level.
const TABLE: u64 = 2;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// How a trace breaks the rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
pub enum Violation {
    /// A valid entry was replaced by a valid one that maps something else.
    #[error("the entry at {0:#x} goes from valid to valid: it was not broken")]
    NotBroken(u64),
    /// An entry was made valid before all TLBs had forgotten what it was.
    #[error("the entry at {0:#x} is made valid before it is clean")]
    NotClean(u64),
    /// A table page was written that walks may still read through an entry that is not clean.
    #[error("{0:#x} is written, in a table that an entry which is not clean has led to")]
    StillWalked(u64),
}

/// How far the cleaning of a broken entry has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Broken,
    Ordered,
    /// Stage 2 only: the addresses are gone, what both stages gave together is not.
    AddressesGone,
    AddressesOrdered,
    Invalidated,
}

/// An entry that is invalid and not clean.
#[derive(Clone, Debug)]
struct Unclean {
    by: u32,
    stage: Stage,
    root: u64,
    register: Register,
    /// Leaf entry: a TLBI of the last level is enough.
    leaf: bool,
    /// The pages whose translations went through it and are not invalidated.
    pages: BTreeSet<u64>,
    /// The table pages that it led to.
    tables: BTreeSet<u64>,
}

/// Where an entry stands in the tables.
struct Place {
    root: u64,
    register: Register,
    level: u8,
    /// The first page that it translates.
    page: u64,
}

/// Follows a trace.
#[derive(Clone, Debug, Default)]
pub struct Automaton {
    memory: BTreeMap<u64, u64>,
    roots: BTreeMap<u64, Register>,
    /// The guest's root of each CPU.
    guests: BTreeMap<u32, u64>,
    unclean: BTreeMap<u64, Unclean>,
    /// Entries that were broken, cleaned and made again: the rule at work.
    pub made_again: usize,
    /// Entries that were made clean.
    cleaned: BTreeSet<u64>,
}

/// Follows a whole trace; the number of entries that were broken, cleaned and made again.
///
/// # Errors
/// The violation, and the number of the record, from 0.
pub fn judge(trace: &[Record]) -> Result<usize, (usize, Violation)> {
    let mut automaton = Automaton::default();
    for (at, record) in trace.iter().enumerate() {
        automaton.step(record).map_err(|violation| (at, violation))?;
    }
    Ok(automaton.made_again)
}

impl Automaton {
    /// Takes one record.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn step(&mut self, record: &Record) -> Result<(), Violation> {
        let thread = record.thread;
        match &record.step {
            Step::Init { address, size } => {
                for word in (*address..address + size).step_by(8) {
                    self.write(thread, word, 0)?;
                }
            }
            Step::Write { address, value, .. } => self.write(thread, *address, *value)?,
            Step::Dsb(kind) => self.barrier(thread, *kind),
            Step::Tlbi(tlbi) => self.invalidate(thread, *tlbi),
            Step::Root { register, value } => {
                let root = value & ADDRESS;
                self.roots.insert(root, *register);
                if *register == Register::VttbrEl2 {
                    self.guests.insert(thread, root);
                }
            }
            Step::Isb | Step::Other(_) => {}
        }
        Ok(())
    }

    fn at(&self, address: u64) -> u64 {
        self.memory.get(&address).copied().unwrap_or(0)
    }

    fn leads_to_table(value: u64, level: u8) -> bool {
        value & VALID != 0 && value & TABLE != 0 && level < LAST_LEVEL
    }

    /// Where the word stands, if walks reach it from a root.
    fn place(&self, address: u64) -> Option<Place> {
        let table = address & !(PAGE - 1);
        self.roots.iter().find_map(|(root, register)| {
            let (level, page) = self.find(*root, 0, 0, table)?;
            let page = page + (address - table) / 8 * span(level);
            Some(Place { root: *root, register: *register, level, page })
        })
    }

    /// The level of a table below another, and the first page that it translates.
    fn find(&self, from: u64, level: u8, page: u64, table: u64) -> Option<(u8, u64)> {
        if from == table {
            return Some((level, page));
        }
        let entries = self.memory.range(from..from + PAGE);
        entries.filter(|(_, value)| Self::leads_to_table(**value, level)).find_map(|(at, value)| {
            let first = page + (at - from) / 8 * span(level);
            self.find(value & ADDRESS, level + 1, first, table)
        })
    }

    fn write(&mut self, thread: u32, address: u64, value: u64) -> Result<(), Violation> {
        let table = address & !(PAGE - 1);
        let old = self.at(address);
        if value != old && self.unclean.values().any(|u| u.tables.contains(&table)) {
            return Err(Violation::StillWalked(address));
        }
        let (was, is) = (old & VALID != 0, value & VALID != 0);
        if let Some(place) = self.place(address) {
            if was && is && needs_break(old, value, place.level) {
                return Err(Violation::NotBroken(address));
            }
            if was && !is {
                let unclean = self.broken(thread, &place, old);
                self.unclean.insert(address, unclean);
                self.cleaned.remove(&address);
            }
            if !was && is && self.cleaned.remove(&address) {
                self.made_again += 1;
            }
        }
        if !was && is && self.unclean.contains_key(&address) {
            return Err(Violation::NotClean(address));
        }
        self.memory.insert(address, value);
        Ok(())
    }

    fn broken(&self, by: u32, place: &Place, old: u64) -> Unclean {
        let mut unclean = Unclean {
            by,
            stage: Stage::Broken,
            root: place.root,
            register: place.register,
            leaf: !Self::leads_to_table(old, place.level),
            pages: BTreeSet::from([place.page]),
            tables: BTreeSet::new(),
        };
        if !unclean.leaf {
            self.below(old & ADDRESS, place.level + 1, place.page, &mut unclean);
        }
        unclean
    }

    /// Adds a table and all below it.
    fn below(&self, table: u64, level: u8, page: u64, to: &mut Unclean) {
        if !to.tables.insert(table) {
            return;
        }
        for (at, value) in self.memory.range(table..table + PAGE) {
            let first = page + (at - table) / 8 * span(level);
            if Self::leads_to_table(*value, level) {
                self.below(value & ADDRESS, level + 1, first, to);
            } else if value & VALID != 0 {
                to.pages.insert(first);
            }
        }
    }

    fn barrier(&mut self, thread: u32, kind: Dsb) {
        if kind == Dsb::Nsh {
            return;
        }
        let mut clean = vec![];
        for (address, unclean) in self.unclean.iter_mut().filter(|(_, u)| u.by == thread) {
            unclean.stage = match (unclean.stage, kind) {
                (Stage::Broken, _) => Stage::Ordered,
                (Stage::AddressesGone, Dsb::Ish) => Stage::AddressesOrdered,
                (Stage::Invalidated, Dsb::Ish) => {
                    clean.push(*address);
                    continue;
                }
                (stage, _) => stage,
            };
        }
        for address in clean {
            self.unclean.remove(&address);
            self.cleaned.insert(address);
        }
    }

    fn invalidate(&mut self, thread: u32, tlbi: Tlbi) {
        let guest = self.guests.get(&thread).copied();
        for unclean in self.unclean.values_mut().filter(|u| u.by == thread) {
            let own = guest == Some(unclean.root);
            unclean.stage = match (unclean.register, unclean.stage, tlbi) {
                (Register::Ttbr0El2, Stage::Ordered, Tlbi::El2 { all_cpus: true }) => {
                    Stage::Invalidated
                }
                (Register::Ttbr0El2, Stage::Ordered, Tlbi::Va { page, last, all_cpus: true })
                    if !last || unclean.leaf =>
                {
                    unclean.pages.remove(&page);
                    if unclean.pages.is_empty() { Stage::Invalidated } else { Stage::Ordered }
                }
                (Register::VttbrEl2, Stage::Ordered, Tlbi::Ipa { page }) if own => {
                    unclean.pages.remove(&page);
                    if unclean.pages.is_empty() { Stage::AddressesGone } else { Stage::Ordered }
                }
                (
                    Register::VttbrEl2,
                    Stage::AddressesOrdered,
                    Tlbi::Combined { all_cpus: true },
                ) if own => Stage::Invalidated,
                (
                    Register::VttbrEl2,
                    Stage::Ordered | Stage::AddressesGone | Stage::AddressesOrdered,
                    Tlbi::Guest { all_cpus: true },
                ) if own => Stage::Invalidated,
                (
                    Register::VttbrEl2,
                    Stage::Ordered | Stage::AddressesGone | Stage::AddressesOrdered,
                    Tlbi::Guests { all_cpus: true },
                ) => Stage::Invalidated,
                (_, stage, _) => stage,
            };
        }
    }
}

/// The pages that an entry of a level translates.
const fn span(level: u8) -> u64 {
    ENTRIES.pow((LAST_LEVEL - level) as u32)
}

/// Does replacing one valid entry by another need a break? Another address or size, other
/// attributes or shareability, or from non-global to global (Arm ARM D8.16.1). Rights, the access
/// flag, the dirty-bit modifier and software's bits don't.
const fn needs_break(old: u64, new: u64, level: u8) -> bool {
    const ATTRIBUTES: u64 = 0b111 << 2;
    const SHAREABILITY: u64 = 0b11 << 8;
    const NOT_GLOBAL: u64 = 1 << 11;
    const CONTIGUOUS: u64 = 1 << 52;
    let changed = old ^ new;
    let table = old & TABLE != 0 && level < LAST_LEVEL;
    let mapping = if table {
        ADDRESS | TABLE
    } else {
        ADDRESS | TABLE | ATTRIBUTES | SHAREABILITY | CONTIGUOUS
    };
    changed & mapping != 0 || !table && old & NOT_GLOBAL != 0 && new & NOT_GLOBAL == 0
}

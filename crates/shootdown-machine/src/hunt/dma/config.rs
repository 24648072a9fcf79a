//! What a hunted domain is made for, as words.

use std::fmt;

use shootdown_dma::domain::{Limits, Policy};

use super::host::TABLES;

/// What the domain is made for. Its text is the words that differ from the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// What unmapping promises: `policy=`.
    pub policy: Policy,
    /// Things that a CPU may owe: `entries=`.
    pub entries: usize,
    /// Things after which they are told of: `flush=`.
    pub flush: usize,
    /// Devices have caches of their own: `atc=on`.
    pub atc: bool,
    /// Pages of addresses that there are: `pages=`.
    pub pages: u64,
    /// Pages for page tables that there are: `tables=`.
    pub tables: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { policy: Policy::Strict, entries: 4, flush: 2, atc: false, pages: 4, tables: TABLES }
    }
}

/// The page behind the last address.
pub(super) const END: u64 = 1 << 12;

/// Bounds in programs.
const MOST: usize = 64;

impl Config {
    /// Takes a word of a program. The error is a sentence.
    ///
    /// # Errors
    /// When it is none.
    pub fn set(&mut self, word: &str) -> Result<(), String> {
        let bad = || format!("`{word}` says nothing about a domain");
        let (key, value) = word.split_once('=').ok_or_else(bad)?;
        let number = || value.parse::<usize>().ok().filter(|n| *n != 0).ok_or_else(bad);
        match key {
            "policy" => {
                let all = [Policy::Strict, Policy::Held, Policy::Lazy];
                self.policy = all.into_iter().find(|p| p.name() == value).ok_or_else(bad)?;
            }
            "entries" => self.entries = number()?.min(MOST),
            "flush" => self.flush = number()?.min(MOST),
            "atc" => self.atc = value == "on",
            "pages" => self.pages = (number()? as u64).min(END - 1),
            "tables" => self.tables = number()?.min(TABLES),
            _ => return Err(bad()),
        }
        Ok(())
    }

    pub(super) fn domain(&self, cpus: usize) -> shootdown_dma::Config {
        let limits = Limits { entries: self.entries, flush_at: self.flush, ..Limits::DEFAULT };
        shootdown_dma::Config::new(cpus).policy(self.policy).limits(limits)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        write!(f, "policy={}", self.policy)?;
        if self.entries != usual.entries {
            write!(f, " entries={}", self.entries)?;
        }
        if self.flush != usual.flush {
            write!(f, " flush={}", self.flush)?;
        }
        if self.atc {
            f.write_str(" atc=on")?;
        }
        if self.pages != usual.pages {
            write!(f, " pages={}", self.pages)?;
        }
        if self.tables != usual.tables {
            write!(f, " tables={}", self.tables)?;
        }
        Ok(())
    }
}

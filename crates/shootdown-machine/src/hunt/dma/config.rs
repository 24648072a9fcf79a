//! What a hunted domain is made for, as words.

use std::fmt;

use shootdown::CpuId;
use shootdown_dma::domain::{Limits, Policy};
use shootdown_dma::invalidate::Promotion;
use shootdown_dma::iova::identity::{Layout, LeafSize};
use shootdown_dma::pinned::Pinned;

use super::host::TABLES;
use super::mistake::Mistake;
use crate::hunt::barrier;

/// How tables are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tables {
    /// Second level of VT-d.
    #[default]
    Vtd,
    /// AMD-Vi, version 1.
    Amd,
    /// First stage of Arm.
    Arm1,
    /// Second stage of Arm.
    Arm2,
    /// First stage of Arm, with pages of 16 KiB.
    Arm1Of16K,
    /// Second stage of Arm, with pages of 64 KiB.
    Arm2Of64K,
}

impl Tables {
    /// The logarithm of the bytes of a page.
    pub(super) const fn granule(self) -> u32 {
        match self {
            Self::Vtd | Self::Amd | Self::Arm1 | Self::Arm2 => 12,
            Self::Arm1Of16K => 14,
            Self::Arm2Of64K => 16,
        }
    }

    /// Levels of its tables.
    pub(super) const fn levels(self) -> u8 {
        if matches!(self, Self::Arm2Of64K) { 2 } else { 3 }
    }

    /// Bits of a page number that a level resolves.
    const fn index(self) -> u32 {
        self.granule() - 3
    }
}

/// Where addresses come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Source {
    /// A tree under a lock.
    #[default]
    Tree,
    /// Magazines over a tree.
    Magazines,
    /// Pools.
    Arena,
    /// A ring.
    Ring,
    /// They follow from the memory's; what does not fit comes from a tree.
    Identity,
}

macro_rules! named {
    ($type:ident { $($variant:ident $name:literal)* }) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word it is written with.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

named!(Tables {
    Vtd "vtd" Amd "amd" Arm1 "arm1" Arm2 "arm2" Arm1Of16K "arm1-16k" Arm2Of64K "arm2-64k"
});
named!(Source {
    Tree "tree" Magazines "magazines" Arena "arena" Ring "ring" Identity "identity"
});

/// What the domains are made for, and what hardware there is. Its text is the words that differ
/// from the default.
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
    /// How tables are written: `format=`.
    pub format: Tables,
    /// Where addresses come from: `from=`.
    pub from: Source,
    /// Large pages have addresses that follow from the memory's too, where the format has such:
    /// `leaves=large`.
    pub large: bool,
    /// Units: `units=`. There is a device behind each.
    pub units: usize,
    /// Domains: `domains=`. Buffers belong to them by turns.
    pub domains: usize,
    /// The second domain may end, and begin again: `ends=on`. (Then one CPU at a time polls or
    /// flushes it.)
    pub ends: bool,
    /// Units remember what was not mapped: `absence=on`.
    pub absence: bool,
    /// Units do not look into CPUs' caches: `coherent=off`.
    pub coherent: bool,
    /// Devices are trusted, and find memory in a window, one to one: `window=on`.
    pub window: bool,
    /// The kernel keeps a word for each page of tables, so that uses beyond an entry's count are
    /// counted: `side=on`.
    pub side: bool,
    /// Pages that a CPU may hold back: `held=`.
    pub held: u64,
    /// Two ranges are enough for a unit to be told to forget the domain: `promotes=on`.
    pub promotes: bool,
    /// A translation survives the first command for it, and ports tell units everything twice:
    /// `survives=on`.
    pub survives: bool,
    /// How often each unit fails to be told something, or finds that a device does not answer:
    /// `faults=`. (The device that comes and goes; drivers map and unmap then, and do nothing
    /// in several steps.)
    pub faults: u8,
    /// CPUs enter what is theirs by plain stores, and others by a barrier on that CPU:
    /// `pinned=on`.
    pub pinned: bool,
    /// Buffers are bytes, and the edges of what is mapped come from a pool: `bounce=on`.
    pub bounce: bool,
    /// How often units may deny that commands are complete: `denials=`. Waiting comes to an end
    /// after so many.
    pub denials: u8,
    /// A step of the kernel that is wrong: `mistake=`.
    pub mistake: Option<Mistake>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Strict,
            entries: 4,
            flush: 2,
            atc: false,
            pages: 4,
            tables: TABLES,
            format: Tables::Vtd,
            from: Source::Tree,
            large: false,
            units: 1,
            domains: 1,
            ends: false,
            absence: false,
            coherent: true,
            window: false,
            side: false,
            held: Limits::DEFAULT.held_pages,
            promotes: false,
            survives: false,
            faults: 0,
            pinned: false,
            bounce: false,
            denials: 2,
            mistake: None,
        }
    }
}

/// The page behind the last address that is handed out.
pub(super) const END: u64 = 1 << 12;

/// Bytes of the window.
const WINDOW: u64 = 1 << 30;

/// A task, and an interrupt on top of it: there are no more cells than these need.
const CONTEXTS: usize = 2;

/// Bounds in programs.
const MOST: usize = 64;

/// Units, and domains, at most.
pub(super) const TWO: usize = 2;

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
                let all = [Policy::Strict, Policy::Deferred, Policy::Lazy];
                self.policy = all.into_iter().find(|p| p.name() == value).ok_or_else(bad)?;
            }
            "entries" => self.entries = number()?.min(MOST),
            "flush" => self.flush = number()?.min(MOST),
            "atc" => self.atc = value == "on",
            "pages" => self.pages = (number()? as u64).min(END - 1),
            "tables" => self.tables = number()?.min(TABLES),
            "format" => {
                let found = Tables::ALL.iter().find(|f| f.name() == value);
                self.format = *found.ok_or_else(bad)?;
            }
            "from" => {
                let found = Source::ALL.iter().find(|f| f.name() == value);
                self.from = *found.ok_or_else(bad)?;
            }
            "leaves" => self.large = value == "large",
            "units" => self.units = number()?.min(TWO),
            "domains" => self.domains = number()?.min(TWO),
            "ends" => self.ends = value == "on",
            "denials" => self.denials = u8::try_from(number()?).map_err(|_| bad())?,
            "absence" => self.absence = value == "on",
            "coherent" => self.coherent = value != "off",
            "window" => self.window = value == "on",
            "side" => self.side = value == "on",
            "faults" => self.faults = u8::try_from(number()?).map_err(|_| bad())?,
            "held" => self.held = number()? as u64,
            "promotes" => self.promotes = value == "on",
            "survives" => self.survives = value == "on",
            "pinned" => self.pinned = value == "on",
            "bounce" => self.bounce = value == "on",
            "mistake" => self.mistake = Some(Mistake::from_name(value).ok_or_else(bad)?),
            _ => return Err(bad()),
        }
        Ok(())
    }

    /// Is there a domain that may end? (Hardware does not fail there, and devices see pages.)
    pub(super) fn has_end(&self) -> bool {
        self.ends && self.domains > 1 && self.faults == 0 && !self.bounce
    }

    /// Does the kernel make this mistake?
    pub(super) fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Can a large page be mapped by one entry? (Identity addresses have large leaves of 2 MiB, and
    /// only if there are zones for them. Of larger pages there are not enough addresses.)
    pub fn maps_large(&self) -> bool {
        self.page() == 4096 && (self.large || self.from != Source::Identity)
    }

    /// Tables can't say that something may be written and not read.
    pub(super) fn reads_too(&self) -> bool {
        matches!(self.format, Tables::Arm1 | Tables::Arm1Of16K)
    }

    /// What the host promises of its CPUs, if anything.
    pub(super) fn promise(&self) -> Option<Pinned> {
        // SAFETY: a CPU of the machine is alone with its number, as there are no interrupts in
        // these worlds.
        self.pinned.then(|| unsafe { Pinned::new(heavy_barrier) })
    }

    /// Bytes of a page.
    pub(super) const fn page(&self) -> u64 {
        1 << self.format.granule()
    }

    /// Pages of the window, and the first at which it may begin.
    pub(super) const fn window_pages(&self) -> u64 {
        WINDOW >> self.format.granule()
    }

    pub(super) fn domain(&self, cpus: usize) -> shootdown_dma::Config {
        let limits = Limits {
            entries: self.entries,
            flush_at: self.flush,
            held_pages: self.held,
            ..Limits::DEFAULT
        };
        let mut config =
            shootdown_dma::Config::new(cpus).contexts(CONTEXTS).policy(self.policy).limits(limits);
        if self.from == Source::Identity {
            // An entry of the top table covers what the levels below it resolve.
            let top = self.format.index() * (u32::from(self.format.levels()) - 1);
            let largest = if self.large { LeafSize::Large } else { LeafSize::Page };
            let layout = Layout::new(top + self.format.index(), top, largest);
            let layout = layout.expect("zones of a top entry");
            let layout = if self.reads_too() { layout.without_write_only() } else { layout };
            config = config.identity(layout);
        }
        if self.promotes {
            config = config.promotion(cheap_domains());
        }
        if self.window {
            config = config.trusted();
        }
        if self.absence && !self.errs(Mistake::AbsenceDenied) {
            config = config.caching_absence();
        }
        if let Some(pinned) = self.promise() {
            config = config.pinned(pinned);
        }
        config
    }
}

/// Costs of units that forget a domain for less than two ranges, and two pages for less than the
/// page between them.
fn cheap_domains() -> Promotion {
    let mut promotion = Promotion::DEFAULT.with_command_ns(200).with_live(0);
    (promotion.domain_ns, promotion.refill_ns) = (300, 1000);
    promotion
}

/// Makes a CPU pass a full barrier.
fn heavy_barrier(cpu: usize) -> bool {
    barrier::on_cpu(CpuId(cpu as u32));
    true
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        write!(f, "policy={}", self.policy)?;
        let numbers = [
            ("entries", self.entries as u64, usual.entries as u64),
            ("flush", self.flush as u64, usual.flush as u64),
            ("pages", self.pages, usual.pages),
            ("tables", self.tables as u64, usual.tables as u64),
            ("units", self.units as u64, usual.units as u64),
            ("domains", self.domains as u64, usual.domains as u64),
            ("held", self.held, usual.held),
            ("faults", u64::from(self.faults), u64::from(usual.faults)),
            ("denials", u64::from(self.denials), u64::from(usual.denials)),
        ];
        for (key, value, _) in numbers.into_iter().filter(|(_, value, usual)| value != usual) {
            write!(f, " {key}={value}")?;
        }
        if self.format != usual.format {
            write!(f, " format={}", self.format.name())?;
        }
        if self.from != usual.from {
            write!(f, " from={}", self.from.name())?;
        }
        let switches = [
            (self.large, "leaves=large"),
            (self.ends, "ends=on"),
            (self.atc, "atc=on"),
            (self.absence, "absence=on"),
            (!self.coherent, "coherent=off"),
            (self.window, "window=on"),
            (self.side, "side=on"),
            (self.promotes, "promotes=on"),
            (self.survives, "survives=on"),
            (self.pinned, "pinned=on"),
            (self.bounce, "bounce=on"),
        ];
        for (_, word) in switches.into_iter().filter(|(on, _)| *on) {
            write!(f, " {word}")?;
        }
        match self.mistake {
            Some(mistake) => write!(f, " mistake={}", mistake.name()),
            None => Ok(()),
        }
    }
}

//! What a CPU of the model kernel can be told to do, and how that is written.

use std::fmt;
use std::str::FromStr;

/// A page of a space: `a0` is page 0 of the first space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct At {
    /// Which space.
    pub space: u8,
    /// Which page.
    pub page: u8,
}

impl At {
    /// The page after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { page: self.page + 1, ..self }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Space(self.space), self.page)
    }
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a page; `a0` is page 0 of the first space");
        let (space, page) = text.split_at_checked(1).ok_or_else(bad)?;
        let Space(space) = space.parse().map_err(|_| bad())?;
        let page = page.parse().map_err(|_| bad())?;
        Ok(Self { space, page })
    }
}

/// A space by its letter.
struct Space(u8);

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'a' + self.0))
    }
}

impl FromStr for Space {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.as_bytes() {
            [letter @ b'a'..=b'd'] => Ok(Self(letter - b'a')),
            _ => Err(format!("`{text}` is not a space; they are called a to d")),
        }
    }
}

/// Something that a correct kernel does, or lets a program do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Runs a program of this space.
    Switch(u8),
    /// Runs a kernel thread, with the space still loaded.
    Lazy,
    /// Has nothing to do with any space any more.
    Leave,
    /// User code runs, and may use whatever the CPU can translate.
    User,
    /// The kernel reads user memory.
    Copy,
    /// Kernel code uses kernel addresses.
    Kernel,
    /// Serves others.
    Poll,
    /// Asks every CPU to run a function, and waits.
    Call,
    /// Goes offline.
    Offline,
    /// Comes online.
    Online,
    /// Maps a page.
    Map(At),
    /// Unmaps a page; the lock is held over the flush.
    Unmap(At),
    /// Unmaps this many pages, in one gather; the lock is yielded between them.
    UnmapMany(At, u8),
    /// Unmaps a page; the lock is dropped before the flush, which others are told is pending.
    Discard(At),
    /// Unmaps a page with interrupts off, where it can't wait.
    UnmapAtomic(At),
    /// Unmaps a page by a deferred gather, and frees the frame when that is done.
    Defer(At),
    /// Takes write permission away.
    Protect(At),
    /// Gives write permission. No flush is needed.
    Grant(At),
    /// Puts another frame in a page's place, and frees the old one.
    Replace(At),
    /// Moves a page to another place of the same space.
    Move(At, At),
    /// Moves a whole table to the place of another page of the same space.
    MoveTable(At, At),
    /// Unmaps all that a table maps, and frees the table.
    FreeTable(At),
    /// Splits a large page.
    Split(At),
    /// Merges a table of small pages into a large one.
    Merge(At),
    /// Drops a space's part in the shared table; the last to do so frees it.
    Unshare(u8),
    /// Puts another frame in a kernel page's place.
    KernelPage(u8),
    /// Replaces a kernel table and frees the old one.
    KernelTable,
    /// Ends a space that nobody runs; its root page is used for a new one at once.
    Retire(u8),
    /// User code stores to a page; faults are handled.
    Write(At),
    /// Walks the tables in software without a lock, interrupts off.
    Walk(At),
    /// Takes a space's lock with interrupts off, for a moment.
    Peek(u8),
    /// Makes a page inaccessible for a moment to see who uses it; the flush is left pending.
    Hint(At),
    /// Moves a page that was made inaccessible to another frame.
    Migrate(At),
    /// Makes a page read-only; the flush is left pending.
    Track(At),
    /// Copies a read-only page for a writer.
    Cow(At),
    /// Unmaps a page of a file; the flush is left pending.
    Zap(At),
    /// Makes a page of a file read-only and writes it back.
    Clean(At),
    /// Ends an area of a driver's memory: unmaps its page, then unlinks the area.
    Munmap(At),
    /// The driver takes a page back: unmaps it if its area is still linked, then frees it.
    Driver(At),
    /// Unmaps two pages, of any spaces, in one batch; what was dirty is written back before the
    /// rest is flushed.
    Reclaim(At, At),
    /// Unmaps a page lazily, if nothing speaks against it.
    LazyUnmap(At),
    /// Pays for what a space has unmapped lazily, and frees it.
    Redeem(u8),
    /// The same because it is time: isolated CPUs are left alone.
    Expire(u8),
    /// Unmaps a page, and does something else before it asks whether everyone has answered; with
    /// the lock held.
    Ticket(At),
    /// Unmaps a page by a flush that is begun with the lock held, and ended when others had it.
    Begin(At),
    /// As [`Self::Begin`], and gives the flush up.
    Abandon(At),
    /// As [`Self::FreeTable`]; what walks without a lock is waited for by an epoch.
    FreeTableAfter(At),
    /// As [`Self::Reclaim`], with room for one space at a time; the first page is mapped elsewhere
    /// too, and stays.
    ReclaimTight(At, At),
    /// Gives a space a tag that it keeps.
    PinTag(u8),
    /// Takes that back.
    UnpinTag(u8),
    /// Clears a page's accessed bit, to see whether it is used.
    Age(At),
    /// The timer's work for the library.
    Tick,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match *self {
            Self::Switch(s)
            | Self::Unshare(s)
            | Self::Retire(s)
            | Self::Peek(s)
            | Self::Redeem(s)
            | Self::Expire(s)
            | Self::PinTag(s)
            | Self::UnpinTag(s) => {
                write!(f, "{name} {}", Space(s))
            }
            Self::KernelPage(page) => write!(f, "{name} {page}"),
            Self::UnmapMany(at, count) => write!(f, "{name} {at} {count}"),
            Self::Move(from, to)
            | Self::MoveTable(from, to)
            | Self::Reclaim(from, to)
            | Self::ReclaimTight(from, to) => {
                write!(f, "{name} {from} {to}")
            }
            _ => match self.at() {
                Some(at) => write!(f, "{name} {at}"),
                None => f.write_str(name),
            },
        }
    }
}

impl Op {
    /// The word it is written with.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Switch(_) => "switch",
            Self::Lazy => "lazy",
            Self::Leave => "leave",
            Self::User => "user",
            Self::Copy => "copy",
            Self::Kernel => "kernel",
            Self::Poll => "poll",
            Self::Call => "call",
            Self::Offline => "offline",
            Self::Online => "online",
            Self::Map(_) => "map",
            Self::Unmap(_) => "unmap",
            Self::UnmapMany(..) => "unmap-many",
            Self::Discard(_) => "discard",
            Self::UnmapAtomic(_) => "unmap-atomic",
            Self::Defer(_) => "defer",
            Self::Protect(_) => "protect",
            Self::Grant(_) => "grant",
            Self::Replace(_) => "replace",
            Self::Move(..) => "move",
            Self::MoveTable(..) => "move-table",
            Self::FreeTable(_) => "free-table",
            Self::Split(_) => "split",
            Self::Merge(_) => "merge",
            Self::Unshare(_) => "unshare",
            Self::KernelPage(_) => "kernel-page",
            Self::KernelTable => "kernel-table",
            Self::Retire(_) => "retire",
            Self::Write(_) => "write",
            Self::Walk(_) => "walk",
            Self::Peek(_) => "peek",
            Self::Hint(_) => "hint",
            Self::Migrate(_) => "migrate",
            Self::Track(_) => "track",
            Self::Cow(_) => "cow",
            Self::Zap(_) => "zap",
            Self::Clean(_) => "clean",
            Self::Munmap(_) => "munmap",
            Self::Driver(_) => "driver",
            Self::Reclaim(..) => "reclaim",
            Self::LazyUnmap(_) => "lazy-unmap",
            Self::Redeem(_) => "redeem",
            Self::Expire(_) => "expire",
            Self::Ticket(_) => "ticket",
            Self::Begin(_) => "begin",
            Self::Abandon(_) => "abandon",
            Self::FreeTableAfter(_) => "free-table-after",
            Self::ReclaimTight(..) => "reclaim-tight",
            Self::PinTag(_) => "pin-tag",
            Self::UnpinTag(_) => "unpin-tag",
            Self::Age(_) => "age",
            Self::Tick => "tick",
        }
    }

    /// The pages that it names.
    #[must_use]
    pub fn pages(&self) -> [Option<u8>; 2] {
        let to = match *self {
            Self::Move(_, to)
            | Self::MoveTable(_, to)
            | Self::Reclaim(_, to)
            | Self::ReclaimTight(_, to) => Some(to.page),
            _ => None,
        };
        [self.at().map(|at| at.page), to]
    }

    /// The page it is about (the first, where there are more).
    #[must_use]
    pub const fn at(&self) -> Option<At> {
        match *self {
            Self::Map(at)
            | Self::Unmap(at)
            | Self::UnmapMany(at, _)
            | Self::Discard(at)
            | Self::UnmapAtomic(at)
            | Self::Defer(at)
            | Self::Protect(at)
            | Self::Grant(at)
            | Self::Replace(at)
            | Self::Move(at, _)
            | Self::MoveTable(at, _)
            | Self::FreeTable(at)
            | Self::Split(at)
            | Self::Merge(at)
            | Self::Write(at)
            | Self::Walk(at)
            | Self::Hint(at)
            | Self::Migrate(at)
            | Self::Track(at)
            | Self::Cow(at)
            | Self::Zap(at)
            | Self::Clean(at)
            | Self::Munmap(at)
            | Self::Driver(at)
            | Self::Reclaim(at, _)
            | Self::ReclaimTight(at, _)
            | Self::Ticket(at)
            | Self::Begin(at)
            | Self::Abandon(at)
            | Self::FreeTableAfter(at)
            | Self::LazyUnmap(at)
            | Self::Age(at) => Some(at),
            _ => None,
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or("an operation is missing")?;
        let mut word = || words.next().ok_or_else(|| format!("`{text}` ends too early"));
        fn number(word: &str) -> Result<u8, String> {
            word.parse().map_err(|_| format!("`{word}` is not a small number"))
        }
        fn space(word: &str) -> Result<u8, String> {
            word.parse().map(|Space(s)| s)
        }
        let op = match name {
            "switch" => Self::Switch(space(word()?)?),
            "lazy" => Self::Lazy,
            "leave" => Self::Leave,
            "user" => Self::User,
            "copy" => Self::Copy,
            "kernel" => Self::Kernel,
            "poll" => Self::Poll,
            "call" => Self::Call,
            "offline" => Self::Offline,
            "online" => Self::Online,
            "map" => Self::Map(word()?.parse()?),
            "unmap" => Self::Unmap(word()?.parse()?),
            "unmap-many" => Self::UnmapMany(word()?.parse()?, number(word()?)?),
            "discard" => Self::Discard(word()?.parse()?),
            "unmap-atomic" => Self::UnmapAtomic(word()?.parse()?),
            "defer" => Self::Defer(word()?.parse()?),
            "protect" => Self::Protect(word()?.parse()?),
            "grant" => Self::Grant(word()?.parse()?),
            "replace" => Self::Replace(word()?.parse()?),
            "move" => Self::Move(word()?.parse()?, word()?.parse()?),
            "move-table" => Self::MoveTable(word()?.parse()?, word()?.parse()?),
            "free-table" => Self::FreeTable(word()?.parse()?),
            "split" => Self::Split(word()?.parse()?),
            "merge" => Self::Merge(word()?.parse()?),
            "unshare" => Self::Unshare(space(word()?)?),
            "kernel-page" => Self::KernelPage(number(word()?)?),
            "kernel-table" => Self::KernelTable,
            "retire" => Self::Retire(space(word()?)?),
            "write" => Self::Write(word()?.parse()?),
            "walk" => Self::Walk(word()?.parse()?),
            "peek" => Self::Peek(space(word()?)?),
            "hint" => Self::Hint(word()?.parse()?),
            "migrate" => Self::Migrate(word()?.parse()?),
            "track" => Self::Track(word()?.parse()?),
            "cow" => Self::Cow(word()?.parse()?),
            "zap" => Self::Zap(word()?.parse()?),
            "clean" => Self::Clean(word()?.parse()?),
            "munmap" => Self::Munmap(word()?.parse()?),
            "driver" => Self::Driver(word()?.parse()?),
            "reclaim" => Self::Reclaim(word()?.parse()?, word()?.parse()?),
            "lazy-unmap" => Self::LazyUnmap(word()?.parse()?),
            "redeem" => Self::Redeem(space(word()?)?),
            "expire" => Self::Expire(space(word()?)?),
            "ticket" => Self::Ticket(word()?.parse()?),
            "begin" => Self::Begin(word()?.parse()?),
            "abandon" => Self::Abandon(word()?.parse()?),
            "free-table-after" => Self::FreeTableAfter(word()?.parse()?),
            "reclaim-tight" => Self::ReclaimTight(word()?.parse()?, word()?.parse()?),
            "pin-tag" => Self::PinTag(space(word()?)?),
            "unpin-tag" => Self::UnpinTag(space(word()?)?),
            "age" => Self::Age(word()?.parse()?),
            "tick" => Self::Tick,
            _ => return Err(format!("there is no operation `{name}`")),
        };
        match words.next() {
            None => Ok(op),
            Some(more) => Err(format!("`{more}` is too much after `{op}`")),
        }
    }
}

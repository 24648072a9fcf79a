//! What a CPU of the model kernel does with devices' memory, and how that is written.

use std::fmt;
use std::str::FromStr;

/// A buffer that drivers share, `a` to `d`: one of them is at it at a time, and another finds
/// nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer(pub u8);

/// How many there are.
pub(super) const BUFFERS: u8 = 4;

/// Something that a driver does. What makes no sense just then (a buffer that is mapped already)
/// does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Takes a frame and maps it.
    Map(Buffer),
    /// The same, to be read only.
    MapRead(Buffer),
    /// The same, to be written only.
    MapWrite(Buffer),
    /// Two frames.
    Map2(Buffer),
    /// Two frames that do not follow each other.
    Scatter(Buffer),
    /// A frame that other buffers may lead to as well.
    Share(Buffer),
    /// A large page that other buffers may lead to as well, where one entry maps it
    /// ([`Config::maps_large`](super::Config::maps_large)).
    Large(Buffer),
    /// That one, and the one behind it.
    Large2(Buffer),
    /// The last page of the first of them.
    Piece(Buffer),
    /// Some bytes of a frame, beside which the device sees nothing. Without a pool nothing happens.
    Bounce(Buffer),
    /// The device uses it.
    Use(Buffer),
    /// Unmaps it, and frees the memory.
    Unmap(Buffer),
    /// The same, strictly.
    UnmapStrict(Buffer),
    /// Takes addresses, with nothing behind them.
    Reserve(Buffer),
    /// Puts a frame behind the next one.
    Link(Buffer),
    /// Takes all frames away again.
    Unlink(Buffer),
    /// Gives the addresses back.
    Release(Buffer),
    /// Takes a frame and maps it at an address that is the driver's own.
    At(Buffer),
    /// Takes it away again.
    Unat(Buffer),
    /// Maps memory of a large page and one page more, for which there may be no table; and unmaps
    /// it.
    Big,
    /// Maps memory in the window, and unmaps it: nothing changes. Without a window it is refused.
    Bypass,
    /// All of the second domain is unmapped, its device taken out, the domain ended, and made again
    /// with the same numbers. Without a domain that ends
    /// ([`Config::ends`](super::Config::ends)) nothing happens.
    End,
    /// A device comes into the first domain.
    Attach,
    /// It leaves.
    Detach,
    /// It moves to the next domain.
    Move,
    /// It is pulled out.
    Pull,
    /// Looks what is complete.
    Poll,
    /// The same because it is time: what is owed is told of, empty tables are looked for.
    Timer,
    /// As often as it takes until nothing is owed. Only where no other CPU maps or unmaps.
    Settle,
    /// Waits until nothing is owed.
    Flush,
}

impl Op {
    /// The word it is written with.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map(_) => "map",
            Self::MapRead(_) => "map-read",
            Self::MapWrite(_) => "map-write",
            Self::Map2(_) => "map2",
            Self::Scatter(_) => "scatter",
            Self::Share(_) => "share",
            Self::Large(_) => "large",
            Self::Large2(_) => "large2",
            Self::Piece(_) => "piece",
            Self::Bounce(_) => "bounce",
            Self::Use(_) => "use",
            Self::Unmap(_) => "unmap",
            Self::UnmapStrict(_) => "unmap-strict",
            Self::Reserve(_) => "reserve",
            Self::Link(_) => "link",
            Self::Unlink(_) => "unlink",
            Self::Release(_) => "release",
            Self::At(_) => "at",
            Self::Unat(_) => "unat",
            Self::Big => "big",
            Self::Bypass => "bypass",
            Self::End => "end",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Move => "move",
            Self::Pull => "pull",
            Self::Poll => "poll",
            Self::Timer => "timer",
            Self::Settle => "settle",
            Self::Flush => "flush",
        }
    }

    /// The buffer it is about.
    #[must_use]
    pub const fn buffer(self) -> Option<Buffer> {
        match self {
            Self::Map(b)
            | Self::MapRead(b)
            | Self::MapWrite(b)
            | Self::Map2(b)
            | Self::Scatter(b)
            | Self::Share(b)
            | Self::Large(b)
            | Self::Large2(b)
            | Self::Piece(b)
            | Self::Bounce(b)
            | Self::Use(b)
            | Self::Unmap(b)
            | Self::UnmapStrict(b)
            | Self::Reserve(b)
            | Self::Link(b)
            | Self::Unlink(b)
            | Self::Release(b)
            | Self::At(b)
            | Self::Unat(b) => Some(b),
            Self::Big
            | Self::Bypass
            | Self::End
            | Self::Attach
            | Self::Detach
            | Self::Move
            | Self::Pull
            | Self::Poll
            | Self::Timer
            | Self::Settle
            | Self::Flush => None,
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'a' + self.0))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer() {
            Some(buffer) => write!(f, "{} {buffer}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.as_bytes() {
            [letter @ b'a'..=b'd'] => Ok(Self(letter - b'a')),
            _ => Err(format!("`{text}` is not a buffer; they are called a to d")),
        }
    }
}

impl FromStr for Op {
    type Err = String;

    /// Reads an operation. The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let about: [fn(Buffer) -> Self; 19] = [
            Self::Map,
            Self::MapRead,
            Self::MapWrite,
            Self::Map2,
            Self::Scatter,
            Self::Share,
            Self::Large,
            Self::Large2,
            Self::Piece,
            Self::Bounce,
            Self::Use,
            Self::Unmap,
            Self::UnmapStrict,
            Self::Reserve,
            Self::Link,
            Self::Unlink,
            Self::Release,
            Self::At,
            Self::Unat,
        ];
        if let Some(op) = about.into_iter().find(|op| op(Buffer(0)).name() == name) {
            return rest.trim().parse().map(op);
        }
        let alone = [
            Self::Big,
            Self::Bypass,
            Self::End,
            Self::Attach,
            Self::Detach,
            Self::Move,
            Self::Pull,
            Self::Poll,
            Self::Timer,
            Self::Settle,
            Self::Flush,
        ];
        let found = alone.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| format!("`{text}` is nothing that a driver does"))
    }
}

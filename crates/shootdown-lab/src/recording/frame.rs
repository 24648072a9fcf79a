//! The container: magic, version, then checksummed, compressed frames.
//!
//! **Problem.** A recording is written once, kept for years and copied about. A reader must be able
//! to stream it, and must notice a cut, a flipped bit or a foreign file before it believes a number
//! in it.
//!
//! **Protocol.** `MAGIC`, version, then frames of [kind, stored length, plain length, checksum,
//! stored bytes]; the checksum covers kind, lengths and stored bytes, the stored bytes are a raw
//! DEFLATE stream. The first frame is the header, the last the trailer, and after it the file ends.
//!
//! **Invariants.**
//! - F1: lengths are bounded, so a damaged length cannot make a reader allocate without limit.
//! - F2: nothing is decompressed before its checksum held.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::error::Problem;

/// The first bytes of every recording. As in PNG: a byte above 127 and both line ends show
/// transports that change text.
pub const MAGIC: [u8; 8] = [0x89, b'S', b'D', b'R', b'\r', b'\n', 0x1a, b'\n'];

/// The version this program writes, and the only one it reads.
pub const VERSION: u16 = 1;

/// The most bytes a frame may hold, stored or plain (F1). Event frames are closed at a quarter of
/// it.
pub const FRAME_LIMIT: u32 = 1 << 20;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The header; first.
    Header,
    /// Events.
    Events,
    /// The trailer; last.
    Trailer,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Header => b'H',
            Self::Events => b'E',
            Self::Trailer => b'Z',
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'H' => Some(Self::Header),
            b'E' => Some(Self::Events),
            b'Z' => Some(Self::Trailer),
            _ => None,
        }
    }
}

/// A frame as read.
#[derive(Debug)]
pub struct Frame {
    /// Where it began in the file.
    pub offset: u64,
    /// What it holds.
    pub kind: Kind,
    /// The plain bytes.
    pub plain: Vec<u8>,
}

/// Either the operating system's fault or the file's, with the offset of the latter.
#[derive(Debug)]
pub enum FrameError {
    /// Reading or writing failed.
    Io(io::Error),
    /// The file is unsound at this offset.
    Bad(u64, Problem),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

const FRAME_HEAD: usize = 13;

fn checksum(head: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(stored);
    hasher.finalize()
}

/// Writes magic and version.
///
/// # Errors
///
/// Those of `out`.
pub fn write_preamble(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())
}

/// Writes one frame.
///
/// # Errors
///
/// Those of `out`, and one for a frame that would be longer than readers accept (F1).
pub fn write_frame(out: &mut impl Write, kind: Kind, plain: &[u8]) -> io::Result<()> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain)?;
    let stored = encoder.finish()?;
    let too_long = || io::Error::other("more than 1 MiB in one frame, which no reader accepts");
    let length = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= FRAME_LIMIT);
        length.ok_or_else(too_long)
    };
    let mut head = [0; FRAME_HEAD];
    head[0] = kind.byte();
    head[1..5].copy_from_slice(&length(&stored)?.to_le_bytes());
    head[5..9].copy_from_slice(&length(plain)?.to_le_bytes());
    let sum = checksum(&head[..9], &stored);
    head[9..].copy_from_slice(&sum.to_le_bytes());
    out.write_all(&head)?;
    out.write_all(&stored)
}

/// Reads frames from a stream and keeps count of where it is.
#[derive(Debug)]
pub struct Frames<R> {
    input: R,
    offset: u64,
}

impl<R: Read> Frames<R> {
    /// Checks magic and version.
    ///
    /// # Errors
    ///
    /// [`Problem::Truncated`], [`Problem::Foreign`], [`Problem::Version`], and those of `input`.
    pub fn open(input: R) -> Result<Self, FrameError> {
        let mut this = Self { input, offset: 0 };
        let mut magic = [0; 8];
        let got = this.fill(&mut magic)?;
        if magic[..got] != MAGIC[..got] {
            return Err(FrameError::Bad(0, Problem::Foreign { found: magic }));
        }
        if got < magic.len() {
            let expected = "the eight magic bytes of a recording";
            return Err(FrameError::Bad(got as u64, Problem::Truncated { expected }));
        }
        let mut version = [0; 2];
        this.exactly(&mut version, "the two bytes of the format version")?;
        let found = u16::from_le_bytes(version);
        if found != VERSION {
            let problem = Problem::Version { found, known: VERSION };
            return Err(FrameError::Bad(MAGIC.len() as u64, problem));
        }
        Ok(this)
    }

    /// The next frame.
    ///
    /// # Errors
    ///
    /// A [`Problem`] with the offset of the frame, or those of the stream.
    pub fn next_frame(&mut self) -> Result<Frame, FrameError> {
        let offset = self.offset;
        let bad = |problem| FrameError::Bad(offset, problem);
        let mut head = [0; FRAME_HEAD];
        self.exactly(&mut head, "a frame (events or the trailer)")?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (stored_len, plain_len, expected) = (word(1), word(5), word(9));
        if stored_len > FRAME_LIMIT || plain_len > FRAME_LIMIT {
            return Err(bad(Problem::Malformed { expected: "a frame of at most 1 MiB" }));
        }
        let mut stored = vec![0; stored_len as usize];
        self.exactly(&mut stored, "the rest of a frame")?;
        let found = checksum(&head[..9], &stored);
        if found != expected {
            return Err(bad(Problem::Checksum { found, expected }));
        }
        let kind = Kind::of(head[0])
            .ok_or(bad(Problem::Malformed { expected: "a frame of kind H, E or Z" }))?;
        let mut plain = Vec::with_capacity(plain_len as usize);
        let inflated =
            DeflateDecoder::new(&stored[..]).take(u64::from(plain_len) + 1).read_to_end(&mut plain);
        if inflated.is_err() || plain.len() != plain_len as usize {
            return Err(bad(Problem::Malformed {
                expected: "a DEFLATE stream of the stated length",
            }));
        }
        Ok(Frame { offset, kind, plain })
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    ///
    /// [`Problem::TrailingBytes`], and those of the stream.
    pub fn expect_end(&mut self) -> Result<(), FrameError> {
        let offset = self.offset;
        match self.fill(&mut [0])? {
            0 => Ok(()),
            _ => Err(FrameError::Bad(offset, Problem::TrailingBytes)),
        }
    }

    fn exactly(&mut self, buffer: &mut [u8], expected: &'static str) -> Result<(), FrameError> {
        match self.fill(buffer)? {
            got if got == buffer.len() => Ok(()),
            _ => Err(FrameError::Bad(self.offset, Problem::Truncated { expected })),
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buffer.len() {
            match self.input.read(&mut buffer[got..]) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.offset += got as u64;
        Ok(got)
    }
}

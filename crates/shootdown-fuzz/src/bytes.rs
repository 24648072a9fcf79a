//! Values out of a fuzzer's bytes.

/// Bytes being used up. After the last one everything is zero, so that any input is a whole one.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Uses up `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether all are used.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// A flag.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// A number below `below`, which is at least 1.
    pub fn below(&mut self, below: u64) -> u64 {
        let wide = if below <= 0x100 { u64::from(self.byte()) } else { self.word() };
        wide % below
    }

    /// Eight bytes, lowest first.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, at| word | u64::from(self.byte()) << (8 * at))
    }

    /// The low half of a [`Bytes::word`], from four bytes.
    pub fn half(&mut self) -> u32 {
        (0..4).fold(0, |half, at| half | u32::from(self.byte()) << (8 * at))
    }

    /// A word that is often one of those at which encodings change: near a power of two, near its
    /// negative, or small.
    pub fn edge(&mut self) -> u64 {
        let kind = self.byte();
        if kind & 0x80 != 0 {
            return self.word();
        }
        let near = (1u64 << (kind & 63)).wrapping_add_signed(i64::from(self.byte().cast_signed()));
        if kind & 0x40 != 0 { near.wrapping_neg() } else { near }
    }

    /// A few bytes with their length before them.
    pub fn chunk(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        let (chunk, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        chunk
    }

    /// Whatever is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

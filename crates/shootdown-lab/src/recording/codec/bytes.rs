//! Bytes out and in: varints, texts, flags.

/// What was expected where the bytes made no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// A growing run of bytes.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
}

impl Output {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// None so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Starts again with none.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// One byte.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// An unsigned varint: seven bits a byte, lowest first, the top bit says that more follow.
    pub fn uint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A signed varint (zigzag: 0, -1, 1, -2, ...).
    pub fn int(&mut self, value: i64) {
        self.uint(((value << 1) ^ (value >> 63)) as u64);
    }

    /// A text with its length before it.
    pub fn text(&mut self, text: &str) {
        self.uint(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// Bytes being read.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Reads `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all was read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// # Errors
    ///
    /// [`Malformed`] when bytes are left.
    pub const fn end(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed("the end of the frame")) }
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// [`Malformed`] at the end.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.rest.split_first().ok_or(Malformed("another byte"))?;
        self.rest = rest;
        Ok(first)
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for any other, and at the end.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag (0 or 1)")),
        }
    }

    /// An unsigned varint.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when it ends early or exceeds 64 bits.
    pub fn uint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a varint of at most 64 bits"))
    }

    /// An unsigned varint that fits a narrower type.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with `expected` when it does not.
    pub fn uint_as<T: TryFrom<u64>>(&mut self, expected: &'static str) -> Result<T, Malformed> {
        T::try_from(self.uint()?).map_err(|_| Malformed(expected))
    }

    /// A signed varint.
    ///
    /// # Errors
    ///
    /// As [`Self::uint`].
    pub fn int(&mut self) -> Result<i64, Malformed> {
        let raw = self.uint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// How many items follow, each of at least one byte, so never more than bytes are left.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when it is more.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count: usize = self.uint_as("a count")?;
        if count <= self.rest.len() {
            Ok(count)
        } else {
            Err(Malformed("a count the frame has room for"))
        }
    }

    /// A text.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when it ends early or is not UTF-8.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let len = self.count()?;
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed("a text in UTF-8"))
    }
}

//! Functions made at run time.

/// Bytes of one.
pub const LEN: usize = 8;

/// A function that returns `value`: `mov eax, value; ret`.
#[must_use]
pub fn returning(value: u32) -> [u8; LEN] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xb8, a, b, c, d, 0xc3, 0xcc, 0xcc]
}

/// Makes what was written fetchable: nothing to do, x86 fetches see stores.
pub fn written(_address: u64, _len: usize) {}

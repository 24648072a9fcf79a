//! Requests and statuses, as they lie in guest memory (virtio 1.2, 5.13.6).

/// The status in a request's tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    Unsupported = 2,
    Device = 3,
    Invalid = 4,
    Range = 5,
    NoEntry = 6,
    Fault = 7,
    NoMemory = 8,
}

/// Bytes of the tail: the status, and three reserved ones.
pub const TAIL: usize = 4;
/// Bytes of the longest request that a device reads (PROBE).
pub const LONGEST: usize = 72;

pub const ATTACH_BYPASS: u32 = 1 << 0;
pub const MAP_READ: u32 = 1 << 0;
pub const MAP_WRITE: u32 = 1 << 1;

/// What a driver asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// `reserved`: not zero, as it must be.
    Attach {
        domain: u32,
        endpoint: u32,
        flags: u32,
        reserved: bool,
    },
    Detach {
        domain: u32,
        endpoint: u32,
    },
    Map {
        domain: u32,
        start: u64,
        end: u64,
        phys: u64,
        flags: u32,
    },
    Unmap {
        domain: u32,
        start: u64,
        end: u64,
    },
    Probe {
        endpoint: u32,
    },
}

impl Request {
    /// Reads one. `None`: it is too short for its type, or the type is not known, so that it is
    /// given back as it is. Reserved bytes of head and tail are ignored.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(match bytes.first()? {
            1 => Self::Attach {
                domain: u32_at(4)?,
                endpoint: u32_at(8)?,
                flags: u32_at(12)?,
                reserved: u32_at(16)? != 0,
            },
            2 => {
                u64_at(12)?; // reserved, and there
                Self::Detach { domain: u32_at(4)?, endpoint: u32_at(8)? }
            }
            3 => Self::Map {
                domain: u32_at(4)?,
                start: u64_at(8)?,
                end: u64_at(16)?,
                phys: u64_at(24)?,
                flags: u32_at(32)?,
            },
            4 => {
                u32_at(24)?; // reserved, and there
                Self::Unmap { domain: u32_at(4)?, start: u64_at(8)?, end: u64_at(16)? }
            }
            5 => {
                bytes.get(..LONGEST)?;
                Self::Probe { endpoint: u32_at(4)? }
            }
            _ => return None,
        })
    }
}

/// A range that a driver must not map, in the answer to PROBE (`RESV_MEM`). `interrupts`: devices
/// write there to raise interrupts, and no driver needs to map it for that.
pub fn reserved_property(start: u64, end: u64, interrupts: bool) -> Vec<u8> {
    let mut property = Vec::with_capacity(RESERVED_PROPERTY);
    property.extend(1u16.to_le_bytes());
    property.extend(20u16.to_le_bytes()); // what follows
    property.extend([u8::from(interrupts), 0, 0, 0]);
    property.extend(start.to_le_bytes());
    property.extend(end.to_le_bytes());
    property
}

/// Bytes of one.
pub const RESERVED_PROPERTY: usize = 24;

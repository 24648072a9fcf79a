//! Operand encoders of x86-64 against their bit tables.
//!
//! The expectations are written bit by bit from the manuals (SDM 3A 4.5 and 4.10.1, vol. 2A INVPCID
//! and CPUID; APM vol. 3 INVLPGB), without the shifts and masks of the code under test.

use shootdown::VaRange;
use shootdown_arch::x86_64::{
    Cr3, Cr4, Features, InvlpgbLimits, InvlpgbMatch, InvlpgbOperands, Invpcid, InvpcidDescriptor,
    Leaves, LinearAddress, LinearWidth, Pages, Pcid, Registers, RootFrame, Vendor,
};

use crate::Bytes;
use crate::sets::stride;

/// One value of one kind, with its encoding.
pub fn operands(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    while !bytes.is_empty() {
        match bytes.below(6) {
            0 => cr3(&mut bytes),
            1 => cr4(&mut bytes),
            2 => invpcid(&mut bytes),
            3 => invlpgb(&mut bytes),
            4 => linear(&mut bytes),
            _ => cpuid(&mut bytes),
        }
    }
}

/// Bits `from..to` of a word, as a number.
pub(crate) fn bits(word: u64, from: u32, to: u32) -> u64 {
    (from..to).filter(|at| word >> at & 1 == 1).fold(0, |sum, at| sum + (1 << (at - from)))
}

pub(crate) fn width(bytes: &mut Bytes<'_>) -> LinearWidth {
    if bytes.flag() { LinearWidth::Bits57 } else { LinearWidth::Bits48 }
}

/// All bits from the top one of the width upwards are equal.
pub(crate) fn canonical(address: u64, width: LinearWidth) -> bool {
    let top = match width {
        LinearWidth::Bits48 => 47,
        LinearWidth::Bits57 => 56,
    };
    let high = bits(address, top, 64);
    high == 0 || high == bits(u64::MAX, top, 64)
}

fn pcid(bytes: &mut Bytes<'_>) -> Pcid {
    Pcid::new(bytes.below(4096) as u16).expect("below 4096")
}

fn cr3(bytes: &mut Bytes<'_>) {
    let (raw, physical, pcide) = (bytes.edge(), bytes.byte(), bytes.flag());
    let limit = u32::from(physical.min(52));
    let frame = RootFrame::new(raw, physical);
    let fits = bits(raw, 0, 12) == 0 && bits(raw, limit, 64) == 0;
    assert_eq!(frame.is_ok(), fits, "{raw:#x} in {physical} bits: {frame:?}");
    if let Ok(frame) = frame {
        let (pcid, keep) = (pcid(bytes), bytes.flag());
        let value = Cr3::tagged(frame, pcid, keep).bits();
        assert_eq!(bits(value, 0, 12), u64::from(pcid.get()));
        assert_eq!(bits(value, 12, 52), bits(raw, 12, 52));
        assert_eq!(bits(value, 52, 63), 0);
        assert_eq!(bits(value, 63, 64) == 1, keep);
        assert_eq!(Cr3::untagged(frame).bits(), raw);
    }
    // Any value of the register.
    let reserved = bits(raw, limit.max(12), 63);
    let modal = if pcide { 0 } else { bits(raw, 0, 12) | bits(raw, 63, 64) };
    match Cr3::parse(raw, pcide, physical) {
        Ok(value) => {
            assert_eq!((reserved, modal), (0, 0), "{raw:#x} in {physical} bits");
            assert_eq!(value.bits(), raw);
            assert_eq!(value.pcid().is_some(), pcide);
        }
        Err(error) => {
            assert!(reserved != 0 || modal != 0, "{raw:#x} in {physical} bits");
            assert!(error.0 != 0 && raw & error.0 == error.0, "{error} of {raw:#x}");
        }
    }
}

fn cr4(bytes: &mut Bytes<'_>) {
    let (raw, cr3) = (bytes.edge(), bytes.edge());
    let value = Cr4::from_bits(raw);
    let flags = [(value.pge(), 7), (value.la57(), 12), (value.pcide(), 17)];
    for (flag, at) in flags {
        assert_eq!(flag, bits(raw, at, at + 1) == 1);
    }
    let fits = bits(cr3, 0, 12) == 0 && bits(raw, 7, 8) == 1;
    match value.with_pcide(cr3) {
        Ok(on) => assert!(fits && on.bits() == raw | 1 << 17),
        Err(_) => assert!(!fits),
    }
}

fn invpcid(bytes: &mut Bytes<'_>) {
    let kind = if bytes.flag() { bytes.below(5) } else { bytes.edge() };
    let low = if bytes.flag() { bytes.below(4096) } else { bytes.edge() };
    let (address, width, pcide) = (bytes.edge(), width(bytes), bytes.flag());
    let got = InvpcidDescriptor::from_raw(low, address).decode(kind, width);
    let sound = kind <= 3 && bits(low, 12, 64) == 0 && (kind != 0 || canonical(address, width));
    assert_eq!(got.is_ok(), sound, "type {kind}, {low:#x}, {address:#x}: {got:?}");
    let Ok(operation) = got else { return };
    assert_eq!(operation.kind(), kind);
    let expected = match kind {
        0 => (low, address),
        1 => (low, 0),
        _ => (0, 0),
    };
    assert_eq!(operation.descriptor().raw(), expected);
    assert_eq!(operation.allowed(pcide), pcide || kind >= 2 || low == 0);
    let named = matches!(operation, Invpcid::Address { .. } | Invpcid::Context(_));
    assert_eq!(named, kind < 2);
}

fn limits(bytes: &mut Bytes<'_>) -> InvlpgbLimits {
    InvlpgbLimits {
        max_pages: if bytes.flag() { bytes.below(20) as u32 } else { bytes.half() },
        pcide: bytes.flag(),
        nested: bytes.flag(),
        asids: if bytes.flag() { 1 } else { bytes.half() },
        width: width(bytes),
    }
}

fn invlpgb(bytes: &mut Bytes<'_>) {
    let limits = limits(bytes);
    let first = bytes.flag().then(|| LinearAddress::new(bytes.edge(), limits.width).ok()).flatten();
    let count = if bytes.flag() { bytes.below(20) as u32 } else { bytes.half() };
    let pages = first.map(|first| Pages { first, count, stride: stride(bytes) });
    let what = InvlpgbMatch {
        pages,
        pcid: bytes.flag().then(|| pcid(bytes)),
        asid: if bytes.flag() { 0 } else { bytes.half() as u16 },
        globals: bytes.flag(),
        final_only: bytes.flag(),
        nested: bytes.flag(),
    };
    let most = u64::from(limits.max_pages).clamp(1, 1 << 16);
    let reachable = pages.is_none_or(|Pages { first, count, stride }| {
        let beyond = u128::from(count).saturating_sub(1) * u128::from(stride.bytes());
        let last = u128::from(first.get()) + beyond;
        let same_half = last < 1 << 64
            && bits(first.get(), 63, 64) == bits(last as u64, 63, 64)
            && canonical(last as u64, limits.width);
        let steps = stride.bytes() <= 1 << 21 || count == 1;
        count >= 1 && u64::from(count) <= most && steps && same_half
    });
    let sound = reachable
        && (what.asid == 0 || u32::from(what.asid) < limits.asids)
        && (what.pcid.is_none() || limits.pcide)
        && (!what.nested || limits.nested);
    let got = limits.encode(&what);
    assert_eq!(got.is_ok(), sound, "{what:?} under {limits:?}: {got:?}");
    if let Ok(operands) = got {
        encoded(&what, operands);
    }
    cover(bytes, &limits, what);
}

/// The three registers, field by field.
fn encoded(what: &InvlpgbMatch, operands: InvlpgbOperands) {
    let (rax, ecx, edx) = (operands.rax(), u64::from(operands.ecx()), u64::from(operands.edx()));
    let flags = [
        what.pages.is_some(),
        what.pcid.is_some(),
        true,
        what.globals,
        what.final_only,
        what.nested,
    ];
    for (at, flag) in (0..).zip(flags) {
        assert_eq!(bits(rax, at, at + 1) == 1, flag, "rax bit {at} of {what:?}");
    }
    assert_eq!(bits(rax, 6, 12), 0);
    let page = what.pages.map_or(0, |p| bits(p.first.get(), 12, 64));
    assert_eq!(bits(rax, 12, 64), page);
    assert_eq!(bits(ecx, 0, 16), what.pages.map_or(0, |p| u64::from(p.count) - 1));
    assert_eq!(bits(ecx, 16, 31), 0);
    let by_2m = what.pages.is_some_and(|p| p.stride.bytes() == 1 << 21);
    assert_eq!(bits(ecx, 31, 32) == 1, by_2m);
    assert_eq!(bits(edx, 0, 16), u64::from(what.asid));
    assert_eq!(bits(edx, 16, 28), what.pcid.map_or(0, |p| u64::from(p.get())));
    assert_eq!(bits(edx, 28, 32), 0);
}

/// The addresses an INVLPGB names.
pub(crate) fn named(operands: InvlpgbOperands) -> impl Iterator<Item = u64> {
    let ecx = u64::from(operands.ecx());
    let step = if bits(ecx, 31, 32) == 1 { 1u64 << 21 } else { 1 << 12 };
    let first = bits(operands.rax(), 12, 64) << 12;
    (0..=bits(ecx, 0, 16)).map(move |i| first + i * step)
}

/// Strides looked at in a long range.
const SEEN: usize = 300;

/// The canonical strides of a range, in order.
pub(crate) fn strides(range: VaRange, width: LinearWidth) -> impl Iterator<Item = u64> {
    let bytes = range.stride().bytes();
    let (start, count) = (range.start(), range.count());
    // Whether an address is canonical does not change between the borders: jump over the hole.
    let below = canonical(start, width).then_some(0).or_else(|| {
        let top = match width {
            LinearWidth::Bits48 => 0xffff_8000_0000_0000u64,
            LinearWidth::Bits57 => 0xff00_0000_0000_0000,
        };
        (start < top).then(|| (top - start) / bytes)
    });
    let from = below.unwrap_or(count);
    (from..count).map(move |i| start + i * bytes).filter(move |a| canonical(*a, width)).take(SEEN)
}

fn cover(bytes: &mut Bytes<'_>, limits: &InvlpgbLimits, template: InvlpgbMatch) {
    let count = 1 + if bytes.flag() { bytes.below(40) } else { bytes.below(1 << 20) };
    let Ok(range) = VaRange::new(bytes.edge(), count, stride(bytes)) else { return };
    let Ok(cover) = limits.cover(range, template) else { return };
    let mut all = Vec::new();
    for operands in cover {
        let single = range.stride().bytes() > 1 << 21;
        assert!(
            !single || bits(u64::from(operands.ecx()), 0, 32) == 0,
            "1 GiB pages go one by one"
        );
        all.extend(named(operands));
        if all.len() > SEEN {
            break;
        }
    }
    // The end of a range that is longer than what is looked at can't be compared with a hole in it.
    let wanted: Vec<u64> = strides(range, limits.width).collect();
    let shown = all.len().min(wanted.len()).min(SEEN);
    assert_eq!(all[..shown], wanted[..shown], "{range:?} under {limits:?}");
    if range.count() <= SEEN as u64 {
        assert_eq!(all.len(), wanted.len(), "{range:?} under {limits:?}");
    }
}

fn linear(bytes: &mut Bytes<'_>) {
    let width = width(bytes);
    let address = bytes.edge();
    let fits = canonical(address, width);
    assert_eq!(LinearAddress::new(address, width).is_ok(), fits);
    assert_eq!(width.is_canonical(address), fits);
    let count = if bytes.flag() { bytes.below(60) } else { bytes.edge() };
    let Ok(range) = VaRange::new(address, count, stride(bytes)) else { return };
    let parts = width.clip(range);
    let mut previous = None;
    for part in [parts.low, parts.high].into_iter().flatten() {
        assert_eq!(part.stride(), range.stride());
        assert!(range.start() <= part.start() && part.last() <= range.last());
        assert!(canonical(part.start(), width) && canonical(part.last(), width));
        assert_eq!(bits(part.start(), 63, 64), bits(part.last(), 63, 64), "a part has no hole");
        assert!(previous.is_none_or(|last| last < part.start()), "low half first");
        previous = Some(part.last());
    }
    let kept: u64 = [parts.low, parts.high].into_iter().flatten().map(|p| p.count()).sum();
    // Nothing canonical is left out: what borders on a part is outside the range or not canonical.
    for part in [parts.low, parts.high].into_iter().flatten() {
        for next in [part.start().checked_sub(1), part.last().checked_add(1)].into_iter().flatten()
        {
            let inside = range.start() <= next && next <= range.last();
            assert!(!inside || !canonical(next, width), "{next:#x} of {range:?} was left out");
        }
    }
    if kept == 0 {
        assert!(!canonical(range.start(), width) && !canonical(range.last(), width));
    }
}

/// Registers of every leaf, from the bytes.
pub(crate) fn leaves(bytes: &mut Bytes<'_>) -> (Leaves, [(u32, Registers); 7]) {
    let vendor = match bytes.below(3) {
        0 => b"GenuineIntel",
        1 => b"AuthenticAMD",
        _ => b"Nobody's CPU",
    };
    let name = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().expect("four bytes"));
    let last = bytes.below(9) as u32;
    let mut any =
        || Registers { eax: bytes.half(), ebx: bytes.half(), ecx: bytes.half(), edx: bytes.half() };
    let zero = Registers { eax: last, ebx: name(0), edx: name(4), ecx: name(8) };
    let mut last_extended = any();
    if last_extended.eax & 1 == 0 {
        last_extended.eax = 0x8000_0000 | last_extended.eax >> 1 & 0x1f;
    }
    let all = [
        (0, zero),
        (1, any()),
        (7, any()),
        (0x8000_0000, last_extended),
        (0x8000_0001, any()),
        (0x8000_0008, any()),
        (0x8000_000a, any()),
    ];
    let leaves = Leaves::gather(|leaf, subleaf| {
        assert_eq!(subleaf, 0);
        let exists = match leaf {
            0x8000_0000 => true,
            0x8000_0001.. => leaf <= last_extended.eax,
            _ => leaf <= last,
        };
        assert!(exists, "leaf {leaf:#x} does not exist");
        all.iter().find(|(number, _)| *number == leaf).expect("a leaf that is decoded").1
    });
    (leaves, all)
}

fn cpuid(bytes: &mut Bytes<'_>) {
    let (leaves, all) = leaves(bytes);
    let features = Features::decode(&leaves);
    let [(_, zero), one, seven, (_, last_extended), first, eighth, svm] = all;
    let there = |(number, registers): (u32, Registers)| {
        let last = if number >= 0x8000_0000 { last_extended.eax } else { zero.eax };
        if number <= last { registers } else { Registers::default() }
    };
    let (one, seven, first, eighth) = (there(one), there(seven), there(first), there(eighth));
    let on = |register: u32, at: u32| bits(u64::from(register), at, at + 1) == 1;
    let field = |register: u32, from, to| bits(u64::from(register), from, to);
    let amd = features.vendor == Vendor::Amd;
    assert_eq!(amd, zero.ebx == u32::from_le_bytes(*b"Auth"));
    let base = field(one.eax, 8, 12);
    let family = if base == 15 { base + field(one.eax, 20, 28) } else { base };
    let high = if base == 15 || base == 6 { field(one.eax, 16, 20) } else { 0 };
    assert_eq!(u64::from(features.family), family);
    assert_eq!(u64::from(features.model), field(one.eax, 4, 8) + 16 * high);
    assert_eq!((features.pcid, features.hypervisor), (on(one.ecx, 17), on(one.ecx, 31)));
    assert_eq!(features.pge, on(one.edx, 13));
    assert_eq!((features.invpcid, features.la57), (on(seven.ebx, 10), on(seven.ecx, 16)));
    assert_eq!(features.tce, amd && on(first.ecx, 17));
    let broadcast = amd && family >= 0x19 && on(eighth.ebx, 3);
    let pages = field(eighth.edx, 0, 16) + 1;
    assert_eq!(features.invlpgb.map(u64::from), broadcast.then_some(pages));
    assert_eq!(features.invlpgb_nested, broadcast && on(eighth.ebx, 21));
    if eighth.eax != 0 {
        assert_eq!(u64::from(features.physical_bits), field(eighth.eax, 0, 8));
        assert_eq!(u64::from(features.linear_bits), field(eighth.eax, 8, 16));
    }
    let asids = if on(first.ecx, 2) { there(svm).ebx.max(1) } else { 1 };
    assert_eq!(features.asids, asids);
}

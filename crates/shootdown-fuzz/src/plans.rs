//! Plans of x86-64: whatever the CPU has, every instruction of a plan exists on it and is
//! permitted, and together they remove what was asked for.
//!
//! The cache that is swept holds entries of the fuzzer's choice in and around the range. A step
//! removes what the manuals guarantee and no more; its operands are read from its encoding, as
//! hardware would.

use shootdown::regime::Invalidate;
use shootdown::{Tag, VaRange};
use shootdown_arch::x86_64::{Features, LinearWidth, Options, Pcid, Port, Step};

use crate::Bytes;
use crate::operands::{bits, canonical, leaves, named};
use crate::sets::stride;

/// A cached translation, or (not a leaf) a pointer to a table that serves `1 << shift` bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    pcid: u64,
    address: u64,
    shift: u32,
    leaf: bool,
    global: bool,
}

/// What the CPU has and what runs on it.
struct Setting {
    features: Features,
    tags: bool,
    loaded: u64,
    options: Options,
}

/// Steps of a plan that are looked at.
const LIMIT: usize = 600;

/// One request on one CPU.
pub fn plans(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (leaves, _) = leaves(&mut bytes);
    let features = Features::decode(&leaves);
    let chosen = bytes.byte();
    let on = |at: u8| chosen >> at & 1 == 1;
    let options = Options {
        tags: on(0),
        broadcast: on(1),
        split_tables: on(2),
        la57: on(3),
        page_spares_globals: on(4),
        ..Options::DEFAULT
    };
    let port = Port::new(&features, options);
    let tags = port.tags();
    assert!(!tags || features.pcid && features.pge && options.tags && !options.page_spares_globals);
    let loaded = if tags { bytes.below(4096) } else { 0 };
    let setting = Setting { features, tags, loaded, options };
    let Some(what) = request(&mut bytes, loaded) else { return };
    let entries: Vec<Entry> = (0..12).map(|_| entry(&mut bytes, &setting, what)).collect();

    let pcid = Pcid::new(loaded as u16).expect("below 4096");
    sweep(&setting, what, port.local(what, pcid), &entries, false);
    if let Some(steps) = port.broadcast(what) {
        assert!(features.invlpgb.is_some() && options.broadcast && !options.split_tables);
        sweep(&setting, what, steps, &entries, true);
    }
}

fn request(bytes: &mut Bytes<'_>, loaded: u64) -> Option<Invalidate> {
    let tag = Tag(match bytes.below(3) {
        0 => loaded as u16,
        1 => loaded as u16 ^ 1 << bytes.below(16),
        _ => bytes.half() as u16,
    });
    let mut range = || VaRange::new(bytes.edge(), 1 + bytes.below(250), stride(bytes)).ok();
    Some(match range()? {
        range if bytes.flag() => Invalidate::Range { tag, range, leaf_only: bytes.flag() },
        range if bytes.flag() => Invalidate::Kernel(range),
        _ if bytes.flag() => Invalidate::Tag(tag),
        _ => Invalidate::Everything,
    })
}

fn entry(bytes: &mut Bytes<'_>, setting: &Setting, what: Invalidate) -> Entry {
    let pcid = match bytes.below(4) {
        _ if !setting.tags => 0,
        0 => setting.loaded,
        1 => setting.loaded ^ 0x800,
        2 => match what {
            Invalidate::Range { tag, .. } | Invalidate::Tag(tag) => u64::from(tag.0) % 4096,
            _ => 0,
        },
        _ => bytes.below(4096),
    };
    let address = match what {
        Invalidate::Range { range, .. } | Invalidate::Kernel(range) => {
            let at = range.start().wrapping_add(bytes.below(252) * range.stride().bytes());
            at.wrapping_sub(range.stride().bytes())
        }
        _ => bytes.edge(),
    };
    let leaf = bytes.flag();
    let shift = [12, 21, 30][bytes.below(3) as usize];
    Entry {
        pcid,
        address,
        // A pointer to a table serves at least 2 MiB.
        shift: if leaf { shift } else { shift.max(21) },
        leaf,
        global: leaf && bytes.flag() && setting.features.pge && !setting.options.split_tables,
    }
}

fn sweep(
    setting: &Setting,
    what: Invalidate,
    steps: impl Iterator<Item = Step>,
    entries: &[Entry],
    broadcast: bool,
) {
    let steps: Vec<Step> = steps.take(LIMIT).collect();
    assert!(steps.len() < LIMIT, "a plan for at most 250 strides has at most two steps for each");
    for step in &steps {
        assert!(permitted(setting, *step, broadcast), "{step:?} for {what:?} faults or is missing");
    }
    let width = if setting.options.la57 { LinearWidth::Bits57 } else { LinearWidth::Bits48 };
    for entry in entries.iter().filter(|e| canonical(e.address, width)) {
        if must_go(setting, what, entry) {
            let gone = steps.iter().any(|step| removes(*step, entry, setting.loaded));
            assert!(gone, "{entry:?} survives {what:?} by {steps:?}");
        }
    }
}

/// Does the CPU have the instruction, in this mode, with these operands?
fn permitted(setting: &Setting, step: Step, broadcast: bool) -> bool {
    let Features { invpcid, pge, invlpgb, .. } = setting.features;
    match step {
        Step::Invlpg(_) | Step::ReloadCr3 => !broadcast,
        Step::TogglePge => !broadcast && pge,
        Step::Invpcid(operation) => {
            let (low, _) = operation.descriptor().raw();
            let tagged = operation.kind() >= 2 || setting.tags || low == 0;
            !broadcast && invpcid && tagged && bits(low, 12, 64) == 0 && operation.kind() <= 3
        }
        Step::Invlpgb(operands) => {
            let pages = bits(u64::from(operands.ecx()), 0, 16) + 1;
            let tagged = bits(operands.rax(), 1, 2) == 0 || setting.tags;
            broadcast && tagged && invlpgb.is_some_and(|most| pages <= u64::from(most))
        }
    }
}

fn overlaps(entry: &Entry, range: VaRange) -> bool {
    let size = 1u64 << entry.shift;
    let first = entry.address / size * size;
    first <= range.last() && range.start() <= first + (size - 1)
}

/// Is the entry one that the request names?
fn must_go(setting: &Setting, what: Invalidate, entry: &Entry) -> bool {
    let under = |tag: Tag| !setting.tags || u64::from(tag.0) == entry.pcid;
    // The stride is never larger than the smallest translation of the range.
    let within = |r: VaRange| overlaps(entry, r) && 1u64 << entry.shift >= r.stride().bytes();
    match what {
        Invalidate::Range { tag, range, leaf_only } => {
            !entry.global && under(tag) && within(range) && (entry.leaf || !leaf_only)
        }
        Invalidate::Tag(tag) => !entry.global && under(tag),
        Invalidate::Kernel(range) => {
            let half = setting.options.split_tables && entry.pcid == setting.loaded ^ 0x800;
            let here = entry.pcid == setting.loaded || half;
            entry.leaf && within(range) && (here || entry.global)
        }
        Invalidate::Everything => true,
    }
}

fn holds(entry: &Entry, address: u64) -> bool {
    address >> entry.shift == entry.address >> entry.shift
}

/// Does the manual promise that the entry is gone after this step?
fn removes(step: Step, entry: &Entry, loaded: u64) -> bool {
    match step {
        Step::Invlpg(address) => {
            holds(entry, address.get()) && (entry.pcid == loaded || entry.global)
        }
        Step::ReloadCr3 => entry.pcid == loaded && !entry.global,
        Step::TogglePge => true,
        Step::Invpcid(operation) => {
            let (low, address) = operation.descriptor().raw();
            let same = bits(low, 0, 12) == entry.pcid;
            match operation.kind() {
                0 => same && !entry.global && holds(entry, address),
                1 => same && !entry.global,
                2 => true,
                _ => !entry.global,
            }
        }
        Step::Invlpgb(operands) => {
            let (rax, edx) = (operands.rax(), u64::from(operands.edx()));
            let flag = |at: u32| bits(rax, at, at + 1) == 1;
            let host = flag(2) && bits(edx, 0, 16) == 0;
            host && (!flag(0) || named(operands).any(|address| holds(entry, address)))
                && (!flag(1) || bits(edx, 16, 28) == entry.pcid)
                && (flag(3) || !entry.global)
                && (!flag(4) || entry.leaf)
        }
    }
}

//! What must hold, of a guest that asks for what is right, and of one that does not. Each case has
//! a guest of its own. Those of MAP and UNMAP are the cases of `vmm`'s tests, by requests.

use super::device::{LAST_DOMAIN, Limits, PROBE_SIZE};
use super::guest::{BORDER, ENDPOINTS, Guest, MEMORY, READ_WRITE, status};
use super::platform::Platform;
use super::request::{MAP_READ, Status, TAIL};

const PAGE: u64 = 4096;
const AT: u64 = 0x10_0000;
const A: u32 = ENDPOINTS[0];
const B: u32 = ENDPOINTS[1];

/// Mappings of a domain, domains.
pub const LIMITS: Limits = Limits { mappings: 64, domains: 2 };

/// A case: its name, and what it does.
pub type Case<P> = (&'static str, fn(&mut Guest<P>));

/// All of them.
pub fn all<P: Platform>() -> Vec<Case<P>> {
    vec![
        ("a device reaches what is mapped, until it is unmapped", maps),
        ("attaching and detaching", attaches),
        ("an endpoint moves to another domain", moves),
        ("endpoints of a domain share its mappings", shares),
        ("the specification's examples of UNMAP", examples),
        ("nonsense is refused and changes nothing", nonsense),
        ("a guest has as many mappings as it may", bounded),
        ("memory that lies in pieces is one mapping", pieces),
        ("what may not be mapped is told", probes),
        ("what can't be parsed is given back unwritten", malformed),
        ("a domain that bypasses", bypasses),
        ("what the kernel refuses to unmap stays out of use", refused),
        ("after a reset nothing is reached", resets),
    ]
}

/// Pages by their numbers, both of which belong to them.
const fn pages(first: u64, last: u64) -> (u64, u64) {
    (AT + first * PAGE, AT + last * PAGE + (PAGE - 1))
}

fn maps<P: Platform>(guest: &mut Guest<P>) {
    let config = guest.device.config();
    let word = |at: usize| u64::from_le_bytes(config[at..at + 8].try_into().expect("eight"));
    assert_eq!((config.len(), word(0) & 0x1fff), (40, 0x1000), "pages of 4 KiB");
    assert!(word(8) <= PAGE && word(16) > AT, "input range");
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 3), 0x8000, READ_WRITE).unwrap();
    guest.map(1, pages(4, 4), 0x2000, MAP_READ).unwrap();
    guest.expect(A, AT + 0x1234, Some(0x9234));
    guest.expect(A, AT + 4 * PAGE, Some(0x2000));
    guest.expect(A, AT + 5 * PAGE, None);
    guest.unmap(1, pages(0, 3)).unwrap();
    guest.expect(A, AT + 0x1234, None);
    guest.expect(A, AT + 4 * PAGE, Some(0x2000));
    guest.unmap(1, pages(0, 3)).unwrap(); // twice: there is nothing to do
    // The same addresses at once, for other memory.
    guest.map(1, pages(0, 0), 0x5000, READ_WRITE).unwrap();
    guest.expect(A, AT, Some(0x5000));
}

fn attaches<P: Platform>(guest: &mut Guest<P>) {
    assert_eq!(guest.attach(1, 0x99), Err(Status::NoEntry), "no such endpoint");
    assert_eq!(guest.attach(LAST_DOMAIN + 1, A), Err(Status::Range));
    assert_eq!(guest.attach_with(1, A, 2), Err(Status::Invalid), "an unknown flag");
    assert_eq!(guest.attach_reserved(1, A), Err(Status::Invalid));
    assert_eq!(guest.map(1, pages(0, 0), 0, READ_WRITE), Err(Status::NoEntry), "no such domain");
    assert_eq!(guest.unmap(1, pages(0, 0)), Err(Status::NoEntry));
    assert_eq!(guest.detach(1, A), Err(Status::Invalid), "it is not attached");
    assert_eq!(guest.detach(1, 0x99), Err(Status::NoEntry));
    guest.attach(LAST_DOMAIN, A).unwrap();
    guest.attach(LAST_DOMAIN, A).unwrap(); // it is
    guest.map(LAST_DOMAIN, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    guest.expect(A, AT, Some(0x8000));
    assert_eq!(guest.detach(1, A), Err(Status::Invalid), "to another domain");
    guest.detach(LAST_DOMAIN, A).unwrap();
    guest.expect(A, AT, None);
    assert_eq!(guest.unmap(LAST_DOMAIN, pages(0, 0)), Err(Status::NoEntry), "it has ended");
    // Another domain of the same number has nothing of it.
    guest.attach(LAST_DOMAIN, A).unwrap();
    guest.expect(A, AT, None);
    guest.map(LAST_DOMAIN, pages(0, 3), 0, READ_WRITE).unwrap();
}

fn moves<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    guest.attach(2, A).unwrap();
    guest.expect(A, AT, None);
    assert_eq!(guest.map(1, pages(0, 0), 0, READ_WRITE), Err(Status::NoEntry), "none was left");
    guest.map(2, pages(0, 0), 0x9000, READ_WRITE).unwrap();
    guest.expect(A, AT, Some(0x9000));
}

fn shares<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    guest.expect(B, AT, None);
    guest.attach(1, B).unwrap();
    guest.expect(B, AT, Some(0x8000));
    guest.detach(1, A).unwrap();
    guest.expect(A, AT, None);
    guest.expect(B, AT, Some(0x8000));
    guest.unmap(1, pages(0, 0)).unwrap();
    guest.expect(B, AT, None);
}

/// What is mapped, what is unmapped, and which of the mappings are left.
type Example = (&'static [(u64, u64)], (u64, u64), &'static [bool]);

/// 5.13.6.6, a page for an address.
fn examples<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    let all: [Example; 7] = [
        (&[], (0, 4), &[]),
        (&[(0, 9)], (0, 9), &[false]),
        (&[(0, 4), (5, 9)], (0, 9), &[false, false]),
        (&[(0, 9)], (0, 4), &[true]), // refused
        (&[(0, 4), (5, 9)], (0, 4), &[false, true]),
        (&[(0, 4)], (0, 9), &[false]),
        (&[(0, 4), (10, 14)], (0, 14), &[false, false]),
    ];
    for (number, (mapped, (first, last), left)) in (1..).zip(all) {
        let phys = |n: usize| (n as u64) << 20;
        for (n, (first, last)) in mapped.iter().enumerate() {
            guest.map(1, pages(*first, *last), phys(n), READ_WRITE).unwrap();
        }
        let expected = if number == 4 { Err(Status::Range) } else { Ok(()) };
        assert_eq!(guest.unmap(1, pages(first, last)), expected, "example {number}");
        for (n, ((first, _), left)) in mapped.iter().zip(left).enumerate() {
            guest.expect(A, AT + first * PAGE, left.then_some(phys(n)));
        }
        guest.unmap(1, pages(0, 99)).unwrap();
    }
}

fn nonsense<P: Platform>(guest: &mut Guest<P>) {
    use Status::{Fault, Invalid, Range};
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 3), 0x8000, READ_WRITE).unwrap();
    guest.map(1, pages(6, 6), 0x2000, MAP_READ).unwrap();
    let mut map = |start, end, phys, flags| guest.map(1, (start, end), phys, flags).unwrap_err();
    // Not ranges.
    assert_eq!(map(0x20_0000, 0x1f_ffff, 0, READ_WRITE), Invalid, "empty");
    assert_eq!(map(0x20_0000, 0x10_0000, 0, READ_WRITE), Invalid, "backward");
    assert_eq!(map(0x20_0000, 0x20_0800, 0, READ_WRITE), Range, "half a page");
    assert_eq!(map(0x20_0800, 0x20_1fff, 0, READ_WRITE), Range);
    assert_eq!(map(0x20_0000, 0x20_0fff, 0x800, READ_WRITE), Range, "memory");
    assert_eq!(map(0x20_0000, 0x20_0fff, 0, 0), Invalid, "no rights");
    assert_eq!(map(0x20_0000, 0x20_0fff, 0, 7), Invalid, "a feature that is not offered");
    assert_eq!(map(0x20_0000, 0x20_0fff, 0, 11), Invalid, "unknown flags");
    // Not offered.
    assert_eq!(map(0, 0xfff, 0, READ_WRITE), Range, "page 0");
    assert_eq!(map(0, u64::MAX, 0, READ_WRITE), Range, "everything");
    assert_eq!(map(1 << 52, (1 << 52) + 0xfff, 0, READ_WRITE), Range);
    assert_eq!(map(!0xfff, u64::MAX, 0, READ_WRITE), Range);
    // Not the guest's memory.
    assert_eq!(map(0x20_0000, 0x20_0fff, MEMORY, READ_WRITE), Fault);
    assert_eq!(map(0x20_0000, 0x20_1fff, MEMORY - PAGE, READ_WRITE), Fault, "half of it");
    assert_eq!(map(0x20_0000, 0x20_0fff, 1 << 60, READ_WRITE), Fault);
    let wraps = map(0x20_0000, 0x20_1fff, !0xfff, READ_WRITE);
    assert!(matches!(wraps, Fault | Invalid), "memory that wraps: {wraps:?}");
    // In the way.
    for start in [0x0f_f000, 0x10_0000, 0x10_1000, 0x10_3000, 0x10_5000] {
        assert_eq!(map(start, start + 0x1fff, 0, READ_WRITE), Invalid, "{start:#x}");
    }
    // Cut in two.
    let mut unmap = |start, end| guest.unmap(1, (start, end));
    for (start, end) in [(0x10_0000, 0x10_0fff), (0x10_1000, 0x10_1fff), (0x10_3000, 0x10_7fff)] {
        assert_eq!(unmap(start, end), Err(Range), "{start:#x}");
    }
    assert_eq!(unmap(0x10_2000, 0x10_1fff), Err(Invalid));
    assert_eq!(unmap(0x10_0000, 0x10_3ffe), Err(Range));
    // Nothing has changed.
    guest.expect(A, AT + 3 * PAGE, Some(0x8000 + 3 * PAGE));
    guest.expect(A, AT + 6 * PAGE, Some(0x2000));
    guest.expect(A, 0x20_0000, None);
    // Nothing there: nothing to do. Several, with a gap: all.
    guest.unmap(1, (0x40_0000, 0x40_0fff)).unwrap();
    guest.unmap(1, (0x0f_0000, 0x10_ffff)).unwrap();
    guest.expect(A, AT, None);
    guest.expect(A, AT + 6 * PAGE, None);
    guest.unmap(1, (0, 0xfff)).unwrap();
    // All of it again, at once.
    guest.map(1, pages(0, 3), 0x4000, READ_WRITE).unwrap();
    guest.unmap(1, (0, u64::MAX)).unwrap();
    guest.expect(A, AT, None);
}

fn bounded<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    let one = |n: u64| pages(2 * n, 2 * n);
    for n in 0..LIMITS.mappings as u64 {
        guest.map(1, one(n), 0, MAP_READ).unwrap();
    }
    assert_eq!(guest.map(1, one(99), 0, MAP_READ), Err(Status::NoMemory));
    guest.unmap(1, one(7)).unwrap();
    guest.map(1, one(99), 0, MAP_READ).unwrap();
}

fn pieces<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 3), BORDER - 2 * PAGE, READ_WRITE).unwrap();
    guest.expect(A, AT + PAGE, Some(BORDER - PAGE));
    guest.expect(A, AT + 2 * PAGE, Some(BORDER));
    for cut in [pages(0, 1), pages(2, 3)] {
        assert_eq!(guest.unmap(1, cut), Err(Status::Range), "the guest knows of one mapping");
    }
    guest.expect(A, AT + 3 * PAGE, Some(BORDER + PAGE));
    guest.unmap(1, pages(0, 3)).unwrap();
    // All or nothing: the second half is not there.
    assert_eq!(guest.map(1, pages(0, 3), MEMORY - 2 * PAGE, READ_WRITE), Err(Status::Fault));
    guest.expect(A, AT, None);
    guest.map(1, pages(0, 3), 0, READ_WRITE).unwrap();
}

fn probes<P: Platform>(guest: &mut Guest<P>) {
    assert_eq!(guest.probe_all(0x99), Err(Status::NoEntry));
    assert_eq!(guest.probe(A, PROBE_SIZE - 1), Err(Status::Invalid));
    let properties = guest.probe_all(A).unwrap();
    assert_eq!(properties.len(), PROBE_SIZE);
    guest.attach(1, A).unwrap();
    let mut rest = &properties[..];
    while let [kind, 0, length, 0, ..] = *rest {
        let (kind, length) = (kind, usize::from(length));
        if kind == 0 {
            break;
        }
        assert_eq!((kind, length), (1, 20));
        let word = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight"));
        let (start, end) = (word(8), word(16));
        assert!(start % PAGE == 0 && end % PAGE == PAGE - 1 && start < end);
        for page in [start, end - (PAGE - 1)] {
            let refused = guest.map(1, (page, page + (PAGE - 1)), 0, READ_WRITE);
            assert_eq!(refused, Err(Status::Range), "{page:#x} is reserved");
        }
        guest.map(1, (start - PAGE, start - 1), 0, READ_WRITE).unwrap();
        guest.map(1, (end + 1, end + PAGE), 0, READ_WRITE).unwrap();
        rest = &rest[4 + length..];
    }
    assert!(rest.iter().all(|byte| *byte == 0), "the rest is zero");
}

fn malformed<P: Platform>(guest: &mut Guest<P>) {
    let attach = [1, 0, 0, 0, 1, 0, 0, 0, A as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for len in 2..attach.len() {
        assert_eq!(guest.send(&attach[..len], TAIL), None, "{len} bytes of it");
    }
    for room in 0..TAIL {
        assert_eq!(guest.send(&attach, room), None, "no room for a status");
    }
    guest.expect(A, AT, None);
    for kind in [0, 6, 0xff] {
        let mut unknown = attach;
        unknown[0] = kind;
        assert_eq!(guest.send(&unknown, TAIL), None, "type {kind}");
    }
    for (kind, len) in [(2, 20), (3, 36), (4, 28), (5, 72)] {
        let short: Vec<u8> = [kind].into_iter().chain([0; 71]).take(len - 1).collect();
        assert_eq!(guest.send(&short, PROBE_SIZE + TAIL), None, "type {kind}, a byte too short");
    }
    // Longer ones are read as far as they are known.
    let longer: Vec<u8> = attach.into_iter().chain([0xee; 900]).collect();
    status(guest.send(&longer, TAIL)).unwrap();
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
}

fn bypasses<P: Platform>(guest: &mut Guest<P>) {
    guest.attach_bypass(1, A).unwrap();
    for phys in [PAGE, BORDER - 1, BORDER, MEMORY - 1] {
        guest.expect(A, phys, Some(phys));
    }
    guest.expect(A, MEMORY, None);
    assert_eq!(guest.map(1, pages(0, 0), 0, READ_WRITE), Err(Status::Invalid));
    assert_eq!(guest.unmap(1, pages(0, 0)), Err(Status::Invalid));
    assert_eq!(guest.attach(1, B), Err(Status::Invalid), "it is no other domain");
    guest.expect(B, PAGE, None);
    guest.detach(1, A).unwrap();
    guest.expect(A, PAGE, None);
    guest.attach(1, A).unwrap();
    guest.expect(A, PAGE, None);
    assert_eq!(guest.attach_bypass(1, B), Err(Status::Invalid));
}

fn refused<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    if !guest.device.platform.refuse_unmappings(2) {
        return; // no kernel does so on demand
    }
    assert_eq!(guest.unmap(1, pages(0, 0)), Err(Status::Device));
    guest.expect(A, AT, Some(0x8000)); // and the guest knows
    assert_eq!(guest.map(1, pages(0, 0), 0x9000, READ_WRITE), Err(Status::Device));
    guest.expect(A, AT, Some(0x8000));
    guest.unmap(1, pages(0, 0)).unwrap();
    guest.expect(A, AT, None);
    // Where several are to be unmapped, those behind it are as they were.
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    guest.map(1, pages(2, 3), 0xa000, READ_WRITE).unwrap();
    guest.device.platform.refuse_unmappings(1);
    assert_eq!(guest.unmap(1, pages(0, 3)), Err(Status::Device));
    guest.expect(A, AT + 3 * PAGE, Some(0xb000));
    assert_eq!(guest.unmap(1, pages(2, 2)), Err(Status::Range));
    guest.unmap(1, pages(0, 3)).unwrap();
    guest.expect(A, AT + 3 * PAGE, None);
    // A domain whose mappings can't be taken away ends nevertheless.
    guest.map(1, pages(0, 0), 0x9000, READ_WRITE).unwrap();
    guest.device.platform.refuse_unmappings(99);
    guest.detach(1, A).unwrap();
    guest.expect(A, AT, None);
    guest.attach(1, A).unwrap();
    guest.expect(A, AT, None);
}

fn resets<P: Platform>(guest: &mut Guest<P>) {
    guest.attach(1, A).unwrap();
    guest.map(1, pages(0, 0), 0x8000, READ_WRITE).unwrap();
    guest.device.reset();
    guest.expect(A, AT, None);
    assert_eq!(guest.unmap(1, pages(0, 0)), Err(Status::NoEntry));
    guest.attach(1, A).unwrap();
    guest.expect(A, AT, None);
}

use std::vec::Vec;

use super::*;

const EVERYTHING: HypervFeatures = HypervFeatures { remote_flush: true, extended: true };
const OLD: HypervFeatures = HypervFeatures { extended: false, ..EVERYTHING };

/// What a hypervisor reads from a control word and an input page, by the specification's tables.
#[derive(Debug, PartialEq)]
struct Read {
    root: Option<u64>,
    vps: Vec<u32>,
    runs: Option<Vec<(u64, u64)>>,
}

fn read(control: Control, page: &[u64; INPUT_WORDS]) -> Read {
    let control = control.raw();
    assert_eq!(control & 0xf000_f000_f800_0000 & !(0x3ff << 17), 0, "reserved bits");
    assert_eq!(control & 1 << 16, 0, "not a fast call");
    assert_eq!(page[1] & !0b10, 0, "no other flag");
    let (code, header) = (control & 0xffff, control >> 17 & 0x3ff);
    let (mut vps, mut at) = (Vec::new(), 3);
    let mut bank = |number: u32, bits: u64| {
        vps.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| 64 * number + bit));
    };
    match code {
        2 | 3 => {
            assert_eq!(header, 0);
            bank(0, page[2]);
        }
        0x13 | 0x14 => {
            assert_eq!(page[2], 0, "sparse");
            at = 4;
            for number in (0..64).filter(|bit| page[3] >> bit & 1 == 1) {
                bank(number, page[at]);
                at += 1;
            }
            assert_eq!(header as usize, at - 4, "a word for each valid bank");
        }
        other => panic!("code {other:#x}"),
    }
    let runs = (code & 1 == 1 && code != 0x13) || code == 0x14;
    let count = (control >> 32 & 0xfff) as usize;
    assert_eq!(runs, count != 0);
    let list = page[at..at + count].iter().map(|word| (word & !0xfff, (word & 0xfff) + 1));
    let root = (page[1] & 0b10 == 0).then_some(page[0]);
    Read { root, vps, runs: runs.then(|| list.collect()) }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn a_hypervisor_reads_what_was_asked() {
    let mut random = Random(0x5eed_1234_5678_9abc);
    for round in 0..3000 {
        let most = [1, 63, 64, 65, 200, 4096][random.below(6) as usize];
        let mut vps = VpSet::EMPTY;
        let mut expected: Vec<u32> = Vec::new();
        for _ in 0..1 + random.below(most) {
            let vp = random.below(most) as u32;
            assert!(vps.insert(vp));
            expected.push(vp);
        }
        expected.sort_unstable();
        expected.dedup();
        let runs: Vec<PageRun> = (0..1 + random.below(8))
            .map(|_| PageRun {
                start: random.below(1 << 47) & !0xfff | ((random.below(2) * 0xffff) << 48),
                pages: 1 + random.below(4096) as u16,
            })
            .collect();
        let root = RootFrame::new(random.below(1 << 40) << 12, 52).unwrap();
        let flush = HypervFlush {
            of: if random.below(3) == 0 { Of::All } else { Of::Space(root) },
            vps: &vps,
            runs: (random.below(2) == 0).then_some(&runs[..]),
        };
        let mut page = [round; INPUT_WORDS];
        let control = flush.encode(EVERYTHING, &mut page).unwrap();
        let expected = Read {
            root: matches!(flush.of, Of::Space(_)).then_some(root.address()),
            vps: expected,
            runs: flush.runs.map(|r| r.iter().map(|r| (r.start, u64::from(r.pages))).collect()),
        };
        assert_eq!(read(control, &page), expected);
    }
}

#[test]
fn the_words_are_those_of_the_specification() {
    let root = RootFrame::new(0x1234_5000, 52).unwrap();
    let mut vps = VpSet::EMPTY;
    // The specification's example: VPs 0 to 4, 130 and 161.
    (0..5).chain([130, 161]).for_each(|vp| assert!(vps.insert(vp)));
    let runs = [PageRun { start: 0x7000, pages: 3 }, PageRun { start: 0x20_0000, pages: 4096 }];
    let flush = HypervFlush { of: Of::Space(root), vps: &vps, runs: Some(&runs) };
    let mut page = [!0; INPUT_WORDS];
    let control = flush.encode(EVERYTHING, &mut page).unwrap();
    assert_eq!(control.raw(), 2 << 32 | 2 << 17 | 0x14);
    let words = [0x1234_5000, 0, 0, 0b101, 0b1_1111, 1 << 2 | 1 << 33, 0x7002, 0x20_0fff];
    assert_eq!(page[..8], words);
    let mut few = VpSet::EMPTY;
    assert!(few.insert(63));
    let flush = HypervFlush { of: Of::All, vps: &few, runs: None };
    assert_eq!(flush.encode(OLD, &mut page).unwrap().raw(), 2);
    assert_eq!(page[..3], [0, 2, 1 << 63]);
}

#[test]
fn what_has_no_encoding_is_refused() {
    let mut page = [0; INPUT_WORDS];
    let mut vps = VpSet::EMPTY;
    fn all(vps: &VpSet) -> HypervFlush<'_> {
        HypervFlush { of: Of::All, vps, runs: None }
    }
    assert_eq!(all(&vps).encode(EVERYTHING, &mut page), Err(HypervError::NoVps));
    assert!(!vps.insert(4096) && vps.is_empty());
    assert!(vps.insert(64));
    assert_eq!(all(&vps).encode(OLD, &mut page), Err(HypervError::NeedsExtended));
    let mut list = |runs: &[PageRun]| {
        HypervFlush { runs: Some(runs), ..all(&vps) }.encode(EVERYTHING, &mut page)
    };
    let run = PageRun { start: 0x1000, pages: 1 };
    assert_eq!(list(&[]), Err(HypervError::NoRuns));
    for bad in [
        PageRun { pages: 0, ..run },
        PageRun { pages: 4097, ..run },
        PageRun { start: 0x1800, ..run },
    ] {
        assert_eq!(list(&[run, bad]), Err(HypervError::Run(bad)));
    }
    // Root, flags, format, banks and one bank leave room for 507.
    assert!(list(&[run; 507]).is_ok());
    assert_eq!(list(&[run; 508]), Err(HypervError::TooManyRuns { most: 507 }));
}

#[test]
fn a_call_that_was_cut_short_goes_on_where_it_stopped() {
    let control = Control::new(0x14, 1, 10);
    assert_eq!(control.after(10 << 32), Ok(None));
    let next = control.after(4 << 32).unwrap().unwrap();
    assert_eq!(next.raw(), control.raw() | 4 << 48);
    assert_eq!(next.after(7 << 32).unwrap().unwrap().raw(), control.raw() | 7 << 48);
    assert_eq!(next.after(10 << 32), Ok(None));
    assert_eq!(next.after(4 << 32), Err(HypercallError::Status(0)), "no progress");
    assert_eq!(control.after(0), Err(HypercallError::Status(0)), "no progress");
    assert_eq!(control.after(4 << 32 | 5), Err(HypercallError::Status(5)));
    assert_eq!(Control::new(2, 0, 0).after(0), Ok(None), "no list");
}

#[test]
fn features_are_read_from_their_bits() {
    assert_eq!(HypervFeatures::decode(0), HypervFeatures { remote_flush: false, extended: false });
    assert_eq!(HypervFeatures::decode(1 << 2 | 1 << 11), EVERYTHING);
    assert_eq!(HypervFeatures::decode(1 << 2), OLD);
}

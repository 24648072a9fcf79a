//! Traces of one page: the rule kept, and broken in each way.

use super::*;

const ROOT: u64 = 0x10_0000;
const L1: u64 = 0x10_1000;
const L2: u64 = 0x10_2000;
const L3: u64 = 0x10_3000;
/// The entry that is changed: page 2.
const ENTRY: u64 = L3 + 2 * 8;
const OLD: u64 = 0x0dea_d403;
const NEW: u64 = 0x0bee_f403;

fn by(thread: u32, step: Step) -> Record {
    Record { thread, step, source: "tests.rs:1".to_owned() }
}

fn write(address: u64, value: u64) -> Record {
    by(0, Step::Write { address, value, release: false })
}

fn dsb(kind: Dsb) -> Record {
    by(0, Step::Dsb(kind))
}

fn tlbi(page: u64, last: bool, all_cpus: bool) -> Record {
    by(0, Step::Tlbi(Tlbi::Va { page, last, all_cpus }))
}

/// Tables of four levels, one page mapped, loaded; then `rest`.
fn trace(register: Register, rest: &[Record]) -> Vec<Record> {
    let init = |address| by(0, Step::Init { address, size: 0x1000 });
    let mut all: Vec<Record> = [ROOT, L1, L2, L3].map(init).to_vec();
    all.extend([write(ROOT, L1 | 3), write(L1, L2 | 3), write(L2, L3 | 3), write(ENTRY, OLD)]);
    all.push(by(0, Step::Root { register, value: ROOT }));
    all.extend_from_slice(rest);
    all
}

fn stage_1(rest: &[Record]) -> Result<usize, Violation> {
    judge(&trace(Register::Ttbr0El2, rest)).map_err(|(_, violation)| violation)
}

#[test]
fn break_before_make_is_accepted() {
    for first in [Dsb::Ish, Dsb::Ishst] {
        for (last, all) in [(false, false), (true, false), (false, true)] {
            let gone = by(0, Step::Tlbi(Tlbi::El2 { all_cpus: true }));
            let removal = if all { gone } else { tlbi(2, last, true) };
            let rest = [write(ENTRY, 0), dsb(first), removal, dsb(Dsb::Ish), write(ENTRY, NEW)];
            assert_eq!(stage_1(&rest), Ok(1));
        }
    }
}

#[test]
fn make_without_break_is_rejected() {
    assert_eq!(stage_1(&[write(ENTRY, NEW)]), Err(Violation::NotBroken(ENTRY)));
}

#[test]
fn each_missing_or_weak_step_is_rejected() {
    let whole = [write(ENTRY, 0), dsb(Dsb::Ish), tlbi(2, false, true), dsb(Dsb::Ish)];
    let with = |at: usize, record: Option<Record>| {
        let mut rest = whole.to_vec();
        match record {
            Some(record) => rest[at] = record,
            None => drop(rest.remove(at)),
        }
        rest.push(write(ENTRY, NEW));
        stage_1(&rest)
    };
    let rejected = Err(Violation::NotClean(ENTRY));
    assert_eq!(with(1, None), rejected, "no DSB before the TLBI");
    assert_eq!(with(2, None), rejected, "no TLBI");
    assert_eq!(with(3, None), rejected, "no DSB after the TLBI");
    assert_eq!(with(1, Some(dsb(Dsb::Nsh))), rejected, "a DSB of this CPU only");
    assert_eq!(with(3, Some(dsb(Dsb::Nsh))), rejected, "a DSB of this CPU only");
    assert_eq!(with(3, Some(dsb(Dsb::Ishst))), rejected, "stores do not wait for a TLBI");
    assert_eq!(with(2, Some(tlbi(3, false, true))), rejected, "the wrong address");
    assert_eq!(with(2, Some(tlbi(2, false, false))), rejected, "on this CPU only");
    assert_eq!(with(3, Some(by(1, Step::Dsb(Dsb::Ish)))), rejected, "a DSB of another CPU");
    assert_eq!(with(2, Some(by(1, whole[2].step.clone()))), rejected, "a TLBI of another CPU");
    assert_eq!(with(0, Some(by(0, Step::Isb))), Err(Violation::NotBroken(ENTRY)));
}

#[test]
fn rights_may_change_without_a_break_and_attributes_may_not() {
    const READ_ONLY: u64 = 1 << 7;
    const ATTRIBUTE: u64 = 1 << 2;
    assert_eq!(stage_1(&[write(ENTRY, OLD | READ_ONLY), write(ENTRY, OLD)]), Ok(0));
    assert_eq!(stage_1(&[write(ENTRY, OLD | ATTRIBUTE)]), Err(Violation::NotBroken(ENTRY)));
}

#[test]
fn a_table_is_clean_when_everything_below_is() {
    let broken = [write(L2, 0), dsb(Dsb::Ish)];
    let ends = |removals: &[Record], last: Record| {
        let mut rest = broken.to_vec();
        rest.extend_from_slice(removals);
        rest.extend([dsb(Dsb::Ish), last]);
        stage_1(&rest)
    };
    let again = || write(L2, L3 | 3);
    assert_eq!(ends(&[tlbi(0, false, true), tlbi(2, false, true)], again()), Ok(1));
    assert_eq!(ends(&[tlbi(0, false, true)], again()), Err(Violation::NotClean(L2)));
    let leaves = [tlbi(0, true, true), tlbi(2, true, true)];
    assert_eq!(ends(&leaves, again()), Err(Violation::NotClean(L2)), "walk caches stay");
    assert_eq!(ends(&[], write(ENTRY, 0)), Err(Violation::StillWalked(ENTRY)), "a page reused");
}

#[test]
fn stage_2_needs_both_invalidations_in_order() {
    let ipa = by(0, Step::Tlbi(Tlbi::Ipa { page: 2 }));
    let combined = by(0, Step::Tlbi(Tlbi::Combined { all_cpus: true }));
    let ends = |steps: &[&Record]| {
        let mut rest = vec![write(ENTRY, 0), dsb(Dsb::Ish)];
        for step in steps {
            rest.extend([(*step).clone(), dsb(Dsb::Ish)]);
        }
        rest.push(write(ENTRY, NEW));
        judge(&trace(Register::VttbrEl2, &rest)).map_err(|(_, violation)| violation)
    };
    assert_eq!(ends(&[&ipa, &combined]), Ok(1));
    assert_eq!(ends(&[&by(0, Step::Tlbi(Tlbi::Guest { all_cpus: true }))]), Ok(1));
    for wrong in [&[&combined, &ipa][..], &[&ipa], &[&combined]] {
        assert_eq!(ends(wrong), Err(Violation::NotClean(ENTRY)));
    }
    let elsewhere = by(0, Step::Root { register: Register::VttbrEl2, value: 0x20_0000 });
    let ends = ends(&[&elsewhere, &ipa, &combined]);
    assert_eq!(ends, Err(Violation::NotClean(ENTRY)), "in another guest");
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let mut records = trace(Register::VttbrEl2, &[dsb(Dsb::Nsh), tlbi(2, true, true)]);
    records.push(by(1, Step::Tlbi(Tlbi::Guests { all_cpus: false })));
    records.push(by(1, Step::Other("lock (address 123000)".to_owned())));
    records.push(by(1, Step::Isb));
    let text: Vec<String> = records.iter().enumerate().map(|(id, r)| r.line(id)).collect();
    assert_eq!(parse(&text.join("\n")), Ok(records));
    assert_eq!(
        text[7],
        "(mem-write (id 7) (tid 0) (mem-order plain) (address 103010) (value dead403) (src \"tests.rs:1\"))"
    );
}

#[test]
fn what_is_no_record_is_named_with_its_line() {
    let error = |text: &str| parse(text).map(|_| ()).unwrap_err().to_string();
    assert!(error("\n(barrier (id 0) (tid 0) dsb (kind odd))").starts_with("line 2: a barrier"));
    assert!(error("(tlbi (id 0) (tid 0) vaex)").contains("`tlbi vaex` is not known here"));
    assert!(error("(mem-write (id 0) (tid 0) (mem-order plain))").contains("no field `address`"));
    assert!(error("(lock (id 0) (address 1))").contains("no field `tid`"));
    assert!(error("lock").contains("no parentheses"));
    assert_eq!(parse("! BBM valid->valid\nwhatever"), Ok(vec![]));
}

/// Published verdicts: which of Arm's tests break before they make. (Sc02 is another matter: it
/// moves a page while both entries are read-only, which Arm lets pass if the contents are the same.
/// That is not to be seen in a trace of tables, so the automaton rejects it.)
#[test]
fn litmus_traces_are_judged_as_arm_says() {
    use crate::litmus::{Options, Test, embedded, traces};

    let judged = |name: &str| {
        let path = format!("aarch64/{name}");
        let file = embedded().iter().find(|f| f.path.trim_end_matches(".lit") == path);
        let file = file.unwrap_or_else(|| panic!("no test {name}"));
        let test = Test::parse(file.path, file.text).expect("a test");
        let found = traces(&test, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!found.is_empty(), "{name}");
        found
    };
    let mut damaged = 0;
    for name in ["coRR-pte9", "coRR-pte16", "MP+BBM+DSB-ISB+BIS", "MP+bbm+dmbld"] {
        for trace in judged(name) {
            assert!(judge(&trace).is_ok_and(|made| made > 0), "{name}: {:?}", judge(&trace));
            let text: Vec<String> = trace.iter().enumerate().map(|(id, r)| r.line(id)).collect();
            assert_eq!(parse(&text.join("\n")), Ok(trace.clone()), "{name}");
            // Without its TLBI no trace may pass.
            let without = |r: &&Record| !matches!(r.step, Step::Tlbi(_));
            let worse: Vec<Record> = trace.iter().filter(without).cloned().collect();
            assert!(matches!(judge(&worse), Err((_, Violation::NotClean(_)))), "{name}");
            damaged += 1;
        }
    }
    assert!(damaged >= 4, "{damaged}");
    for name in ["MP+shoot+po", "coRR-pte9-nobbm", "nBBM+LDR", "Sc01"] {
        for trace in judged(name) {
            let verdict = judge(&trace).map_err(|(_, violation)| violation);
            assert!(matches!(verdict, Err(Violation::NotBroken(_))), "{name}: {verdict:?}");
        }
    }
}

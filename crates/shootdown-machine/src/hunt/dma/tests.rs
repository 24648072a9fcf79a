use shootdown_dma::mutant::{self, Mutant};

use super::*;
use crate::hunt::schedule::{Random, Rng};
use crate::hunt::{Bounds, End, Outcome, Power, Powers, run};
use crate::oracle::Invariant;

fn play_under(powers: Powers, program: &DmaProgram, seed: u64, record: bool) -> Outcome {
    let bounds = Bounds { record, ..Bounds::default() };
    run(program, powers, bounds, &mut Random::new(Rng::of_run(7, seed)))
}

fn play(program: &DmaProgram, seed: u64, record: bool) -> Outcome {
    play_under(Powers::HOSTILE_DEVICES, program, seed, record)
}

fn tell(program: &DmaProgram, seed: u64) -> String {
    let outcome = play(program, seed, true);
    let mut text = format!("{program}\n{:?}\n", outcome.end);
    for e in &outcome.events {
        text += &format!("{:5} cpu{} {}\n", e.step, e.cpu, e.text);
    }
    text
}

#[test]
fn a_correct_library_keeps_every_promise() {
    let (mut ended, mut seen) = (0, std::collections::BTreeMap::<_, u32>::new());
    for seed in 0..120 {
        let program = DmaProgram::random(seed, 6);
        for run in 0..10 {
            let outcome = play(&program, run, false);
            assert!(!outcome.end.is_failure(), "seed {seed}, run {run}: {}", tell(&program, run));
            ended += u32::from(outcome.end == End::Finished);
            outcome.witnesses.iter().for_each(|name| *seen.entry(*name).or_default() += 1);
        }
    }
    assert!(ended > 1100, "{ended} of 1200 runs came to their end");
    let all = [
        "held-frame-recycled",
        "io-table-freed",
        "mapping-undone",
        "no-address-left",
        "uses-spilled",
        "large-identity",
        "large-shared",
        "mapped-at",
        "domain-ended",
    ];
    assert!(all.iter().all(|name| seen.contains_key(name)), "{seen:?}");
}

/// A program, a step of the library that is missing, and the promise that is broken then.
const FOUND: &[(&str, Mutant, Invariant)] = &[
    ("policy=strict; map a, unmap a", Mutant::StrictDoesNotWait, Invariant::Revocation),
    (
        "policy=strict-ish flush=1; map a, unmap a, poll",
        Mutant::GivenBackEarly,
        Invariant::FrameReuse,
    ),
    (
        "policy=lazy flush=1 pages=2; map a, unmap a, poll, map2 b",
        Mutant::GivenBackEarly,
        Invariant::RangeReuse,
    ),
    (
        "policy=lazy; map a, unmap a, timer, timer, timer, timer",
        Mutant::SweptAsLeaf,
        Invariant::TableReuse,
    ),
    ("policy=strict-ish pages=2048 tables=2; big", Mutant::UndoneNotNoted, Invariant::FrameReuse),
    ("policy=strict pages=2048 tables=2; big", Mutant::UndoneNotNoted, Invariant::FrameReuse),
    ("policy=strict pages=2048 tables=2; big", Mutant::StrictDoesNotWait, Invariant::FrameReuse),
    ("policy=strict; map a, unmap a", Mutant::SubmittedTrusted, Invariant::Revocation),
    ("policy=strict; map a, unmap a", Mutant::WaitSkipped, Invariant::Revocation),
    ("policy=strict; map a, unmap a", Mutant::DomainMistaken, Invariant::Revocation),
    ("policy=strict atc=on; map a, unmap a", Mutant::DevicesNotTold, Invariant::Revocation),
    ("policy=strict absence=on; map a", Mutant::PresenceToldAsLeaf, Invariant::UpgradeSoundness),
    (
        "policy=strict bounce=on; bounce a, unmap a",
        Mutant::StrictDoesNotWait,
        Invariant::Revocation,
    ),
    (
        "policy=strict from=identity leaves=large; large2 a, unmap a",
        Mutant::StrictDoesNotWait,
        Invariant::FrameReuse,
    ),
    (
        "policy=strict-ish flush=1 from=identity leaves=large; large a, unmap a, poll",
        Mutant::GivenBackEarly,
        Invariant::FrameReuse,
    ),
    // The page is at the end of where the large page was, and of that itself.
    (
        "policy=lazy flush=1 pages=2048; large a, unmap a, poll, piece b",
        Mutant::GivenBackEarly,
        Invariant::OneSize,
    ),
    (
        "policy=strict from=identity leaves=large; large a, unmap a",
        Mutant::IdentitySizesShared,
        Invariant::ErrorsTotal,
    ),
    ("policy=lazy; at a, unat a", Mutant::MapAtUnmappedLazily, Invariant::Revocation),
    (
        "policy=strict-ish domains=2 ends=on; map b, unmap b, end",
        Mutant::EndDefers,
        Invariant::LazyBound,
    ),
    ("policy=lazy pages=2048 tables=2; big", Mutant::UndoneNotNoted, Invariant::LazyBound),
    ("policy=strict absence=on; map a", Mutant::PresenceNotTold, Invariant::UpgradeSoundness),
];

/// What is promised of devices (see [`super`]): each promise is broken by something in [`FOUND`].
const PROMISED: [Invariant; 8] = [
    Invariant::Revocation,
    Invariant::FrameReuse,
    Invariant::RangeReuse,
    Invariant::UpgradeSoundness,
    Invariant::OneSize,
    Invariant::TableReuse,
    Invariant::LazyBound,
    Invariant::ErrorsTotal,
];

#[test]
fn a_broken_library_is_found() {
    for promise in PROMISED {
        let broken = FOUND.iter().any(|(_, _, broken)| *broken == promise);
        assert!(broken, "nothing breaks {promise}: is it checked?");
    }
    for (text, mutant, invariant) in FOUND {
        let program: DmaProgram = text.parse().unwrap();
        let broken = |program: &DmaProgram| {
            (0..300).find_map(|seed| match play(program, seed, false).end {
                End::Violation(violation) => Some(violation.invariant),
                end if end.is_failure() => panic!("{text} with {mutant:?}: {end:?}"),
                _ => None,
            })
        };
        assert_eq!(broken(&program), None, "{text}");
        mutant::set(Some(*mutant));
        let without = broken(&program);
        mutant::set(None);
        assert_eq!(without, Some(*invariant), "{text} with {}", mutant.name());
    }
}

/// Where addresses follow from pages, a page of the pool is at the same address for whoever has it
/// next.
#[test]
fn a_pool_s_page_in_other_hands_is_no_violation() {
    let text = "policy=strict from=identity bounce=on; bounce a, unmap a; bounce b, bounce c";
    let program: DmaProgram = text.parse().unwrap();
    let mut again = 0;
    for seed in 0..2000 {
        let outcome = play(&program, seed, false);
        assert!(!outcome.end.is_failure(), "{}", tell(&program, seed));
        again += u32::from(outcome.witnesses.contains(&"bounce-page-taken-again"));
    }
    assert!(again > 0, "never taken before its last owner looked");
}

/// Two CPUs use large pages and a page of one of them at addresses of their own; more of them than
/// an entry counts are elsewhere.
#[test]
fn large_pages_have_addresses_of_their_own() {
    let shared = "from=identity leaves=large; large a, large2 b, unmap-strict b, unmap a; large c, piece d, unmap c, unmap d";
    let many = "from=identity leaves=large format=arm1 pages=2048; large a, large b, large c, unmap b, unmap c";
    for (text, policy, wanted) in [
        (shared, "strict", ["large-identity", "large-shared"]),
        (shared, "strict-ish", ["large-identity", "large-shared"]),
        (many, "strict", ["large-identity", "large-elsewhere"]),
        (many, "lazy", ["large-identity", "large-elsewhere"]),
    ] {
        let program: DmaProgram = format!("policy={policy} {text}").parse().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let outcome = play(&program, seed, false);
            assert!(!outcome.end.is_failure(), "{}", tell(&program, seed));
            seen.extend(outcome.witnesses);
        }
        assert!(wanted.iter().all(|name| seen.contains(name)), "{program}: {seen:?}");
    }
}

/// The second domain ends while others are at work, and is made again in the same pages.
#[test]
fn a_domain_ends_and_another_has_its_number() {
    for text in [
        "policy=lazy tables=4 domains=2 ends=on; map a, unmap a, timer; map b, unmap b, end, map b",
        "policy=strict-ish domains=2 ends=on atc=on; map b, end, map d, end; attach, move, poll, detach",
        "policy=strict domains=2 ends=on coherent=off tables=4; at b, end, at b, unat b; reserve d, link d, end, flush",
        "policy=lazy domains=2 ends=on format=arm2-64k from=ring; map b, end, map b, end, map b, end; flush, timer",
    ] {
        let program: DmaProgram = text.parse().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let outcome = play(&program, seed, false);
            assert!(!outcome.end.is_failure(), "{}", tell(&program, seed));
            seen.extend(outcome.witnesses);
        }
        assert!(seen.contains("domain-ended"), "{text}: {seen:?}");
    }
}

/// The first of random programs that breaks a promise when its kernel makes this mistake, and the
/// promise.
fn found_by_chance(mistake: Mistake, most: u64) -> Option<(u64, DmaProgram, Invariant)> {
    (0..most).find_map(|seed| {
        let mut program = DmaProgram::random(seed, 8);
        program.config.mistake = Some(mistake);
        match play(&program, seed, false).end {
            End::Violation(violation) => Some((seed, program, violation.invariant)),
            _ => None,
        }
    })
}

/// What a mistake may break, besides giving a page to somebody else while a device reaches it.
const MISTAKEN: &[(Mistake, &[Invariant])] = &[
    (Mistake::FreesFirst, &[Invariant::Revocation]),
    (Mistake::LazyTrusted, &[Invariant::Revocation]),
    (Mistake::HoldsNothing, &[]),
    (Mistake::AbsenceDenied, &[Invariant::UpgradeSoundness]),
    (Mistake::NotWrittenBack, &[Invariant::UpgradeSoundness, Invariant::RangeReuse]),
    (Mistake::CachesDenied, &[Invariant::Revocation, Invariant::RangeReuse]),
    (
        Mistake::OneUnitNamed,
        &[
            Invariant::Revocation,
            Invariant::UpgradeSoundness,
            Invariant::RangeReuse,
            Invariant::TableReuse,
            Invariant::LazyBound,
        ],
    ),
    (
        Mistake::QueuedIsComplete,
        &[Invariant::Revocation, Invariant::RangeReuse, Invariant::TableReuse],
    ),
    (Mistake::NotDrained, &[Invariant::Revocation, Invariant::RangeReuse, Invariant::LazyBound]),
    (Mistake::EntryClearedAtOnce, &[Invariant::TableReuse, Invariant::LazyBound]),
    (Mistake::DevicesFirst, &[Invariant::Revocation, Invariant::RangeReuse]),
    (Mistake::HintAlways, &[Invariant::TableReuse, Invariant::UpgradeSoundness]),
    (Mistake::FirstPageOnly, &[Invariant::Revocation, Invariant::RangeReuse, Invariant::LazyBound]),
    (Mistake::ToldOnce, &[Invariant::Revocation, Invariant::RangeReuse, Invariant::TableReuse]),
    (Mistake::EntryBackwards, &[Invariant::Revocation]),
    (Mistake::EntryOverwritten, &[Invariant::Revocation, Invariant::RangeReuse]),
    (Mistake::DetachUntold, &[Invariant::Revocation, Invariant::RangeReuse, Invariant::LazyBound]),
    (Mistake::ListedLate, &[Invariant::LazyBound, Invariant::Revocation]),
    (Mistake::EntryUnannounced, &[Invariant::UpgradeSoundness]),
];

/// A power, a program, a mistake that is found in it by this power alone, and the sign that it was
/// used.
const NEEDED: &[(Power, &str, Mistake, &str)] = &[
    (Power::InFlight, "policy=strict; map a, unmap a", Mistake::NotDrained, "in-flight"),
    (
        Power::Fracture,
        "policy=strict from=identity leaves=large; large a, unmap a",
        Mistake::FirstPageOnly,
        "piece-kept",
    ),
    (
        Power::TornEntries,
        "policy=strict; attach, map a, detach, unmap a",
        Mistake::EntryClearedAtOnce,
        "torn-entry",
    ),
];

#[test]
fn some_mistakes_are_found_by_one_power_alone() {
    for (power, text, mistake, sign) in NEEDED {
        let whole: DmaProgram = text.parse().unwrap();
        let mut wrong = whole.clone();
        wrong.config.mistake = Some(*mistake);
        let hunt = |powers: Powers, program: &DmaProgram| {
            let (mut failed, mut seen) = (false, false);
            for seed in 0..300 {
                let outcome = play_under(powers, program, seed, false);
                failed |= outcome.end.is_failure();
                seen |= outcome.witnesses.contains(sign);
            }
            (failed, seen)
        };
        let name = mistake.name();
        let (all, less) = (Powers::HOSTILE_DEVICES, Powers::HOSTILE_DEVICES.without(*power));
        assert_eq!(hunt(all, &wrong), (true, true), "{name}");
        assert_eq!(hunt(less, &wrong), (false, false), "{name} without {power}");
        assert!(!hunt(all, &whole).0, "{text}");
    }
}

#[test]
fn every_mistake_of_a_kernel_is_found_and_nothing_without_it() {
    assert!(Mistake::ALL.iter().all(|m| MISTAKEN.iter().any(|(listed, _)| listed == m)));
    let mut unexpected = Vec::new();
    for (mistake, breaks) in MISTAKEN {
        let name = mistake.name();
        let (seed, mut program, broken) = found_by_chance(*mistake, 4000).expect(name);
        if broken != Invariant::FrameReuse && !breaks.contains(&broken) {
            unexpected.push(format!("{name}: {broken:?} by {program}"));
        }
        program.config.mistake = None;
        let whole = play(&program, seed, false).end;
        assert!(!whole.is_failure(), "{name} is not to blame: {whole:?} by {program}");
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[test]
fn programs_read_back_as_they_are_written() {
    for seed in 0..300 {
        let program = DmaProgram::random(seed, 8);
        let text = program.to_string();
        assert_eq!(text.parse::<DmaProgram>().as_ref(), Ok(&program), "{text}");
    }
}

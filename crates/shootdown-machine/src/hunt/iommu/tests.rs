use super::*;
use shootdown_dma::invalidate::Command;
use shootdown_dma::{DomainId, IovaRange, PhysAddr, Rights};

/// Two levels; bit 0: present, bit 1: a table. The rest is the address.
fn decode(level: u8, word: u64) -> Decoded {
    let to = PhysAddr(word & !0xfff);
    match word & 3 {
        3 if level > 1 => Decoded::Table(to),
        0 => Decoded::Nothing,
        _ => Decoded::Leaf { to, rights: Rights::ReadWrite },
    }
}

const ROOT: u64 = 0x1000;
const TABLE: u64 = 0x2000;
const FRAME: u64 = 0x9000;
const DOMAIN: DomainId = DomainId(7);
const DEVICE: DeviceId = DeviceId(1);

const MODEL: Model = Model {
    walker: Walker { levels: 2, granule: 12, decode },
    units: 1,
    coherent: true,
    remembers_absence: false,
    survives_once: false,
    faults: 0,
    moody: None,
    denials: 2,
};

fn enter(iommu: &mut Iommu, device: DeviceId, root: u64, domain: DomainId) {
    iommu.write_entry(device, Half::High, u64::from(domain.0));
    iommu.write_entry(device, Half::Low, root | VALID);
}

fn with(model: Model, powers: Powers, caches: bool) -> Iommu {
    let mut iommu = Iommu::new(powers);
    iommu.set_up(model);
    iommu.plug(DEVICE, 0, caches);
    enter(&mut iommu, DEVICE, ROOT, DOMAIN);
    iommu.written(ROOT, 0, TABLE | 3);
    iommu.written(TABLE, 5, FRAME | 1);
    iommu
}

fn iommu(caches: bool) -> Iommu {
    with(MODEL, Powers::HOSTILE_DEVICES, caches)
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).unwrap()
}

fn pages(leaf_only: bool) -> Command {
    Command::Pages { domain: DOMAIN, range: range(5, 1), leaf_only }
}

/// A command from submission to completion.
fn tell(iommu: &mut Iommu, commands: &[Command]) {
    let _ = iommu.submit(0, commands, true);
    iommu.complete_one(0);
}

fn faults(iommu: &Iommu, first: u64, pages: u64) -> bool {
    iommu.faults(range(first, pages), |_| DOMAIN).is_some()
}

fn reaches(iommu: &Iommu) -> bool {
    iommu.usable().any(|c| c.reaches(PhysAddr(FRAME)))
}

#[test]
fn what_was_cleared_stays_until_a_command_covers_it() {
    let mut iommu = iommu(false);
    iommu.written(TABLE, 5, 0);
    assert!(reaches(&iommu));
    let other =
        Command::Pages { domain: DOMAIN, range: IovaRange::new(6, 1).unwrap(), leaf_only: true };
    tell(&mut iommu, &[other, Command::Domain(DomainId(1))]);
    assert!(reaches(&iommu), "other pages, another domain");
    tell(&mut iommu, &[pages(true)]);
    assert!(!reaches(&iommu));
}

#[test]
fn a_command_before_the_store_helps_nothing() {
    let mut iommu = iommu(false);
    tell(&mut iommu, &[pages(true)]);
    iommu.written(TABLE, 5, 0);
    assert!(reaches(&iommu));
}

#[test]
fn unlinked_tables_are_walked_until_walk_caches_go() {
    let mut iommu = iommu(false);
    iommu.written(TABLE, 5, 0);
    iommu.written(ROOT, 0, 0);
    tell(&mut iommu, &[pages(true)]);
    assert!(!reaches(&iommu));
    iommu.written(TABLE, 5, FRAME | 1);
    assert!(reaches(&iommu), "through the freed table");
    tell(&mut iommu, &[pages(false)]);
    assert!(iommu.walks_to(PhysAddr(TABLE)).is_none() && !reaches(&iommu));
}

#[test]
fn devices_ask_again_what_they_were_told_to_forget_too_early() {
    let device = Command::Device { device: shootdown_dma::DeviceId(1), range: None };
    let mut early = iommu(true);
    early.written(TABLE, 5, 0);
    tell(&mut early, &[device, pages(true)]);
    assert!(reaches(&early));
    let mut late = iommu(true);
    late.written(TABLE, 5, 0);
    tell(&mut late, &[pages(true), device]);
    assert!(!reaches(&late));
}

#[test]
fn commands_may_take_effect_as_late_as_they_are_heard_of() {
    let mut iommu = iommu(false);
    iommu.written(TABLE, 5, 0);
    let ticket = iommu.submit(0, &[pages(true)], false);
    assert!(reaches(&iommu) && iommu.completed(0) < ticket);
    iommu.complete_one(0);
    assert!(!reaches(&iommu) && iommu.completed(0) == ticket);
}

#[test]
fn accesses_that_began_before_go_on_until_completion() {
    let mut iommu = iommu(false);
    iommu.written(TABLE, 5, 0);
    let _ = iommu.submit(0, &[pages(true)], true);
    assert!(reaches(&iommu), "in flight");
    iommu.complete_one(0);
    assert!(!reaches(&iommu));
    let calm = Powers::HOSTILE_DEVICES.without(Power::InFlight);
    let mut iommu = with(MODEL, calm, false);
    iommu.written(TABLE, 5, 0);
    let _ = iommu.submit(0, &[pages(true)], true);
    assert!(!reaches(&iommu));
}

/// Of two commands for one page the later took effect first. When the earlier is complete, nothing
/// is left for it to forget, and still all accesses through the page that began before are over:
/// that is what completion means.
#[test]
fn completion_ends_accesses_whoever_made_the_cache_forget() {
    let mut iommu = iommu(false);
    iommu.written(TABLE, 5, 0);
    let _ = iommu.submit(0, &[pages(true)], false);
    let _ = iommu.submit(0, &[pages(true)], true);
    assert!(reaches(&iommu), "in flight until the second is complete, or the first");
    iommu.complete_one(0);
    assert!(!reaches(&iommu));
}

#[test]
fn absence_is_remembered_until_told() {
    let model = Model { remembers_absence: true, ..MODEL };
    let mut iommu = with(model, Powers::HOSTILE_DEVICES, false);
    let config = Command::Config { device: DEVICE, domain: DomainId(0) };
    assert!(!iommu.serve(DEVICE), "the device has no tables, as far as it knows");
    tell(&mut iommu, &[config]);
    assert!(iommu.serve(DEVICE) && faults(&iommu, 5, 1));
    tell(&mut iommu, &[pages(true)]);
    assert!(faults(&iommu, 5, 1), "that there was no table is remembered on");
    tell(&mut iommu, &[pages(false)]);
    assert!(!faults(&iommu, 5, 1));
    iommu.written(TABLE, 5, 0);
    iommu.written(TABLE, 5, FRAME | 1);
    assert!(faults(&iommu, 5, 1), "it may have looked in between");
    tell(&mut iommu, &[pages(true)]);
    iommu.written(TABLE, 5, FRAME | 1);
    assert!(!faults(&iommu, 5, 1), "the same again");
    let mut calm = with(model, Powers::HOSTILE_DEVICES.without(Power::RemembersAbsence), false);
    assert!(calm.serve(DEVICE) && !faults(&calm, 5, 1));
}

#[test]
fn what_is_not_written_back_is_read_as_it_was() {
    let model = Model { coherent: false, ..MODEL };
    let mut iommu = with(model, Powers::HOSTILE_DEVICES, false);
    assert!(iommu.serve(DEVICE) && faults(&iommu, 5, 1));
    iommu.written_back(ROOT, 0);
    assert!(faults(&iommu, 5, 1));
    iommu.written_back(TABLE, 5);
    assert!(!faults(&iommu, 5, 1));
    iommu.written(TABLE, 5, 0);
    tell(&mut iommu, &[pages(true)]);
    assert!(reaches(&iommu), "it reads again what is in memory");
    iommu.written_back(TABLE, 5);
    tell(&mut iommu, &[pages(true)]);
    assert!(!reaches(&iommu));
}

#[test]
fn entries_are_read_a_word_at_a_time_and_kept() {
    const OTHER: DomainId = DomainId(12);
    let torn = |powers| {
        let mut iommu = with(MODEL, powers, false);
        iommu.write_entry(DEVICE, Half::Low, 0);
        iommu.write_entry(DEVICE, Half::High, u64::from(OTHER.0));
        iommu.usable().any(|leaf| leaf.domain == OTHER.0)
    };
    assert!(torn(Powers::HOSTILE_DEVICES), "the old root with the new domain");
    assert!(!torn(Powers::HOSTILE_DEVICES.without(Power::TornEntries)));
    let kept = |powers| {
        let mut iommu = with(MODEL, powers, false);
        iommu.write_entry(DEVICE, Half::Low, 0);
        tell(&mut iommu, &[Command::Domain(DOMAIN)]);
        let before = reaches(&iommu);
        let config = Command::Config { device: DEVICE, domain: DOMAIN };
        tell(&mut iommu, &[config]);
        tell(&mut iommu, &[Command::Domain(DOMAIN)]);
        assert!(!reaches(&iommu));
        before
    };
    assert!(kept(Powers::HOSTILE_DEVICES));
    assert!(!kept(Powers::HOSTILE_DEVICES.without(Power::CachedEntries)));
}

#[test]
fn large_pages_are_cached_in_pieces() {
    let left = |powers| {
        let mut iommu = with(MODEL, powers, false);
        iommu.written(ROOT, 1, FRAME << 12 | 1);
        let command = Command::Pages { domain: DOMAIN, range: range(513, 1), leaf_only: true };
        iommu.written(ROOT, 1, 0);
        tell(&mut iommu, &[command]);
        iommu.usable().filter(|leaf| leaf.first >= 512).map(|leaf| leaf.pages).collect::<Vec<_>>()
    };
    assert_eq!(left(Powers::HOSTILE_DEVICES), [1, 510]);
    assert_eq!(left(Powers::HOSTILE_DEVICES.without(Power::Fracture)), [0; 0]);
}

#[test]
fn a_translation_survives_one_command() {
    let model = Model { survives_once: true, ..MODEL };
    let mut iommu = with(model, Powers::HOSTILE_DEVICES, false);
    iommu.written(TABLE, 5, 0);
    tell(&mut iommu, &[pages(true)]);
    assert!(reaches(&iommu));
    tell(&mut iommu, &[pages(true)]);
    assert!(!reaches(&iommu));
}

#[test]
fn without_speculation_only_what_is_used_is_cached() {
    let mut iommu = with(MODEL, Powers::HOSTILE_DEVICES.without(Power::Speculation), true);
    assert!(!reaches(&iommu));
    iommu.touch(range(5, 1));
    assert!(reaches(&iommu));
    iommu.written(TABLE, 5, 0);
    tell(&mut iommu, &[pages(true)]);
    assert!(reaches(&iommu), "the device has it");
}

#[test]
fn units_and_domains_are_told_apart() {
    let mut iommu = iommu(false);
    let other = DeviceId(2);
    iommu.plug(other, 0, false);
    enter(&mut iommu, other, ROOT, DomainId(8));
    iommu.written(TABLE, 5, 0);
    tell(&mut iommu, &[pages(true)]);
    assert!(reaches(&iommu), "the other domain's");
    tell(&mut iommu, &[Command::Domain(DomainId(8))]);
    assert!(!reaches(&iommu));
}

#[test]
fn what_was_refused_takes_effect_when_it_is_told_again() {
    let model = Model { faults: 1, moody: Some(DEVICE), ..MODEL };
    let mut iommu = with(model, Powers::HOSTILE_DEVICES.without(Power::InFlight), false);
    assert!(iommu.may_fail(0) && iommu.may_be_silent(0).is_none());
    let _ = iommu.submit(0, &[pages(true)], true);
    iommu.again(0);
    assert!(!iommu.may_fail(0));
    iommu.written(TABLE, 5, 0);
    assert!(reaches(&iommu), "the first time was before");
    iommu.complete_one(0);
    assert!(!reaches(&iommu));
}

#[test]
fn a_device_that_does_not_answer_keeps_what_it_has_until_it_is_gone() {
    let model = Model { faults: 1, moody: Some(DEVICE), ..MODEL };
    let mut iommu = with(model, Powers::HOSTILE_DEVICES, true);
    iommu.written(TABLE, 5, 0);
    let told = [pages(true), Command::Device { device: DEVICE, range: None }];
    let _ = iommu.submit(0, &told, false);
    assert_eq!(iommu.may_be_silent(0), Some(DEVICE));
    iommu.again(0);
    iommu.is_silent_now(DEVICE);
    iommu.complete_one(0);
    assert!(reaches(&iommu) && iommu.is_silent(DEVICE));
    iommu.unplug(DEVICE);
    assert!(!reaches(&iommu) && !iommu.is_silent(DEVICE));
}

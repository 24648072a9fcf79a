//! What an IOMMU caches, what it costs, and what commands make it forget.

use std::cell::RefCell;

use shootdown_dma::IovaRange;

use super::*;
use crate::profile::Profile;

/// Tables that a test has written, and how often they were read.
#[derive(Default)]
struct Memory(RefCell<BTreeMap<(u64, usize), u64>>);

impl Words for Memory {
    fn word(&self, table: PhysAddr, index: usize) -> u64 {
        self.0.borrow().get(&(table.0, index)).copied().unwrap_or(0)
    }
}

const ROOT: PhysAddr = PhysAddr(0x1000);
const DEVICE: DeviceId = DeviceId(3);
const DOMAIN: DomainId = DomainId(7);
/// Read and write.
const RW: u64 = 3;
const LARGE: u64 = 1 << 7;

impl Memory {
    /// Maps a page of 4 KiB below page 2^18, by tables at 0x2000, 0x3000, and one for each 2 MiB.
    fn map(&self, page: u64, to: u64, rights: u64) {
        let leaf_table = 0x10_0000 + (page >> 9 << 12);
        let mut words = self.0.borrow_mut();
        words.insert((ROOT.0, 0), 0x2000 | RW);
        words.insert((0x2000, 0), 0x3000 | RW);
        words.insert((0x3000, (page >> 9) as usize), leaf_table | RW);
        words.insert((leaf_table, (page & 511) as usize), to | rights);
    }

    fn unmap(&self, page: u64) {
        let leaf_table = 0x10_0000 + (page >> 9 << 12);
        self.0.borrow_mut().remove(&(leaf_table, (page & 511) as usize));
    }
}

fn costs() -> IommuCosts {
    Profile::named("haswell-ep-48").unwrap().devices().unwrap().iommu
}

fn unit(own: u32) -> (Iommu, Memory) {
    let mut unit = Iommu::new(costs(), Walker::vtd(4));
    unit.attach(DEVICE, DOMAIN, ROOT, own);
    let memory = Memory::default();
    // Whatever is asked first finds the context entry cached.
    let _ = unit.translate(0, (DEVICE, 1, false), &memory);
    (unit, memory)
}

const LATER: u64 = 1_000_000_000;

fn pages(first: u64, count: u64, leaf_only: bool) -> Command {
    let range = IovaRange::new(first, count).unwrap();
    Command::Pages { domain: DOMAIN, range, leaf_only }
}

#[test]
fn a_miss_costs_the_words_that_are_read_and_a_hit_none() {
    let (mut unit, memory) = unit(0);
    memory.map(5, 0x9000, RW);
    memory.map(6, 0xa000, RW);
    memory.map(600, 0xb000, RW);
    let c = costs();
    let mut ask = |at: u64, page| {
        let before = unit.counts().reads;
        let found = unit.translate(at, (DEVICE, page, true), &memory);
        (found.page.map(|p| p.0), found.ready - at, unit.counts().reads - before)
    };
    let walk = |reads| c.miss.ps() + reads * c.read.ps();
    assert_eq!(ask(LATER, 5), (Some(0x9000), walk(4), 4), "the whole way");
    assert_eq!(ask(2 * LATER, 5), (Some(0x9000), c.hit.ps(), 0));
    assert_eq!(ask(3 * LATER, 6), (Some(0xa000), walk(1), 1), "the table is known");
    assert_eq!(ask(4 * LATER, 600), (Some(0xb000), walk(2), 2), "the table of tables is");
    // Somebody else's walk for the same page is under way.
    memory.map(7, 0xc000, RW);
    let _ = ask(5 * LATER, 7);
    assert_eq!(ask(5 * LATER + 1000, 7), (Some(0xc000), walk(1) - 1000, 0));
}

#[test]
fn the_context_entry_is_read_once_and_again_when_it_is_forgotten() {
    let mut unit = Iommu::new(costs(), Walker::vtd(4));
    unit.attach(DEVICE, DOMAIN, ROOT, 0);
    let memory = Memory::default();
    memory.map(5, 0x9000, RW);
    let reads = |unit: &mut Iommu, at| {
        let before = unit.counts().reads;
        let _ = unit.translate(at, (DEVICE, 5, false), &memory);
        unit.counts().reads - before
    };
    assert_eq!([reads(&mut unit, 0), reads(&mut unit, LATER)], [2 + 4, 0]);
    unit.execute(Command::Config { device: DEVICE, domain: DOMAIN });
    assert_eq!(reads(&mut unit, 2 * LATER), 2);
    let stranger = unit.translate(0, (DeviceId(9), 5, false), &memory);
    assert_eq!(stranger.page, None);
}

#[test]
fn walks_wait_for_a_walker() {
    let (mut unit, memory) = unit(0);
    let walkers = u64::from(costs().walkers);
    let ready: Vec<u64> = (0..walkers + 1)
        .map(|n| {
            memory.map(n, 0x10_0000 + (n << 12), RW);
            unit.translate(LATER, (DEVICE, n, false), &memory).ready - LATER
        })
        .collect();
    assert!(ready[..walkers as usize].iter().all(|r| *r <= ready[0]));
    let one = costs().miss.ps() + costs().read.ps();
    assert_eq!(*ready.last().unwrap(), 2 * one, "behind the first of those that had one read");
}

#[test]
fn what_was_cleared_stays_until_a_command_covers_it() {
    let (mut unit, memory) = unit(0);
    memory.map(5, 0x9000, RW);
    let reaches =
        |unit: &mut Iommu| unit.translate(LATER, (DEVICE, 5, true), &memory).page.is_some();
    assert!(reaches(&mut unit));
    memory.unmap(5);
    for command in [pages(6, 2, true), pages(4, 1, false), Command::Domain(DomainId(1))] {
        unit.execute(command);
        assert!(reaches(&mut unit), "{command:?} does not cover it");
    }
    for command in [pages(5, 1, true), pages(4, 4, false), Command::Domain(DOMAIN), Command::All] {
        unit.execute(command);
        assert!(!reaches(&mut unit), "{command:?} covers it");
        memory.map(5, 0x9000, RW);
        assert!(reaches(&mut unit), "absence is not cached");
        memory.unmap(5);
    }
}

#[test]
fn commands_for_leaves_keep_the_way_and_others_forget_it() {
    let (mut unit, memory) = unit(0);
    memory.map(5, 0x9000, RW);
    let reads = |unit: &mut Iommu, command| {
        let _ = unit.translate(LATER, (DEVICE, 5, false), &memory);
        unit.execute(command);
        let before = unit.counts().reads;
        let _ = unit.translate(2 * LATER, (DEVICE, 5, false), &memory);
        unit.counts().reads - before
    };
    assert_eq!(reads(&mut unit, pages(5, 1, true)), 1);
    assert_eq!(reads(&mut unit, pages(5, 1, false)), 4, "all tables above the page");
    assert_eq!(reads(&mut unit, Command::Domain(DOMAIN)), 4);
    unit.execute(pages(5 << 18, 1, false));
    assert_eq!(unit.walks_to(PhysAddr(0x10_0000)), Some(0), "tables above other pages stay");
    unit.execute(pages(5, 1, false));
    assert_eq!(unit.walks_to(PhysAddr(0x10_0000)), None);
}

#[test]
fn a_large_page_is_one_entry_and_goes_as_one() {
    let (mut unit, memory) = unit(0);
    memory.map(0, 0, RW);
    memory.0.borrow_mut().insert((0x3000, 1), 0x4000_0000 | LARGE | RW);
    let to = unit.translate(LATER, (DEVICE, 512 + 17, true), &memory).page;
    assert_eq!(to, Some(PhysAddr(0x4000_0000 + (17 << 12))));
    let before = unit.counts();
    assert!(unit.translate(2 * LATER, (DEVICE, 1023, true), &memory).page.is_some());
    assert_eq!(unit.counts().hits, before.hits + 1);
    unit.execute(pages(512 + 300, 1, true));
    assert!(unit.usable().all(|c| c.first != 512), "any page of it");
}

#[test]
fn rights_are_kept_and_refusals_recorded() {
    let (mut unit, memory) = unit(0);
    memory.map(5, 0x9000, 1);
    for _ in 0..2 {
        assert!(unit.translate(LATER, (DEVICE, 5, false), &memory).page.is_some());
        assert!(unit.translate(LATER, (DEVICE, 5, true), &memory).page.is_none());
    }
    assert!(unit.translate(LATER, (DEVICE, 99, true), &memory).page.is_none());
    let faults: Vec<_> = unit.faults().map(|f| (f.page, f.write)).collect();
    assert_eq!(faults, [(1, false), (5, true), (5, true), (99, true)]);
    assert_eq!(unit.counts().faults, 4);
}

#[test]
fn a_device_that_is_told_too_early_asks_again_and_keeps_the_old_answer() {
    let range = IovaRange::new(5, 1);
    let device = Command::Device { device: DEVICE, range };
    for (order, reaches) in
        [([device, pages(5, 1, true)], true), ([pages(5, 1, true), device], false)]
    {
        let (mut unit, memory) = unit(8);
        memory.map(5, 0x9000, RW);
        let ask = |unit: &mut Iommu| unit.translate(LATER, (DEVICE, 5, true), &memory);
        let first = ask(&mut unit);
        assert_eq!(
            first.ready - LATER,
            costs().miss.ps() + 4 * costs().read.ps() + costs().ask.ps()
        );
        assert_eq!(ask(&mut unit).page, first.page);
        assert_eq!(unit.counts().device_hits, 1);
        memory.unmap(5);
        for command in order {
            unit.execute(command);
            // The device goes on using the address all the time.
            let _ = ask(&mut unit);
        }
        assert_eq!(ask(&mut unit).page.is_some(), reaches, "{order:?}");
        assert_eq!(unit.usable().next().is_some(), reaches);
    }
}

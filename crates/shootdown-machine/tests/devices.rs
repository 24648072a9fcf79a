//! The library's domain on the machine, with a device that goes on using what it has seen: the
//! oracle is silent as long as the library keeps its promises, and speaks when a step of it is
//! taken out.

use std::cell::OnceCell;
use std::rc::Rc;

use shootdown_machine::io::{self, Hardware, HostileCounts, Promise, Setup};
use shootdown_machine::shootdown_dma::domain::{Config as DomainConfig, Domain};
use shootdown_machine::shootdown_dma::fixed::Fixed;
use shootdown_machine::shootdown_dma::iova::Tree;
use shootdown_machine::shootdown_dma::iova::space::Space;
use shootdown_machine::shootdown_dma::mutant::{self, Mutant};
use shootdown_machine::shootdown_dma::table::VtdSecondLevel;
use shootdown_machine::shootdown_dma::{DmaAddr, Policy, Rights};
use shootdown_machine::{Config, Cpu, CpuId, Machine, Profile, Time, Violation};

const CPUS: u32 = 2;
const BYTES: u64 = 64;
/// Requests under way at a time.
const CONNECTIONS: u32 = 8;
/// What is mapped lazily is unreachable after this.
const WITHIN: Time = Time::from_us(11_000);

type InMachine = Fixed<Domain<io::Kernel<Tree>>>;

struct Driver {
    domain: OnceCell<InMachine>,
    policy: Policy,
    promise: Promise,
    end: Time,
}

impl Driver {
    fn domain(&self) -> &Domain<io::Kernel<Tree>> {
        &self.domain.get().expect("booted")[0]
    }

    fn boot(&self, own: u32) {
        let config = DomainConfig::new(CPUS as usize).policy(self.policy);
        let tree = Tree::new(&Space::below(1 << 20)).expect("a space");
        let format = VtdSecondLevel::new(4, true, true).expect("four levels");
        let units = [(io::new_queue(), io::DOMAIN)];
        let domain = Domain::new(io::Kernel::new(), config, tree, format, io::Tables, units);
        let mut domain = Some(domain.expect("memory"));
        let placed = Fixed::new(1, |_| domain.take().expect("one")).expect("memory");
        let _attachment = placed[0].attach(0, io::DEVICE, own != 0).expect("room");
        io::attach(io::DEVICE, placed[0].root(), own);
        assert!(self.domain.set(placed).is_ok());
        for cpu in 0..CPUS {
            let [receive, send] = [(), ()].map(|()| self.map(cpu, Rights::ReadWrite));
            io::set_rings(cpu, receive, send);
            (0..4).for_each(|_| io::post(cpu, self.map(cpu, Rights::Write)));
        }
        io::turn_hostile(Time::from_ns(100));
        io::begin(CONNECTIONS);
    }

    fn map(&self, cpu: u32, rights: Rights) -> DmaAddr {
        let page = io::take_memory(cpu).expect("pages enough");
        let at = self.domain().map(page, BYTES, rights).expect("addresses enough").into_raw();
        io::mapped(at, page, BYTES);
        at
    }

    fn unmap(&self, at: DmaAddr) {
        let page = io::page_behind(at);
        // SAFETY: the device gives each buffer back once.
        unsafe { self.domain().unmap_raw(at, BYTES) }.expect("it is mapped");
        io::unmapped(at, BYTES, self.promise);
        io::give_memory(page);
    }

    fn serve(&self, c: &mut Cpu, cpu: u32, rate: Time) {
        let mut polled = c.now();
        while c.now() < self.end {
            while let Some(at) = io::reclaim(cpu) {
                self.unmap(at);
            }
            if let Some(request) = io::receive(cpu) {
                self.unmap(request.at);
                io::post(cpu, self.map(cpu, Rights::Write));
                c.compute(rate);
                io::send(cpu, request.connection, self.map(cpu, Rights::Read));
            }
            if c.now() >= Time::from_ps(polled.ps() + 1_000_000_000) {
                polled = c.now();
                self.domain().poll(polled.ps() / 1000).expect("no complaint");
            }
            c.compute(Time::from_ns(500));
        }
    }
}

/// Some virtual milliseconds of traffic. `rate`: the work for a request. `own`: entries of the
/// card's own cache.
fn traffic(
    policy: Policy,
    millis: u64,
    rate: Time,
    own: u32,
) -> Result<HostileCounts, Box<Violation>> {
    traffic_by(Time::from_ns(210), policy, millis, rate, own)
}

/// The same, by a unit that takes so long for a command.
fn traffic_by(
    command: Time,
    policy: Policy,
    millis: u64,
    rate: Time,
    own: u32,
) -> Result<HostileCounts, Box<Violation>> {
    let promise = match policy {
        Policy::Strict => Promise::Now,
        Policy::Deferred => Promise::Held,
        _ => Promise::LazyUnmapping { within: WITHIN },
    };
    let profile = Profile::named("haswell-ep-48").expect("built in");
    let mut costs = profile.devices().expect("it has devices");
    (costs.iommu.pages, costs.iommu.domain) = (command, command);
    let mut config = Config::new(profile);
    config.cpus = Some(CPUS + 1);
    let mut machine = Machine::new(config).expect("a machine");
    let setup =
        Setup { costs, cpus: CPUS, pages: 512, piece: 1, translated: true, promise, seed: 5 };
    let hardware = Hardware::new(setup);
    let end = Time::from_us(1000 * millis);
    let driver = Rc::new(Driver { domain: OnceCell::new(), policy, promise, end });
    machine.spawn(CpuId(CPUS), io::serve).expect("a CPU for the hardware");
    for cpu in 0..CPUS {
        let driver = Rc::clone(&driver);
        let program = move |c: &mut Cpu| {
            if cpu == 0 {
                driver.boot(own);
                c.wake(CpuId(1));
            } else {
                c.idle();
            }
            driver.serve(c, cpu, rate);
            io::leave();
        };
        machine.spawn(CpuId(cpu), program).expect("a CPU");
    }
    machine.run().map(|_| hardware.hostile())
}

const BUSY: Time = Time::from_ns(300);

/// The promise that is broken with a step taken out, by a slow unit: a fast one is done before
/// anybody could tell.
fn broken(mutant: Mutant, policy: Policy, millis: u64, rate: Time, own: u32) -> &'static str {
    mutant::set(Some(mutant));
    let outcome = traffic_by(Time::from_us(20), policy, millis, rate, own);
    assert!(mutant::reached(), "{mutant:?} is not come by");
    mutant::set(None);
    outcome.map_or_else(|violation| violation.invariant, |_| "nothing")
}

#[test]
fn strict_a_device_gets_to_nothing_that_was_unmapped() {
    for own in [0, 16] {
        let got = traffic(Policy::Strict, 3, BUSY, own).unwrap();
        assert!(got.mapped > 1000 && got.refused > 1000, "it tries what is mapped and what is not");
        assert_eq!((got.unmapped, got.recycled), (0, 0));
    }
}

#[test]
fn held_a_device_gets_to_pages_that_nobody_else_has() {
    let got = traffic(Policy::Deferred, 3, BUSY, 0).unwrap();
    assert!(got.unmapped > 100, "it does get to what was unmapped: {got:?}");
    assert_eq!(got.recycled, 0);
}

#[test]
fn lazy_a_device_gets_to_pages_of_others_for_a_bounded_time() {
    let got = traffic(Policy::Lazy, 3, BUSY, 0).unwrap();
    assert!(got.recycled > 10, "{got:?}");
    // Little traffic: only the timer has them forgotten.
    let rare = traffic(Policy::Lazy, 40, Time::from_us(2000), 0).unwrap();
    let longest = rare.longest.unwrap();
    assert!(longest > Time::from_us(5000) && longest <= WITHIN, "{longest}");
}

#[test]
fn steps_taken_out_are_seen() {
    let give = broken(Mutant::GivenBackEarly, Policy::Deferred, 3, BUSY, 0);
    assert!(["frame-reuse", "range-reuse"].contains(&give), "{give}");
    assert_eq!(broken(Mutant::StrictDoesNotWait, Policy::Strict, 3, BUSY, 0), "revocation");
    let skipped = broken(Mutant::WaitSkipped, Policy::Deferred, 3, BUSY, 0);
    assert!(["frame-reuse", "range-reuse"].contains(&skipped), "{skipped}");
    let late = broken(Mutant::TimerForgets, Policy::Lazy, 40, Time::from_us(2000), 0);
    assert_eq!(late, "lazy-bound");
    let trusted = broken(Mutant::SubmittedTrusted, Policy::Strict, 3, BUSY, 0);
    assert_eq!(trusted, "revocation");
}

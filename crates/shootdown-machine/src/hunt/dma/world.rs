//! What the CPUs of the model kernel share, and how it begins.

use std::cell::Cell;
use std::ptr;

use shootdown::CpuId;
use shootdown_dma::bounce::Guarded;
use shootdown_dma::domain::Domain;
use shootdown_dma::invalidate::Attachment;
use shootdown_dma::sync::{AtomicU32, AtomicU64, Ordering};
use shootdown_dma::table::{AmdV1, ArmStage1, ArmStage2, Format, VtdSecondLevel};
use shootdown_dma::{DeviceId, DmaAddr, DomainId, IovaRange, PhysAddr};

use super::config::{Config, TWO, Tables};
use super::decode;
use super::devices::{self, Traveller};
use super::domains::{AnyDomain, AnyGuarded, Placed};
use super::driver::Content;
use super::failures::Limbo;
use super::frames::Frames;
use super::given::Unmanaged;
use super::host::{self, Devices, Pages, Sides, TABLES, Wire};
use super::mistake::Mistake;
use super::op::{BUFFERS, Op};
use super::pools::{self, Pools};
use super::sources::Addresses;
use crate::hunt::{hooks, hw, io};

/// Something that drivers share. One at a time is at it.
pub(super) struct Slot<T> {
    busy: AtomicU32,
    content: Cell<T>,
}

impl<T: Default> Slot<T> {
    pub fn new() -> Self {
        Self { busy: AtomicU32::new(0), content: Cell::default() }
    }

    /// Does something with it, if nobody else does.
    pub fn enter(&self, f: impl FnOnce(T) -> T) {
        // ORDERING: Acquire, with the Release below: drivers know what the last one at it did.
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            hooks::touch(ptr::from_ref(&self.content) as usize, true);
            self.content.set(f(self.content.take()));
            self.busy.store(0, Ordering::Release);
        }
    }
}

/// The device of the second domain.
pub(super) const SECOND: DeviceId = DeviceId(9);

/// What the CPUs share.
pub(super) struct Kernel {
    pub config: Config,
    cpus: usize,
    domains: [Cell<Option<Placed>>; TWO],
    /// The tags of each domain, by the unit's number.
    tags: [[DomainId; TWO]; TWO],
    pub slots: [Slot<Content>; BUFFERS as usize],
    /// The attachment of the second domain's own device.
    pub second: Slot<Option<Attachment>>,
    /// How often that domain has ended.
    pub ended: Cell<u8>,
    /// The CPU that is about to make it again, for which a table is kept.
    pub maker: Cell<Option<CpuId>>,
    pub given: Unmanaged,
    /// A device that comes and goes.
    pub traveller: Slot<Traveller>,
    pub frames: Frames,
    /// Free tables: the last is taken first.
    pub tables: [Cell<PhysAddr>; TABLES],
    /// A word for each page of tables, by its number.
    pub sides: Sides,
    pub free: Cell<usize>,
    pub pools: Pools,
    pub limbo: Limbo,
    /// Nanoseconds.
    pub clock: Cell<u64>,
    /// Where the first domain's window begins.
    pub window: Cell<DmaAddr>,
    /// The CPUs do what they have done before anything is hunted.
    pub booting: Cell<bool>,
}

thread_local! {
    static KERNEL: Cell<*const Kernel> = const { Cell::new(ptr::null()) };
}

/// The tag of a domain at a unit. (A mistaken one, which differs in bit 0, is nobody's.)
const fn tag(domain: usize, unit: usize) -> DomainId {
    DomainId(8 + 2 * domain as u16 + 4 * unit as u16)
}

impl Kernel {
    /// That of the run in this thread.
    pub fn here() -> &'static Self {
        // SAFETY: set at boot to what lies in the run's memory, and asked for by that run's code
        // only.
        unsafe { KERNEL.get().as_ref() }.expect("the world has booted")
    }

    /// Makes the domains, with a device behind each unit for the first, and one for the second; and
    /// lets CPUs do what they have done before.
    pub fn boot(config: Config, cpus: usize, before: &[Vec<Op>]) {
        io::set_up(io::Model {
            walker: io::Walker {
                levels: config.format.levels(),
                granule: config.format.granule(),
                decode: decode::of(config.format),
            },
            units: config.units,
            coherent: config.coherent,
            remembers_absence: config.absence,
            survives_once: config.survives,
            faults: config.faults,
            moody: Some(devices::ID),
            denials: config.denials,
        });
        let tables = host::place_tables(config.format.granule());
        let promised = config.policy != shootdown_dma::Policy::Lazy;
        let kernel = hw::place(Self {
            config,
            cpus,
            domains: std::array::from_fn(|_| Cell::new(None)),
            tags: std::array::from_fn(|domain| std::array::from_fn(|unit| tag(domain, unit))),
            slots: std::array::from_fn(|_| Slot::new()),
            second: Slot::new(),
            ended: Cell::new(0),
            maker: Cell::new(None),
            given: Unmanaged::default(),
            traveller: Slot::new(),
            frames: Frames::new(promised, config.format.granule()),
            free: Cell::new(config.tables.min(tables.len())),
            tables: std::array::from_fn(|n| Cell::new(*tables.get(n).unwrap_or(&PhysAddr(0)))),
            sides: std::array::from_fn(|_| AtomicU64::new(0)),
            pools: Pools::new(config.format.granule()),
            limbo: Limbo::default(),
            clock: Cell::new(0),
            window: Cell::new(DmaAddr(0)),
            booting: Cell::new(true),
        });
        KERNEL.set(kernel.as_ptr());
        let kernel = Self::here();
        for (number, domain) in kernel.domains.iter().enumerate().take(config.domains) {
            domain.set(Some(kernel.make(number, cpus)));
        }
        if config.window {
            kernel.window.set(
                kernel.domain(0).open_window(config.window_pages()).expect("room for a window"),
            );
        }
        io::tables_are_ready();
        for unit in 0..config.units {
            kernel.attachment(0, unit, DeviceId(1 + unit as u32));
        }
        if config.domains > 1 {
            let attachment = kernel.attachment(1, 0, SECOND);
            kernel.second.enter(|_| attachment);
        }
        for (cpu, ops) in (0..).zip(before) {
            hw::boot_as(CpuId(cpu), || ops.iter().for_each(|op| kernel.run(*op)));
        }
        if !before.is_empty() {
            io::tables_are_ready();
        }
        kernel.booting.set(false);
    }

    /// All that CPUs share outside of atomics and of what one of them is alone with, as a hash.
    pub fn state(&self) -> u64 {
        let free = self.tables[..self.free.get()].iter().map(|page| page.get().0);
        let maker = self.maker.get().map_or(0, |cpu| u64::from(cpu.0) + 1);
        let ending = u64::from(self.ended.get()) | maker << 8;
        let words = free
            .chain([self.clock.get(), ending])
            .chain(self.frames.words())
            .chain(self.pools.words())
            .chain(self.given.words());
        words.fold(0, |hash, word| hw::mix(hash ^ word))
    }

    /// A device that is there from the beginning, and stays.
    fn attachment(&self, domain: usize, unit: usize, device: DeviceId) -> Option<Attachment> {
        io::plug(device, unit, self.config.atc);
        self.sit(domain, unit, device)
    }

    /// Such a device is put into a domain. `None`: the library does not know its unit.
    pub fn sit(&self, domain: usize, unit: usize, device: DeviceId) -> Option<Attachment> {
        let named = unit == 0 || !self.config.errs(Mistake::OneUnitNamed);
        let attachment = named.then(|| {
            let caches = self.config.atc && !self.config.errs(Mistake::CachesDenied);
            self.domain(domain).attach(unit, device, caches).expect("room")
        });
        self.enter(domain, unit, device);
        if let Some(attachment) = &attachment {
            self.domain(domain).announce(attachment).expect("units answer");
        }
        io::is_served(device);
        attachment
    }

    /// A domain that has ended is made again, with the table that was kept.
    pub fn make_anew(&self, number: usize) {
        self.domains[number].set(Some(self.make(number, self.cpus)));
        self.maker.set(None);
    }

    /// One table at least is left for this CPU.
    pub fn keep_a_table(&self) {
        self.maker.set(Some(hw::this_cpu()));
    }

    /// Makes the entry of a device valid.
    pub fn enter(&self, domain: usize, unit: usize, device: DeviceId) {
        let tag = u64::from(tag(domain, unit).0);
        let root = self.domain(domain).root().0 | io::VALID;
        if self.config.errs(Mistake::EntryBackwards) {
            io::write_entry(device, io::Half::Low, root);
            io::write_entry(device, io::Half::High, tag);
        } else {
            io::write_entry(device, io::Half::High, tag);
            io::write_entry(device, io::Half::Low, root);
        }
    }

    fn make(&self, number: usize, cpus: usize) -> Placed {
        match self.config.format {
            Tables::Vtd => self.make_with(number, cpus, VtdSecondLevel::new(3, true, false)),
            Tables::Amd => self.make_with(number, cpus, AmdV1::new(3, true)),
            Tables::Arm1 => self.make_with(number, cpus, ArmStage1::new(3, 0)),
            Tables::Arm2 => self.make_with(number, cpus, ArmStage2::new(3)),
            Tables::Arm1Of16K => self.make_with(number, cpus, ArmStage1::<14>::with_granule(3, 0)),
            Tables::Arm2Of64K => self.make_with(number, cpus, ArmStage2::<16>::for_width(42)),
        }
    }

    fn make_with<F: Format>(&self, number: usize, cpus: usize, format: Option<F>) -> Placed {
        let config = &self.config;
        let named = if config.errs(Mistake::OneUnitNamed) { 1 } else { config.units };
        let units = (0..named).map(|unit| (Wire(unit), tag(number, unit)));
        let addresses = Addresses::new(config, cpus);
        let format = format.expect("three levels, or two");
        let (host, made_for) = (Devices::<F>::new(), config.domain(cpus));
        if config.bounce {
            let pool = pools::of(number, F::GRANULE);
            let domain = Guarded::new(host, made_for, addresses, format, Pages, units, pool);
            return Placed::Guarded(hw::place(domain.expect("memory for a domain")));
        }
        let domain = Domain::new(host, made_for, addresses, format, Pages, units);
        Placed::Plain(hw::place(domain.expect("memory for a domain")))
    }

    /// A domain.
    pub fn domain(&self, number: usize) -> &'static dyn AnyDomain {
        let domain = self.domains[number].get().expect("there is such a domain");
        // SAFETY: in the run's memory, which outlives all that its CPUs do.
        unsafe { domain.domain() }
    }

    /// The same with its pool, if it has one.
    pub fn guarded(&self, number: usize) -> Option<&'static dyn AnyGuarded> {
        let domain = self.domains[number].get().expect("there is such a domain");
        // SAFETY: as above.
        unsafe { domain.guarded() }
    }

    /// All of them.
    pub fn all_domains(&self) -> impl Iterator<Item = &'static dyn AnyDomain> + '_ {
        (0..self.config.domains).map(|number| self.domain(number))
    }

    /// Addresses of a domain, for the oracle.
    pub fn addresses(&self, domain: usize, range: IovaRange) -> io::Addresses<'_> {
        io::Addresses { range, tags: &self.tags[domain] }
    }

    /// The world is over: what the domains have outside of the run's memory is freed.
    ///
    /// # Safety
    /// Nobody uses the domains any more.
    pub unsafe fn end(&self) {
        for domain in self.domains.iter().filter_map(Cell::take) {
            // SAFETY: placed at boot, and dropped once.
            unsafe { domain.end() }
        }
    }
}

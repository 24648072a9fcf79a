//! The kernel's half of the domain: references, pages for tables, the IOMMU.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use shootdown_dma::domain::{Domain, Host};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::iova::space::Space;
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::sync::{AtomicU32, Ordering};
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{TableMemory, VtdSecondLevel};
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::Config;
use super::config::END;
use super::driver::Content;
use super::frames::Frames;
use super::op::BUFFERS;
use crate::hunt::{hw, io};

/// Pages for tables, at most.
pub(super) const TABLES: usize = 6;
/// The id that the unit knows the domain by.
const ID: DomainId = DomainId(7);

/// What drivers share of a buffer. One at a time is at it.
pub(super) struct Slot {
    busy: AtomicU32,
    content: Cell<Content>,
}

impl Slot {
    /// Does something with the buffer, if nobody else does.
    pub fn enter(&self, f: impl FnOnce(Content) -> Content) {
        // ORDERING: Acquire, with the Release below: drivers know what the last one at the buffer did.
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            self.content.set(f(self.content.take()));
            self.busy.store(0, Ordering::Release);
        }
    }
}

/// What the CPUs share.
pub(super) struct Kernel {
    pub config: Config,
    domain: Cell<Option<NonNull<Domain<Devices>>>>,
    pub slots: [Slot; BUFFERS as usize],
    pub frames: Frames,
    /// Free pages for tables: the last is taken first.
    tables: [Cell<PhysAddr>; TABLES],
    free: Cell<usize>,
    /// Nanoseconds.
    pub clock: Cell<u64>,
}

thread_local! {
    static KERNEL: Cell<*const Kernel> = const { Cell::new(ptr::null()) };
}

impl Kernel {
    /// That of the run in this thread.
    pub fn here() -> &'static Self {
        // SAFETY: set at boot to what lies in the run's memory, and asked for by that run's code only.
        unsafe { KERNEL.get().as_ref() }.expect("the world has booted")
    }

    /// Makes the domain, with a device in it.
    pub fn boot(config: Config, cpus: usize) {
        let pages = io::tables::<TABLES>();
        let slot = || Slot { busy: AtomicU32::new(0), content: Cell::new(Content::Nothing) };
        let kernel = hw::place(Self {
            config,
            domain: Cell::new(None),
            slots: std::array::from_fn(|_| slot()),
            frames: Frames::new(config.policy != shootdown_dma::Policy::Lazy),
            tables: pages.map(Cell::new),
            free: Cell::new(config.tables),
            clock: Cell::new(0),
        });
        KERNEL.set(kernel.as_ptr());
        let space = Space::below(END).from(END - config.pages);
        let tree = Tree::new(&space).expect("a space");
        let format = VtdSecondLevel::new(3, true, false).expect("three levels");
        let units = [(Devices, ID)];
        let domain = Domain::new(Devices, config.domain(cpus), tree, format, Devices, units);
        let domain = hw::place(domain.expect("memory for a domain"));
        Self::here().domain.set(Some(domain));
        let domain = Self::here().domain();
        let _ = domain.attach(0, DeviceId(1), config.atc).expect("room for a device");
        io::attach(io::Walker::vtd(3), ID, domain.root(), config.atc);
    }

    pub fn domain(&self) -> &'static Domain<Devices> {
        // SAFETY: in the run's memory, which outlives all that its CPUs do.
        unsafe { self.domain.get().expect("there is a domain").as_ref() }
    }

    /// The world is over: what the domain has outside of the run's memory is freed.
    ///
    /// # Safety
    /// Nobody uses the domain any more.
    pub unsafe fn end(&self) {
        if let Some(domain) = self.domain.take() {
            // SAFETY: placed at boot, and dropped once.
            unsafe { domain.drop_in_place() }
        }
    }
}

/// The kernel, its table pages, and its IOMMU. What they keep is in [`Kernel`] and the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Devices;

// SAFETY: a frame is recycled when its owner has freed it and it is not held (`frames.rs`).
unsafe impl Host for Devices {
    type Addresses = Tree;
    type Format = VtdSecondLevel;
    type Tables = Self;
    type Unit = Self;

    fn cpu(&self) -> usize {
        hw::this_cpu().index()
    }

    fn relax(&self) -> bool {
        io::relax();
        true
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        Kernel::here().frames.hold(first, pages);
        true
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        Kernel::here().frames.release(first, pages);
    }
}

// SAFETY: pages of the machine, cleared when they are taken; who is given one has it until it is freed.
unsafe impl TableMemory for Devices {
    fn allocate(&self) -> Option<PhysAddr> {
        let kernel = Kernel::here();
        let Some(left) = kernel.free.get().checked_sub(1) else {
            hw::witness("no-table-left");
            return None;
        };
        kernel.free.set(left);
        let page = kernel.tables[left].get();
        io::table_is_taken(page);
        Some(page)
    }

    unsafe fn free(&self, page: PhysAddr) {
        io::table_is_free(page);
        hw::witness("io-table-freed");
        let kernel = Kernel::here();
        let free = kernel.free.get();
        kernel.tables[free].set(page);
        kernel.free.set(free + 1);
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        io::table(page)
    }
}

// SAFETY: `io::completed` returns a ticket when all commands up to it have taken effect, the devices' after the IOMMU's.
unsafe impl Unit for Devices {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        Ok(io::submit(commands))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(io::completed())
    }
}

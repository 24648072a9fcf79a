//! Ways to map for devices.

use shootdown_machine::Time;
use shootdown_machine::io::{self, Promise};
use shootdown_machine::shootdown_dma::domain::{Config, Domain, Limits};
use shootdown_machine::shootdown_dma::fixed::Fixed;
use shootdown_machine::shootdown_dma::iova::Allocate;
use shootdown_machine::shootdown_dma::iova::identity::{Layout, LeafSize};
use shootdown_machine::shootdown_dma::iova::magazine::{self, Magazines};
use shootdown_machine::shootdown_dma::iova::space::{INTERRUPTS, Space};
use shootdown_machine::shootdown_dma::iova::tree::Tree;
use shootdown_machine::shootdown_dma::table::VtdSecondLevel;
use shootdown_machine::shootdown_dma::{DeviceId, DmaAddr, PhysAddr, Policy, Rights};

use super::stock::Stock;

/// What a driver calls. Made on a CPU of the machine, so that all of it lies in its memory.
pub trait Mapper {
    /// The root of its page table; `None`: devices are not translated.
    fn root(&self) -> Option<PhysAddr>;
    /// Maps memory.
    fn map(&self, phys: PhysAddr, bytes: u64, rights: Rights) -> DmaAddr;
    /// Unmaps it.
    fn unmap(&self, at: DmaAddr, bytes: u64);
    /// The timer; in nanoseconds.
    fn poll(&self, now_ns: u64);
    /// Nodes of the allocator's tree.
    fn nodes(&self) -> usize {
        0
    }
}

/// A design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// No IOMMU.
    Off,
    /// One tree under one lock.
    OneLock,
    /// Magazines for each CPU over a tree.
    Magazines,
    /// Addresses that follow from the memory's.
    Identity,
    /// All of memory, one to one, in leaves of this size.
    Window(LeafSize),
}

/// A design under a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contestant {
    pub design: Design,
    pub policy: Policy,
    /// Each ring lies in a page of its own, and not those of all CPUs in one of 2 MiB.
    pub apart: bool,
}

/// Pages of a GiB: a window is of whole leaves.
const GIB: u64 = 1 << 18;

impl Contestant {
    /// Rings lie together, if the design is the library's.
    pub const fn new(design: Design, policy: Policy) -> Self {
        Self { design, policy, apart: false }
    }

    /// Are all rings mapped as one large page?
    pub const fn has_large_rings(self) -> bool {
        !self.apart && matches!(self.design, Design::Magazines | Design::Identity)
    }

    pub fn name(self) -> String {
        let policy = self.policy;
        let name = match self.design {
            Design::Off => "off".to_owned(),
            Design::OneLock => format!("one lock, {policy}"),
            Design::Magazines => format!("magazines, {policy}"),
            Design::Identity => format!("identity, {policy}"),
            Design::Window(LeafSize::Page) => "static 1:1, 4K".to_owned(),
            Design::Window(LeafSize::Large) => "static 1:1, 2M".to_owned(),
            Design::Window(LeafSize::Huge) => "static 1:1, 1G".to_owned(),
        };
        if self.apart { name + ", rings apart" } else { name }
    }

    /// What an unmapping promises.
    pub fn promise(self) -> Promise {
        match self.policy {
            Policy::Strict => Promise::Now,
            Policy::Deferred => Promise::Held,
            // The bound of the policy, and the time between two polls.
            _ => Promise::LazyUnmapping {
                within: Time::from_us(Limits::DEFAULT.window_ns / 1000 + POLL_US),
            },
        }
    }

    /// Makes it, for so many CPUs, so many mappings at a time, and memory of so many pages. On a
    /// CPU.
    pub fn make(self, cpus: u32, most: u32, pages: u64) -> Box<dyn Mapper> {
        let config = Config::new(cpus as usize).policy(self.policy);
        match self.design {
            Design::Off => Box::new(Off),
            Design::OneLock => {
                Box::new(Stock::new(self.policy == Policy::Strict, most, cpus as usize))
            }
            Design::Magazines => {
                Box::new(InDomain::new(config, magazines(&SPACE, cpus), (true, true), None))
            }
            Design::Identity => {
                let layout = Layout::new(36, 27, LeafSize::Large).expect("48 bits are enough");
                let addresses = magazines(&layout.fallback(), cpus);
                Box::new(InDomain::new(config.identity(layout), addresses, (true, true), None))
            }
            Design::Window(leaves) => {
                let large = (leaves >= LeafSize::Large, leaves >= LeafSize::Huge);
                let config = config.policy(Policy::Bypass).trusted();
                let tree = Tree::new(&SPACE).expect("a space");
                Box::new(InDomain::new(config, tree, large, Some(pages.next_multiple_of(GIB))))
            }
        }
    }
}

/// Microseconds from one poll to the next.
pub const POLL_US: u64 = 1000;

/// 48 bits of address.
const SPACE: Space<'static> = Space::below(1 << 36).without(&[INTERRUPTS]);

fn magazines(space: &Space<'_>, cpus: u32) -> Magazines<Tree> {
    let tree = Tree::new(space).expect("a space");
    let config = magazine::Config::for_cpus(cpus as usize).checked(false);
    Magazines::new(tree, &config).expect("memory for magazines")
}

/// No IOMMU: addresses are the memory's.
struct Off;

impl Mapper for Off {
    fn root(&self) -> Option<PhysAddr> {
        None
    }

    fn map(&self, phys: PhysAddr, _: u64, _: Rights) -> DmaAddr {
        DmaAddr(phys.0)
    }

    fn unmap(&self, _: DmaAddr, _: u64) {}

    fn poll(&self, _: u64) {}
}

/// The library's domain.
struct InDomain<A: Allocate>(Fixed<Domain<io::Kernel<A>>>);

impl<A: Allocate> InDomain<A> {
    fn new(config: Config, addresses: A, large: (bool, bool), window: Option<u64>) -> Self {
        let format = VtdSecondLevel::new(4, large.0, large.1).expect("four levels");
        let units = [(io::new_queue(), io::DOMAIN)];
        let kernel = io::Kernel::new();
        let domain = Domain::new(kernel, config, addresses, format, io::Tables, units);
        let mut domain = Some(domain.expect("memory for a domain"));
        let one = |_| domain.take().expect("one is asked for");
        let placed = Fixed::new(1, one).expect("memory for a domain");
        let _attachment = placed[0].attach(0, io::DEVICE, false).expect("room for a device");
        if let Some(pages) = window {
            let _ = placed[0].open_window(pages).expect("the device is trusted");
        }
        Self(placed)
    }
}

impl<A: Allocate> Mapper for InDomain<A> {
    fn root(&self) -> Option<PhysAddr> {
        Some(self.0[0].root())
    }

    fn map(&self, phys: PhysAddr, bytes: u64, rights: Rights) -> DmaAddr {
        self.0[0].map(phys, bytes, rights).expect("there are addresses").into_raw()
    }

    fn unmap(&self, at: DmaAddr, bytes: u64) {
        // SAFETY: the device gives each buffer back once, to one CPU.
        unsafe { self.0[0].unmap_raw(at, bytes) }.expect("it is mapped");
    }

    fn poll(&self, now_ns: u64) {
        self.0[0].poll(now_ns).expect("the unit does not complain");
    }
}

/// The device of the experiments.
pub const DEVICE: DeviceId = io::DEVICE;

//! Devices and their IOMMU in virtual time.
//!
//! # The problem
//! How fast a kernel maps and unmaps for devices is decided by three things together: the lines
//! that CPUs fight for, the time that the IOMMU takes for commands, and the misses that devices
//! meet. So the library's domain runs on the machine's CPUs, over page tables and an invalidation
//! queue in the machine's memory; and an IOMMU as it is built ([`iommu`]) serves devices that use
//! what is mapped.
//!
//! # The protocol
//! All hardware is one coroutine beside the CPUs, the *agent*: it sleeps until the next thing
//! happens that any of it does (`Event`), in the order of time with everything else. CPUs reach it
//! as kernels do: by registers (which cost what the profile says, and act some time later), by
//! memory, and by interrupts from it. [`Hardware`] makes it and installs it for the thread; the
//! last CPU of the machine is lent to the agent ([`serve`]).
//!
//! What the library shares lies in the machine's memory if it is made while a CPU runs, and is
//! traced by its atomics; what only a lock's holder uses is charged by the lines of the cell that
//! it is in (`__shootdown_touch`). Memory of the heap that such a cell leads to is charged as a
//! hit: queues of what is owed, magazines.
//!
//! # What is promised
//! | when | nobody | invariant |
//! |---|---|---|
//! | a strict unmapping returns ([`unmapped`]) | reaches the memory by these addresses | [`Revocation`](crate::oracle::Invariant::Revocation) |
//! | a page is recycled: its owner has given it, and nobody holds it (not if the policy is lazy) | reaches it | [`FrameReuse`](crate::oracle::Invariant::FrameReuse) |
//! | a mapping returns ([`mapped`]) | reaches anything else by its addresses | [`RangeReuse`](crate::oracle::Invariant::RangeReuse) |
//! | a page of a page table is given back | can walk to it | [`TableReuse`](crate::oracle::Invariant::TableReuse) |
//! | a device reaches what was unmapped lazily | does so later than the bound | [`LazyBound`](crate::oracle::Invariant::LazyBound) |
//!
//! The checks are those of the hunts ([`devices`](crate::oracle)); here they see what a real IOMMU
//! would have cached, there everything that one could.
//!
//! | file | does |
//! |---|---|
//! | `iommu.rs`, `cache.rs`, `walk.rs` | caches, walks, faults |
//! | `queue.rs` | commands, as the unit reads them |
//! | `port.rs` | the library's seams: registers, ring, tables, references |
//! | `frames.rs` | memory that drivers own and the domain holds |
//! | `agent.rs` | what happens when |
//! | `nic.rs` | a network card |
//! | `nvme.rs` | drives |
//! | `hostile.rs` | a device that uses what it should not |

mod agent;
mod cache;
mod frames;
mod hostile;
pub mod iommu;
mod nic;
pub mod nvme;
mod port;
pub mod queue;
pub mod walk;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr;

use shootdown_dma::{DeviceId, DmaAddr, DomainId, IovaRange, PhysAddr};

pub use agent::serve;
pub use hostile::{HostileCounts, Promise, turn_hostile};
pub use iommu::{Fault, Iommu, IommuCounts};
pub use nic::{NicCounts, Received, begin, post, receive, reclaim, send, set_rings, wait};
pub use port::{Kernel, Registers, Tables, new_queue};

use crate::engine;
use crate::oracle::{self, devices};
use crate::profile::DeviceCosts;
use agent::Events;
use frames::Frames;
use hostile::{Gone, Hostile};
use nic::Nic;
use nvme::{Nvme, NvmeCounts};
use port::TablePages;
use queue::Commands;
use walk::Walker;

/// The domain that devices are in.
pub const DOMAIN: DomainId = DomainId(1);

/// What the hardware is.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What it costs.
    pub costs: DeviceCosts,
    /// CPUs that use it; the one behind the last is the agent's.
    pub cpus: u32,
    /// Pages of memory for each of them to have buffers in.
    pub pages: u32,
    /// Pages that are taken together: they divide `pages`, and lie in a row.
    pub piece: u32,
    /// Requests go through the IOMMU.
    pub translated: bool,
    /// What is promised of a page that is recycled.
    pub promise: Promise,
    /// Names the run.
    pub seed: u64,
}

/// All hardware of a run.
pub(crate) struct State {
    setup: Setup,
    iommu: Iommu,
    commands: Commands,
    tables: TablePages,
    frames: Frames,
    /// By page of address: what is mapped, as drivers believe.
    live: BTreeMap<u64, PhysAddr>,
    /// The same for what was unmapped, until the address is mapped again.
    gone: BTreeMap<u64, Gone>,
    /// When everything has landed that was translated so far, ps.
    landing: u64,
    events: Events,
    nic: Nic,
    nvme: Nvme,
    hostile: Option<Hostile>,
    /// Devices rest.
    stopped: bool,
    /// CPUs that have left.
    left: u32,
}

thread_local! {
    static STATE: Cell<*mut State> = const { Cell::new(ptr::null_mut()) };
}

/// Uses the hardware of this thread's run. `f` neither suspends nor comes back here.
///
/// # Panics
/// When there is none.
pub(crate) fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    let state = STATE.get();
    assert!(!state.is_null(), "the run has devices");
    // SAFETY: set by `Hardware`, which lives as long as it is set; nobody else has a reference, as
    // `f` does not come back.
    f(unsafe { &mut *state })
}

/// The hardware of a run, for as long as this lives.
pub struct Hardware(Box<State>);

impl Hardware {
    /// Hardware for this thread's next run.
    ///
    /// # Panics
    /// When there is some already.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut state = Box::new(State {
            iommu: Iommu::new(setup.costs.iommu, Walker::vtd(port::LEVELS)),
            commands: Commands::default(),
            tables: TablePages::default(),
            frames: Frames::new(&setup),
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            landing: 0,
            events: Events::default(),
            nic: Nic::new(&setup),
            nvme: Nvme::new(&setup),
            hostile: None,
            stopped: false,
            left: 0,
            setup,
        });
        assert!(STATE.get().is_null(), "one hardware at a time");
        STATE.set(&raw mut *state);
        Self(state)
    }

    /// What the IOMMU has done.
    #[must_use]
    pub fn iommu(&self) -> IommuCounts {
        with(|s| s.iommu.counts())
    }

    /// What the network card has done.
    #[must_use]
    pub fn nic(&self) -> NicCounts {
        with(|s| s.nic.counts)
    }

    /// What the drives have done.
    #[must_use]
    pub fn nvme(&self) -> NvmeCounts {
        with(|s| s.nvme.counts)
    }

    /// What the hostile device has got to.
    #[must_use]
    pub fn hostile(&self) -> HostileCounts {
        with(|s| s.hostile.as_ref().map_or_else(HostileCounts::default, |h| h.counts))
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        STATE.set(ptr::null_mut());
        let _ = &self.0;
    }
}

/// Makes the device's entry in the IOMMU valid. `own`: entries of a cache of its own, or 0.
pub fn attach(device: DeviceId, root: PhysAddr, own: u32) {
    engine::step();
    with(|s| s.iommu.attach(device, DOMAIN, root, own));
}

/// The devices rest from now on. The IOMMU goes on.
pub fn stop() {
    engine::step();
    with(|s| s.stopped = true);
}

/// This CPU has no use for the hardware any more; when all have said so, it ends.
pub fn leave() {
    engine::step();
    let agent = with(|s| {
        s.left += 1;
        (s.left == s.setup.cpus).then_some(s.setup.cpus)
    });
    if let Some(agent) = agent {
        engine::agent::rouse(agent, engine::now());
    }
}

/// Stops the run if the oracle has found something.
fn checked(found: Result<(), devices::Finding>) {
    if let Err((invariant, details)) = found {
        let cpu = shootdown::CpuId(engine::cpu());
        engine::fail(&oracle::Violation::new(invariant, cpu, details));
    }
}

/// The pages that some bytes lie in.
fn range(at: DmaAddr, bytes: u64) -> IovaRange {
    let first = at.0 >> 12;
    let pages = ((at.0 + bytes.max(1) - 1) >> 12) - first + 1;
    IovaRange::new(first, pages).expect("what is mapped is a range")
}

/// Memory was mapped: the addresses lead there.
pub fn mapped(at: DmaAddr, first: PhysAddr, bytes: u64) {
    engine::step();
    let range = range(at, bytes);
    let memory = PhysAddr(first.0 & !0xfff);
    checked(with(|s| {
        for n in 0..range.pages() {
            s.gone.remove(&(range.first() + n));
            s.live.insert(range.first() + n, PhysAddr(memory.0 + (n << 12)));
        }
        devices::leads_to(s.iommu.usable(), range, memory)
    }));
}

/// An unmapping returned, with this promise.
pub fn unmapped(at: DmaAddr, bytes: u64, promise: Promise) {
    engine::step();
    let range = range(at, bytes);
    let now = engine::now();
    checked(with(|s| {
        let mut found = Ok(());
        for page in range.first()..=range.last() {
            let Some(to) = s.live.remove(&page) else { continue };
            let recycled = s.frames.number(to).map_or(0, |page| s.frames.times_recycled(page));
            s.gone.insert(page, Gone { to, since: now, promise, recycled });
            let one = IovaRange::new(page, 1).expect("a page of a range");
            if promise == Promise::Now {
                found = found.and(devices::revoked(s.iommu.usable(), one, to));
            }
        }
        found
    }));
}

/// The memory that an address was mapped to, or is its own.
#[must_use]
pub fn page_behind(at: DmaAddr) -> PhysAddr {
    with(|s| s.live.get(&(at.0 >> 12)).copied()).unwrap_or(PhysAddr(at.0 & !0xfff))
}

/// The CPU that executes this.
#[must_use]
pub fn this_cpu() -> usize {
    engine::cpu() as usize
}

/// A turn of a loop that waits for hardware.
pub fn relax() {
    engine::relax();
}

/// A piece of memory for this CPU's buffers, of [`Setup::piece`] pages; `None`: there is none.
#[must_use]
pub fn take_memory(cpu: u32) -> Option<PhysAddr> {
    with(|s| s.frames.take(cpu))
}

/// Pages of a piece.
#[must_use]
pub fn piece() -> u32 {
    with(|s| s.setup.piece)
}

/// Its owner has no use for this piece any more.
pub fn give_memory(first: PhysAddr) {
    engine::step();
    checked(with(|s| s.give(first)));
}

/// Two MiB of memory, aligned to that, for what all CPUs' rings are in. They are never given back.
#[must_use]
pub fn ring_memory() -> PhysAddr {
    with(|s| s.frames.rings())
}

impl State {
    /// The device asks for a page: when it may use it. `None`: a fault.
    fn translate(&mut self, now: u64, at: u64, write: bool) -> Option<u64> {
        if !self.setup.translated {
            return Some(now);
        }
        self.hostile_sees(at >> 12);
        let found = self.iommu.translate(now, (DEVICE, at >> 12, write), &self.tables);
        found.page.map(|_| found.ready)
    }

    /// An access lands at `at`.
    fn lands(&mut self, at: u64) -> u64 {
        self.landing = self.landing.max(at);
        at
    }
}

/// A driver looks for something that a device has written.
fn look<T>(found: impl FnOnce(&mut State) -> Option<T>) -> Option<T> {
    engine::step();
    let (found, line) = with(|s| (found(s), s.setup.costs.line));
    if found.is_some() {
        engine::charge(line);
    }
    found
}

/// The device of a run: the card, or the drive.
pub const DEVICE: DeviceId = DeviceId(0x0300);

/// The `index`-th number of the stream named `seed` (splitmix64, Steele and others 2014).
const fn draw(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

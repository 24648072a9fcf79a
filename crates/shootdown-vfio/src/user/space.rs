//! The interface for a driver in user space.

use core::fmt;
use core::marker::PhantomData;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::thread::yield_now;

use shootdown_dma::addr::{DeviceId, DomainId, IovaRange, PhysAddr, Rights};
use shootdown_dma::domain::{
    self, Config, Counts, DmaAddr, Domain, DomainError, Host, Mapping, Policy,
};
use shootdown_dma::fixed::NoMemory;
use shootdown_dma::invalidate::{AttachError, Attachment};
use shootdown_dma::iova::Allocate;
use shootdown_dma::pinned::NOBODY;
use shootdown_dma::table::TableMemory;
use shootdown_dma::table::memory::Table;

use super::backend::{Backend, BackendError, Windows, WindowsError};
use super::kernel::{Calls, Kernel, Live};
use super::mapped::Mapped;
use super::shadow::Shadow;

/// The owner of the buffers: it is called when devices begin and cease to reach them, if the space
/// [holds](Config::holds) pages.
///
/// Drivers that recycle buffers need it under [`Policy::Deferred`]: a buffer that is released may
/// be used again. Numbers are addresses of this process, at the start of a page of the space's size
/// (4 KiB, unless it was [made otherwise](Space::with_granule)).
pub trait Memory: Send + Sync {
    /// `pages` pages from `first` on are going to be mapped. False: they must not be mapped, and
    /// nothing has changed.
    fn hold(&self, first: u64, pages: u64) -> bool {
        let _ = (first, pages);
        true
    }

    /// No device reaches the pages any more by one of the mappings that they were held for.
    fn release(&self, first: u64, pages: u64) {
        let _ = (first, pages);
    }
}

/// No owner: for buffers that are never recycled, or under [`Policy::Strict`].
impl Memory for () {}

impl<M: Memory + ?Sized> Memory for Arc<M> {
    fn hold(&self, first: u64, pages: u64) -> bool {
        (**self).hold(first, pages)
    }
    fn release(&self, first: u64, pages: u64) {
        (**self).release(first, pages);
    }
}

/// The process, as the host of a domain.
pub(super) struct Seam<B, A, M, const GRANULE: u32> {
    kernel: Arc<Kernel<B>>,
    memory: M,
    addresses: PhantomData<fn() -> A>,
}

std::thread_local! {
    static THREAD: usize = {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

// SAFETY: buffers are recycled when `Memory::release` is called; `map` demands it.
unsafe impl<B: Backend, A: Allocate, M: Memory, const G: u32> Host for Seam<B, A, M, G> {
    type Addresses = A;
    type Format = Shadow<G>;
    type Tables = Heap;
    type Unit = Arc<Kernel<B>>;
    // A thread keeps its number as long as it lives.
    type Pin = usize;

    fn pin(&self) -> usize {
        THREAD.try_with(|number| *number).unwrap_or(NOBODY)
    }

    fn relax(&self) -> bool {
        self.kernel.work().is_ok()
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        self.memory.hold(first.0, pages)
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        self.memory.release(first.0, pages);
    }
}

/// Pages of the shadow: from the heap, each at its own address.
pub(super) struct Heap;

const PAGE_LAYOUT: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a page"),
};

/// The layout of `pages` pages, aligned to all of their size.
fn many(pages: usize) -> Option<Layout> {
    let bytes = pages.checked_mul(4096)?;
    Layout::from_size_align(bytes, bytes).ok()
}

// SAFETY: pages of the heap; no hardware reads them.
unsafe impl TableMemory for Heap {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        let page = unsafe { alloc_zeroed(PAGE_LAYOUT) };
        (!page.is_null()).then_some(PhysAddr(page as u64))
    }

    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        let first = unsafe { alloc_zeroed(many(pages)?) };
        (!first.is_null()).then_some(PhysAddr(first as u64))
    }

    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(page.0 as *mut u8, PAGE_LAYOUT) }
    }

    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        if let Some(layout) = many(pages) {
            // SAFETY: from `allocate_many`, as promised.
            unsafe { dealloc(first.0 as *mut u8, layout) }
        }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

/// Why there is no space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// The kernel offers no addresses or page sizes that a space can use.
    Windows(WindowsError),
    /// There is no memory for it, or for its allocator.
    NoMemory,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Windows(error) => error.fmt(f),
            Self::NoMemory => f.write_str("there is no memory for it; ask for fewer CPUs"),
        }
    }
}

impl core::error::Error for SpaceError {}

impl From<NoMemory> for SpaceError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

/// Why a buffer was not mapped. Nothing is mapped, and it is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapError {
    /// The domain has refused it: no addresses, no bytes.
    Domain(domain::MapError),
    /// The kernel has refused it.
    Kernel(BackendError),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domain(error) => error.fmt(f),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MapError {}

/// Why a buffer was not unmapped. Nothing has changed, except after
/// [`NotComplete`](Self::NotComplete).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnmapError {
    /// No bytes, or past the end.
    Invalid,
    /// Nothing is mapped there.
    NotMapped,
    /// It is a part of what one [`map`](Space::map) has mapped, or more than that: kernels don't
    /// cut mappings. Or [`map_at`](Space::map_at) has mapped it.
    Partial,
    /// The policy guarantees less than the space's does.
    Refused,
    /// The kernel has refused it, or not all of it. The device may still reach the buffer, which
    /// stays with the space; [`poll`](Space::poll) tries again.
    NotComplete(Option<BackendError>),
}

impl fmt::Display for UnmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("not a range of addresses"),
            Self::NotMapped => f.write_str("nothing is mapped there; was it unmapped before?"),
            Self::Partial => f.write_str("unmap what was mapped at once, with the same length"),
            Self::Refused => {
                f.write_str("the policy is weaker than the space's; use that, or strict")
            }
            Self::NotComplete(Some(error)) => write!(f, "the device may still reach it: {error}"),
            Self::NotComplete(None) => f.write_str("the device may still reach it; poll"),
        }
    }
}

impl core::error::Error for UnmapError {}

/// How many addresses are tried that another user of the kernel's address space has mapped.
const TRIES: usize = 16;

/// What devices see of this process's memory, with the kernel's page table.
///
/// ```
/// use shootdown_dma::domain::{Config, Policy};
/// use shootdown_dma::iova::magazine::{self, Magazines};
/// use shootdown_dma::iova::Tree;
/// use shootdown_vfio::user::{Space, dry::Dry};
/// use shootdown_dma::Rights;
///
/// let config = Config::new(4).policy(Policy::Deferred);
/// // A real one: `linux::VfioType1::open(26)?`, where 26 is the device's group.
/// let space = Space::new(Dry::default(), (), config, |space| {
///     Magazines::new(Tree::new(space).ok()?, &magazine::Config::for_cpus(4)).ok()
/// })?;
/// let mut buffer = vec![0u8; 8192];
/// // SAFETY: it lives until the space is ended.
/// let at = unsafe { space.map(buffer.as_mut_ptr(), 8192, Rights::ReadWrite) }?;
/// // The device is told `at`, and is done; then
/// space.unmap(at, 8192)?; // returns at once
/// space.poll(12_000_000)?; // from time to time: system calls for what is due
/// space.end().map_err(|(error, _)| error)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Space<B: Backend, A: Allocate, M: Memory = (), const GRANULE: u32 = 12> {
    pub(super) domain: Domain<Seam<B, A, M, GRANULE>>,
    pub(super) windows: Windows,
    /// The attachment of the kernel as a device behind the unit: commands go only to units with a
    /// device.
    attachment: Option<Attachment>,
}

impl<B: Backend, A: Allocate, M: Memory> Space<B, A, M> {
    /// Makes a space on a kernel, in pages of 4 KiB. `allocator` makes the allocator for the
    /// addresses that the kernel offers.
    ///
    /// Identity addresses and trust in `config` do not apply here; its limit is lowered to what the
    /// kernel offers.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(
        backend: B,
        memory: M,
        config: Config,
        allocator: impl FnOnce(&shootdown_dma::iova::Space<'_>) -> Option<A>,
    ) -> Result<Self, SpaceError> {
        Self::with_granule(backend, memory, config, allocator)
    }
}

impl<B: Backend, A: Allocate, M: Memory, const GRANULE: u32> Space<B, A, M, GRANULE> {
    /// The same in pages of 2^`GRANULE` bytes, 12 to 24: at least as large as the smallest that the
    /// kernel maps; on a kernel with pages of 64 KiB that is 64 KiB (VFIO rounds up to it). All
    /// numbers of pages are of these: of `config`, of the allocator's space, of [`Memory`].
    ///
    /// ```
    /// # use shootdown_dma::{Rights, domain::Config, iova::Tree};
    /// # use shootdown_vfio::user::{SpaceError, WindowsError, Windows, Space, dry::Dry};
    /// let large = || Dry::default().with_page_sizes(1 << 16 | 1 << 29);
    /// let small = Space::new(large(), (), Config::new(1), |space| Tree::new(space).ok());
    /// assert!(matches!(small.err(), Some(SpaceError::Windows(WindowsError::PageSize(_)))));
    ///
    /// let space = Space::<_, _, (), 16>::with_granule(large(), (), Config::new(1), |space| {
    ///     Tree::new(space).ok()
    /// })?;
    /// let mut buffer = vec![0u8; 70_000];
    /// // SAFETY: it lives until the space is ended, and so does what shares its pages: there is no device.
    /// let at = unsafe { space.map(buffer.as_mut_ptr(), 70_000, Rights::Read) }?;
    /// assert_eq!(at.0 % (1 << 16), buffer.as_ptr() as u64 % (1 << 16)); // the same place in its page
    /// space.unmap(at, 70_000)?;
    /// space.end().map_err(|(error, _)| error)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn with_granule(
        backend: B,
        memory: M,
        config: Config,
        allocator: impl FnOnce(&shootdown_dma::iova::Space<'_>) -> Option<A>,
    ) -> Result<Self, SpaceError> {
        let windows = Windows::of_granule(GRANULE, &backend).map_err(SpaceError::Windows)?;
        let addresses = allocator(&windows.space()).ok_or(SpaceError::NoMemory)?;
        let mut config = config;
        config.identity = None;
        config.trusted = false;
        config.caches_absence = false;
        config.limit = config.limit.min(windows.last());
        let kernel = Arc::new(Kernel::new(backend, GRANULE));
        let seam = Seam { kernel: Arc::clone(&kernel), memory, addresses: PhantomData };
        let units = [(kernel, DomainId(1))];
        let domain = Domain::new(seam, config, addresses, Shadow::new(), Heap, units);
        let domain = domain.map_err(|_: DomainError| SpaceError::NoMemory)?;
        let attachment = domain.attach(0, DeviceId(0), false).map_err(|_: AttachError| NoMemory)?;
        Ok(Self { domain, windows, attachment: Some(attachment) })
    }

    pub(super) fn kernel(&self) -> &Kernel<B> {
        &self.domain.host().kernel
    }

    /// The kernel.
    pub fn backend(&self) -> &B {
        &self.kernel().backend
    }

    /// The owner of buffers.
    pub fn memory(&self) -> &M {
        &self.domain.host().memory
    }

    /// Addresses that the kernel offered when the space was made.
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The allocator, for reading its state.
    pub fn addresses(&self) -> &A {
        self.domain.addresses()
    }

    /// Maps `bytes` bytes of memory for devices, and returns the address by which they reach it, at
    /// the same offset within the page. They reach all of the pages that the bytes lie in.
    ///
    /// # Safety
    /// Devices may read the pages, or write to them, as `rights` say, at any time until no device
    /// reaches them any more. That is when unmapping has returned under [`Policy::Strict`];
    /// otherwise when they are [released](Memory::release), or when a [`flush`](Self::flush) has
    /// succeeded that began after the unmapping. Until then they stay allocated, and are used only
    /// in ways that allow for that.
    ///
    /// # Errors
    /// See [`MapError`].
    pub unsafe fn map(
        &self,
        memory: *mut u8,
        bytes: u64,
        rights: Rights,
    ) -> Result<DmaAddr, MapError> {
        let mut flushed = false;
        let mut foreign: Vec<DmaAddr> = Vec::new();
        let outcome = loop {
            let mapped = self.domain.map(PhysAddr(memory as u64), bytes, rights);
            let mapped = mapped.map(Mapping::into_raw);
            let at = match mapped {
                Ok(at) => at,
                Err(domain::MapError::Busy) => {
                    yield_now();
                    continue;
                }
                Err(error) => break Err(MapError::Domain(error)),
            };
            // The domain has checked that it does not wrap.
            let Some(range) = pages_of(at, bytes, GRANULE) else { break Ok(at) };
            let memory = memory as u64 >> GRANULE << GRANULE;
            let live = Live { pages: range.pages(), memory, rights, brought: false };
            let Err(error) = self.kernel().map(range.first(), live) else { break Ok(at) };
            let shortage = matches!(error, BackendError::Entries | BackendError::Memory);
            if error == BackendError::Exists && foreign.len() < TRIES {
                // The address is kept until another one is found, so that it is not the next one
                // again.
                foreign.push(at);
                continue;
            }
            self.take_back(at, bytes);
            // For the kernel, what is deferred is still mapped and pinned.
            if !shortage || core::mem::replace(&mut flushed, true) || self.flush().is_err() {
                break Err(MapError::Kernel(error));
            }
        };
        for at in foreign {
            self.take_back(at, bytes);
        }
        outcome
    }

    /// Unmaps what the kernel has not mapped. The kernel has nothing to unmap, so this does not
    /// take long.
    #[cold]
    fn take_back(&self, at: DmaAddr, bytes: u64) {
        // SAFETY: it was mapped just now, and no caller has its address.
        let unmap = || unsafe { self.domain.unmap_raw_under(Policy::Strict, at, bytes) };
        while unmap() == Err(domain::UnmapError::Busy) {
            yield_now();
        }
    }

    /// Unmaps what one [`map`](Self::map) has mapped, under the space's policy.
    ///
    /// # Errors
    /// See [`UnmapError`].
    pub fn unmap(&self, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        self.unmap_under(self.domain.config().policy, at, bytes)
    }

    /// The same under another policy; as [`Domain::unmap_under`].
    ///
    /// # Errors
    /// See [`UnmapError`].
    pub fn unmap_under(&self, policy: Policy, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        let range = pages_of(at, bytes, GRANULE).ok_or(UnmapError::Invalid)?;
        if policy.is_weaker_than(self.domain.config().policy) {
            return Err(UnmapError::Refused);
        }
        match self.kernel().give_up(range.first(), range.pages()) {
            Some(Ok(())) => {}
            None if !self.kernel().is_live(range.first()) => return Err(UnmapError::NotMapped),
            _ => return Err(UnmapError::Partial),
        }
        let outcome = loop {
            // SAFETY: the list of mappings has it no more, and one thread only has removed it.
            match unsafe { self.domain.unmap_raw_under(policy, at, bytes) } {
                Err(domain::UnmapError::Busy) => yield_now(),
                outcome => break outcome,
            }
        };
        // Enough is deferred that commands were submitted; the thread that comes here executes
        // them.
        if policy != Policy::Strict && self.kernel().has_work() {
            let _ = self.kernel().work();
        }
        match outcome {
            Ok(_) => Ok(()),
            Err(_) => Err(UnmapError::NotComplete(self.kernel().failed())),
        }
    }

    /// Unmaps what has been deferred for too long, tries again what the kernel has refused, and
    /// gives back what is unmapped. Call it from a timer; see [`Domain::poll`]. Makes system calls,
    /// and waits for nothing else.
    ///
    /// # Errors
    /// The kernel's error if it refuses to unmap.
    pub fn poll(&self, now_ns: u64) -> Result<(), BackendError> {
        let _ = self.domain.poll(now_ns);
        let outcome = if self.kernel().has_work() { self.kernel().work() } else { Ok(()) };
        let _ = self.domain.poll(now_ns);
        outcome
    }

    /// Unmaps all that is deferred, and gives it back.
    ///
    /// # Errors
    /// The kernel's error if it refuses to unmap: that is still deferred.
    pub fn flush(&self) -> Result<(), BackendError> {
        let before = self.kernel().stale();
        let flushed = self.domain.flush();
        flushed.map_err(|_| self.kernel().failed().unwrap_or(BackendError::Other(0)))?;
        self.kernel().forget_stale(before);
        Ok(())
    }

    /// What is deferred at the moment: how many things, and how many pages are held back.
    pub fn deferred(&self) -> (usize, u64) {
        self.domain.deferred()
    }

    /// The number of mappings, and of those that the kernel still has though they were unmapped.
    pub fn mappings(&self) -> (usize, usize) {
        self.kernel().mapped()
    }

    /// All mappings, by their addresses: to recreate them in another process (migration), or to
    /// unmap them one by one (reset). The iterator allocates nothing and holds no lock between two
    /// of them: a mapping that is made or unmapped meanwhile may be among them or not.
    pub fn mapped(&self) -> Mapped<'_, B> {
        Mapped::new(self.kernel(), GRANULE)
    }

    /// The counts of what was done so far.
    pub fn counts(&self) -> Counts {
        self.domain.counts()
    }

    /// System calls so far.
    pub fn calls(&self) -> Calls {
        self.kernel().calls()
    }

    /// Unmaps everything, and ends the space. Buffers that are still mapped are released: no device
    /// reaches any.
    ///
    /// Dropping a space instead leaves its mappings mapped until the kernel's file is closed.
    ///
    /// # Errors
    /// The kernel's error if it refuses to unmap, and the space.
    #[allow(clippy::result_large_err)] // once in a space's life, and it comes back whole
    pub fn end(mut self) -> Result<A, (BackendError, Self)> {
        let why = |kernel: &Kernel<B>| kernel.failed().unwrap_or(BackendError::Other(0));
        if let Err(error) = self.flush() {
            return Err((error, self));
        }
        self.kernel().give_up_all();
        if let Some(attachment) = self.attachment.take() {
            if let Err((_, attachment)) = self.domain.detach(attachment) {
                let error = why(self.kernel());
                self.attachment = Some(attachment);
                return Err((error, self));
            }
        }
        let Self { domain, windows, .. } = self;
        // SAFETY: only the kernel used the shadow, and it has unmapped everything.
        unsafe { domain.end() }.map_err(|failed| {
            let error = why(&failed.domain.host().kernel);
            (error, Self { domain: failed.domain, windows, attachment: None })
        })
    }
}

/// The pages that some bytes lie in.
pub(super) fn pages_of(at: DmaAddr, bytes: u64, granule: u32) -> Option<IovaRange> {
    let last = at.0.checked_add(bytes.checked_sub(1)?)?;
    IovaRange::of_bytes(at.0, last, granule)
}

impl<B: Backend, A: Allocate, M: Memory, const G: u32> fmt::Debug for Space<B, A, M, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("mappings", &self.mappings())
            .field("defers", &self.deferred())
            .finish_non_exhaustive()
    }
}

//! The port: the library's two traits on the simulated hardware, for sets of 64, 512 and 4096 CPUs.
//!
//! A real kernel picks one width. The machine has three, so that the sets of a small machine are as
//! small as they would be in a kernel built for it, and hides them behind [`Library`].

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::NonNull;

use shootdown::accessed::Aged;
use shootdown::cpu_set::{AtomicCpuSet, Bits};
use shootdown::facts::{Facts, SplitTables, TagScope};
use shootdown::flush::{FlushError, Flushed, Request};
use shootdown::gather::{Gather, Keep};
use shootdown::ids::{CpuId, Tag, VaRange};
use shootdown::paravirt::{HypercallError, PreemptedWord, RemoteFlush};
use shootdown::platform::{CpuSetOf, KickError, Pinned, Platform, Stalled};
use shootdown::policy::Policy;
use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::space::{AddressSpace, RetireError};
use shootdown::stats::Snapshot;
use shootdown::tags::broadcast::SharedTags;
use shootdown::tags::generations::{Generations, TagsError};
use shootdown::{Batch, CallError, IrqsOff, PerCpu, Served, Slots, Switched, System, UserEntry};

use super::host;
use super::state::{State, here, with};
use crate::engine::{self, Vector};
use crate::mmu::{CpuMmu, Root, TablePage, Unmapped};
use crate::oracle::{self, Event};
use crate::time::Time;

/// The allocator of machine-wide tags: of up to 16 bits, for as many CPUs as a machine can have.
pub(super) type Tags = Generations<1024, { crate::MAX_CPUS as usize }>;

/// Simulated hardware under a kernel for up to `64 * W` CPUs.
pub(super) struct Port<const W: usize>;

/// Code of the machine never leaves its CPU.
pub(super) struct Pin(CpuId, PhantomData<*mut ()>);

// SAFETY: a program, and all it calls, runs on the coroutine of one CPU.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: (1) slots are allocated once per CPU, before it comes online. (2, 3) The engine keeps a
// pending interrupt until the CPU takes it, runs the handler with interrupts off, and waits for the
// sender's stores first. (4) Both live as long as the machine. (5) The only interrupt is maskable.
// (6, 7) A virtual CPU's coroutine is suspended between `Stopped` and `Resumes`; a hypercall
// returns when each CPU has forgotten under every tag (`host`).
unsafe impl<const W: usize> Platform for Port<W> {
    type Pin = Pin;
    type Regime = Hardware;
    type Mask = AtomicCpuSet<W>;
    type Slots = Slots<6>;
    type Tags = Tags;

    fn pin() -> Pin {
        Pin(CpuId(here()), PhantomData)
    }

    fn system() -> &'static System<Self> {
        let system = with(|s| s.system);
        // SAFETY: `Library::create` made a `System` of this width there; the arena outlives the
        // run.
        unsafe { system.cast().as_ref() }
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        let slot = with(|s| s.slots.get(cpu.index()).copied())?;
        // SAFETY: as in `system`.
        Some(unsafe { slot.cast().as_ref() })
    }

    fn kick(targets: &CpuSetOf<Self>) -> Result<(), KickError> {
        let all = with(|s| s.facts.kick_all && targets.len() as usize + 1 == s.cpus.len());
        engine::send(targets.iter().map(|c| c.0), Vector::Kick, all);
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        engine::relax();
        Ok(())
    }

    fn may_wait() -> bool {
        engine::irqs_are_on()
    }

    fn policy() -> &'static Policy {
        let policy = with(|s| &raw const s.policy);
        // SAFETY: the state outlives the run, and its policy never changes.
        unsafe { &*policy }
    }

    fn tags() -> Option<&'static Tags> {
        let tags = with(|s| s.tags)?;
        // SAFETY: `create` made an allocator there; the arena outlives the run.
        Some(unsafe { tags.cast().as_ref() })
    }

    fn shared_tags() -> Option<&'static SharedTags> {
        let tags = with(|s| s.shared_tags)?;
        // SAFETY: `create_shared_tags` made an allocator there; the arena outlives the run.
        Some(unsafe { tags.cast().as_ref() })
    }

    fn preempted(cpu: CpuId) -> Option<&'static PreemptedWord> {
        host::preempted(cpu)
    }

    fn flush_remote(flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        host::flush_remote(flush)
    }

    fn ticks() -> u64 {
        if engine::is_running() { engine::now().ps() / 1000 } else { 0 }
    }
}

/// The MMU of the executing CPU.
pub(super) struct Hardware;

// SAFETY: (1, 2) the MMU forgets at once what it is told to, and every MMU before `sync` returns
// from a broadcast; walks are instantaneous. (3) Facts come from the configuration. (4) Only `sync`
// of a broadcast waits. (7) Both MMU and fabric take any tag.
unsafe impl Regime for Hardware {
    type Root = Root;

    fn facts() -> &'static Facts {
        let facts = with(|s| &raw const s.facts);
        // SAFETY: the state outlives the run, and its facts never change.
        unsafe { &*facts }
    }

    unsafe fn load(root: Root, tag: Tag, keep: bool) {
        load(root, tag, keep);
        with(|s| s.mine().loaded = Some((root, tag)));
    }

    fn load_kernel() {
        // Tag 0 holds nothing worth keeping; without tags, loading drops everything anyway.
        load(Root::KERNEL, Tag(0), false);
        with(|s| s.mine().loaded = None);
    }

    fn publish() {
        if engine::is_running() && with(|s| s.facts.tag_scope == TagScope::System) {
            engine::drain();
        }
    }

    fn invalidate(what: Invalidate, reach: Reach) {
        note(match what {
            Invalidate::Range { tag, range, .. } => Event::InvalidateRange { tag, range },
            Invalidate::Tag(tag) => Event::InvalidateTag(tag),
            Invalidate::Kernel(range) => Event::InvalidateKernel(range),
            Invalidate::Everything => Event::InvalidateEverything,
        });
        match reach {
            Reach::Local => spend(with(|s| s.invalidate_here(what))),
            Reach::Broadcast => broadcast(what),
        }
    }

    fn sync(reach: Reach) {
        match reach {
            Reach::Local => spend(with(|s| s.costs.sync)),
            Reach::Broadcast => {
                if engine::is_running() {
                    engine::await_broadcast();
                }
                with(State::complete_broadcasts);
            }
        }
    }
}

/// Hands an invalidation to the fabric. The MMUs forget when the sync finds it complete, which is
/// as late as they may.
fn broadcast(what: Invalidate) {
    let operations = with(|s| {
        let strides = match what {
            Invalidate::Range { range, .. } | Invalidate::Kernel(range) => range.count(),
            Invalidate::Tag(_) | Invalidate::Everything => 1,
        };
        s.costs.broadcast.map_or(1, |costs| costs.instructions(strides))
    });
    if engine::is_running() {
        engine::broadcast(operations);
    }
    with(|s| {
        let me = s.mine();
        me.invalidations.broadcast += operations;
        me.broadcasts.push(what);
    });
}

impl State {
    /// The executing CPU forgets; what that costs.
    fn invalidate_here(&mut self, what: Invalidate) -> Time {
        let cpu = self.executing() as usize;
        let system = self.facts.tag_scope == TagScope::System;
        let (mmu, costs, counts) =
            (self.mmus.of(cpu), &self.costs, &mut self.cpus[cpu].invalidations);
        forget(mmu, what);
        match what {
            Invalidate::Range { tag, range, .. } if mmu.loaded().1 == tag => {
                counts.pages += range.count();
                costs.page * range.count()
            }
            Invalidate::Range { range, .. } => {
                counts.pages_other_tag += range.count();
                costs.page_other_tag * range.count()
            }
            Invalidate::Tag(tag) => {
                counts.tags += 1;
                // Without an operation that names a tag, loading the root again is the cheaper way.
                if mmu.loaded().1 == tag && !system { costs.load_flush } else { costs.tag }
            }
            Invalidate::Kernel(range) => {
                counts.kernel_pages += range.count();
                costs.page * range.count()
            }
            Invalidate::Everything => {
                counts.everything += 1;
                costs.everything
            }
        }
    }

    /// Every MMU forgets what the executing CPU had broadcast.
    fn complete_broadcasts(&mut self) {
        for what in std::mem::take(&mut self.mine().broadcasts) {
            for mmu in self.mmus.all() {
                forget(mmu, what);
            }
        }
    }
}

fn forget(mmu: &mut CpuMmu, what: Invalidate) {
    match what {
        Invalidate::Range { tag, range, leaf_only } => mmu.invalidate_range(tag, range, leaf_only),
        Invalidate::Tag(tag) => mmu.invalidate_tag(tag),
        Invalidate::Kernel(range) => mmu.invalidate_kernel(range),
        Invalidate::Everything => mmu.invalidate_everything(),
    }
}

/// Loads a root on the executing CPU, and charges for it.
pub(super) fn load(root: Root, tag: Tag, keep: bool) {
    let (result, cost) = with(|s| {
        let cpu = s.executing() as usize;
        let counts = &mut s.cpus[cpu].invalidations;
        let cost = if keep {
            counts.loads_kept += 1;
            s.costs.load_keep
        } else {
            counts.loads_flushed += 1;
            s.costs.load_flush
        };
        (s.mmus.of(cpu).load(&s.memory, root, tag, keep), cost)
    });
    note(Event::Load { root, tag, keep });
    checked(result);
    spend(cost);
}

/// Stops the run when a promise was broken.
pub(super) fn checked<T>(result: Result<T, Box<oracle::Violation>>) -> T {
    result.unwrap_or_else(|violation| engine::fail(&violation))
}

fn note(event: Event) {
    if engine::is_running() {
        engine::note(event);
    }
}

/// Lets time pass: with interrupts on they may come between, as between two instructions.
fn spend(cost: Time) {
    if !engine::is_running() {
    } else if engine::irqs_are_on() {
        engine::compute(cost);
    } else {
        engine::charge(cost);
    }
}

/// What becomes free when a flush is done.
pub(crate) enum Freed {
    Page(Unmapped),
    Table(TablePage),
}

/// A change to page tables that may have to be flushed.
pub(crate) enum Change {
    Unmapped(VaRange, Unmapped),
    Table(VaRange, TablePage),
    /// Other rights, and what that demands.
    Rights(VaRange, shootdown::Change),
}

#[derive(Default)]
struct Kept(Vec<Freed>);

impl Keep for Kept {
    type Item = Freed;

    fn push(&mut self, item: Freed) -> Result<(), Freed> {
        self.0.push(item);
        Ok(())
    }
}

/// Makes the allocator of machine-wide tags in its block.
pub(super) fn create_tags(block: NonNull<u8>, facts: &Facts, cpus: u32) -> Result<(), TagsError> {
    let pairs = facts.split_tables != SplitTables::No;
    let tags = Tags::new(facts.tag_bits, pairs, cpus)?;
    // SAFETY: the block was allocated with this layout, and nothing refers to it yet.
    unsafe { block.cast::<Tags>().write(tags) };
    Ok(())
}

/// Makes the allocator of tags for all CPUs, beside slots, in its block. `bits`: of a tag; `None`
/// when slots leave none.
pub(super) fn create_shared_tags(block: NonNull<u8>, bits: u8) -> Option<()> {
    // Slots have tags 1 to 6.
    let tags = SharedTags::new(Tag(7), bits).ok()?;
    // SAFETY: the block was allocated with this layout, and nothing refers to it yet.
    unsafe { block.cast::<SharedTags>().write(tags) };
    Some(())
}

/// Sizes of the library's objects.
pub(crate) struct Layouts {
    pub system: Layout,
    pub slot: Layout,
    pub space: Layout,
    pub tags: Layout,
    pub shared_tags: Layout,
}

/// The library as the kernel calls it, whatever the width of its sets.
pub(crate) trait Library {
    fn layouts(&self) -> Layouts;
    /// Makes the system and the CPUs' states in their blocks.
    fn create(&self);
    /// Brings the executing CPU online.
    fn online(&self);
    /// Makes an address space in its block.
    fn new_space(&self, root: Root, block: NonNull<u8>);
    fn retire(&self, space: NonNull<u8>) -> Result<(), RetireError>;
    /// Makes these CPUs, which run kernel threads, leave what they have loaded.
    fn evict(&self, cpus: &[u32]) -> Result<(), CallError>;
    fn switch_to(&self, space: NonNull<u8>) -> Switched;
    fn enter_lazy(&self);
    fn leave(&self);
    fn return_to_user(&self) -> UserEntry;
    fn on_kick(&self);
    fn flush(&self, space: NonNull<u8>, request: Request) -> Result<Flushed, FlushError>;
    fn flush_kernel(&self, range: VaRange) -> Result<(), FlushError>;
    fn accessed_cleared(&self, space: NonNull<u8>, range: VaRange) -> Result<Aged, FlushError>;
    fn tick(&self);
    /// Has `clear` unmap one page of each of these spaces after the other, and pays for all of them
    /// together.
    fn reclaim(
        &self,
        spaces: &[NonNull<u8>],
        clear: &mut dyn FnMut(usize) -> Option<(VaRange, Unmapped)>,
    ) -> Result<Vec<Freed>, FlushError>;
    /// Puts changes into a gather and finishes it.
    fn gather(&self, space: NonNull<u8>, changes: Vec<Change>) -> Result<Vec<Freed>, FlushError>;
    fn stats(&self, slot: NonNull<u8>) -> Snapshot;
}

/// The library for this many CPUs.
pub(super) fn library_for(cpus: u32) -> &'static dyn Library {
    match cpus {
        0..=64 => &Port::<1>,
        65..=512 => &Port::<8>,
        _ => &Port::<64>,
    }
}

impl<const W: usize> Port<W> {
    fn space(space: NonNull<u8>) -> &'static AddressSpace<Self> {
        // SAFETY: `new_space` made an `AddressSpace` of this width there; the kernel gives the
        // block back only after `retire`, and the arena outlives the run.
        unsafe { space.cast().as_ref() }
    }
}

impl<const W: usize> Library for Port<W> {
    fn layouts(&self) -> Layouts {
        Layouts {
            system: Layout::new::<System<Self>>(),
            slot: Layout::new::<PerCpu<Self>>(),
            space: Layout::new::<AddressSpace<Self>>(),
            tags: Layout::new::<Tags>(),
            shared_tags: Layout::new::<SharedTags>(),
        }
    }

    fn create(&self) {
        let (system, slots) = with(|s| (s.system, s.slots.clone()));
        // SAFETY: the blocks were allocated with these layouts, and nothing refers to them yet.
        unsafe {
            system.cast::<System<Self>>().write(System::new());
            for slot in slots {
                slot.cast::<PerCpu<Self>>().write(PerCpu::new());
            }
        }
    }

    fn online(&self) {
        let pin = Self::pin();
        // SAFETY: the machine has not started: no interrupt comes.
        let irqs = unsafe { IrqsOff::<Self>::assume(&pin) };
        shootdown::online(irqs).expect("facts were checked, and there is a slot");
    }

    fn new_space(&self, root: Root, block: NonNull<u8>) {
        let space = AddressSpace::<Self>::new(root);
        // SAFETY: the block was allocated with this layout, and nothing refers to it yet.
        unsafe { block.cast::<AddressSpace<Self>>().write(space) };
    }

    fn retire(&self, space: NonNull<u8>) -> Result<(), RetireError> {
        Self::space(space).retire(&Self::pin())
    }

    fn evict(&self, cpus: &[u32]) -> Result<(), CallError> {
        let mut targets = CpuSetOf::<Self>::EMPTY;
        cpus.iter().for_each(|cpu| targets.insert(CpuId(*cpu)));
        shootdown::call_on::<Self, _>(&Self::pin(), &targets, &|_| {
            if with(|s| s.mine().current.is_none()) {
                // This CPU runs the function with interrupts on.
                let was = engine::irqs(false);
                // SAFETY: interrupts are off, and a CPU without a program is lazy, or has nothing
                // loaded.
                unsafe { shootdown::leave::<Self>(&Self::pin()) };
                engine::irqs(was);
            }
        })
    }

    fn switch_to(&self, space: NonNull<u8>) -> Switched {
        // SAFETY: (1) the kernel turned interrupts off; (2) a space's block and tables stay until
        // `retire` has succeeded, which it does not while a CPU has the space; (3) ended spaces
        // have no handle.
        unsafe { shootdown::switch_to(&Self::pin(), Self::space(space)) }
    }

    fn enter_lazy(&self) {
        // SAFETY: the kernel turned interrupts off, in a task, which has no program from now on.
        unsafe { shootdown::enter_lazy::<Self>(&Self::pin()) };
    }

    fn leave(&self) {
        // SAFETY: the kernel turned interrupts off, in a task.
        unsafe { shootdown::leave::<Self>(&Self::pin()) };
    }

    fn return_to_user(&self) -> UserEntry {
        // SAFETY: the kernel turned interrupts off, and loads the user half next.
        unsafe { shootdown::return_to_user::<Self>(&Self::pin()) }
    }

    fn on_kick(&self) {
        let pin = Self::pin();
        // SAFETY: the machine runs handlers with interrupts off.
        let served = shootdown::on_kick(unsafe { IrqsOff::<Self>::assume(&pin) });
        assert_eq!(served, Served::Done, "switches run with interrupts off");
    }

    fn flush(&self, space: NonNull<u8>, request: Request) -> Result<Flushed, FlushError> {
        Self::space(space).flush(&Self::pin(), request)
    }

    fn flush_kernel(&self, range: VaRange) -> Result<(), FlushError> {
        shootdown::flush_kernel::<Self>(&Self::pin(), range)
    }

    fn accessed_cleared(&self, space: NonNull<u8>, range: VaRange) -> Result<Aged, FlushError> {
        Self::space(space).accessed_cleared(&Self::pin(), range)
    }

    fn tick(&self) {
        let pin = Self::pin();
        // SAFETY: the kernel turned interrupts off.
        shootdown::accessed::tick(unsafe { IrqsOff::<Self>::assume(&pin) });
    }

    fn reclaim(
        &self,
        spaces: &[NonNull<u8>],
        clear: &mut dyn FnMut(usize) -> Option<(VaRange, Unmapped)>,
    ) -> Result<Vec<Freed>, FlushError> {
        let pin = Self::pin();
        let mut batch = Batch::<Self, Kept>::new();
        for (index, space) in spaces.iter().enumerate() {
            let space = Self::space(*space);
            batch.make_room(&pin, space)?;
            if let Some((range, page)) = clear(index) {
                let put_off = batch.unmapped(space, range, page.dirty, Freed::Page(page));
                assert!(put_off.is_ok(), "there is room");
            }
        }
        batch.finish(&pin).map(|kept| kept.0).map_err(|(error, _)| error)
    }

    fn gather(&self, space: NonNull<u8>, changes: Vec<Change>) -> Result<Vec<Freed>, FlushError> {
        let mut gather = Gather::<Self, Kept>::new(Self::space(space));
        for change in changes {
            let pushed = match change {
                Change::Unmapped(range, page) => gather.unmapped(range, Freed::Page(page)),
                Change::Table(range, page) => gather.table_freed(range, Freed::Table(page)),
                Change::Rights(range, change) => {
                    let told = gather.updated(&Self::pin(), range, change);
                    debug_assert!(told.is_ok(), "rights change without a break");
                    Ok(())
                }
            };
            assert!(pushed.is_ok(), "a vector has room");
        }
        gather.finish(&Self::pin()).map(|kept| kept.0).map_err(|(error, _)| error)
    }

    fn stats(&self, slot: NonNull<u8>) -> Snapshot {
        // SAFETY: `create` made a `PerCpu` of this width there.
        unsafe { slot.cast::<PerCpu<Self>>().as_ref() }.stats()
    }
}

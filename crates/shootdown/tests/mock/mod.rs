// A kernel and its hardware in a few lines: up to eight CPUs that take turns in one thread, page tables
// that are a map, TLBs that never evict, and interrupts that arrive at once unless a CPU masks them.
// Shared by the documentation's examples, the tests and the benches (`include!` or `mod mock`), each of
// which uses a part of it.

use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::facts::{Errata, SplitTables, TagScope};
use shootdown::{
    AddressSpace, CpuId, Facts, Invalidate, KickError, PerCpu, Pinned, Platform, Policy, Reach,
    Regime, Served, Slots, Stalled, System, Tag,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub const CPUS: usize = 8;

pub const PCID: Facts = Facts {
    tag_scope: TagScope::PerCpu,
    tag_bits: 12,
    split_tables: SplitTables::No,
    errata: Errata { repeat_sync: false, survives_once: false, page_spares_globals: false },
    ..Facts::X86_64_MINIMUM
};

pub const PTI: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: false }, ..PCID };

/// What one CPU's hardware holds.
#[derive(Default)]
pub struct Hw {
    pub root: Option<u64>,
    pub tag: Tag,
    /// (tag, page) -> frame
    pub tlb: BTreeMap<(u16, u64), u64>,
}

pub struct World {
    pub system: System<Mock>,
    pub cpus: [PerCpu<Mock>; CPUS],
    pub hw: RefCell<[Hw; CPUS]>,
    /// (root, page) -> frame
    pub tables: RefCell<BTreeMap<(u64, u64), u64>>,
    pub current: Cell<u32>,
    pub masked: Cell<u64>,
    pub waiting: Cell<u64>,
    pub kicked: Cell<u64>,
    pub may_wait: Cell<bool>,
    pub refuse_kicks: Cell<bool>,
    pub patience: Cell<u32>,
    pub policy: Cell<&'static Policy>,
    pub facts: Cell<&'static Facts>,
    pub invalidations: RefCell<Vec<(u32, Invalidate)>>,
    /// Runs once inside the next invalidation: what an interrupt there would do.
    pub during_invalidation: Hook,
    /// Runs once inside the next turn of a wait loop.
    pub during_wait: Hook,
}

/// Something that happens once.
pub type Hook = RefCell<Option<Box<dyn FnOnce()>>>;

fn happen(hook: &Hook) {
    let now = hook.borrow_mut().take();
    now.into_iter().for_each(|f| f());
}

std::thread_local! {
    static WORLD: &'static World = Box::leak(Box::new(World {
        system: System::new(),
        cpus: [const { PerCpu::new() }; CPUS],
        hw: RefCell::default(),
        tables: RefCell::default(),
        current: Cell::new(0),
        masked: Cell::new(0),
        waiting: Cell::new(0),
        kicked: Cell::new(0),
        may_wait: Cell::new(true),
        refuse_kicks: Cell::new(false),
        patience: Cell::new(1000),
        policy: Cell::new(&Policy::SHOOTDOWN),
        facts: Cell::new(&PCID),
        invalidations: RefCell::default(),
        during_invalidation: RefCell::default(),
        during_wait: RefCell::default(),
    }));
}

/// This thread's world.
pub fn world() -> &'static World {
    WORLD.with(|w| *w)
}

pub struct Mock;

pub struct Pin(CpuId, core::marker::PhantomData<*const ()>);

// SAFETY: a mock CPU changes only inside `on_cpu`, which restores it.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: slots are distinct and constant; kicks arrive at once, or when unmasked.
unsafe impl Platform for Mock {
    type Pin = Pin;
    type Regime = Mock;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<6>;
    type Tags = shootdown::NoTags;

    fn pin() -> Pin {
        Pin(CpuId(world().current.get()), core::marker::PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        world().cpus.get(cpu.index())
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        if world().refuse_kicks.get() {
            return Err(KickError::NotReady);
        }
        for cpu in targets.iter() {
            world().kicked.set(world().kicked.get() + 1);
            if world().masked.get() & 1 << cpu.0 != 0 {
                world().waiting.set(world().waiting.get() | 1 << cpu.0);
            } else {
                on_cpu(cpu.0, |pin| assert_eq!(shootdown::on_kick::<Mock>(pin), Served::Done));
            }
        }
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        happen(&world().during_wait);
        let left = world().patience.get().checked_sub(1).ok_or(Stalled)?;
        world().patience.set(left);
        Ok(())
    }

    fn may_wait() -> bool {
        world().may_wait.get()
    }

    fn policy() -> &'static Policy {
        world().policy.get()
    }
}

// SAFETY: one thread plays all CPUs, and the TLB forgets what it is told to.
unsafe impl Regime for Mock {
    type Root = u64;

    fn facts() -> &'static Facts {
        world().facts.get()
    }

    unsafe fn load(root: u64, tag: Tag, keep: bool) {
        with_hw(|hw| {
            hw.root = Some(root);
            hw.tag = tag;
            if !keep {
                hw.tlb.retain(|(t, _), _| *t != tag.0);
            }
        });
    }

    fn load_kernel() {
        with_hw(|hw| {
            hw.root = None;
            hw.tag = Tag(0);
        });
    }

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        assert_eq!(reach, Reach::Local);
        happen(&world().during_invalidation);
        world().invalidations.borrow_mut().push((world().current.get(), what));
        with_hw(|hw| match what {
            Invalidate::Range { tag, range, .. } => {
                hw.tlb.retain(|(t, page), _| {
                    *t != tag.0 || page << 12 < range.start() || page << 12 > range.last()
                });
            }
            Invalidate::Tag(tag) => hw.tlb.retain(|(t, _), _| *t != tag.0),
            Invalidate::Kernel(range) => {
                let loaded = hw.tag.0;
                hw.tlb.retain(|(t, page), _| {
                    *t != loaded || page << 12 < range.start() || page << 12 > range.last()
                });
            }
            Invalidate::Everything => hw.tlb.clear(),
        });
    }

    fn sync(_: Reach) {}
}

fn with_hw<R>(f: impl FnOnce(&mut Hw) -> R) -> R {
    f(&mut world().hw.borrow_mut()[world().current.get() as usize])
}

/// Runs `f` on another CPU.
pub fn on_cpu<R>(cpu: u32, f: impl FnOnce(&Pin) -> R) -> R {
    let back = world().current.replace(cpu);
    let result = f(&Mock::pin());
    world().current.set(back);
    result
}

/// Masks a CPU's interrupts.
pub fn mask(cpu: u32) {
    world().masked.set(world().masked.get() | 1 << cpu);
}

/// Unmasks them, and takes what has waited.
pub fn unmask(cpu: u32) {
    world().masked.set(world().masked.get() & !(1 << cpu));
    if world().waiting.replace(world().waiting.get() & !(1 << cpu)) & 1 << cpu != 0 {
        on_cpu(cpu, |pin| assert_eq!(shootdown::on_kick::<Mock>(pin), Served::Done));
    }
}

/// Brings this CPU online unless it is.
pub fn boot_once(pin: &Pin) {
    if !world().system.online().contains(pin.cpu()) {
        shootdown::online::<Mock>(pin).expect("a CPU that fits");
    }
}

/// Brings the first `n` CPUs online under a policy and facts.
pub fn boot(n: u32, policy: &'static Policy, facts: &'static Facts) {
    world().policy.set(policy);
    world().facts.set(facts);
    for cpu in 0..n {
        on_cpu(cpu, boot_once);
    }
}

/// A space with a root of its own. It is never freed, so that it can be loaded anywhere.
pub fn new_space() -> &'static AddressSpace<Mock> {
    std::thread_local!(static ROOTS: Cell<u64> = const { Cell::new(0) });
    ROOTS.set(ROOTS.get() + 0x1000);
    Box::leak(Box::new(AddressSpace::new(ROOTS.get())))
}

/// Maps a page.
pub fn map(space: &AddressSpace<Mock>, page: u64, frame: u64) {
    world().tables.borrow_mut().insert((space.root(), page), frame);
}

/// Unmaps a page; the flush is the caller's.
pub fn unmap(space: &AddressSpace<Mock>, page: u64) -> Option<u64> {
    world().tables.borrow_mut().remove(&(space.root(), page))
}

/// What this CPU reads at a page: through its TLB, or by a walk that fills it.
pub fn access(page: u64) -> Option<u64> {
    with_hw(|hw| {
        let root = hw.root?;
        if let Some(frame) = hw.tlb.get(&(hw.tag.0, page)) {
            return Some(*frame);
        }
        let frame = *world().tables.borrow().get(&(root, page))?;
        hw.tlb.insert((hw.tag.0, page), frame);
        Some(frame)
    })
}

/// Switches a CPU to a space.
pub fn switch(cpu: u32, space: &'static AddressSpace<Mock>) -> shootdown::Switched {
    // SAFETY: the space is leaked, and one thread plays all CPUs, so nothing interrupts.
    on_cpu(cpu, |pin| unsafe { shootdown::switch_to(pin, space) })
}

// A kernel and its hardware in a few lines: up to eight CPUs that take turns in one thread, page
// tables that are a map, TLBs that never evict, and interrupts that arrive at once unless a CPU
// masks them. Shared by the documentation's examples, the tests and the benches (`include!` or `mod
// mock`), each of which uses a part of it.

use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::facts::{Broadcast, Errata, SplitTables, TagScope};
use shootdown::paravirt::{HypercallError, PreemptedWord, RemoteFlush};
use shootdown::tags::broadcast::SharedTags;
use shootdown::tags::generations::Generations;
use shootdown::{
    AddressSpace, CpuId, Facts, Invalidate, IrqsOff, KickError, PerCpu, Pinned, Platform, Policy,
    Reach, Regime, Served, Slots, Stalled, System, Tag,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub const CPUS: usize = 8;

pub const PCID: Facts = Facts {
    tag_scope: TagScope::PerCpu,
    tag_bits: 12,
    split_tables: SplitTables::No,
    errata: Errata {
        repeat_sync: false,
        survives_once: false,
        completes_early: false,
        page_spares_globals: false,
    },
    ..Facts::X86_64_MINIMUM
};

pub const PTI: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: false }, ..PCID };

/// Machine-wide tags, few of them, and interrupts.
pub const RISCV: Facts = Facts { tag_scope: TagScope::System, tag_bits: 3, ..PCID };

/// The same, and hardware that broadcasts.
pub const ARM: Facts = Facts { broadcast: Broadcast::Tlbi { ranges: true }, ..RISCV };

/// Tags of each CPU's own, nine beside them that could be everyone's, and hardware that broadcasts
/// by tag.
pub const INVLPGB: Facts =
    Facts { broadcast: Broadcast::Invlpgb { max_pages: 8 }, tag_bits: 4, ..PCID };

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
    /// CPUs that can't be interrupted, by their bits.
    pub unreachable: Cell<u64>,
    pub patience: Cell<u32>,
    pub policy: Cell<&'static Policy>,
    pub facts: Cell<&'static Facts>,
    pub tags: std::cell::OnceCell<Generations<1, CPUS>>,
    pub shared_tags: std::cell::OnceCell<SharedTags>,
    /// The first of them; slots have 1 to 6.
    pub first_shared: Cell<u16>,
    /// Broadcasts issued and not synced, with the issuing CPU.
    pub broadcasts: RefCell<Vec<(u32, Invalidate)>>,
    /// Broadcasts that a CPU completes only when it is interrupted.
    pub unfinished: RefCell<Vec<(u32, Invalidate)>>,
    /// Entries that have survived an invalidation: CPU, tag, page.
    pub survivors: RefCell<BTreeMap<(u32, u16, u64), ()>>,
    pub syncs: Cell<u32>,
    pub invalidations: RefCell<Vec<(u32, Invalidate)>>,
    /// The words of a guest's CPUs, where it is one.
    pub words: Cell<Option<&'static [PreemptedWord; CPUS]>>,
    /// Remote flushes that the hypervisor has made.
    pub hypercalls: RefCell<Vec<Hypercall>>,
    pub refuse_hypercalls: Cell<bool>,
    /// Runs once inside the next invalidation: what an interrupt there would do.
    pub during_invalidation: Hook,
    /// Runs once inside the next load of a root: the CPU is between two spaces.
    pub during_load: Hook,
    /// Runs once inside the next turn of a wait loop.
    pub during_wait: Hook,
    /// Runs once when the next kick was sent, before it is known whether it has failed.
    pub after_kick: Hook,
}

/// CPUs, pages (first address and count), freed tables.
pub type Hypercall = (u64, Vec<(u64, u16)>, bool);

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
        unreachable: Cell::new(0),
        patience: Cell::new(1000),
        policy: Cell::new(&Policy::SHOOTDOWN),
        facts: Cell::new(&PCID),
        tags: std::cell::OnceCell::new(),
        shared_tags: std::cell::OnceCell::new(),
        first_shared: Cell::new(7),
        broadcasts: RefCell::default(),
        unfinished: RefCell::default(),
        survivors: RefCell::default(),
        syncs: Cell::new(0),
        invalidations: RefCell::default(),
        words: Cell::new(None),
        hypercalls: RefCell::default(),
        refuse_hypercalls: Cell::new(false),
        during_invalidation: RefCell::default(),
        during_load: RefCell::default(),
        during_wait: RefCell::default(),
        after_kick: RefCell::default(),
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
    type Tags = Generations<1, CPUS>;

    fn pin() -> Pin {
        Pin(CpuId(world().current.get()), core::marker::PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn tags() -> Option<&'static Self::Tags> {
        world().tags.get()
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        world().cpus.get(cpu.index())
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        if world().refuse_kicks.get() {
            return Err(KickError::NotReady);
        }
        let mut result = Ok(());
        for cpu in targets.iter() {
            if world().unreachable.get() & 1 << cpu.0 != 0 {
                result = Err(KickError::Unreachable(cpu));
                continue;
            }
            world().kicked.set(world().kicked.get() + 1);
            if world().masked.get() & 1 << cpu.0 != 0 {
                world().waiting.set(world().waiting.get() | 1 << cpu.0);
            } else {
                interrupt(cpu.0);
            }
        }
        happen(&world().after_kick);
        result
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

    fn shared_tags() -> Option<&'static SharedTags> {
        let (first, bits) = (Tag(world().first_shared.get()), Mock::facts().tag_bits);
        Some(
            world()
                .shared_tags
                .get_or_init(|| SharedTags::new(first, bits).expect("some are left")),
        )
    }

    fn policy() -> &'static Policy {
        world().policy.get()
    }

    fn preempted(cpu: CpuId) -> Option<&'static PreemptedWord> {
        world().words.get()?.get(cpu.index())
    }

    fn flush_remote(flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        if world().refuse_hypercalls.get() {
            return Err(HypercallError::Status(5));
        }
        let list = flush.pages.iter().flat_map(|runs| runs.as_slice().to_vec());
        let list: Vec<_> = list.map(|run| (run.start, run.pages)).collect();
        for cpu in flush.cpus.iter() {
            assert_ne!(cpu.0, world().current.get());
            let hw = &mut world().hw.borrow_mut()[cpu.index()];
            let named = |page: u64| {
                let at = |(start, pages): &(u64, u16)| {
                    (*start..start + (u64::from(*pages) << 12)).contains(&(page << 12))
                };
                list.is_empty() || list.iter().any(at)
            };
            hw.tlb.retain(|(_, page), _| !named(*page));
        }
        let request = (flush.cpus.words()[0], list, flush.freed_tables);
        world().hypercalls.borrow_mut().push(request);
        Ok(())
    }
}

// SAFETY: one thread plays all CPUs, and the TLB forgets what it is notified to.
unsafe impl Regime for Mock {
    type Root = u64;

    fn facts() -> &'static Facts {
        world().facts.get()
    }

    unsafe fn load(root: u64, tag: Tag, keep: bool) {
        happen(&world().during_load);
        finish();
        with_hw(|hw| {
            hw.root = Some(root);
            hw.tag = tag;
            if !keep {
                hw.tlb.retain(|(t, _), _| *t != tag.0);
            }
        });
    }

    fn load_kernel() {
        finish();
        with_hw(|hw| {
            hw.root = None;
            hw.tag = Tag(0);
        });
    }

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        happen(&world().during_invalidation);
        let me = world().current.get();
        world().invalidations.borrow_mut().push((me, what));
        if reach == Reach::Local {
            forget(me, what, reach);
        } else {
            assert_ne!(Mock::facts().broadcast, Broadcast::None);
            world().broadcasts.borrow_mut().push((me, what));
        }
    }

    fn sync(reach: Reach) {
        if reach == Reach::Local {
            return;
        }
        // The first of two syncs completes nothing, where that is so.
        let syncs = world().syncs.replace(world().syncs.get() + 1);
        if Mock::facts().errata.repeat_sync && syncs % 2 == 0 {
            return;
        }
        let me = world().current.get();
        for (from, what) in world().broadcasts.take() {
            assert_eq!(from, me, "issued and synced on one CPU");
            for cpu in 0..CPUS as u32 {
                let loaded = world().hw.borrow()[cpu as usize].root.is_some();
                if cpu != me && loaded && Mock::facts().errata.completes_early {
                    world().unfinished.borrow_mut().push((cpu, what));
                } else {
                    forget(cpu, what, reach);
                }
            }
        }
    }
}

/// A CPU's TLB forgets; the second time only, where entries survive once.
fn forget(cpu: u32, what: Invalidate, reach: Reach) {
    let hw = &mut world().hw.borrow_mut()[cpu as usize];
    let loaded = hw.tag.0;
    let within = |range: shootdown::VaRange, page: u64| {
        page << 12 >= range.start() && page << 12 <= range.last()
    };
    let all_tags = Mock::facts().tag_scope == TagScope::System || reach == Reach::Broadcast;
    hw.tlb.retain(|(t, page), _| {
        let named = match what {
            Invalidate::Range { tag, range, .. } => *t == tag.0 && within(range, *page),
            Invalidate::Tag(tag) => *t == tag.0,
            Invalidate::Kernel(range) => (*t == loaded || all_tags) && within(range, *page),
            Invalidate::Everything => true,
        };
        let survives = named && Mock::facts().errata.survives_once && {
            let mut survivors = world().survivors.borrow_mut();
            let key = (cpu, *t, *page);
            if survivors.remove(&key).is_some() {
                false
            } else {
                survivors.insert(key, ());
                true
            }
        };
        !named || survives
    });
}

/// This CPU's accesses so far are over, and so is what the hardware had not completed here.
fn finish() {
    let cpu = world().current.get();
    let all = world().unfinished.take();
    let (mine, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(c, _)| *c == cpu);
    *world().unfinished.borrow_mut() = others;
    mine.into_iter().for_each(|(_, what)| forget(cpu, what, Reach::Broadcast));
}

/// Takes an interrupt: what the hardware had not completed on this CPU is over before the handler
/// runs.
fn interrupt(cpu: u32) {
    on_cpu(cpu, |_| finish());
    on_cpu(cpu, |pin| assert_eq!(shootdown::on_kick(irqs_off(pin)), Served::Done));
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
        interrupt(cpu);
    }
}

/// Interrupts come where the mock says so, and nowhere else.
pub fn irqs_off(pin: &Pin) -> IrqsOff<'_, Mock> {
    // SAFETY: one thread plays all CPUs, so nothing interrupts.
    unsafe { IrqsOff::assume(pin) }
}

/// Brings this CPU online unless it is.
pub fn boot_once(pin: &Pin) {
    if !world().system.online().contains(pin.cpu()) {
        shootdown::online(irqs_off(pin)).expect("a CPU that fits");
    }
}

/// Brings the first `n` CPUs online under a policy and facts.
pub fn boot(n: u32, policy: &'static Policy, facts: &'static Facts) {
    world().policy.set(policy);
    world().facts.set(facts);
    if facts.tag_scope == TagScope::System {
        let pairs = facts.split_tables != SplitTables::No;
        let tags = Generations::new(facts.tag_bits, pairs, n).expect("more tags than CPUs");
        assert!(world().tags.set(tags).is_ok(), "booted once");
    }
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

/// What this CPU reads at a kernel page, which all tables map alike: through its TLB, or by a walk
/// that fills it.
pub fn access_kernel(page: u64) -> Option<u64> {
    with_hw(|hw| {
        if let Some(frame) = hw.tlb.get(&(hw.tag.0, page)) {
            return Some(*frame);
        }
        let frame = *world().tables.borrow().get(&(0, page))?;
        hw.tlb.insert((hw.tag.0, page), frame);
        Some(frame)
    })
}

/// Switches a CPU to a space.
pub fn switch(cpu: u32, space: &'static AddressSpace<Mock>) -> shootdown::Switched {
    // SAFETY: the space is leaked, and one thread plays all CPUs, so nothing interrupts.
    on_cpu(cpu, |pin| unsafe { shootdown::switch_to(pin, space) })
}

/// This CPU loads the kernel's own tables.
pub fn leave(pin: &Pin) {
    // SAFETY: nothing interrupts, and what interrupts in a test calls this nowhere.
    unsafe { shootdown::leave::<Mock>(pin) };
}

/// This CPU runs a kernel thread, and reads no page until it switches.
pub fn enter_lazy(pin: &Pin) {
    // SAFETY: as in `leave`; what a lazy CPU reads the tests compare with what it may.
    unsafe { shootdown::enter_lazy::<Mock>(pin) };
}

/// This CPU goes offline.
pub fn offline(pin: &Pin) {
    // SAFETY: as in `leave`; nothing runs on a mock CPU that is offline.
    unsafe { shootdown::offline::<Mock>(pin) };
}

/// This CPU goes to user mode for long.
pub fn to_user(pin: &Pin) {
    // SAFETY: as in `leave`; a test reads no kernel page there.
    unsafe { shootdown::isolated::to_user::<Mock>(pin) };
}

/// How this CPU would load the user half.
pub fn return_to_user(pin: &Pin) -> shootdown::UserEntry {
    // SAFETY: as in `leave`; the mock has no user mode.
    unsafe { shootdown::return_to_user::<Mock>(pin) }
}

/// The hypervisor deschedules a virtual CPU.
pub fn deschedule(cpu: u32) {
    mask(cpu);
    // SAFETY: a mock CPU runs when a test has it run: not before `resume`.
    unsafe { world().words.get().expect("a guest")[cpu as usize].stopped() };
}

/// It lets it run again; says whether the CPU had to forget everything.
pub fn resume(cpu: u32) -> bool {
    // SAFETY: it forgets below, before it runs.
    let forgets = unsafe { world().words.get().expect("a guest")[cpu as usize].resumes() };
    if forgets {
        world().hw.borrow_mut()[cpu as usize].tlb.clear();
    }
    unmask(cpu);
    forgets
}

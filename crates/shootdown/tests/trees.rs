//! Large calls to any set of CPUs, from the first to the 4096th: whoever is called has run the
//! function when the call returns, once, and nobody else has.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::facts::TagScope;
use shootdown::{
    CpuId, Facts, Invalidate, IrqsOff, KickError, PerCpu, Pinned, Platform, Policy, Reach, Regime,
    Served, Slots, Stalled, System, Tag, call_on, online,
};

const WORDS: usize = 64;
const CPUS: usize = 64 * WORDS;

static FACTS: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };
static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

struct World {
    system: System<Wide>,
    cpus: Vec<PerCpu<Wide>>,
    current: Cell<u32>,
    /// Kicked, and not interrupted yet.
    kicked: RefCell<Vec<CpuId>>,
    random: Cell<u64>,
    /// Comes online when somebody looks it up next.
    comes: Cell<Option<CpuId>>,
}

thread_local! {
    static WORLD: &'static World = Box::leak(Box::new(World {
        system: System::new(),
        cpus: (0..CPUS).map(|_| PerCpu::new()).collect(),
        current: Cell::new(0),
        kicked: RefCell::default(),
        random: Cell::new(1),
        comes: Cell::new(None),
    }));
}

fn world() -> &'static World {
    WORLD.with(|world| *world)
}

struct Wide;

struct Pin(CpuId, PhantomData<*const ()>);

// SAFETY: a CPU changes inside of `on_cpu` only, which restores it.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

fn on_cpu<R>(cpu: CpuId, f: impl FnOnce(&Pin) -> R) -> R {
    let back = world().current.replace(cpu.0);
    let result = f(&Wide::pin());
    world().current.set(back);
    result
}

fn come_online(pin: &Pin) {
    // SAFETY: one thread plays all CPUs: nothing interrupts.
    online(unsafe { IrqsOff::<Wide>::assume(pin) }).expect("the facts fit");
}

// SAFETY: slots are distinct and constant; a kicked CPU is interrupted while others wait.
unsafe impl Platform for Wide {
    type Pin = Pin;
    type Regime = Wide;
    type Mask = AtomicCpuSet<WORDS>;
    type Slots = Slots<2>;
    type Tags = shootdown::NoTags;

    fn pin() -> Pin {
        Pin(CpuId(world().current.get()), PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        if world().comes.get() == Some(cpu) {
            world().comes.set(None);
            on_cpu(cpu, come_online);
        }
        world().cpus.get(cpu.index())
    }

    fn kick(targets: &CpuSet<WORDS>) -> Result<(), KickError> {
        world().kicked.borrow_mut().extend(targets.iter());
        Ok(())
    }

    /// One of those that were kicked takes its interrupt.
    fn relax(_: &Pin) -> Result<(), Stalled> {
        let random = world().random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); // Knuth's, MMIX
        world().random.set(random);
        let next = {
            let mut kicked = world().kicked.borrow_mut();
            let n = (random >> 33) as usize % kicked.len().max(1);
            if kicked.is_empty() { return Err(Stalled) } else { kicked.swap_remove(n) }
        };
        // SAFETY: as in `come_online`.
        let served =
            on_cpu(next, |pin| shootdown::on_kick(unsafe { IrqsOff::<Self>::assume(pin) }));
        assert_eq!(served, Served::Done);
        Ok(())
    }

    fn may_wait() -> bool {
        true
    }

    fn policy() -> &'static Policy {
        &TREE
    }
}

// SAFETY: there is no TLB, and no space.
unsafe impl Regime for Wide {
    type Root = ();

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load((): (), _: Tag, _: bool) {}

    fn load_kernel() {}

    fn publish() {}

    fn invalidate(_: Invalidate, _: Reach) {}

    fn sync(_: Reach) {}
}

/// Numbers at the edges of groups and words, and any.
fn number() -> impl Strategy<Value = u32> {
    const EDGES: [u32; 16] = [1, 2, 15, 16, 17, 47, 48, 49, 62, 63, 64, 65, 127, 128, 4094, 4095];
    prop_oneof![prop::sample::select(&EDGES[..]), 1..CPUS as u32]
}

fn calls(sets: &[Vec<u32>], seed: u64) {
    world().random.set(seed);
    for numbers in sets {
        let mut targets = CpuSet::<WORDS>::EMPTY;
        numbers.iter().for_each(|n| targets.insert(CpuId(*n)));
        let ran = RefCell::new(Vec::new());
        struct Alone<'a>(&'a RefCell<Vec<CpuId>>);
        // SAFETY: one thread plays all CPUs.
        unsafe impl Sync for Alone<'_> {}
        impl Alone<'_> {
            fn runs(&self, cpu: CpuId) {
                self.0.borrow_mut().push(cpu);
            }
        }
        let alone = Alone(&ran);
        call_on::<Wide, _>(&Wide::pin(), &targets, &|cpu| alone.runs(cpu)).expect("nobody stalls");
        ran.borrow_mut().sort_unstable();
        assert_eq!(*ran.borrow(), targets.iter().collect::<Vec<_>>());
    }
}

fn boot() {
    if world().system.online().is_empty() {
        for cpu in (0..CPUS as u32).map(CpuId) {
            on_cpu(cpu, come_online);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whoever_is_called_has_run_when_the_call_returns(
        sets in prop::collection::vec(prop::collection::vec(number(), 2..24), 1..4),
        seed: u64,
    ) {
        boot();
        calls(&sets, seed);
    }
}

/// Every pair of groups of two words, each with one CPU or two.
#[test]
fn every_group_is_counted() {
    boot();
    let groups = [1, 16, 32, 48, 64, 80, 96, 112];
    for (n, first) in groups.into_iter().enumerate() {
        for second in &groups[n + 1..] {
            for seed in 0..8 {
                calls(&[vec![first, *second], vec![first, first + 1, *second]], seed);
            }
        }
    }
}

/// The first CPU of a word is offline when the call is written down, and online when its kick is
/// sent: it was counted as having acknowledged, and finds nothing that it could pass on.
#[test]
fn a_kick_is_not_left_to_a_cpu_that_was_counted_out() {
    boot();
    for word in [0, 3, 11] {
        let numbers: Vec<u32> =
            (0..12).flat_map(|w| [64 * w + 1, 64 * w + 2, 64 * w + 3]).collect();
        let first = CpuId(64 * word + 1);
        // SAFETY: nothing interrupts, and what runs on this CPU next is what it comes online with.
        on_cpu(first, |pin| unsafe { shootdown::offline::<Wide>(pin) });
        let mut targets = CpuSet::<WORDS>::EMPTY;
        numbers.iter().for_each(|n| targets.insert(CpuId(*n)));
        let ran = AtomicU32::new(0);
        world().comes.set(Some(first));
        let done = call_on::<Wide, _>(&Wide::pin(), &targets, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(world().comes.get(), None, "it has come online meanwhile");
        assert_eq!(done, Ok(()), "of word {word}");
        assert_eq!(ran.into_inner() as usize, numbers.len() - 1);
        world().kicked.borrow_mut().clear();
    }
}

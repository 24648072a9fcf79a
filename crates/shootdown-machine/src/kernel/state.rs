//! What the simulated kernel knows, reached through a thread-local: the library's traits have
//! static methods.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use shootdown::facts::{Broadcast, Errata, Facts, SplitTables, TagScope};
use shootdown::ids::{CpuId, Tag};
use shootdown::policy::Policy;
use shootdown::regime::Invalidate;

use super::Space;
use super::areas::Areas;
use super::host::HostState;
use super::mmus::Mmus;
use super::port::{Library, create_shared_tags, create_tags, library_for};
use crate::config::{Config, Host, MachineError};
use crate::engine::{self, Engine};
use crate::mmu::{CpuMmu, Memory, Root};
use crate::oracle::{Epoch, Stamp};
use crate::outcome::{CpuOutcome, Invalidations, TlbCounts};
use crate::profile::Costs;

thread_local! {
    /// The kernel of the machine that runs, or is being set up, on this thread.
    static STATE: Cell<*mut State> = const { Cell::new(ptr::null_mut()) };
}

/// The kernel of one machine, and the hardware it drives.
pub(crate) struct State {
    pub memory: Memory,
    pub mmus: Mmus,
    pub spaces: Vec<SpaceState>,
    pub cpus: Vec<CpuKernel>,
    pub facts: Facts,
    pub policy: Policy,
    pub costs: Costs,
    /// The library, compiled for sets of this machine's width.
    pub library: &'static dyn Library,
    /// The library's `System`, of the type that `library` knows.
    pub system: NonNull<u8>,
    /// The allocator of machine-wide tags, where tags are such.
    pub tags: Option<NonNull<u8>>,
    /// The allocator of tags for all CPUs, beside slots.
    pub shared_tags: Option<NonNull<u8>>,
    /// The library's `PerCpu`, by CPU, of the type that `library` knows.
    pub slots: Vec<NonNull<u8>>,
    /// The hypervisor below, if the machine is a guest.
    pub host: Option<HostState>,
    /// Bytes of the kernel's window that have been mapped so far.
    pub kernel_used: u64,
    /// The CPU that is being set up.
    booting: u32,
}

/// An address space.
pub(crate) struct SpaceState {
    pub root: Root,
    /// The library's `AddressSpace`; `None` when the space has ended.
    pub handle: Option<NonNull<u8>>,
    pub areas: Areas,
    /// Where the next area goes that does not care.
    pub next_va: u64,
}

/// What the kernel keeps per CPU.
#[derive(Default)]
pub(crate) struct CpuKernel {
    /// The space of the program that runs here; `None` for a kernel thread.
    pub current: Option<Space>,
    /// What is loaded on behalf of the kernel half.
    pub loaded: Option<(Root, Tag)>,
    pub invalidations: Invalidations,
    /// The space, and its last clearing of accessed bits, that this CPU's entries were checked
    /// against.
    pub ages_checked: Option<(Root, Epoch)>,
    /// Broadcast and not yet synced.
    pub broadcasts: Vec<Invalidate>,
    pub syscalls: u64,
}

/// The lowest address given to areas that do not care where they are.
const FIRST_VA: u64 = 1 << 40;

/// Bytes worth fetching before a handler runs: of the library's state of a CPU, its front and its
/// counters; of an MMU, its front.
const SLOT_HEAD: usize = 4 * 64;
const COUNTERS: usize = 6 * 64;
const MMU_HEAD: usize = 8 * 64;

impl State {
    /// A kernel that has booted on every CPU.
    pub fn new(config: &Config, engine: &mut Engine) -> Result<Box<Self>, MachineError> {
        let cpus = config.cpu_count()?;
        let geometry = config.profile.geometry().map_err(MachineError::Geometry)?;
        let facts = facts(config);
        facts.check().map_err(MachineError::Facts)?;
        config.policy.check(&facts).map_err(MachineError::Policy)?;
        let library = library_for(cpus);
        let mut mmus =
            Mmus::new(cpus, sharing(config, &facts), &geometry).map_err(MachineError::Geometry)?;
        let system = engine.alloc(library.layouts().system);
        let mut tags = None;
        if facts.tag_scope == TagScope::System {
            let block = engine.alloc(library.layouts().tags);
            create_tags(block, &facts, cpus).map_err(MachineError::Tags)?;
            tags = Some(block);
        }
        let mut shared_tags = None;
        if let (Broadcast::Invlpgb { .. }, TagScope::PerCpu) = (facts.broadcast, facts.tag_scope) {
            let block = engine.alloc(library.layouts().shared_tags);
            let made = create_shared_tags(block, facts.tag_bits);
            shared_tags = made.map(|()| block);
        }
        let slots: Vec<_> = (0..cpus).map(|_| engine.alloc(library.layouts().slot)).collect();
        let slot_bytes = library.layouts().slot.size();
        for (cpu, slot) in (0..).zip(&slots) {
            // The library's `PerCpu`: what it reads first is in front, its counters are at the end.
            let slot = slot.as_ptr() as usize;
            let counters = slot + slot_bytes.saturating_sub(COUNTERS);
            let mmu = mmus.of(cpu as usize);
            let mmu = (std::ptr::from_ref(mmu) as usize, size_of::<CpuMmu>().min(MMU_HEAD));
            engine.will_want(cpu, [(slot, SLOT_HEAD), (counters, COUNTERS), mmu]);
        }
        let host = guest(config, cpus)?.map(|host| HostState::new(cpus, host.marks, engine));
        Ok(Box::new(Self {
            memory: Memory::new(u64::from(config.frames)),
            mmus,
            spaces: Vec::new(),
            cpus: (0..cpus).map(|_| CpuKernel::default()).collect(),
            facts,
            policy: config.policy,
            costs: engine.costs,
            library,
            system,
            tags,
            shared_tags,
            slots,
            host,
            kernel_used: 0,
            booting: 0,
        }))
    }

    /// Adds a space whose library half is in `block`.
    pub fn add_space(&mut self, root: Root, block: NonNull<u8>) -> Space {
        self.spaces.push(SpaceState {
            root,
            handle: Some(block),
            areas: Areas::default(),
            next_va: FIRST_VA,
        });
        Space(u32::try_from(self.spaces.len() - 1).expect("fewer than 2^32 spaces"))
    }

    /// A space that has not ended.
    ///
    /// # Panics
    /// When it has.
    pub fn space(&mut self, space: Space) -> &mut SpaceState {
        let state = &mut self.spaces[space.0 as usize];
        assert!(state.handle.is_some(), "space {} has ended", space.0);
        state
    }

    /// The executing CPU.
    #[inline]
    pub fn executing(&self) -> u32 {
        if engine::is_running() { engine::cpu() } else { self.booting }
    }

    /// The kernel's part of the executing CPU.
    pub fn mine(&mut self) -> &mut CpuKernel {
        let cpu = self.executing() as usize;
        &mut self.cpus[cpu]
    }

    /// Says who makes the next changes.
    pub fn act_as(&mut self, cpu: u32, at: u64) {
        self.memory.act_as(Stamp { cpu: CpuId(cpu), at });
    }

    /// Adds what the kernel and the MMUs counted.
    pub fn complete(&self, outcomes: &mut [CpuOutcome]) {
        for (i, outcome) in outcomes.iter_mut().enumerate() {
            let c = self.mmus.counters(i);
            outcome.tlb = TlbCounts {
                accesses: c.l1_hits + c.l2_hits + c.walks + c.assists,
                l1_hits: c.l1_hits,
                l2_hits: c.l2_hits,
                walks: c.walks,
                faults: c.faults,
            };
            outcome.invalidations = self.cpus[i].invalidations;
            outcome.syscalls = self.cpus[i].syscalls;
            outcome.library = self.library.stats(self.slots[i]);
        }
    }
}

/// Makes a kernel the one of this thread, until dropped.
pub(crate) struct Installed(());

impl Installed {
    pub fn new(state: &mut State) -> Self {
        STATE.set(state);
        Self(())
    }

    /// Brings every CPU online, before time begins: free of charge.
    pub fn boot(&self) {
        let (library, cpus) = with(|s| (s.library, s.cpus.len()));
        library.create();
        for cpu in 0..u32::try_from(cpus).expect("at most 4096 CPUs") {
            with(|s| s.booting = cpu);
            library.online();
        }
        with(|s| {
            s.booting = 0;
            for cpu in &mut s.cpus {
                cpu.invalidations = Invalidations::default();
            }
        });
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        STATE.set(ptr::null_mut());
    }
}

/// Uses the kernel of this thread. `f` must neither suspend nor call this.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    let mut state = NonNull::new(STATE.get()).expect("a machine runs on this thread");
    // SAFETY: STATE points to the kernel of a machine while `Installed` lives, which its machine
    // outlives; `f` does not suspend, so no other CPU uses it meanwhile, and does not call
    // `with` again.
    f(unsafe { state.as_mut() })
}

/// The executing CPU.
#[inline]
pub(crate) fn here() -> u32 {
    with(|s| s.executing())
}

fn facts(config: &Config) -> Facts {
    let spec = &config.profile.facts;
    let is = |n: &crate::profile::Number| n.count() != 0;
    let is_some = |n: &Option<crate::profile::Number>| n.as_ref().is_some_and(is);
    let tags = config.tags && is(&spec.tag_bits);
    let system = config.profile.has_system_tags();
    let split = config.mitigations && is(&spec.split_when_mitigated);
    let broadcast = broadcast(config, tags);
    let own_bits = u8::try_from(spec.tag_bits.count()).unwrap_or(u8::MAX);
    Facts {
        tag_scope: match (tags, system) {
            (false, _) => TagScope::None,
            (true, false) => TagScope::PerCpu,
            (true, true) => TagScope::System,
        },
        tag_bits: if tags { config.tag_bits.unwrap_or(own_bits) } else { 0 },
        broadcast,
        // x86 does; Arm's take a barrier, RISC-V's order only what they name.
        invalidate_serializes: !system,
        fault_forgets: !system,
        hypervisor_may_upgrade: is(&spec.hypervisor),
        split_tables: if split {
            SplitTables::Yes { invalidate_other_tag: tags && is(&spec.other_tag) }
        } else {
            SplitTables::No
        },
        ceiling: spec.ceiling.count(),
        kick_all: is(&spec.kick_all),
        // Those of broadcasts: nothing to work around where nothing is broadcast.
        errata: match broadcast {
            Broadcast::Tlbi { .. } => Errata {
                repeat_sync: is_some(&spec.repeat_sync),
                survives_once: is_some(&spec.survives_once),
                ..Errata::default()
            },
            _ => Errata::default(),
        },
    }
}

/// The host of a guest, if it can be one.
fn guest(config: &Config, cpus: u32) -> Result<Option<Host>, MachineError> {
    let Some(host) = config.host else { return Ok(None) };
    if config.profile.hypervisor.is_none() {
        return Err(MachineError::NoHypervisor);
    }
    if host.physical == 0 || host.physical > cpus {
        return Err(MachineError::Physical { physical: host.physical, cpus });
    }
    Ok(Some(host))
}

/// CPUs that share an MMU. They may only where a tag means the same on all of them, and is used.
fn sharing(config: &Config, facts: &Facts) -> u32 {
    let stated = config.profile.tlb.shared_by.as_ref().map_or(1, crate::profile::Number::count);
    if facts.tag_scope == TagScope::System && config.policy.tags { stated } else { 1 }
}

fn broadcast(config: &Config, tags: bool) -> Broadcast {
    match &config.profile.broadcast {
        Some(b) if tags && b.kind == "tlbi" => Broadcast::Tlbi { ranges: b.ranges.count() != 0 },
        Some(b) if tags => {
            Broadcast::Invlpgb { max_pages: u16::try_from(b.strides.count()).unwrap_or(u16::MAX) }
        }
        _ => Broadcast::None,
    }
}

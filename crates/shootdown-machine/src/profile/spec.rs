//! What a profile states, field by field, as in its file.

use serde::Deserialize;

use super::{IommuSpec, NicSpec, Number, NvmeSpec, Pair};

/// A machine, as its file states it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// Clock in GHz.
    pub ghz: Number,
    /// What is where.
    pub topology: TopologySpec,
    /// Cache lines.
    pub line: LineSpec,
    /// Interrupts between CPUs.
    pub ipi: IpiSpec,
    /// Crossing into the kernel and back.
    pub entry: EntrySpec,
    /// The kernel's own work.
    pub kernel: KernelSpec,
    /// Instructions that invalidate and load translations.
    pub invalidate: InvalidateSpec,
    /// Invalidation everywhere by hardware; without this part there is none.
    pub broadcast: Option<BroadcastSpec>,
    /// The hypervisor below; without this part CPUs are real ones.
    pub hypervisor: Option<HypervisorSpec>,
    /// Memory accesses of user code, translation apart.
    pub access: AccessSpec,
    /// TLBs.
    pub tlb: TlbSpec,
    /// Walk caches.
    pub walk_cache: WalkCacheSpec,
    /// Costs of translation.
    pub walk: WalkSpec,
    /// What the port declares.
    pub facts: FactsSpec,
    /// The IOMMU; without this part there is none.
    pub iommu: Option<IommuSpec>,
    /// A network card behind it.
    pub nic: Option<NicSpec>,
    /// Drives, together.
    #[serde(default)]
    pub nvme: Option<NvmeSpec>,
}

/// CPUs are numbered socket by socket; within a socket the first thread of every core comes first,
/// then the second of every core, as Linux numbers them when one socket is looked at.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologySpec {
    /// Logical CPUs.
    pub cpus: Number,
    /// Sockets.
    pub sockets: Number,
    /// Threads per core.
    pub smt: Number,
    /// Logical CPUs that share a last-level cache.
    pub cache_cpus: Number,
    /// Sockets within which a transfer is `cross`; beyond, it is `far`.
    pub group_sockets: Number,
    /// CPUs one interrupt command reaches.
    pub ipi_cluster: Number,
}

/// Costs of cache-line ownership.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineSpec {
    /// A load or store of a line this CPU holds.
    pub hit: Number,
    /// From the other thread of the core.
    pub smt: Number,
    /// From the shared last-level cache, where an unmodified copy is.
    pub cache: Number,
    /// From a CPU that shares the last-level cache and has modified the line.
    pub same: Number,
    /// From another last-level cache of the group.
    pub cross: Number,
    /// From another group.
    pub far: Number,
    /// An atomic read-modify-write of a line this CPU owns.
    pub atomic: Number,
    /// A full fence with nothing to wait for.
    pub fence: Number,
    /// Line transfers that can be under way for one CPU.
    pub fill_buffers: Number,
    /// Lines that a CPU's own caches hold. Without it they hold all that is shared; used only
    /// where a run asks for it ([`Config::own_caches`](crate::Config::own_caches)).
    pub own: Option<Number>,
}

/// Interrupts between CPUs.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpiSpec {
    /// One interrupt command, on the sender.
    pub send: Number,
    /// From the command to the target's interrupt entry, within a socket.
    pub same: Number,
    /// The same, across sockets of a group.
    pub cross: Number,
    /// The same, across groups.
    pub far: Number,
}

/// Crossing into the kernel and back.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntrySpec {
    /// A system call that does nothing, both ways.
    pub syscall: Pair,
    /// A page fault that finds its page, both ways, with the kernel's handling.
    pub fault: Pair,
    /// Interrupt entry.
    pub irq_entry: Pair,
    /// Interrupt exit.
    pub irq_exit: Pair,
}

/// The kernel's own work, memory accesses to shared lines apart.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSpec {
    /// The body of the interrupt handler that serves flushes.
    pub kick_handler: Number,
    /// A switch between threads, the switch of the space apart.
    pub switch: Number,
    /// What a memory call does before and after it touches page tables (finding and splitting
    /// areas).
    pub area: Number,
    /// Editing one page-table entry.
    pub entry_edit: Number,
    /// Waking up from idle.
    pub wake: Number,
}

/// Instructions that invalidate and load translations.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InvalidateSpec {
    /// One page under the loaded tag (INVLPG).
    pub page: Number,
    /// One page under another tag (INVPCID type 0).
    pub page_other_tag: Number,
    /// One tag (INVPCID type 1).
    pub tag: Number,
    /// Everything, global entries included.
    pub everything: Number,
    /// Loading a root and keeping the entries of its tag.
    pub load_keep: Number,
    /// Loading a root and dropping them.
    pub load_flush: Number,
    /// Waiting for invalidations on this CPU; 0 when left out, as where they serialize by
    /// themselves.
    pub sync: Option<Number>,
}

/// Invalidation everywhere by hardware. One fabric serves the whole machine, one operation at a
/// time, in the order in which they were issued.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BroadcastSpec {
    /// `tlbi` or `invlpgb`.
    pub kind: String,
    /// One instruction, on the CPU that issues it; it does not wait.
    pub issue: Number,
    /// From when the fabric begins with an operation until it is complete on every CPU.
    pub latency: Number,
    /// From when the fabric begins with an operation until it can begin with the next.
    pub service: Number,
    /// The share of its throughput that a running CPU loses while the fabric serves another one.
    pub tax: Number,
    /// Strides that one instruction names.
    pub strides: Number,
    /// 1 when range instructions exist (`FEAT_TLBIRANGE`).
    pub ranges: Number,
}

/// A hypervisor that lets virtual CPUs take turns on a physical one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HypervisorSpec {
    /// How long a virtual CPU runs while others want the physical one.
    pub slice: Number,
    /// Leaving the guest, up to where the hypervisor decides.
    pub exit: Number,
    /// From that decision into the guest.
    pub entry: Number,
    /// What the hypervisor does for one remote flush, exit and entry apart.
    pub hypercall: Number,
    /// What it does for each CPU of it.
    pub target: Number,
}

/// Memory accesses of user code, translation apart.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessSpec {
    /// One whose address depends on the access before.
    pub dependent: Number,
    /// One of many that overlap.
    pub independent: Number,
}

/// One array of a TLB.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// Entries.
    pub entries: Number,
    /// Ways; as many as entries when fully associative.
    pub ways: Number,
    /// Page sizes it holds: `4k`, `2m`, `1g`.
    pub pages: Vec<String>,
}

/// The TLBs of a CPU.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbSpec {
    /// First level.
    pub l1: Vec<ArraySpec>,
    /// Second level.
    pub l2: Vec<ArraySpec>,
    /// CPUs that share entries where tags are machine-wide (Arm's CnP), in the order of their
    /// numbers; when left out, every CPU has its own.
    pub shared_by: Option<Number>,
}

/// Cached non-leaf entries.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCacheSpec {
    /// Entries of the top level (512 GiB each).
    pub top: Number,
    /// Entries of the next (1 GiB each).
    pub upper: Number,
    /// Entries of the lowest (2 MiB each).
    pub lower: Number,
}

/// Costs of translation.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkSpec {
    /// Missed in the first level, found in the second.
    pub l2_hit: Number,
    /// The same when accesses overlap.
    pub l2_hit_overlapped: Number,
    /// A walk whose entry is in a near cache.
    pub near: Number,
    /// A walk as it usually is.
    pub typical: Number,
    /// A walk to memory.
    pub far: Number,
    /// A walk when accesses overlap.
    pub overlapped: Number,
}

/// What the port declares about the hardware.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactsSpec {
    /// Width of a tag; 0 for none.
    pub tag_bits: Number,
    /// 1 when a tag means the same space on every CPU; when left out, it is a CPU's own.
    pub system_tags: Option<Number>,
    /// 1 when single pages can be invalidated under a tag that is not loaded.
    pub other_tag: Number,
    /// 1 when the mitigations split user and kernel tables.
    pub split_when_mitigated: Number,
    /// 1 when one command interrupts all other CPUs.
    pub kick_all: Number,
    /// Pages beyond which a full flush is cheaper.
    pub ceiling: Number,
    /// 1 when a hypervisor may turn local invalidations into wider ones.
    pub hypervisor: Number,
    /// 1 when an invalidation and its sync have to be issued twice.
    pub repeat_sync: Option<Number>,
    /// 1 when an entry may survive one invalidation.
    pub survives_once: Option<Number>,
}

//! A profile in the engine's units.

use super::{BroadcastSpec, HypervisorSpec, Number, Profile};
use crate::time::Time;

/// Last-level caches that fit the set kept per line.
pub(crate) const MAX_CACHES: u32 = 64;

/// What is where, as divisions of the CPU number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topology {
    /// CPUs in the machine.
    pub cpus: u32,
    /// CPUs of one socket.
    pub socket_cpus: u32,
    /// Cores of one socket.
    pub socket_cores: u32,
    /// CPUs that share a last-level cache.
    pub cache_cpus: u32,
    /// Sockets of one group.
    pub group_sockets: u32,
    /// CPUs one interrupt command reaches.
    pub ipi_cluster: u32,
}

impl Topology {
    /// The socket of a CPU.
    #[must_use]
    pub const fn socket(&self, cpu: u32) -> u32 {
        cpu / self.socket_cpus
    }

    /// The core of a CPU: threads of a core differ in their number by the cores of the socket.
    #[must_use]
    pub const fn core(&self, cpu: u32) -> u32 {
        self.socket(cpu) * self.socket_cores + (cpu % self.socket_cpus) % self.socket_cores
    }

    /// The last-level cache of a CPU. Threads of a core share one.
    #[must_use]
    pub const fn cache(&self, cpu: u32) -> u32 {
        self.core(cpu) / self.cache_cores()
    }

    /// Cores that share a last-level cache.
    const fn cache_cores(&self) -> u32 {
        let threads = self.socket_cpus / self.socket_cores;
        if self.cache_cpus < threads { 1 } else { self.cache_cpus / threads }
    }

    /// Last-level caches that a CPU of the machine has: one more than the highest number.
    pub(crate) fn caches(&self) -> u32 {
        let full = (self.cpus - 1) / self.socket_cpus;
        let rest = self.cpus - full * self.socket_cpus;
        let cores = full * self.socket_cores + rest.min(self.socket_cores);
        cores.div_ceil(self.cache_cores())
    }

    /// The group of a CPU.
    #[must_use]
    pub const fn group(&self, cpu: u32) -> u32 {
        self.socket(cpu) / self.group_sockets
    }
}

/// A profile in picoseconds and counts, with the mitigations chosen. Fields as in [`Profile`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // named as in `Profile`, which documents them
pub struct Costs {
    pub line_hit: Time,
    pub line_smt: Time,
    pub line_cache: Time,
    pub line_same: Time,
    pub line_cross: Time,
    pub line_far: Time,
    pub atomic: Time,
    pub fence: Time,
    pub fill_buffers: u32,
    /// 0: all.
    pub own_lines: u32,
    pub ipi_send: Time,
    pub ipi_same: Time,
    pub ipi_cross: Time,
    pub ipi_far: Time,
    pub syscall: Time,
    pub fault: Time,
    pub irq_entry: Time,
    pub irq_exit: Time,
    pub kick_handler: Time,
    pub switch: Time,
    pub area: Time,
    pub entry_edit: Time,
    pub wake: Time,
    pub page: Time,
    pub page_other_tag: Time,
    pub tag: Time,
    pub everything: Time,
    pub load_keep: Time,
    pub load_flush: Time,
    pub sync: Time,
    pub broadcast: Option<BroadcastCosts>,
    pub hypervisor: Option<HypervisorCosts>,
    pub dependent: Time,
    pub independent: Time,
    pub l2_hit: Time,
    pub l2_hit_overlapped: Time,
    pub walk_near: Time,
    pub walk_typical: Time,
    pub walk_far: Time,
    pub walk_overlapped: Time,
}

/// Invalidation everywhere, in the engine's units. Fields as in [`BroadcastSpec`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // named as in `BroadcastSpec`, which documents them
pub struct BroadcastCosts {
    pub issue: Time,
    pub latency: Time,
    pub service: Time,
    /// In millionths.
    pub tax: u32,
    pub strides: u64,
    pub ranges: bool,
}

/// A hypervisor, in the engine's units. Fields as in [`HypervisorSpec`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // named as in `HypervisorSpec`, which documents them
pub struct HypervisorCosts {
    pub slice: Time,
    pub exit: Time,
    pub entry: Time,
    pub hypercall: Time,
    pub target: Time,
}

impl HypervisorSpec {
    fn costs(&self, ghz: f64) -> HypervisorCosts {
        HypervisorCosts {
            slice: self.slice.time(ghz),
            exit: self.exit.time(ghz),
            entry: self.entry.time(ghz),
            hypercall: self.hypercall.time(ghz),
            target: self.target.time(ghz),
        }
    }
}

impl BroadcastCosts {
    /// Instructions that name `strides` strides.
    ///
    /// A range instruction names up to 32 pairs of strides, of 1, 32, 1024 or 32768 pairs each: one
    /// for each digit to the base 32 that is not 0, and one for the stride that is left over
    /// (Arm ARM, `TLBI R*`).
    #[must_use]
    pub const fn instructions(&self, strides: u64) -> u64 {
        if !self.ranges {
            return strides.div_ceil(self.strides);
        }
        let mut pairs = strides / 2;
        let mut instructions = strides % 2 + (pairs >> 20);
        let mut digit = 0;
        while digit < 4 {
            instructions += !pairs.is_multiple_of(32) as u64;
            pairs /= 32;
            digit += 1;
        }
        instructions
    }
}

impl BroadcastSpec {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked to be within 0 and 1
    fn costs(&self, ghz: f64) -> BroadcastCosts {
        BroadcastCosts {
            issue: self.issue.time(ghz),
            latency: self.latency.time(ghz),
            service: self.service.time(ghz),
            tax: (self.tax.plain() * 1e6).round() as u32,
            strides: u64::from(self.strides.count()),
            ranges: self.ranges.count() != 0,
        }
    }
}

impl Profile {
    /// The topology with this many CPUs: fewer than the profile's use the first ones, more add
    /// sockets.
    #[must_use]
    pub fn topology(&self, cpus: u32) -> Topology {
        let mut topology = self.stated_topology(cpus);
        // More CPUs than the profile has: as many last-level caches as the engine can tell apart.
        while topology.caches() > MAX_CACHES {
            topology.cache_cpus *= 2;
        }
        topology
    }

    /// The topology as the profile has it, however many caches that gives.
    pub(super) fn stated_topology(&self, cpus: u32) -> Topology {
        let t = &self.topology;
        let socket_cpus = t.cpus.count() / t.sockets.count();
        Topology {
            cpus,
            socket_cpus,
            socket_cores: socket_cpus / t.smt.count(),
            cache_cpus: t.cache_cpus.count().min(socket_cpus),
            group_sockets: t.group_sockets.count(),
            ipi_cluster: t.ipi_cluster.count(),
        }
    }

    /// The costs, with mitigations or without.
    #[must_use]
    pub fn costs(&self, mitigations: bool) -> Costs {
        let ghz = self.ghz.plain();
        let entry = &self.entry;
        Costs {
            line_hit: self.line.hit.time(ghz),
            line_smt: self.line.smt.time(ghz),
            line_cache: self.line.cache.time(ghz),
            line_same: self.line.same.time(ghz),
            line_cross: self.line.cross.time(ghz),
            line_far: self.line.far.time(ghz),
            atomic: self.line.atomic.time(ghz),
            fence: self.line.fence.time(ghz),
            fill_buffers: self.line.fill_buffers.count(),
            own_lines: self.line.own.as_ref().map_or(0, Number::count),
            ipi_send: self.ipi.send.time(ghz),
            ipi_same: self.ipi.same.time(ghz),
            ipi_cross: self.ipi.cross.time(ghz),
            ipi_far: self.ipi.far.time(ghz),
            syscall: entry.syscall.pick(mitigations).time(ghz),
            fault: entry.fault.pick(mitigations).time(ghz),
            irq_entry: entry.irq_entry.pick(mitigations).time(ghz),
            irq_exit: entry.irq_exit.pick(mitigations).time(ghz),
            kick_handler: self.kernel.kick_handler.time(ghz),
            switch: self.kernel.switch.time(ghz),
            area: self.kernel.area.time(ghz),
            entry_edit: self.kernel.entry_edit.time(ghz),
            wake: self.kernel.wake.time(ghz),
            page: self.invalidate.page.time(ghz),
            page_other_tag: self.invalidate.page_other_tag.time(ghz),
            tag: self.invalidate.tag.time(ghz),
            everything: self.invalidate.everything.time(ghz),
            load_keep: self.invalidate.load_keep.time(ghz),
            load_flush: self.invalidate.load_flush.time(ghz),
            sync: self.invalidate.sync.as_ref().map_or(Time::ZERO, |sync| sync.time(ghz)),
            broadcast: self.broadcast.as_ref().map(|spec| spec.costs(ghz)),
            hypervisor: self.hypervisor.as_ref().map(|spec| spec.costs(ghz)),
            dependent: self.access.dependent.time(ghz),
            independent: self.access.independent.time(ghz),
            l2_hit: self.walk.l2_hit.time(ghz),
            l2_hit_overlapped: self.walk.l2_hit_overlapped.time(ghz),
            walk_near: self.walk.near.time(ghz),
            walk_typical: self.walk.typical.time(ghz),
            walk_far: self.walk.far.time(ghz),
            walk_overlapped: self.walk.overlapped.time(ghz),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_share_core_and_cache() {
        let t = Profile::named("haswell-ep-48").unwrap().topology(48);
        assert_eq!((t.socket(23), t.socket(24)), (0, 1));
        assert_eq!((t.core(0), t.core(12), t.core(1)), (0, 0, 1));
        assert_eq!((t.cache(0), t.cache(23), t.cache(24)), (0, 0, 1));
        let z = Profile::named("zen4").unwrap().topology(96);
        assert_eq!(z.core(0), z.core(48));
        assert_eq!((z.cache(7), z.cache(8), z.cache(48)), (0, 1, 0));
    }

    #[test]
    fn instructions_name_all_strides() {
        let one_by_one = Profile::named("ampere-emag-32").unwrap().costs(false).broadcast.unwrap();
        assert_eq!([1, 2, 512].map(|n| one_by_one.instructions(n)), [1, 2, 512]);
        let eight = Profile::named("zen3-milan-36").unwrap().costs(false).broadcast.unwrap();
        assert_eq!([1, 8, 9, 33].map(|n| eight.instructions(n)), [1, 1, 2, 5]);
        let ranges = BroadcastCosts { ranges: true, ..one_by_one };
        assert_eq!(
            [1, 2, 3, 64, 66, 67, 512].map(|n| ranges.instructions(n)),
            [1, 1, 2, 1, 2, 3, 1]
        );
        assert!(Profile::named("riscv-64").unwrap().costs(false).broadcast.is_none());
    }

    #[test]
    fn no_number_of_cpus_gives_more_caches_than_the_engine_tells_apart() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap();
            for cpus in 1..=crate::MAX_CPUS {
                let t = profile.topology(cpus);
                let highest = (0..cpus).map(|cpu| t.cache(cpu)).max();
                assert_eq!(highest, Some(t.caches() - 1), "{name} with {cpus} CPUs");
                assert!(t.caches() <= MAX_CACHES, "{name} with {cpus} CPUs");
            }
        }
    }
}

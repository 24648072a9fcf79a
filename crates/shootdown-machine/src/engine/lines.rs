//! Who holds which cache line, and what it costs to get it.
//!
//! # The problem
//! What a lock-free protocol costs is decided by which lines move between which CPUs, not by how
//! many instructions it has. So the machine follows the ownership of each line of shared memory.
//!
//! # The protocol
//! A line has an owner (the CPU that wrote it last, or fetched it first), the set of CPUs that hold
//! a copy once there are several ([`Sharers`]), the last-level caches those are in, and a version
//! that grows whenever a write takes the copies of others away. Copies are never evicted: what the
//! library shares is small beside a cache.
//!
//! A load needs a current copy; a store or read-modify-write needs the line alone. A write in
//! flight makes the line busy until it completes; whoever comes meanwhile waits for that, so that
//! contended writes queue up, one transfer each.
//!
//! # Invariants
//! - I1: `exclusive` implies that no CPU but the owner holds a current copy.
//! - I2: a write by a CPU that does not hold the line alone changes the version; so a CPU that
//!   loaded a line sees that it was written since by comparing versions.

use crate::profile::{Costs, Topology};

/// A line of shared memory.
#[derive(Clone, Copy, Default)]
pub struct Line {
    /// When the last write completes, ps.
    pub busy: u64,
    /// Last-level caches with a copy.
    caches: u64,
    /// Grows when a write takes copies away.
    pub version: u32,
    /// Where its sharers and waiters are kept; 0 while there never were any.
    pub extra: u32,
    /// Times it was fetched from another CPU.
    pub transfers: u32,
    /// CPU number plus one; 0 when nobody touched it yet.
    owner: u16,
    /// The owner holds it alone.
    exclusive: bool,
    /// How often its only user came back to it, up to [`SETTLED`].
    visits: u8,
}

/// Visits after which a line that nobody else has touched is taken for private.
const SETTLED: u8 = 32;

/// Distances, precomputed.
pub struct Distances {
    topology: Topology,
    smt: u64,
    cache: u64,
    same: u64,
    cross: u64,
    far: u64,
    /// By last-level cache: the caches of its group.
    group: Vec<u64>,
    /// By CPU: cache number, core number.
    place: Vec<(u8, u32)>,
}

/// How a line was obtained.
pub struct Fetched {
    /// Length of the transfer in ps; `None` when the CPU had it.
    pub transfer: Option<u64>,
    /// Others lost their copies.
    pub took: bool,
}

impl Distances {
    pub fn new(topology: Topology, costs: &Costs) -> Self {
        let place: Vec<(u8, u32)> = (0..topology.cpus)
            .map(|cpu| {
                (u8::try_from(topology.cache(cpu)).expect("at most 64 caches"), topology.core(cpu))
            })
            .collect();
        let mut group = vec![0; 64];
        for cpu in 0..topology.cpus {
            for other in
                (0..topology.cpus).step_by(topology.cache_cpus.min(topology.socket_cpus) as usize)
            {
                if topology.group(cpu) == topology.group(other) {
                    group[place[cpu as usize].0 as usize] |= 1 << place[other as usize].0;
                }
            }
            group[place[cpu as usize].0 as usize] |= 1 << place[cpu as usize].0;
        }
        Self {
            topology,
            smt: costs.line_smt.ps(),
            cache: costs.line_cache.ps(),
            same: costs.line_same.ps(),
            cross: costs.line_cross.ps(),
            far: costs.line_far.ps(),
            group,
            place,
        }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn between(&self, cpu: u32, owner: u32) -> u64 {
        let ((a, core_a), (b, core_b)) = (self.place[cpu as usize], self.place[owner as usize]);
        if core_a == core_b {
            self.smt
        } else if a == b {
            self.same
        } else if self.group[a as usize] & (1 << b) != 0 {
            self.cross
        } else {
            self.far
        }
    }
}

impl Line {
    /// The CPU holds it alone.
    #[inline]
    pub fn is_mine(&self, cpu: u32) -> bool {
        self.exclusive && u32::from(self.owner) == cpu + 1
    }

    /// No CPU but its owner has ever touched it, and the owner has come often. (Counts a visit.)
    #[inline]
    pub fn is_private(&mut self) -> bool {
        if self.transfers != 0 {
            return false;
        }
        self.visits += u8::from(self.visits < SETTLED);
        self.visits == SETTLED
    }

    /// Fresh contents: nobody holds it, and copies of the old contents are void.
    pub fn renew(&mut self) {
        *self = Self { version: self.version + 1, extra: self.extra, ..Self::default() };
    }

    /// The CPU holds a copy that is not its alone.
    #[inline]
    pub fn is_shared_by(&self, cpu: u32, sharers: &Sharers) -> bool {
        !self.exclusive && sharers.has(self.extra, cpu)
    }

    /// Fetches a copy for a CPU that has none.
    pub fn fetch_shared(&mut self, cpu: u32, d: &Distances, sharers: &mut Sharers) -> Fetched {
        let cache = d.place[cpu as usize].0;
        let bit = 1u64 << cache;
        let Some(owner) = u32::from(self.owner).checked_sub(1) else {
            self.owner = u16::try_from(cpu + 1).expect("at most 4096 CPUs");
            self.exclusive = true;
            self.caches = bit;
            return Fetched { transfer: Some(d.same), took: false };
        };
        let transfer = if self.exclusive {
            d.between(cpu, owner)
        } else if self.caches & bit != 0 {
            d.between(cpu, owner).min(d.cache)
        } else if self.caches & d.group[cache as usize] != 0 {
            d.cross
        } else {
            d.far
        };
        if self.exclusive {
            self.exclusive = false;
            if self.extra == 0 {
                self.extra = sharers.add();
            }
            sharers.clear(self.extra);
            sharers.insert(self.extra, owner);
        }
        sharers.insert(self.extra, cpu);
        self.caches |= bit;
        self.transfers += 1;
        Fetched { transfer: Some(transfer), took: false }
    }

    /// Gets the line alone for a CPU.
    #[inline]
    pub fn fetch_alone(&mut self, cpu: u32, d: &Distances) -> Fetched {
        if self.is_mine(cpu) {
            return Fetched { transfer: None, took: false };
        }
        self.take(cpu, d)
    }

    fn take(&mut self, cpu: u32, d: &Distances) -> Fetched {
        let cache = d.place[cpu as usize].0;
        let bit = 1u64 << cache;
        let (transfer, took) = match u32::from(self.owner).checked_sub(1) {
            None => (d.same, false),
            Some(_) if self.caches & !d.group[cache as usize] != 0 => (d.far, true),
            Some(_) if self.caches & !bit != 0 => (d.cross, true),
            Some(owner) if self.exclusive => (d.between(cpu, owner), true),
            Some(_) => (d.same, true),
        };
        self.version += 1;
        self.owner = u16::try_from(cpu + 1).expect("at most 4096 CPUs");
        self.exclusive = true;
        self.caches = bit;
        self.transfers += u32::from(took);
        Fetched { transfer: Some(transfer), took }
    }
}

/// Which CPUs hold a copy of each line that was ever held by several.
///
/// A set per line and not per CPU: CPUs that read one line after the other find their neighbours'
/// bits at hand. A line held alone has a stale set, which is cleared when it is shared again.
pub struct Sharers {
    words: Vec<u64>,
    /// Words per line.
    width: usize,
}

impl Sharers {
    pub fn new(cpus: u32) -> Self {
        let width = cpus.div_ceil(64) as usize;
        Self { words: vec![0; width], width }
    }

    /// A place for another line: 1 and up.
    pub fn add(&mut self) -> u32 {
        let at = self.words.len() / self.width;
        self.words.resize(self.words.len() + self.width, 0);
        u32::try_from(at).expect("fewer shared lines than lines")
    }

    #[inline]
    fn has(&self, extra: u32, cpu: u32) -> bool {
        self.words[extra as usize * self.width + cpu as usize / 64] & (1 << (cpu % 64)) != 0
    }

    #[inline]
    fn insert(&mut self, extra: u32, cpu: u32) {
        self.words[extra as usize * self.width + cpu as usize / 64] |= 1 << (cpu % 64);
    }

    fn clear(&mut self, extra: u32) {
        let first = extra as usize * self.width;
        self.words[first..first + self.width].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn haswell() -> (Distances, Costs) {
        let profile = Profile::named("haswell-ep-48").unwrap();
        let costs = profile.costs(false);
        (Distances::new(profile.topology(48), &costs), costs)
    }

    #[test]
    fn distance_follows_thread_core_socket() {
        let (d, c) = haswell();
        assert_eq!(d.between(0, 12), c.line_smt.ps());
        assert_eq!(d.between(0, 1), c.line_same.ps());
        assert_eq!(d.between(0, 24), c.line_cross.ps());
        let profile = Profile::named("generic-4096").unwrap();
        let costs = profile.costs(false);
        let d = Distances::new(profile.topology(4096), &costs);
        assert_eq!(d.between(0, 128), costs.line_cross.ps());
        assert_eq!(d.between(0, 512), costs.line_far.ps());
    }

    #[test]
    fn a_write_pays_for_the_farthest_copy_and_voids_all() {
        let (d, c) = haswell();
        let (mut line, mut sharers) = (Line::default(), Sharers::new(48));
        assert!(!line.fetch_alone(0, &d).took);
        assert!(line.fetch_alone(0, &d).transfer.is_none());
        assert_eq!(line.fetch_shared(1, &d, &mut sharers).transfer, Some(c.line_same.ps()));
        assert_eq!(line.fetch_shared(30, &d, &mut sharers).transfer, Some(c.line_cross.ps()));
        assert!(line.is_shared_by(0, &sharers) && line.is_shared_by(30, &sharers));
        let version = line.version;
        let write = line.fetch_alone(0, &d);
        assert_eq!((write.transfer, write.took), (Some(c.line_cross.ps()), true));
        assert_eq!(line.version, version + 1);
        assert!(line.is_mine(0) && !line.is_shared_by(30, &sharers));
    }
}

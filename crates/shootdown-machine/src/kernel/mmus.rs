//! The MMUs of a machine, where CPUs of a cluster may share one.
//!
//! # The problem
//! Arm lets the CPUs of a cluster share TLB entries when software says that tags mean the same on
//! all of them (CnP, Arm ARM D8.16). Then what one CPU cached is there for the next, and what one
//! forgets is gone for all; and a tag that means two spaces at once breaks both.
//!
//! # The protocol
//! Entries belong to the cluster's MMU, what is loaded belongs to the CPU. One CPU at a time is in
//! front of an MMU; when another one comes, they change places ([`CpuMmu::change_places`]).

use shootdown::CpuId;

use crate::mmu::{CpuMmu, GeometryError, MmuCounters, Registers, TlbGeometry};

/// The MMUs, and who is in front of each.
pub(crate) struct Mmus {
    mmus: Vec<CpuMmu>,
    /// CPUs that share one.
    share: usize,
    /// By CPU; what is loaded on a CPU that is in front is in the MMU. Empty where nobody shares.
    behind: Vec<Registers>,
    /// By MMU.
    front: Vec<usize>,
}

impl Mmus {
    /// MMUs of this shape for so many CPUs, `share` of which share one each.
    pub fn new(cpus: u32, share: u32, geometry: &TlbGeometry) -> Result<Self, GeometryError> {
        let firsts = (0..cpus).step_by(share as usize);
        let mmus = firsts.clone().map(|cpu| CpuMmu::new(CpuId(cpu), geometry));
        Ok(Self {
            mmus: mmus.collect::<Result<_, _>>()?,
            share: share as usize,
            behind: if share == 1 {
                Vec::new()
            } else {
                (0..cpus).map(|cpu| Registers::new(CpuId(cpu))).collect()
            },
            front: firsts.map(|cpu| cpu as usize).collect(),
        })
    }

    /// The MMU of a CPU, with the CPU in front of it.
    #[inline]
    pub fn of(&mut self, cpu: usize) -> &mut CpuMmu {
        if self.share == 1 { &mut self.mmus[cpu] } else { self.shared(cpu) }
    }

    #[inline(never)]
    fn shared(&mut self, cpu: usize) -> &mut CpuMmu {
        let place = cpu / self.share;
        let mmu = &mut self.mmus[place];
        let front = std::mem::replace(&mut self.front[place], cpu);
        if front != cpu {
            let leaves = mmu.change_places(self.behind[cpu]);
            self.behind[front] = leaves;
        }
        mmu
    }

    /// Every MMU, whoever is in front.
    pub fn all(&mut self) -> &mut [CpuMmu] {
        &mut self.mmus
    }

    /// What a CPU counted.
    pub fn counters(&self, cpu: usize) -> &MmuCounters {
        if self.front[cpu / self.share] == cpu {
            self.mmus[cpu / self.share].counters()
        } else {
            self.behind[cpu].counters()
        }
    }
}

#[cfg(test)]
mod tests {
    use shootdown::ids::{Stride, Tag, VaRange};

    use super::*;
    use crate::mmu::{Access, Found, Memory, Perms, Root};
    use crate::oracle::Invariant;

    const VA: u64 = 0x1000;

    fn two_spaces() -> (Memory, [Root; 2]) {
        let mut mem = Memory::new(64);
        let roots = [(); 2].map(|()| {
            let root = mem.new_space().unwrap();
            let frame = mem.alloc(Stride::Page4K).unwrap();
            mem.map(root, VA, frame, Stride::Page4K, Perms::USER_RW).unwrap();
            root
        });
        (mem, roots)
    }

    fn walks(mmus: &mut Mmus, mem: &mut Memory, cpu: usize) -> bool {
        let found = mmus.of(cpu).translate(mem, VA, Access::UserRead).unwrap().found;
        matches!(found, Found::Walk(_))
    }

    #[test]
    fn cpus_of_a_cluster_share_entries_and_nothing_else() {
        let (mut mem, [one, two]) = two_spaces();
        let mut mmus = Mmus::new(4, 2, &TlbGeometry::zen4()).unwrap();
        for (cpu, root, tag) in [(0, one, 1), (1, two, 2), (2, one, 1)] {
            mmus.of(cpu).load(&mem, root, Tag(tag), true).unwrap();
        }
        assert!(walks(&mut mmus, &mut mem, 0));
        assert!(walks(&mut mmus, &mut mem, 1), "another space");
        assert!(walks(&mut mmus, &mut mem, 2), "another cluster");
        for (cpu, root, tag) in [(1, two, 2), (0, one, 1), (2, one, 1)] {
            assert_eq!(mmus.of(cpu).loaded(), (root, Tag(tag)));
        }
        mmus.of(1).load(&mem, one, Tag(1), true).unwrap();
        assert!(!walks(&mut mmus, &mut mem, 1), "what CPU 0 cached is there for CPU 1");
        let range = VaRange::new(VA, 1, Stride::Page4K).unwrap();
        mmus.of(1).invalidate_range(Tag(1), range, true);
        assert!(walks(&mut mmus, &mut mem, 0), "what CPU 1 forgets is gone for CPU 0");
        let counted: Vec<u64> = (0..4).map(|cpu| mmus.counters(cpu).walks).collect();
        assert_eq!(counted, [2, 1, 1, 0]);
    }

    #[test]
    fn a_tag_that_means_two_spaces_in_a_cluster_is_a_violation() {
        let (mut mem, [one, two]) = two_spaces();
        let mut mmus = Mmus::new(4, 2, &TlbGeometry::zen4()).unwrap();
        mmus.of(0).load(&mem, one, Tag(1), true).unwrap();
        assert!(walks(&mut mmus, &mut mem, 0));
        let violation = mmus.of(1).load(&mem, two, Tag(1), true).unwrap_err();
        assert_eq!(violation.invariant, Invariant::TagReuse);
        assert!(mmus.of(2).load(&mem, two, Tag(1), true).is_ok(), "another cluster");
    }
}

//! What runs of all devices have in common: the machine, the mapper, the clock.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use shootdown::policy::Policy as Tlb;
use shootdown_machine::io::nvme::NvmeCounts;
use shootdown_machine::io::{self, Hardware, HostileCounts, IommuCounts, NicCounts, Setup};
use shootdown_machine::profile::DeviceCosts;
use shootdown_machine::shootdown_dma::{DmaAddr, PhysAddr, Rights};
use shootdown_machine::{Cpu, CpuId, Profile, Time};

use super::design::{Contestant, DEVICE, Design, Mapper, POLL_US};
use super::{drive, net};
use crate::LabError;
use crate::experiments::run::{self, Note, finish, spawn};

pub const PAGE: u64 = 4096;

/// What the device is, and has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// A network card with so many connections, each with one request under way.
    Net { connections: u32 },
    /// Drives that read so many pages at a time.
    Drive { pages: u32 },
}

impl Job {
    /// Pages that a CPU's buffers need, under way and held back, and how many are taken together.
    fn memory(self, costs: &DeviceCosts) -> (u32, u32) {
        match self {
            Self::Net { .. } => (costs.nic.ring + 512, 1),
            Self::Drive { pages } => ((costs.nvme.depth + drive::SPARE) * pages, pages),
        }
    }
}

/// A run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub profile: &'a Profile,
    pub costs: DeviceCosts,
    pub contestant: Contestant,
    pub cpus: u32,
    pub job: Job,
    /// Transactions before the clock starts, and while it runs.
    pub transactions: [u64; 2],
    /// The card tries something this often.
    pub hostile: Option<Time>,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Transactions a second.
    pub rate: f64,
    /// Of the CPUs' time, what they were idle.
    pub idle: f64,
    pub iommu: IommuCounts,
    pub nic: NicCounts,
    pub nvme: NvmeCounts,
    pub hostile: HostileCounts,
    /// Nodes of the allocator's tree in the end.
    pub nodes: usize,
}

/// What all CPUs of a run share. None of it is in the machine.
pub struct Work {
    mapper: OnceCell<Box<dyn Mapper>>,
    pub contestant: Contestant,
    pub costs: DeviceCosts,
    pub cpus: u32,
    job: Job,
    /// When the clock starts and stops.
    transactions: [u64; 2],
    done: Note<u64>,
    started: Note<Time>,
    stopped: Note<Time>,
    idle: Note<[Time; 2]>,
    nodes: Note<usize>,
    /// Pages of lists, by CPU.
    pub lists: RefCell<Vec<Vec<DmaAddr>>>,
}

impl Run<'_> {
    pub fn run(&self) -> Result<Ran, LabError> {
        let [warm, counted] = self.transactions;
        let (pages, piece) = self.job.memory(&self.costs);
        let translated = self.contestant.design != Design::Off;
        let setup = Setup {
            costs: self.costs,
            cpus: self.cpus,
            pages,
            piece,
            translated,
            promise: self.contestant.promise(),
            seed: self.seed,
        };
        let mut machine = run::Setup::new(self.profile, Tlb::SHOOTDOWN, self.seed);
        machine.config.cpus = Some(self.cpus + 1);
        machine.config.own_caches = true;
        let mut machine = machine.build()?;
        let hardware = Hardware::new(setup);
        let shared = Rc::new(Work {
            mapper: OnceCell::new(),
            contestant: self.contestant,
            costs: self.costs,
            cpus: self.cpus,
            job: self.job,
            transactions: [warm, warm + counted],
            done: Note::new(0),
            started: Note::new(Time::ZERO),
            stopped: Note::new(Time::ZERO),
            idle: Note::new([Time::ZERO; 2]),
            nodes: Note::new(0),
            lists: RefCell::default(),
        });
        spawn(&mut machine, self.cpus, io::serve)?;
        for cpu in 0..self.cpus {
            let (shared, hostile) = (Rc::clone(&shared), self.hostile);
            spawn(&mut machine, cpu, move |c| {
                if cpu == 0 {
                    shared.boot(hostile);
                    (1..shared.cpus).for_each(|cpu| c.wake(CpuId(cpu)));
                } else {
                    c.idle();
                }
                match shared.job {
                    Job::Net { .. } => net::serve(&shared, c, cpu),
                    Job::Drive { pages } => drive::serve(&shared, c, cpu, pages),
                }
                io::leave();
            })?;
        }
        finish(machine)?;
        let time = shared.stopped.get().since(shared.started.get());
        let [before, after] = shared.idle.get();
        Ok(Ran {
            rate: run::count(counted) / (time.us() / 1e6),
            // A sleep is counted when it ends, and may have begun before the clock.
            idle: (after.since(before).us() / (time.us() * f64::from(self.cpus))).min(1.0),
            iommu: hardware.iommu(),
            nic: hardware.nic(),
            nvme: hardware.nvme(),
            hostile: hardware.hostile(),
            nodes: shared.nodes.get(),
        })
    }
}

impl Work {
    /// The driver's start, all of it on one CPU.
    fn boot(&self, hostile: Option<Time>) {
        let most = match self.job {
            Job::Net { .. } => self.cpus * (self.costs.nic.ring + 1024),
            Job::Drive { .. } => self.cpus * (self.costs.nvme.depth + 1024),
        };
        let (pages, _) = self.job.memory(&self.costs);
        let mapper = self.contestant.make(self.cpus, most, u64::from(self.cpus * pages));
        if let Some(root) = mapper.root() {
            io::attach(DEVICE, root, 0);
        }
        assert!(self.mapper.set(mapper).is_ok(), "made once");
        match self.job {
            Job::Net { .. } => net::boot(self),
            Job::Drive { .. } => drive::boot(self),
        }
        if let Some(period) = hostile {
            io::turn_hostile(period);
        }
        if let Job::Net { connections } = self.job {
            io::begin(connections);
        }
    }

    fn mapper(&self) -> &dyn Mapper {
        self.mapper.get().expect("made when the first CPU booted").as_ref()
    }

    pub fn map(&self, page: PhysAddr, bytes: u64, rights: Rights) -> DmaAddr {
        let at = self.mapper().map(page, bytes, rights);
        if self.contestant.design != Design::Off {
            io::mapped(at, page, bytes);
        }
        at
    }

    /// Unmaps what was mapped, and gives the memory back.
    pub fn unmap(&self, at: DmaAddr, bytes: u64) {
        let page = io::page_behind(at);
        self.mapper().unmap(at, bytes);
        if !matches!(self.contestant.design, Design::Off | Design::Window(_)) {
            io::unmapped(at, bytes, self.contestant.promise());
        }
        io::give_memory(page);
    }

    /// The timer's part, on the first CPU: when it is due again.
    pub fn timer(&self, c: &Cpu, cpu: u32, polled: &mut Time) -> Time {
        if cpu != 0 {
            return Time::NEVER;
        }
        let poll = Time::from_us(POLL_US);
        if c.now().since(*polled) >= poll {
            *polled = c.now();
            self.mapper().poll(polled.ps() / 1000);
        }
        Time::from_ps(polled.ps() + poll.ps())
    }

    /// It goes on until the clock has stopped.
    pub fn goes_on(&self) -> bool {
        self.stopped.get() == Time::ZERO
    }

    /// A transaction is done.
    pub fn count(&self, c: &mut Cpu) {
        let done = self.done.get() + 1;
        self.done.set(done);
        let idle =
            || c.outcome_so_far().cpus[..self.cpus as usize].iter().map(|c| c.time.idle).sum();
        let [start, stop] = self.transactions;
        if done == start {
            self.started.set(c.now());
            self.idle.set([idle(), Time::ZERO]);
        } else if done == stop {
            self.idle.set([self.idle.get()[0], idle()]);
            self.stopped.set(c.now());
            self.nodes.set(self.mapper().nodes());
            io::stop();
            let me = c.id();
            (0..self.cpus).map(CpuId).filter(|cpu| *cpu != me).for_each(|cpu| c.wake(cpu));
        }
    }
}

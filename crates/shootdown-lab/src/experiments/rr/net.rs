//! Requests and responses over one network card, as `netperf` does with its `TCP_RR`.

use std::cell::OnceCell;
use std::rc::Rc;

use shootdown::policy::Policy as Tlb;
use shootdown_machine::io::{self, Hardware, HostileCounts, IommuCounts, NicCounts, Setup};
use shootdown_machine::profile::DeviceCosts;
use shootdown_machine::shootdown_dma::{DmaAddr, PhysAddr, Rights};
use shootdown_machine::{Cpu, CpuId, Profile, Time};

use super::design::{Contestant, DEVICE, Design, Mapper, POLL_US};
use crate::LabError;
use crate::experiments::run::{self, Note, finish, spawn};

/// Connections, each with one request under way.
pub const CONNECTIONS: u32 = 200;
/// Bytes of a packet, for which a whole page is mapped.
const BYTES: u64 = 64;
const PAGE: u64 = 4096;
/// Requests taken before what has left is looked for again: the weight of a queue in Linux.
const BUDGET: u32 = 64;

/// A run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub profile: &'a Profile,
    pub costs: DeviceCosts,
    pub contestant: Contestant,
    pub cpus: u32,
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
    pub hostile: HostileCounts,
    /// Nodes of the allocator's tree in the end.
    pub nodes: usize,
}

/// What all CPUs of a run share. None of it is in the machine.
struct Shared {
    mapper: OnceCell<Box<dyn Mapper>>,
    contestant: Contestant,
    costs: DeviceCosts,
    cpus: u32,
    /// When the clock starts and stops.
    transactions: [u64; 2],
    done: Note<u64>,
    started: Note<Time>,
    stopped: Note<Time>,
    idle: Note<[Time; 2]>,
    nodes: Note<usize>,
}

impl Run<'_> {
    /// Pages that a CPU's buffers need: posted, on their way, and held back.
    fn pages(&self) -> u32 {
        self.costs.nic.ring + 512
    }

    pub fn run(&self) -> Result<Ran, LabError> {
        let [warm, counted] = self.transactions;
        let translated = self.contestant.design != Design::Off;
        let setup = Setup {
            costs: self.costs,
            cpus: self.cpus,
            pages: self.pages(),
            translated,
            promise: self.contestant.promise(),
            seed: self.seed,
        };
        let mut machine = run::Setup::new(self.profile, Tlb::SHOOTDOWN, self.seed);
        machine.config.cpus = Some(self.cpus + 1);
        machine.config.own_caches = true;
        let mut machine = machine.build()?;
        let hardware = Hardware::new(setup);
        let shared = Rc::new(Shared {
            mapper: OnceCell::new(),
            contestant: self.contestant,
            costs: self.costs,
            cpus: self.cpus,
            transactions: [warm, warm + counted],
            done: Note::new(0),
            started: Note::new(Time::ZERO),
            stopped: Note::new(Time::ZERO),
            idle: Note::new([Time::ZERO; 2]),
            nodes: Note::new(0),
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
                shared.serve(c, cpu);
                io::leave();
            })?;
        }
        finish(machine)?;
        let time = shared.stopped.get().since(shared.started.get());
        let [before, after] = shared.idle.get();
        Ok(Ran {
            rate: run::count(counted) / (time.us() / 1e6),
            idle: after.since(before).us() / (time.us() * f64::from(self.cpus)),
            iommu: hardware.iommu(),
            nic: hardware.nic(),
            hostile: hardware.hostile(),
            nodes: shared.nodes.get(),
        })
    }
}

impl Shared {
    fn mapper(&self) -> &dyn Mapper {
        self.mapper.get().expect("made when the first CPU booted").as_ref()
    }

    fn map(&self, page: PhysAddr, bytes: u64, rights: Rights) -> DmaAddr {
        let at = self.mapper().map(page, bytes, rights);
        if self.contestant.design != Design::Off {
            io::mapped(at, page, bytes);
        }
        at
    }

    /// Unmaps a packet's page, and gives it back.
    fn unmap(&self, at: DmaAddr) {
        let page = io::page_behind(at);
        self.mapper().unmap(at, BYTES);
        if !matches!(self.contestant.design, Design::Off | Design::Window(_)) {
            io::unmapped(at, BYTES, self.contestant.promise());
        }
        io::give_page(page);
    }

    /// A buffer of this CPU, mapped.
    fn buffer(&self, cpu: u32, rights: Rights) -> DmaAddr {
        let page = io::take_page(cpu).expect("there are pages enough");
        self.map(page, BYTES, rights)
    }

    /// The driver's start, all of it on one CPU: rings, and buffers in all of them.
    fn boot(&self, hostile: Option<Time>) {
        let most = self.cpus * (self.costs.nic.ring + 1024);
        let mapper = self.contestant.make(self.cpus, most);
        if let Some(root) = mapper.root() {
            io::attach(DEVICE, root, 0);
        }
        assert!(self.mapper.set(mapper).is_ok(), "made once");
        for cpu in 0..self.cpus {
            let ring = || io::take_page(cpu).expect("a page for a ring");
            let [receive, send] =
                [ring(), ring()].map(|page| self.map(page, PAGE, Rights::ReadWrite));
            io::set_rings(cpu, receive, send);
            for _ in 0..self.costs.nic.ring {
                io::post(cpu, self.buffer(cpu, Rights::Write));
            }
        }
        if let Some(period) = hostile {
            io::turn_hostile(period);
        }
        io::begin(CONNECTIONS);
    }

    /// A CPU's life: what has come, what has left, and waiting for more.
    fn serve(&self, c: &mut Cpu, cpu: u32) {
        let poll = Time::from_us(POLL_US);
        let mut polled = c.now();
        while self.stopped.get() == Time::ZERO {
            let mut worked = false;
            while let Some(at) = io::reclaim(cpu) {
                worked = true;
                self.unmap(at);
            }
            for _ in 0..BUDGET {
                let Some(io::Received { connection, at }) = io::receive(cpu) else { break };
                worked = true;
                self.transaction(c, cpu, connection, at);
            }
            let due = Time::from_ps(polled.ps() + poll.ps());
            if cpu == 0 && c.now() >= due {
                polled = c.now();
                self.mapper().poll(polled.ps() / 1000);
            }
            if !worked {
                io::wait(cpu, if cpu == 0 { due } else { Time::NEVER });
            }
        }
    }

    /// A request: its buffer is unmapped and another one posted, the answer is made, mapped, and sent.
    fn transaction(&self, c: &mut Cpu, cpu: u32, connection: u32, at: DmaAddr) {
        let nic = self.costs.nic;
        self.unmap(at);
        io::post(cpu, self.buffer(cpu, Rights::Write));
        c.compute(nic.receive);
        c.compute(nic.send);
        let answer = self.buffer(cpu, Rights::Read);
        io::send(cpu, connection, answer);
        self.count(c);
    }

    fn count(&self, c: &mut Cpu) {
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

/// What a page costs that is unmapped strictly with nobody in the way, less what one costs that is not waited for: the
/// invalidation, in nanoseconds.
pub fn invalidation(profile: &Profile, costs: DeviceCosts, seed: u64) -> Result<f64, LabError> {
    const PAGES: u64 = 1000;
    let time = |policy| -> Result<f64, LabError> {
        let contestant = Contestant { design: Design::Magazines, policy };
        let mut machine = run::Setup::new(profile, Tlb::SHOOTDOWN, seed);
        machine.config.cpus = Some(2);
        machine.config.own_caches = true;
        let mut machine = machine.build()?;
        let promise = contestant.promise();
        let _hardware =
            Hardware::new(Setup { costs, cpus: 1, pages: 8, translated: true, promise, seed });
        spawn(&mut machine, 1, io::serve)?;
        let taken = Note::new(Time::ZERO);
        let note = taken.clone();
        spawn(&mut machine, 0, move |c| {
            let mapper = contestant.make(1, 1);
            let page = io::take_page(0).expect("a page");
            let once = || {
                let at = mapper.map(page, BYTES, Rights::Write);
                mapper.unmap(at, BYTES);
            };
            (0..PAGES).for_each(|_| once());
            let start = c.now();
            (0..PAGES).for_each(|_| once());
            note.set(c.now().since(start));
            io::leave();
        })?;
        finish(machine)?;
        Ok(run::per(taken.get(), PAGES) * 1000.0)
    };
    Ok(time(shootdown_machine::shootdown_dma::Policy::Strict)?
        - time(shootdown_machine::shootdown_dma::Policy::Lazy)?)
}

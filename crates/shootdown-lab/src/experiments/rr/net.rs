//! Requests and responses over one network card, as `netperf` does with its `TCP_RR`.

use shootdown::policy::Policy as Tlb;
use shootdown_machine::io::{self, Hardware, Setup};
use shootdown_machine::profile::DeviceCosts;
use shootdown_machine::shootdown_dma::{DmaAddr, Rights};
use shootdown_machine::{Cpu, Profile, Time};

use super::design::{Contestant, Design};
use super::work::{PAGE, Work};
use crate::LabError;
use crate::experiments::run::{self, Note, finish, spawn};

/// Bytes of a packet, for which a whole page is mapped.
const BYTES: u64 = 64;
/// The page that rings lie in together.
const RINGS: u64 = 2 << 20;
/// Requests taken before what has left is looked for again: the weight of a queue in Linux.
const BUDGET: u32 = 64;

/// The driver's start: rings, and buffers in all of them.
pub fn boot(work: &Work) {
    let together = work.contestant.has_large_rings().then(|| {
        let memory = io::ring_memory();
        work.map(memory, RINGS, Rights::ReadWrite)
    });
    for cpu in 0..work.cpus {
        let ring = |n: u64| match together {
            Some(first) => DmaAddr(first.0 + (2 * u64::from(cpu) + n) * PAGE),
            None => {
                let page = io::take_memory(cpu).expect("a page for a ring");
                work.map(page, PAGE, Rights::ReadWrite)
            }
        };
        let [receive, send] = [0, 1].map(ring);
        io::set_rings(cpu, receive, send);
        for _ in 0..work.costs.nic.ring {
            io::post(cpu, buffer(work, cpu, Rights::Write));
        }
    }
}

/// A CPU's life: what has come, what has left, and waiting for more.
pub fn serve(work: &Work, c: &mut Cpu, cpu: u32) {
    let mut polled = c.now();
    while work.goes_on() {
        let mut worked = false;
        while let Some(at) = io::reclaim(cpu) {
            worked = true;
            work.unmap(at, BYTES);
        }
        for _ in 0..BUDGET {
            let Some(io::Received { connection, at }) = io::receive(cpu) else { break };
            worked = true;
            transaction(work, c, cpu, connection, at);
        }
        let due = work.timer(c, cpu, &mut polled);
        if !worked {
            io::wait(cpu, due);
        }
    }
}

/// A request: its buffer is unmapped and another one posted, the answer is made, mapped, and sent.
fn transaction(work: &Work, c: &mut Cpu, cpu: u32, connection: u32, at: DmaAddr) {
    let nic = work.costs.nic;
    work.unmap(at, BYTES);
    io::post(cpu, buffer(work, cpu, Rights::Write));
    c.compute(nic.receive);
    c.compute(nic.send);
    let answer = buffer(work, cpu, Rights::Read);
    io::send(cpu, connection, answer);
    work.count(c);
}

/// A buffer of this CPU, mapped.
fn buffer(work: &Work, cpu: u32, rights: Rights) -> DmaAddr {
    let page = io::take_memory(cpu).expect("there are pages enough");
    work.map(page, BYTES, rights)
}

/// What a page costs that is unmapped strictly with nobody in the way, less what one costs that is
/// not waited for: the invalidation, in nanoseconds.
pub fn invalidation(profile: &Profile, costs: DeviceCosts, seed: u64) -> Result<f64, LabError> {
    const PAGES: u64 = 1000;
    let time = |policy| -> Result<f64, LabError> {
        let contestant = Contestant::new(Design::Magazines, policy);
        let mut machine = run::Setup::new(profile, Tlb::SHOOTDOWN, seed);
        machine.config.cpus = Some(2);
        machine.config.own_caches = true;
        let mut machine = machine.build()?;
        let promise = contestant.promise();
        let _hardware = Hardware::new(Setup {
            costs,
            cpus: 1,
            pages: 8,
            piece: 1,
            translated: true,
            promise,
            seed,
        });
        spawn(&mut machine, 1, io::serve)?;
        let taken = Note::new(Time::ZERO);
        let note = taken.clone();
        spawn(&mut machine, 0, move |c| {
            let mapper = contestant.make(1, 1, 8);
            let page = io::take_memory(0).expect("a page");
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

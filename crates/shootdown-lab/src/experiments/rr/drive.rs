//! Random reads from drives: each CPU has as many under way as its queue takes.

use shootdown_machine::Cpu;
use shootdown_machine::io;
use shootdown_machine::io::nvme::{self, Read};
use shootdown_machine::shootdown_dma::{DmaAddr, PhysAddr, Rights};

use super::work::{PAGE, Work};

/// Pieces of memory that a CPU needs beyond those under way: rings, and what is held back.
pub const SPARE: u32 = 320;

/// Completions taken before the device is level for.
const BUDGET: u32 = 32;

/// Bytes of a list: 31 addresses, in a pool of its own as Linux's driver has it.
const LIST: u64 = 256;

/// Pages of a CPU's lists: those of 64 commands.
const LISTS: u64 = 4;

/// The driver's start: queues and lists, each in pages of its own.
pub fn boot(work: &Work) {
    for cpu in 0..work.cpus {
        let mut pages = pages(cpu);
        let mut mapped = |rights| {
            let page = pages.next().expect("pages for rings");
            work.map(page, PAGE, rights)
        };
        let submissions = mapped(Rights::Read);
        nvme::set_queues(cpu, submissions, mapped(Rights::Write));
        work.lists.borrow_mut().push((0..LISTS).map(|_| mapped(Rights::Read)).collect());
    }
}

/// Pages of this CPU's memory, one after the other.
fn pages(cpu: u32) -> impl Iterator<Item = PhysAddr> {
    let piece = u64::from(io::piece());
    let mut left = (PhysAddr(0), 0);
    std::iter::from_fn(move || {
        if left.1 == 0 {
            left = (io::take_memory(cpu)?, piece);
        }
        let page = left.0;
        left = (PhysAddr(page.0 + PAGE), left.1 - 1);
        Some(page)
    })
}

/// A CPU's life: what is complete is unmapped, and another read begun in its place.
pub fn serve(work: &Work, c: &mut Cpu, cpu: u32, pages: u32) {
    let costs = work.costs.nvme;
    let bytes = u64::from(pages) * PAGE;
    let lists = work.lists.borrow()[cpu as usize].clone();
    let begin = |c: &mut Cpu, tag: u32| -> DmaAddr {
        c.compute(costs.submit);
        let memory = io::take_memory(cpu).expect("there is memory enough");
        let at = work.map(memory, bytes, Rights::Write);
        let list = (pages > 2).then(|| {
            let from = u64::from(tag) * LIST;
            DmaAddr(lists[usize::try_from(from / PAGE).unwrap_or(0)].0 + from % PAGE)
        });
        nvme::submit(cpu, Read { tag, at, pages, list });
        at
    };
    let mut under_way: Vec<DmaAddr> = (0..costs.depth).map(|tag| begin(c, tag)).collect();
    nvme::ring(cpu);
    let mut polled = c.now();
    while work.goes_on() {
        let mut reads = 0;
        while reads < BUDGET
            && let Some(tag) = nvme::completed(cpu)
        {
            reads += 1;
            let at = &mut under_way[tag as usize];
            work.unmap(*at, bytes);
            c.compute(costs.complete);
            *at = begin(c, tag);
            work.count(c);
        }
        let due = work.timer(c, cpu, &mut polled);
        if reads == 0 {
            nvme::wait(cpu, due);
        } else {
            nvme::ring(cpu);
        }
    }
}

//! Runs of the tag allocator on the hostile machine, as traces for its specification.
//!
//! Two CPUs switch between spaces at random and give their tags back; a third pins and unpins. What
//! each operation did, as far as its caller sees it, is written down in the order in which it
//! happened: a TLA+ module whose runs `formal/tla/TagsTrace.tla` accepts or does not. It must not
//! accept what is false: with `--wrong N` one event is falsified, with `--mutant NAME` a step of
//! the allocator is missing.
//!
//! ```sh
//! cargo run -p shootdown-machine --example tag_traces [RUNS [--wrong N | --mutant NAME]]
//! ```

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::ptr::NonNull;

use shootdown::mutant::{self, Mutant};
use shootdown::tags::generations::{CpuTag, Generations, SpaceTag};
use shootdown::{CpuId, Tag};
use shootdown_machine::hunt::schedule::{Random, Rng};
use shootdown_machine::hunt::{Bounds, End, Memory, Powers, World, hw, run};

const CPUS: usize = 2;
const SPACES: usize = 10;
/// Tags of 3 bits: 7 numbers are given out.
const BITS: u8 = 3;
const OPERATIONS: usize = 14;
const PINNER: &str = "pinner";

/// What a caller saw: who, what, which space, which number, and what it was told besides.
#[derive(Clone, PartialEq)]
struct Event {
    who: String,
    what: &'static str,
    space: String,
    number: String,
    rolled: bool,
}

/// What the CPUs share.
struct Shared {
    tags: Generations<1, CPUS>,
    cpus: [CpuTag; CPUS],
    spaces: [SpaceTag; SPACES],
}

struct Switching {
    seed: u64,
    shared: Cell<Option<NonNull<Shared>>>,
    events: RefCell<Vec<Event>>,
}

impl Switching {
    fn shared(&self) -> &Shared {
        // SAFETY: placed by `boot` of this run, and there until the run is over.
        unsafe { self.shared.get().expect("booted").as_ref() }
    }

    fn event(&self, cpu: CpuId, what: &'static str, space: usize, tag: Option<Tag>, rolled: bool) {
        let who = if cpu.index() < CPUS { format!("cpu{}", cpu.0) } else { PINNER.to_string() };
        let number = tag.map_or_else(|| "none".to_string(), |tag| format!("n{}", tag.0));
        let event = Event { who, what, space: format!("s{space}"), number, rolled };
        self.events.borrow_mut().push(event);
    }

    fn switch(&self, cpu: CpuId, rng: &mut Rng) {
        let Shared { tags, cpus, spaces } = self.shared();
        let mut loaded = false;
        for _ in 0..OPERATIONS {
            let space = rng.below(SPACES);
            if loaded && rng.below(6) == 0 {
                self.event(cpu, "unload", space, None, false);
                // SAFETY: there are no tables.
                unsafe { cpus[cpu.index()].deactivate() };
                self.event(cpu, "deactivate", space, None, false);
                loaded = false;
                continue;
            }
            self.event(cpu, "activate", space, None, false);
            // SAFETY: there are no tables, and one set of CPUs.
            let done = unsafe { tags.activate(cpu, &spaces[space], &cpus[..], hw::relax) };
            if done.flush {
                self.event(cpu, "flush", space, Some(done.tag), done.rolled_over);
            }
            self.event(cpu, "load", space, Some(done.tag), done.rolled_over);
            // SAFETY: as above.
            unsafe { cpus[cpu.index()].loaded() };
            loaded = true;
        }
    }

    fn pin(&self, cpu: CpuId, rng: &mut Rng) {
        let Shared { tags, cpus, spaces } = self.shared();
        for _ in 0..OPERATIONS / 4 {
            let space = rng.below(SPACES);
            self.event(cpu, "pin", space, None, false);
            // SAFETY: one set of CPUs.
            let tag = unsafe { tags.pin(&spaces[space], &cpus[..], hw::relax) };
            let tag = tag.expect("numbers for all");
            self.event(cpu, "pinned", space, Some(tag), false);
            self.event(cpu, "unpin", space, None, false);
            // SAFETY: there is no device.
            unsafe { tags.unpin(&spaces[space], hw::relax) };
            self.event(cpu, "unpinned", space, None, false);
        }
    }
}

impl World for Switching {
    fn cpus(&self) -> u8 {
        CPUS as u8 + 1
    }

    fn boot(&self) {
        self.events.borrow_mut().clear();
        self.shared.set(Some(hw::place(Shared {
            tags: Generations::new(BITS, false, CPUS as u32).expect("more tags than CPUs"),
            cpus: std::array::from_fn(|_| CpuTag::new()),
            spaces: std::array::from_fn(|_| SpaceTag::new()),
        })));
    }

    fn program(&self, cpu: CpuId) {
        let mut rng = Rng::of_run(self.seed, u64::from(cpu.0));
        hw::set_irqs(false);
        if cpu.index() < CPUS {
            self.switch(cpu, &mut rng)
        } else {
            self.pin(cpu, &mut rng)
        }
        hw::set_irqs(true);
    }

    fn interrupt(&self, _: CpuId) {}
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|n| n.parse::<usize>().ok());
    let runs = number(0).unwrap_or(20);
    let option = arguments.get(1).map(String::as_str);
    let wrong = if option == Some("--wrong") { number(2) } else { None };
    let mutant = arguments.get(2).filter(|_| option == Some("--mutant"));
    let mutant = mutant.map(|name| {
        let named = Mutant::ALL.iter().find(|m| m.name() == name);
        *named.unwrap_or_else(|| panic!("no mutant '{name}'"))
    });
    mutant::set(mutant);
    let (mut traces, mut most) = (vec![], 0);
    for seed in 0..runs as u64 {
        let memory = [Memory::Sc, Memory::Tso, Memory::Weak][seed as usize % 3];
        let world = Switching { seed, shared: Cell::new(None), events: RefCell::default() };
        let mut chooser = Random::new(Rng::of_run(seed, u64::MAX));
        let outcome = run(&world, Powers::HOSTILE.memory(memory), Bounds::default(), &mut chooser);
        assert_eq!(outcome.end, End::Finished, "seed {seed}");
        let events = world.events.take();
        let rollovers = events.iter().filter(|e| e.what == "pin" || e.what == "load" && e.rolled);
        most = most.max(1 + rollovers.count());
        traces.push(events);
    }
    if let Some(kind) = wrong {
        traces.truncate(1);
        falsify(&mut traces[0], kind);
    }
    print!("{}", module(&traces, most));
}

/// Makes one event say something that the allocator did not do.
fn falsify(events: &mut Vec<Event>, kind: usize) {
    match kind {
        // A flush is left out.
        0 => {
            let at = events.iter().rposition(|e| e.what == "flush").expect("a flush");
            events.remove(at);
        }
        // A space gets the number that another CPU is running under.
        1 => {
            let runs = |at: usize| {
                let before = events[..at].iter().rev();
                let mut others = before.filter(|e| e.who != events[at].who && e.who != PINNER);
                others.find(|e| ["load", "unload"].contains(&e.what)).filter(|e| e.what == "load")
            };
            let clash = |at: &usize| {
                let other = runs(*at);
                events[*at].what == "load" && other.is_some_and(|o| o.space != events[*at].space)
            };
            let at = (0..events.len()).rev().find(clash).expect("two CPUs run");
            let number = runs(at).expect("found just now").number.clone();
            let who = events[at].who.clone();
            for event in &mut events[at.saturating_sub(1)..=at] {
                if event.who == who && ["flush", "load"].contains(&event.what) {
                    event.number.clone_from(&number);
                }
            }
        }
        // Nobody rolled over.
        2 => events.iter_mut().for_each(|e| e.rolled = false),
        // A flush that was not needed: a CPU switches twice without a rollover in between.
        3 => {
            let flushes = |e: &Event| e.what == "flush";
            let at = (1..events.len())
                .rev()
                .find(|&at| events[at].what == "load" && !flushes(&events[at - 1]))
                .expect("a switch without a flush");
            let flush = Event { what: "flush", ..events[at].clone() };
            events.insert(at, flush);
        }
        _ => panic!("--wrong takes 0 to 3"),
    }
}

fn module(traces: &[Vec<Event>], generations: usize) -> String {
    let mut text =
        String::from("---- MODULE TagsRuns ----\n(* Written by examples/tag_traces.rs. *)\n");
    let _ = writeln!(text, "MostGenerations == {generations}\nRuns == <<");
    for (at, events) in traces.iter().enumerate() {
        let tuples: Vec<String> = events
            .iter()
            .map(|e| {
                let rolled = if e.rolled { "TRUE" } else { "FALSE" };
                let Event { who, what, space, number, .. } = e;
                format!("<<\"{who}\",\"{what}\",\"{space}\",\"{number}\",{rolled}>>")
            })
            .collect();
        let comma = if at + 1 < traces.len() { "," } else { "" };
        let _ = writeln!(text, "  << {} >>{comma}", tuples.join(",\n     "));
    }
    text + ">>\n====\n"
}

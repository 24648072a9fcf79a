//! Flushing remote CPUs while flushing the own one: the sysbench table of the patch series
//! "x86/mm/tlb: Flush remote and local TLBs concurrently".
//!
//! `sysbench fileio` in mode `rndwr` with memory-mapped files: threads take events from one counter
//! under one mutex. A cycle is 100 writes of 16 KiB (4 pages) to random blocks, then 128 `msync`
//! calls, one for each file. An msync write-protects the dirty pages of its file, each with a flush
//! of its own (the author: "every TLB invalidation is of a single entry"), and the next write to
//! such a page faults. So an event causes 400 / 228 = 1.754 single-page flushes, each of which
//! interrupts every other thread.
//!
//! Calibrated: the compute of an event, so that one thread takes what was published for it (7.888
//! us before the series, 7.697 us with it: with one thread nothing can overlap, the series also
//! made the flush itself shorter); and the interrupt path of the profile, whose parts nobody
//! published and which is fitted to this table. Predicted: that one path explains 2 to 24 threads,
//! how their flushes delay each other and merge, and what overlapping gains.
//!
//! The serial policy is the code the series was applied to: remote CPUs interrupted after the local
//! flush, the lazy flag on a line that every flush of that CPU dirties. `overlapped` is the whole
//! series, `overlap alone` only its title.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown_machine::{Cpu, Machine, Profile, Space, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, spawn};
use super::{Experiment, Findings, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Overlap;

const SOURCE: &str =
    "Amit 2019, \"x86/mm/tlb: Flush remote and local TLBs concurrently\", v3 cover letter";
const MACHINE: &str = "haswell-ep-48";

/// Threads, events in 10 s before the series, and with it; mitigations on.
const PUBLISHED: [(u32, f64, f64); 6] = [
    (1, 1_267_765.0, 1_299_253.0),
    (2, 1_734_644.0, 1_799_225.0),
    (4, 2_821_268.0, 2_919_132.0),
    (8, 4_171_652.0, 4_376_925.0),
    (16, 5_590_729.0, 5_829_866.0),
    (24, 6_250_212.0, 6_522_303.0),
];
/// Without a published figure here.
const PREDICTED: [u32; 2] = [32, 48];
/// sysbench's default run time, to which the published counts belong (inferred).
const RUN_US: f64 = 10e6;

const SERIAL: &str = "serial";
const OVERLAPPED: &str = "overlapped";

/// The policies compared.
fn variants() -> [(&'static str, Policy); 4] {
    let serial = Policy { overlap: false, split_lazy_line: false, ..Policy::LINUX_5_13 };
    [
        (SERIAL, serial),
        ("overlap alone", Policy { overlap: true, ..serial }),
        (OVERLAPPED, Policy::LINUX_5_13),
        ("shootdown", Policy::SHOOTDOWN),
    ]
}

impl Experiment for Overlap {
    fn name(&self) -> &'static str {
        "overlap"
    }

    fn line(&self) -> &'static str {
        "sysbench random writes to mapped files, 1 to 48 threads, serial against overlapped flushes"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let own = request.is_own();
        let limit = request.cpus.map(|n| machines::check_cpus(n, 1)).transpose()?;
        let limit = limit.unwrap_or(profile.topology.cpus.count());
        let predicted = if request.quick { &[][..] } else { &PREDICTED };
        let threads: Vec<u32> = PUBLISHED
            .iter()
            .map(|(threads, ..)| *threads)
            .chain(predicted.iter().copied())
            .filter(|threads| *threads <= limit)
            .collect();
        let own_policies = || match variants() {
            [serial, _, overlapped, _] if request.quick => vec![serial, overlapped],
            all => all.to_vec(),
        };
        let policies = request.runnable(self.name())?.unwrap_or_else(own_policies);
        let mitigations: &[bool] = if request.quick { &[true] } else { &[true, false] };
        let steps = mitigations.len() * threads.len() * policies.len();
        let progress = Progress::new("overlap", steps as u64);

        let base = calibrate(&profile, request.seed)?;
        let mut document = Document::new("overlap", &profile.name, request.seed);
        for &mitigations in mitigations {
            let workload = workload(mitigations);
            for &n in &threads {
                let mut serial = None;
                for (label, policy) in &policies {
                    progress.at(format!("{n} threads, {label}, {workload}"));
                    let run = Run {
                        profile: &profile,
                        policy: *policy,
                        mitigations,
                        threads: n,
                        base: base.of(label),
                        seed: request.seed,
                    };
                    let us = run.event_time()?;
                    progress.step();
                    let published = published(n, label).filter(|_| own && mitigations);
                    let serial_us = *serial.get_or_insert(us);
                    rows(&mut document, label, workload, n, us, serial_us, published);
                }
            }
        }
        let mut findings = Findings::default();
        if own {
            findings.targets = targets(&document);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

fn workload(mitigations: bool) -> &'static str {
    if mitigations {
        "sysbench rndwr mmap, mitigations on"
    } else {
        "sysbench rndwr mmap, mitigations off"
    }
}

/// Published events in 10 s and gain in percent.
fn published(threads: u32, label: &str) -> Option<(f64, f64)> {
    let (_, serial, overlapped) = PUBLISHED.iter().find(|(n, ..)| *n == threads)?;
    match label {
        SERIAL => Some((*serial, 0.0)),
        OVERLAPPED => Some((*overlapped, (overlapped / serial - 1.0) * 100.0)),
        _ => None,
    }
}

fn rows(
    document: &mut Document,
    label: &str,
    workload: &str,
    threads: u32,
    us: f64,
    serial_us: f64,
    published: Option<(f64, f64)>,
) {
    let all = f64::from(threads) * RUN_US;
    let with = |row: Row, figure: Option<f64>| match figure {
        Some(figure) => row.published(figure, SOURCE),
        None => row,
    };
    document.push(with(
        Row::new(label, workload, threads, TIME, "us", us),
        published.map(|(events, _)| all / events),
    ));
    document.push(with(
        Row::new(label, workload, threads, "events in 10 s", "events", all / us),
        published.map(|(events, _)| events),
    ));
    if label != SERIAL {
        let gain = (serial_us / us - 1.0) * 100.0;
        document.push(with(
            Row::new(label, workload, threads, GAIN, "%", gain),
            published.map(|(_, gain)| gain),
        ));
    }
}

const TIME: &str = "thread time per event";
const GAIN: &str = "gain over serial";

fn targets(document: &Document) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in document.rows.iter().filter(|r| r.published.is_some()) {
        if row.metric == TIME && row.policy == SERIAL {
            let off = row.deviation().unwrap_or(f64::INFINITY);
            targets.push(Target {
                what: format!(
                    "{} threads, serial: event time within 10 % of the published one",
                    row.cpus
                ),
                seen: format!("{off:+.1} %"),
                passed: off.abs() <= 10.0,
            });
        } else if row.metric == GAIN && row.policy == OVERLAPPED && row.cpus >= 2 {
            let published = row.published.unwrap_or(0.0);
            targets.push(Target {
                what: format!(
                    "{} threads: gain positive and within 2 points of the published {published:.1} %",
                    row.cpus
                ),
                seen: format!("{:.1} %", row.value),
                passed: row.value > 0.0 && (row.value - published).abs() <= 2.0,
            });
        }
    }
    targets
}

/// Cycles of 228 events run before measuring, and measured.
const WARM: u64 = 2;
const MEASURED: u64 = 20;

const WRITES: u64 = 100;
const FILES: u64 = 128;
const CYCLE: u64 = WRITES + FILES;
const BLOCK_PAGES: u64 = 4;
const PAGE: u64 = 4096;
/// Pages of a file. sysbench's files have 6144 (24 MiB); what matters is that a random block is
/// hardly ever in the TLB, and 128 files of 1.5 MiB are 48 times what 1024 entries reach.
const FILE_PAGES: u64 = 384;
const PAGES: u64 = FILES * FILE_PAGES;

/// Pages a thread keeps using (code, stack, buffers; kernel data, which the machine does not
/// translate, is meant too), and how often it comes back to them during the compute of an event.
/// They make a full flush cost its refill. A guess of the order of an L1 TLB.
const HOT_PAGES: u64 = 64;
const SLICES: u64 = 4;

/// How long an event holds sysbench's request mutex: it draws file and block under it. A guess.
const HOLD: Time = Time::from_ns(200);

/// Programs begin here, when the first one has mapped and touched everything.
const START: Time = Time::from_us(10_000_000);

struct Run<'a> {
    profile: &'a Profile,
    policy: Policy,
    mitigations: bool,
    threads: u32,
    /// Mean compute of an event.
    base: Time,
    seed: u64,
}

/// Mean compute of an event before the series and with it.
#[derive(Clone, Copy)]
struct Base {
    serial: Time,
    series: Time,
}

impl Base {
    fn of(self, label: &str) -> Time {
        if label == OVERLAPPED { self.series } else { self.serial }
    }
}

/// The compute of one event: what is left of the published single-thread time after what the
/// machine charges for faults, flushes, calls and walks. With one thread there is nothing to
/// overlap, so what the series gained there (it also made the flush itself shorter) is taken off
/// the compute of `overlapped`.
fn calibrate(profile: &Profile, seed: u64) -> Result<Base, LabError> {
    let (_, policy) = variants()[0];
    let run = Run { profile, policy, mitigations: true, threads: 1, base: Time::ZERO, seed };
    let machine_us = run.event_time()?;
    let (_, serial, series) = PUBLISHED[0];
    let rest = |events: f64| Time::from_ns_f64((RUN_US / events - machine_us) * 1e3);
    Ok(Base { serial: rest(serial), series: rest(series) })
}

/// What the threads share.
#[derive(Clone)]
struct Shared {
    /// The next event.
    next: Note<u64>,
    /// When the request mutex is free again.
    mutex_free: Note<Time>,
    /// When the measured events began, and ended.
    began: Note<Time>,
    ended: Note<Time>,
    /// Where the files are mapped, and after them the hot pages.
    files: Note<u64>,
    /// Dirty pages of each file, as the page cache knows them.
    dirty: Rc<RefCell<Vec<Vec<u64>>>>,
}

impl Run<'_> {
    /// Thread time per event in microseconds.
    fn event_time(&self) -> Result<f64, LabError> {
        let mut setup = Setup::new(self.profile, self.policy, self.seed);
        setup.config.mitigations = self.mitigations;
        let mut machine = setup.build()?;
        let space = machine.new_space();
        let shared = Shared {
            next: Note::new(0),
            mutex_free: Note::new(Time::ZERO),
            began: Note::new(Time::ZERO),
            ended: Note::new(Time::ZERO),
            files: Note::new(0),
            dirty: Rc::new(RefCell::new(vec![Vec::new(); usize::try_from(FILES).unwrap_or(0)])),
        };
        for cpu in 0..self.threads {
            self.spawn(&mut machine, cpu, space, &shared)?;
        }
        finish(machine)?;
        let elapsed = shared.ended.get().since(shared.began.get());
        Ok(elapsed.us() * f64::from(self.threads) / count(MEASURED * CYCLE))
    }

    fn spawn(
        &self,
        machine: &mut Machine,
        cpu: u32,
        space: Space,
        shared: &Shared,
    ) -> Result<(), LabError> {
        let shared = shared.clone();
        let (base, seed) = (self.base, self.seed);
        // Alone, a thread finds the mutex in its own cache.
        let lock = if self.threads == 1 {
            Time::ZERO
        } else {
            self.profile.costs(self.mitigations).line_same
        };
        spawn(machine, cpu, move |cpu| {
            cpu.kernel(|k| k.switch_to(Some(space)));
            if cpu.id().0 == 0 {
                let pages = PAGES + HOT_PAGES;
                shared.files.set(cpu.kernel(|k| k.map(pages, Stride::Page4K)));
                cpu.touch(shared.files.get(), pages, false);
            }
            cpu.idle_until(START);
            let first = WARM * CYCLE;
            let last = first + MEASURED * CYCLE;
            loop {
                let event = take(cpu, &shared, lock);
                if event == first {
                    shared.began.set(cpu.now());
                }
                if event == last {
                    shared.ended.set(cpu.now());
                }
                if event >= last {
                    break;
                }
                work(cpu, &shared, compute_of(base, event, seed));
                match event % CYCLE {
                    at if at < WRITES => write(cpu, &shared, chance(seed, event)),
                    at => sync(cpu, &shared, at - WRITES),
                }
            }
        })
    }
}

/// Takes the next event under the mutex: waits for its turn, fetches the mutex's line, holds it.
fn take(cpu: &mut Cpu, shared: &Shared, lock: Time) -> u64 {
    let now = cpu.now();
    let free = now.max(shared.mutex_free.get()) + lock + HOLD;
    shared.mutex_free.set(free);
    let event = shared.next.get();
    shared.next.set(event + 1);
    cpu.compute(free - now);
    event
}

/// The compute of one event, such that the mean over a cycle is `base`: a write (it copies 16 KiB)
/// has half as much again as the mean, an msync the rest; and each is up to a half off that, so
/// that threads do not fall into step.
fn compute_of(base: Time, event: u64, seed: u64) -> Time {
    let of_kind = if event % CYCLE < WRITES {
        base.ps() * 3 / 2
    } else {
        base.ps() * (CYCLE - WRITES * 3 / 2) / FILES
    };
    /// Steps from half to one and a half.
    const STEPS: u64 = 1024;
    let step = chance(seed ^ COMPUTE_STREAM, event) % STEPS;
    Time::from_ps(of_kind / 2 + of_kind * step / STEPS)
}

/// Names the stream of chance for compute times; blocks are drawn from the seed's own.
const COMPUTE_STREAM: u64 = 0x5eed;

/// Computes, coming back to the hot pages.
fn work(cpu: &mut Cpu, shared: &Shared, time: Time) {
    let hot = shared.files.get() + PAGES * PAGE;
    for _ in 0..SLICES {
        cpu.compute(Time::from_ps(time.ps() / SLICES));
        for page in 0..HOT_PAGES {
            cpu.read(hot + page * PAGE);
        }
    }
}

/// Writes a random block.
fn write(cpu: &mut Cpu, shared: &Shared, random: u64) {
    let block = random % (PAGES / BLOCK_PAGES);
    let file = usize::try_from(block * BLOCK_PAGES / FILE_PAGES).unwrap_or(0);
    for page in 0..BLOCK_PAGES {
        let va = shared.files.get() + (block * BLOCK_PAGES + page) * PAGE;
        cpu.write(va);
        let dirty = &mut shared.dirty.borrow_mut()[file];
        if !dirty.contains(&va) {
            dirty.push(va);
        }
    }
}

/// Synchronizes a file: its dirty pages one by one, each with a flush of its own.
fn sync(cpu: &mut Cpu, shared: &Shared, file: u64) {
    let file = usize::try_from(file).unwrap_or(0);
    let dirty = std::mem::take(&mut shared.dirty.borrow_mut()[file]);
    cpu.syscall(|k| {
        for page in dirty {
            k.clean(page, 1);
        }
    });
}

//! A port of one's own, hunted; and what the hunt says when the port has a bug.
//!
//! ```sh
//! cargo run --release -p shootdown-machine --features harness --example hunt_your_port
//! cargo run --release -p shootdown-machine --features harness --example hunt_your_port -- lost-kick
//! ```
//!
//! The first ends with exit code 0, the second with a timeline, a line that replays, and exit
//! code 1. The bugs: `lost-kick`, `leaf-only`, `keeps-tag` (see [`Bug`]). With a line as second
//! argument it is shown again.

use std::cell::Cell;
use std::process::ExitCode;

use shootdown_machine::harness::{self, Config, Library, Options, Port};
// The library's source with traced atomics. A port that says `shootdown::...` everywhere is hunted
// unchanged under this name, and built for the kernel with the crate of that name.
use shootdown_machine::shootdown;

use shootdown::accessed::{Accessed, AccessedPolicy};
use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::facts::{Facts, TagScope};
use shootdown::platform::{KickError, Pinned, Platform, Stalled};
use shootdown::policy::Policy;
use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::sync::{AtomicBool, Ordering};
use shootdown::{CpuId, IrqsOff, PerCpu, Served, Slots, System, Tag};

use self::cpu::Root;

/// The most CPUs of this kernel.
const CPUS: usize = 8;

/// What a kernel has in assembly. On the machine it is `hw`; nothing else of the port differs.
mod cpu {
    use shootdown_machine::harness::hw::{self, Target};
    use shootdown_machine::shootdown::{CpuId, Tag};

    /// What CR3 holds beside the tag.
    pub type Root = shootdown_machine::hostile::TableId;

    pub fn this() -> CpuId {
        hw::this_cpu()
    }

    pub fn interrupts_are_on() -> bool {
        hw::irqs_are_on()
    }

    /// Says whether the controller took it.
    pub fn send_ipi(to: CpuId) -> bool {
        hw::kick(to)
    }

    pub fn pause() {
        hw::relax();
    }

    /// `mov cr3`; `no_flush` is bit 63.
    pub fn write_cr3(root: Root, tag: Tag, no_flush: bool) {
        hw::load_root(root, tag, no_flush);
    }

    /// `invpcid`, single address, or `invlpga`.
    pub fn invalidate_page(tag: Tag, page: u32, leaf_only: bool) {
        hw::invalidate(Target::Pages { tag, first: page, last: page, leaf_only });
    }

    /// `invlpg`: global entries too.
    pub fn invalidate_kernel_page(page: u32) {
        hw::invalidate(Target::Kernel { first: page, last: page });
    }

    /// `invpcid`, single context.
    pub fn invalidate_tag(tag: Tag) {
        hw::invalidate(Target::Tag(tag));
    }

    /// `invpcid`, everything with globals.
    pub fn invalidate_all() {
        hw::invalidate(Target::Everything);
    }

    /// Waits for what was invalidated (x86: nothing to do; Arm: `dsb`).
    pub fn wait() {
        hw::sync();
    }

    /// Table stores are seen by walkers from now on (x86: nothing to do; Arm: `dsb ishst`).
    pub fn publish() {
        hw::publish();
    }
}

/// What the port can do wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// The flag that merges interrupts is cleared after they were served: what came in between is
    /// lost.
    LostKick,
    /// Ranges are always invalidated as if no table had been freed.
    LeafOnly,
    /// The no-flush bit is always set when there are tags.
    KeepsTag,
}

impl Bug {
    const ALL: [(&str, Self); 3] = [
        ("lost-kick", Self::LostKick),
        ("leaf-only", Self::LeafOnly),
        ("keeps-tag", Self::KeepsTag),
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// The port.
struct Mine;

/// What a kernel has in statics. Here it belongs to a run, so it is placed anew for each.
struct Statics {
    library: Cell<Option<Library<Mine>>>,
    kernel: Root,
    /// An interrupt is on its way to this CPU: another one is not needed.
    on_its_way: [AtomicBool; CPUS],
}

thread_local! {
    static STATICS: Cell<Option<&'static Statics>> = const { Cell::new(None) };
}

fn statics() -> &'static Statics {
    STATICS.get().expect("booted")
}

impl Port for Mine {
    fn boot(cpus: u8, _: &Config, kernel: Root) {
        let placed = harness::hw::place(Statics {
            library: Cell::new(None),
            kernel,
            on_its_way: [const { AtomicBool::new(false) }; CPUS],
        });
        // SAFETY: it stays as long as the run, and the next run's `boot` replaces the reference
        // first.
        STATICS.set(Some(unsafe { placed.as_ref() }));
        for (i, flag) in statics().on_its_way.iter().enumerate() {
            let name = || format!("cpu{i}: an interrupt is on its way");
            harness::hw::name(std::ptr::NonNull::from(flag).cast(), 1, name);
        }
        statics().library.set(Some(Library::place(cpus)));
    }

    fn interrupt(irqs: IrqsOff<'_, Self>) -> Served {
        let flag = &statics().on_its_way[irqs.cpu().index()];
        if has(Bug::LostKick) {
            let served = shootdown::on_kick(irqs);
            flag.store(false, Ordering::Release);
            return served;
        }
        // ORDERING: Acquire, with the Release of everyone who found it set: their requests are seen
        flag.swap(false, Ordering::AcqRel);
        shootdown::on_kick(irqs)
    }
}

/// Preemption is off.
struct Pin(CpuId, std::marker::PhantomData<*mut ()>);

// SAFETY: a CPU of the machine runs one program.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: (1, 4) placed once per run. (2) A flag that is set is cleared by the handler before it
// looks for requests. (3) The machine runs handlers with interrupts off. (5) No split tables.
unsafe impl Platform for Mine {
    type Pin = Pin;
    type Regime = Mmu;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<4>;
    type Tags = shootdown::NoTags;

    fn pin() -> Pin {
        Pin(cpu::this(), std::marker::PhantomData)
    }

    fn system() -> &'static System<Self> {
        statics().library.get().expect("booted").system()
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        statics().library.get().expect("booted").slot(cpu)
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        for cpu in targets.iter() {
            // ORDERING: Release, with the handler's Acquire
            let merged = statics().on_its_way[cpu.index()].swap(true, Ordering::AcqRel);
            if !merged && !cpu::send_ipi(cpu) {
                return Err(KickError::Unreachable(cpu));
            }
        }
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        cpu::pause();
        Ok(())
    }

    fn may_wait() -> bool {
        cpu::interrupts_are_on()
    }

    /// The policy under test: yours to replace.
    fn policy() -> &'static Policy {
        // The programs below clear no accessed bits: a switch need not look whether any were.
        const NEVER: AccessedPolicy = AccessedPolicy::all(Accessed::Never);
        const TWO_SLOTS: Policy = Policy { slots: 2, accessed: NEVER, ..Policy::SHOOTDOWN };
        &TWO_SLOTS
    }
}

/// The hardware's half.
struct Mmu;

// SAFETY: (1, 5) by the instructions in `cpu`. (2) Without `no_flush` the load empties the tag. (3)
// The facts are constant. (4) Nothing waits for another CPU. (6) CR3 loads are serializing. (7) All
// take a tag.
unsafe impl Regime for Mmu {
    type Root = Root;

    fn facts() -> &'static Facts {
        const FACTS: Facts = Facts {
            tag_scope: TagScope::PerCpu,
            tag_bits: 12,
            ceiling: 2,
            ..Facts::X86_64_MINIMUM
        };
        &FACTS
    }

    unsafe fn load(root: Root, tag: Tag, keep: bool) {
        cpu::write_cr3(root, tag, keep || has(Bug::KeepsTag));
    }

    fn load_kernel() {
        cpu::write_cr3(statics().kernel, Tag(0), false);
    }

    fn publish() {
        cpu::publish();
    }

    fn invalidate(what: Invalidate, _: Reach) {
        #[allow(clippy::cast_possible_truncation)] // pages of the machine are small numbers
        let pages = |start: u64, last: u64| (start >> 12) as u32..=(last >> 12) as u32;
        match what {
            Invalidate::Range { tag, range, leaf_only } => {
                let leaf_only = leaf_only || has(Bug::LeafOnly);
                pages(range.start(), range.last())
                    .for_each(|page| cpu::invalidate_page(tag, page, leaf_only));
            }
            Invalidate::Kernel(range) => {
                pages(range.start(), range.last()).for_each(cpu::invalidate_kernel_page);
            }
            Invalidate::Tag(tag) => cpu::invalidate_tag(tag),
            Invalidate::Everything => cpu::invalidate_all(),
        }
    }

    fn sync(_: Reach) {
        cpu::wait();
    }
}

/// What is printed, and the exit code. The words: a bug or `none`, and a line to show again.
pub fn answer(words: &[&str]) -> (String, u8) {
    let bug = words.first().filter(|word| **word != "none");
    let planted = bug.map(|word| Bug::ALL.into_iter().find(|(name, _)| name == word));
    if planted == Some(None) {
        let names = Bug::ALL.map(|(name, _)| name).join(", ");
        return (format!("there is no bug `{}`; choose none, {names}", words[0]), 2);
    }
    PLANTED.set(planted.flatten().map(|(_, bug)| bug));
    if let Some(line) = words.get(1) {
        return match harness::replay::<Mine>(line) {
            Ok((end, timeline)) => (timeline, u8::from(end.is_failure())),
            Err(error) => (error.to_string(), 2),
        };
    }
    match harness::hunt::<Mine>(&Options::default()) {
        Ok(report) => (report.to_string(), report.exit_code()),
        Err(error) => (error.to_string(), 2),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (text, code) = answer(&words);
    if code == 2 {
        eprintln!("{text}");
    } else {
        println!("{text}");
    }
    ExitCode::from(code)
}

use std::marker::PhantomData;

use shootdown::CpuId;
use shootdown::facts::SplitTables;
use shootdown::mutant::Mutant;

use super::*;
use crate::hunt::kernel::KernelMutant;

/// A few programs, and one small one.
fn quick() -> Options {
    let mut options = Options::default().programs(60);
    options.small.truncate(1);
    options.controls = vec![Mutant::NoWait];
    options.witnesses = vec!["table-page-freed", "call-returned"];
    options
}

fn broken(mutant: KernelMutant) -> Options {
    let mut options = quick();
    for config in &mut options.kernels {
        config.mutant = Some(mutant);
    }
    options
}

#[test]
fn a_correct_port_keeps_every_promise_and_the_control_is_found() {
    let report = hunt::<HuntPort>(&quick()).unwrap();
    assert_eq!(report.verdict(), Verdict::Kept, "{report}");
    assert_eq!(report.exit_code(), 0);
    assert_eq!((report.programs, report.runs), (60, 60 * 32));
    assert!(report.explored[0].report.complete());
    assert!(report.controls[0].found.is_some());
    assert_eq!(report, hunt::<HuntPort>(&quick()).unwrap(), "H1");
}

#[test]
fn a_broken_port_is_found_shrunk_and_shown_again() {
    for mutant in [KernelMutant::NoSync, KernelMutant::DeafHandler, KernelMutant::NoPublish] {
        let report = hunt::<HuntPort>(&broken(mutant)).unwrap();
        assert_eq!(report.verdict(), Verdict::Broken, "{}", mutant.name());
        assert_eq!(report.exit_code(), 1);
        let failure = report.failure.as_ref().unwrap();
        assert!(failure.invariant().is_some());
        let text = report.to_string();
        let line = text.lines().last().unwrap().strip_prefix("to see it again: ").unwrap();
        assert_eq!(line.parse(), Ok(failure.code.clone()));
        let (end, timeline) = replay::<HuntPort>(line).unwrap();
        assert_eq!(end, failure.end, "H3");
        assert!(timeline.ends_with(&failure.timeline), "{timeline}");
        let program = failure.code.program.clone().unwrap();
        let operations: usize = program.cpus.iter().map(|c| c.boot.len() + c.run.len()).sum();
        assert!(operations <= 6, "{program}");
    }
}

#[test]
fn what_was_not_looked_at_is_said() {
    let mut options = quick().programs(4);
    options.states = 100;
    options.controls = vec![Mutant::SwitchWithoutFence];
    options.witnesses = vec!["never"];
    let report = hunt::<HuntPort>(&options).unwrap();
    assert_eq!(report.verdict(), Verdict::Unknown);
    assert_eq!(report.exit_code(), 1);
    let doubts = report.doubts().join("; ");
    for word in ["limit of states", "switch-without-fence", "`never`"] {
        assert!(doubts.contains(word), "{doubts}");
        assert!(report.to_string().contains(word), "{report}");
    }
}

#[test]
fn controls_leave_nothing_behind() {
    let _ = hunt::<HuntPort>(&quick()).unwrap();
    assert_eq!(shootdown::mutant::current(), None);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let mut options = quick();
    options.kernels.clear();
    assert_eq!(hunt::<HuntPort>(&options), Err(HarnessError::NoKernels));
    // The default port has split tables as the configuration says: one that never has.
    let split = Config { split: Split::On, ..Config::default() };
    let error = hunt::<Unsplit>(&Options::on(vec![split])).unwrap_err();
    assert!(matches!(error, HarnessError::Split { port: SplitTables::No, .. }), "{error}");
    assert!(error.to_string().contains("Config::split"), "{error}");
}

#[test]
fn lines_that_are_no_codes_are_refused() {
    let line = "weak+speculation : pages=2; switch a | unmap a0; switch a : 17c19ta";
    assert!(line.parse::<Code>().is_ok());
    for (text, word) in [
        ("", "copy"),
        ("weak 17c19ta", "copy"),
        ("strong : 17c19ta", "strong"),
        ("weak+flying : 17c19ta", "flying"),
        ("weak : dance; : 17c19ta", "dance"),
        ("weak : 17c19tb", "checksum"),
    ] {
        let said = text.parse::<Code>().unwrap_err().to_string();
        assert!(said.contains(word), "{text}: {said}");
    }
    assert_eq!(replay::<HuntPort>("weak : 17c19ta"), Err(CodeError::Parts));
}

/// Two CPUs count; whoever loads and stores loses counts.
struct Counts<const ATOMIC: bool>;

use shootdown::sync::{AtomicU64, Ordering};

thread_local! {
    static COUNT: std::cell::Cell<Option<&'static AtomicU64>> = const { std::cell::Cell::new(None) };
}

impl<const ATOMIC: bool> World for Counts<ATOMIC> {
    fn cpus(&self) -> u8 {
        2
    }

    fn boot(&self) {
        // SAFETY: it stays as long as the run; the next run places another one.
        COUNT.set(Some(unsafe { hw::place(AtomicU64::new(0)).as_ref() }));
    }

    fn program(&self, _: CpuId) {
        let count = COUNT.get().unwrap();
        if ATOMIC {
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        hw::witness("counted");
    }

    fn interrupt(&self, _: CpuId) {}

    fn finish(&self) {
        let count = COUNT.get().unwrap().load(Ordering::Relaxed);
        if count != 2 {
            hw::violation(Invariant::CallCompletes, format!("{count} of 2 were counted"));
        }
    }
}

#[test]
fn a_world_of_ones_own_is_hunted_too() {
    let options = Options { witnesses: vec!["counted"], ..Options::default() };
    let report = hunt_world(&Counts::<true>, &options);
    assert_eq!(report.verdict(), Verdict::Kept, "{report}");
    assert!(report.explored[0].report.complete());
    let report = hunt_world(&Counts::<false>, &options);
    assert_eq!(report.verdict(), Verdict::Broken);
    let failure = report.failure.unwrap();
    let (end, timeline) = replay_world(&Counts::<false>, &failure.code.to_string()).unwrap();
    assert_eq!((end, timeline), (failure.end, failure.timeline));
}

/// The default port, without split tables.
struct Unsplit(PhantomData<()>);

mod unsplit {
    use shootdown::cpu_set::AtomicCpuSet;
    use shootdown::facts::Facts;
    use shootdown::platform::{CpuSetOf, KickError, Stalled};
    use shootdown::regime::{Invalidate, Reach, Regime};
    use shootdown::{PerCpu, Platform, Slots, System, Tag};

    use super::*;
    use crate::hostile::TableId;
    use crate::hunt::kernel::HuntPin;

    pub struct Mmu;

    impl Port for Unsplit {
        fn boot(_: u8, _: &Config, _: TableId) {}
    }

    // SAFETY: it is asked for its facts, and never runs.
    unsafe impl Platform for Unsplit {
        type Pin = HuntPin;
        type Regime = Mmu;
        type Mask = AtomicCpuSet<1>;
        type Slots = Slots<1>;
        type Tags = shootdown::NoTags;

        fn pin() -> HuntPin {
            unreachable!()
        }

        fn system() -> &'static System<Self> {
            unreachable!()
        }

        fn slot(_: CpuId) -> Option<&'static PerCpu<Self>> {
            unreachable!()
        }

        fn kick(_: &CpuSetOf<Self>) -> Result<(), KickError> {
            unreachable!()
        }

        fn relax(_: &HuntPin) -> Result<(), Stalled> {
            unreachable!()
        }

        fn may_wait() -> bool {
            unreachable!()
        }
    }

    // SAFETY: as above.
    unsafe impl Regime for Mmu {
        type Root = TableId;

        fn facts() -> &'static Facts {
            &Facts::X86_64_MINIMUM
        }

        unsafe fn load(_: TableId, _: Tag, _: bool) {
            unreachable!()
        }

        fn load_kernel() {
            unreachable!()
        }

        fn publish() {
            unreachable!()
        }

        fn invalidate(_: Invalidate, _: Reach) {
            unreachable!()
        }

        fn sync(_: Reach) {
            unreachable!()
        }
    }
}

//! Running checks side by side.
//!
//! Every worker thread takes the next check that nobody has taken. Results are handed on in the
//! order of the checks, each as soon as all before it are there, whichever thread finishes first
//! (V3).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::steps::Planted;
use super::{Check, CheckResult, Settings, Verdict};
use crate::progress::Progress;

/// A result and how long the host took for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timed {
    /// What the check said.
    pub result: CheckResult,
    /// How long it took on this host.
    pub took: Duration,
}

/// Stack of a worker: explorers recurse.
const STACK: usize = 64 << 20;

/// Runs the checks with `settings.threads` workers and hands each result to `done`, in order.
pub fn run(
    checks: &[&dyn Check],
    settings: &Settings,
    progress: &Progress,
    mut done: impl FnMut(&dyn Check, Timed),
) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..settings.threads.clamp(1, checks.len().max(1)) {
            let (sender, next) = (sender.clone(), &next);
            let worker = move || {
                let _planted = Planted::new(settings.mutant);
                loop {
                    // A ticket: nothing else is read through it.
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(check) = checks.get(index) else { return };
                    progress.at(check.name());
                    let timed = one(*check, settings, progress);
                    progress.step();
                    if sender.send((index, timed)).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, worker)
                .expect("the host has room for a thread");
        }
        drop(sender);
        let mut waiting: Vec<Option<Timed>> = vec![None; checks.len()];
        let mut shown = 0;
        for (index, timed) in receiver {
            waiting[index] = Some(timed);
            while let Some(timed) = waiting.get_mut(shown).and_then(Option::take) {
                done(checks[shown], timed);
                shown += 1;
            }
        }
    });
}

fn one(check: &dyn Check, settings: &Settings, progress: &Progress) -> Timed {
    let begun = Instant::now();
    // A check that panics has found something: an assertion of the code it runs. The others go on.
    let result =
        catch_unwind(AssertUnwindSafe(|| check.run(settings, progress))).unwrap_or_else(|panic| {
            let observed = format!("panicked: {}", message(panic.as_ref()));
            CheckResult::new("an answer", observed, Verdict::Fail)
        });
    Timed { result, took: begun.elapsed() }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    struct Sleeper(&'static str, u64);

    impl Check for Sleeper {
        fn name(&self) -> &str {
            self.0
        }
        fn kind(&self) -> Kind {
            Kind::Random
        }
        fn line(&self) -> &str {
            "sleeps"
        }
        fn run(&self, _: &Settings, _: &Progress) -> CheckResult {
            assert_ne!(self.1, 13, "unlucky");
            thread::sleep(Duration::from_millis(self.1));
            CheckResult::new("rest", "rest", Verdict::Pass)
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_checks_whoever_is_first() {
        let checks = [Sleeper("a", 40), Sleeper("b", 1), Sleeper("c", 13), Sleeper("d", 1)];
        let checks: Vec<&dyn Check> = checks.iter().map(|c| c as &dyn Check).collect();
        for threads in [1, 2, 9] {
            let settings = Settings { threads, ..Settings::default() };
            let mut seen = Vec::new();
            run(&checks, &settings, &Progress::new("check", 4), |c, timed| {
                seen.push((c.name().to_owned(), timed.result.verdict, timed.result.observed));
            });
            let names: Vec<&str> = seen.iter().map(|(n, _, _)| n.as_str()).collect();
            assert_eq!(names, ["a", "b", "c", "d"]);
            assert_eq!(seen[2].1, Verdict::Fail, "a panic is a failure of that check alone");
            assert!(seen[2].2.contains("unlucky"), "{}", seen[2].2);
            assert_eq!(seen[3].1, Verdict::Pass);
        }
    }
}

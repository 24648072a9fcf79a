//! A line for each group of checks: those of one kind, when the last of them is done.

use std::time::Duration;

use super::report::{Tally, duration, grouped};
use super::{CheckResult, Kind};

/// Counts the results of checks that come in order, group by group.
#[derive(Debug)]
pub struct Groups {
    width: usize,
    /// Kinds in the order in which they come, and how many checks of each are still to come.
    left: Vec<(Kind, usize)>,
    tally: Tally,
    runs: u64,
    /// When the group before was over.
    since: Duration,
}

impl Groups {
    /// The groups of checks of these kinds.
    #[must_use]
    pub fn new(kinds: impl Iterator<Item = Kind>) -> Self {
        let mut left: Vec<(Kind, usize)> = Vec::new();
        for kind in kinds {
            match left.last_mut() {
                Some((last, count)) if *last == kind => *count += 1,
                _ => left.push((kind, 1)),
            }
        }
        left.reverse();
        let width = left.iter().map(|(kind, _)| kind.word().len()).max().unwrap_or(0);
        Self { width, left, tally: Tally::default(), runs: 0, since: Duration::ZERO }
    }

    /// The next result has come, so long after the first check began. The line of its group, if it
    /// is the last there.
    pub fn add(&mut self, result: &CheckResult, elapsed: Duration) -> Option<String> {
        self.tally.count(result.verdict);
        self.runs += result.runs;
        let (kind, left) = self.left.last_mut()?;
        *left -= 1;
        if *left != 0 {
            return None;
        }
        let (word, width) = (self.tally.verdict().word(), self.width);
        let runs = match self.runs {
            0 => String::new(),
            1 => "1 run, ".to_owned(),
            n => format!("{} runs, ", grouped(n)),
        };
        let took = duration(elapsed.saturating_sub(self.since));
        let (kind, counts) = (kind.word(), self.tally.sentence());
        let line = format!("{word:7} {kind:width$}  {counts}  ({runs}{took})");
        self.left.pop();
        (self.tally, self.runs, self.since) = (Tally::default(), 0, elapsed);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn result(verdict: Verdict, runs: u64) -> CheckResult {
        CheckResult { runs, ..CheckResult::new("x", "y", verdict) }
    }

    #[test]
    fn a_group_has_one_line_when_its_last_check_is_done() {
        use Kind::{Litmus, Random, Zoo};
        let mut groups = Groups::new([Litmus, Litmus, Litmus, Zoo, Zoo, Random].into_iter());
        let mut add =
            |verdict, runs, at| groups.add(&result(verdict, runs), Duration::from_secs(at));
        assert_eq!(add(Verdict::Pass, 0, 1), None);
        assert_eq!(add(Verdict::Skipped, 0, 2), None);
        let line = add(Verdict::Pass, 0, 3);
        assert_eq!(line.as_deref(), Some("pass    litmus  2 passed, 1 skipped  (3.0 s)"));
        assert_eq!(add(Verdict::Fail, 1000, 4), None);
        let line = add(Verdict::Pass, 234, 5);
        assert_eq!(
            line.as_deref(),
            Some("FAIL    zoo     1 passed, 1 failed  (1 234 runs, 2.0 s)")
        );
        let line = add(Verdict::Unknown, 1, 65);
        let said = "UNKNOWN random  0 passed, 1 unknown (a limit was reached)  (1 run, 1 min 00 s)";
        assert_eq!(line.as_deref(), Some(said));
    }
}

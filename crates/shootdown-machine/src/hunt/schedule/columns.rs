//! A run as a person reads it: a column per CPU, one event per line, and the promise that was
//! broken.
//!
//! ```text
//! step  CPU 0              CPU 1
//!    3  clears page 4
//!    4                     reads page 4: frame 7
//!    9  flush returns
//!   12                     reads page 4: frame 7
//!
//! broken promise "revocation" on CPU 1: ...
//! ```
//!
//! CPUs that did nothing have no column. Where columns would be too narrow to read, there is one
//! only, and each line names its CPU. No line is longer than asked for; what does not fit goes on
//! below, in its column.

use std::fmt::Write;

use crate::hunt::{End, Event, Outcome};

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Who did it.
    pub cpu: u8,
    /// At which step of the run.
    pub step: u64,
    /// What, in a few words.
    pub text: &'a str,
}

impl<'a> From<&'a Event> for Entry<'a> {
    fn from(event: &'a Event) -> Self {
        Self { cpu: event.cpu, step: event.step, text: &event.text }
    }
}

/// Draws the events of a run that was recorded, and how it ended.
#[must_use]
pub fn draw_run(outcome: &Outcome, width: usize) -> String {
    let ending = match &outcome.end {
        End::Finished => "finished, no promise broken".to_owned(),
        End::Violation(violation) => violation.to_string(),
        End::Panic(text) => format!("panic: {text}"),
        End::Abandoned => "abandoned".to_owned(),
        End::Limit => format!("cut off after {} steps", outcome.steps),
    };
    draw(outcome.events.iter().map(Entry::from), &ending, width)
}

/// Between columns.
const GAP: usize = 2;
/// The narrowest column in which a sentence can be read.
const NARROWEST: usize = 20;

/// Draws what happened, oldest first, in lines of at most `width` characters (at least 40), and
/// ends with `ending`: what was broken, or how the run ended.
#[must_use]
pub fn draw<'a>(
    entries: impl IntoIterator<Item = Entry<'a>>,
    ending: &str,
    width: usize,
) -> String {
    let entries: Vec<Entry<'a>> = entries.into_iter().collect();
    let width = width.max(40);
    let mut cpus: Vec<u8> = entries.iter().map(|e| e.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let longest = entries.iter().map(|e| e.step.to_string().len()).max().unwrap_or(0);
    let steps = longest.max("step".len());
    let each = (width - steps).checked_div(cpus.len()).unwrap_or(0).saturating_sub(GAP);
    let mut text = String::new();
    if each >= NARROWEST {
        // No wider than the longest event needs.
        let needed = |cpu: u8| {
            let of_cpu = entries.iter().filter(|e| e.cpu == cpu);
            of_cpu.map(|e| e.text.chars().count()).max().unwrap_or(0).max(NARROWEST).min(each)
        };
        let mut from = steps + GAP;
        let columns: Vec<(u8, usize, usize)> = cpus
            .iter()
            .map(|cpu| {
                let column = (*cpu, from, needed(*cpu));
                from += column.2 + GAP;
                column
            })
            .collect();
        let mut head = format!("{:>steps$}", "step");
        for (cpu, from, _) in &columns {
            let _ = write!(head, "{:1$}CPU {cpu}", "", from - head.chars().count());
        }
        text.push_str(&head);
        text.push('\n');
        for entry in &entries {
            let (_, from, wide) = columns[columns.partition_point(|c| c.0 < entry.cpu)];
            event(&mut text, entry.step, steps, from, "", wide, entry.text);
        }
    } else if !entries.is_empty() {
        let _ = writeln!(text, "{:>steps$}{:GAP$}what happened", "step", "");
        let names = format!("CPU {}", cpus[cpus.len() - 1]).len();
        let from = steps + GAP + names + GAP;
        for entry in &entries {
            let name = format!("CPU {}", entry.cpu);
            event(&mut text, entry.step, steps, from, &name, width - from, entry.text);
        }
    }
    if !ending.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        for line in wrap(ending, width) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// One event: the step, the name where there is one, and the text from column `from` on.
fn event(
    text: &mut String,
    step: u64,
    steps: usize,
    from: usize,
    name: &str,
    wide: usize,
    what: &str,
) {
    let mut before = format!("{step:>steps$}{:GAP$}{name}", "");
    for line in wrap(what, wide) {
        let _ = writeln!(text, "{before}{:1$}{line}", "", from - before.chars().count());
        before.clear();
    }
}

/// Splits at spaces where it can, within words where it must; always at least one line.
fn wrap(text: &str, wide: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_end();
        // The byte at which the first character that does not fit begins.
        while let Some((end, _)) = rest.char_indices().nth(wide) {
            let space = rest[..end].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
            let fits = if rest[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
            lines.push(rest[..fits].trim_end());
            rest = rest[fits..].trim_start();
        }
        lines.push(rest);
    }
    if lines.is_empty() {
        lines.push("");
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_cpu_has_a_column_and_the_promise_ends_it() {
        let entries = [
            Entry { cpu: 0, step: 3, text: "clears page 4" },
            Entry { cpu: 2, step: 4, text: "reads page 4: frame 7" },
            Entry { cpu: 0, step: 120, text: "flush returns" },
        ];
        let text = draw(entries, "broken promise \"revocation\"", 80);
        assert_eq!(
            text,
            "step  CPU 0                 CPU 2\n   \
             3  clears page 4\n   \
             4                        reads page 4: frame 7\n \
             120  flush returns\n\n\
             broken promise \"revocation\"\n"
        );
    }

    #[test]
    fn many_cpus_share_one_column() {
        let texts: Vec<String> = (0..12).map(|i| format!("does thing {i}")).collect();
        let entries = (0..12).map(|i| Entry { cpu: i, step: 7, text: &texts[usize::from(i)] });
        let text = draw(entries, "", 80);
        assert!(text.contains("\n   7  CPU 3   does thing 3\n"), "{text}");
        assert!(text.contains("\n   7  CPU 11  does thing 11\n"), "{text}");
    }

    #[test]
    fn long_texts_go_on_below_in_their_column() {
        let entries = [
            Entry { cpu: 0, step: 1, text: "one two three four five six seven eight nine ten" },
            Entry { cpu: 1, step: 2, text: "x".repeat(50).leak() },
        ];
        let text = draw(entries, "", 50);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "   1  one two three four");
        assert_eq!(lines[2], "      five six seven eight");
        assert!(lines[4].trim_start().starts_with("2  ") && lines[5].trim() == "x".repeat(21));
    }

    #[test]
    fn nothing_happened() {
        assert_eq!(draw([], "", 80), "");
        assert_eq!(draw([], "finished", 80), "finished\n");
    }

    proptest! {
        #[test]
        fn no_line_is_too_long_and_nothing_is_lost(
            entries in proptest::collection::vec((0..9u8, 0..2_000u64, "[a-zé ]{0,90}"), 0..20),
            width in 40..140usize,
        ) {
            let drawn = draw(
                entries.iter().map(|(cpu, step, text)| Entry { cpu: *cpu, step: *step, text }),
                "the end",
                width,
            );
            prop_assert!(drawn.lines().all(|l| l.chars().count() <= width), "{}", drawn);
            let letters = |s: &str| s.chars().filter(|c| *c == 'é').count();
            let all: usize = entries.iter().map(|e| letters(&e.2)).sum();
            prop_assert_eq!(letters(&drawn), all);
        }
    }
}

use std::collections::BTreeSet;

use shootdown_machine::hunt::dma::Mistake;
use shootdown_machine::hunt::kernel::KernelMutant;

use super::scenario::Step;
use super::*;

#[test]
fn scenarios_are_told_apart_and_say_what_they_are() {
    let mut names = BTreeSet::new();
    for s in all() {
        assert!(names.insert(s.name), "there are two of {}", s.name);
        assert!(!s.source.is_empty() && (2003..=2026).contains(&s.year), "{}", s.name);
        assert!(s.wrong.len() > 40, "{}: {}", s.name, s.wrong);
        assert!(s.kept_out.len() > 10, "{}: {}", s.name, s.kept_out);
        assert!(!s.breaks.is_empty() && !s.seen.is_empty(), "{} can pass without looking", s.name);
        let play = s.play().unwrap_or_else(|e| panic!("{}: {e}", s.name));
        assert!(play.is_whole(), "{} is whole as it is written", s.name);
        let text = play.to_string();
        assert_eq!(s.read(&text), Ok(play), "{}: {text}", s.name);
    }
    assert!(names.len() >= 30, "{} scenarios", names.len());
}

#[test]
fn every_step_of_the_model_kernel_and_of_its_port_is_somebodys_bug() {
    for mutant in KernelMutant::ALL {
        let used = all().any(|s| s.step == Step::Kernel(mutant));
        assert!(used, "no scenario breaks {}", mutant.name());
    }
    for mistake in Mistake::ALL {
        let used = all().any(|s| s.step == Step::KernelOfDevices(mistake));
        assert!(used, "no scenario breaks {}", mistake.name());
    }
}

#[test]
fn steps_of_the_library_are_ones_that_matter() {
    for mutant in all().filter_map(|s| s.step.of_library()) {
        assert_eq!(mutant.equivalent(), None, "{}", mutant.name());
    }
}

/// A scenario's row in the book.
fn row(s: &Scenario) -> String {
    let whose = match s.step {
        Step::Kernel(_) | Step::KernelOfDevices(_) => "kernel or port",
        Step::Library(_) | Step::LibraryOfDevices(_) => "library",
    };
    let breaks: Vec<&str> = s.breaks.iter().map(|i| i.name()).collect();
    format!(
        "| `{}` | {} ({}) | {} | `{}` ({whose}) | {} | {} |\n",
        s.name,
        s.source,
        s.year,
        s.wrong,
        s.step.name(),
        breaks.join(", "),
        s.kept_out
    )
}

#[test]
fn the_book_shows_every_scenario_and_no_other() {
    let page = include_str!("../../../../../docs/src/bug-zoo.md");
    let rows: String = all().map(row).collect();
    let missing: String = all().map(row).filter(|row| !page.contains(row)).collect();
    assert!(missing.is_empty(), "docs/src/bug-zoo.md lacks these rows:\n{missing}");
    let named = |line: &&str| line.starts_with("| `");
    assert_eq!(page.lines().filter(named).count(), rows.lines().count(), "rows of the book");
    let count = format!("{} scenarios", all().count());
    assert!(page.contains(&count), "the page says `{count}`");
}

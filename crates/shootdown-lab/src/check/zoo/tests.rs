use std::collections::BTreeSet;

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
        assert!(!s.breaks.is_empty() && !s.seen.is_empty(), "{} can pass without looking", s.name);
        let program = s.world().unwrap_or_else(|e| panic!("{}: {e}", s.name));
        assert_eq!(program.config.mutant, None, "{} is whole as it is written", s.name);
        let text = program.to_string();
        assert_eq!(text.parse(), Ok(program), "{}: {text}", s.name);
    }
    assert!(names.len() >= 30, "{} scenarios", names.len());
}

#[test]
fn every_step_of_the_model_kernel_and_of_its_port_is_somebodys_bug() {
    for mutant in KernelMutant::ALL {
        let used = all().any(|s| s.step == Step::Kernel(mutant));
        assert!(used, "no scenario breaks {}", mutant.name());
    }
}

#[test]
fn steps_of_the_library_are_ones_that_matter() {
    for mutant in all().filter_map(|s| s.step.of_library()) {
        assert_eq!(mutant.equivalent(), None, "{}", mutant.name());
    }
}
